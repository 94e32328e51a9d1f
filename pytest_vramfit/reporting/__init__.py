"""Words and files made from verdicts: all prose, units and rounding live here.

`figures` writes quantities, `words` sentences, `failure` the text of a failed case, `summary` the
terminal's last lines, `results` the JSON file, `junit` the properties of a test case.
"""
