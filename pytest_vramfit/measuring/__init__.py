"""Measuring one case: the worker process that runs it, and the client that pytest talks through.

`client` and `nvml` run in pytest's process and import no torch; `worker`, `case`, `cuda` and
`cpu` run in the worker. Between them, `protocol`.
"""
