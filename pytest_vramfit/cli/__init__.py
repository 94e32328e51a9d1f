"""The command ``pytest-vramfit``: what can be asked without running a test.

`command` is the command line; each subcommand has a module, which turns its arguments into an
`answer.Answer`. `compare` reads its `sides`, makes `pairs` of their cases and says them by
`pair_words`; `prune` asks pytest what is `collected`, which writes it
by the plugin `listing`.
"""
