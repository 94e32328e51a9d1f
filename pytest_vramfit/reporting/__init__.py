"""Words and files made from verdicts: all prose, units and rounding live here.

`figures` writes quantities, `words` sentences, `failure` the text of a failed case, `header` the
terminal's first line and `summary` its last ones, `results` the JSON file, `junit` the properties
of a test case.
"""
