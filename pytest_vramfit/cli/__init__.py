"""The command ``pytest-vramfit``: what can be asked without running a test.

`command` is the command line; each subcommand has a module, which turns its arguments into an
`answer.Answer`. `estimate` and `ceiling` read the marker's keywords by `marker_arguments`, ask a
`predictor` and say its cases by `prediction_words`; `ceiling` goes along one of the `axes`.
`compare` reads its `sides`, makes `pairs` of their cases and says them by `pair_words`; `prune`
asks pytest what is `collected`, which writes it by the plugin `listing`.
"""
