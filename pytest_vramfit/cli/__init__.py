"""The command ``pytest-vramfit``: what can be asked without running a test.

`command` is the command line; each subcommand has a module, which turns its arguments into an
`answer.Answer`. `compare` uses `sides` to read what is compared and `comparison` to say it.
"""
