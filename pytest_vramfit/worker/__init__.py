"""The process that holds the device, and pytest's side of it.

`client` starts it, asks it, times it out and replaces it, and imports no torch; `server` is what
it runs: it opens a device under a `lease` and has `measuring` or `estimating` answer. Between them,
`protocol`.
"""
