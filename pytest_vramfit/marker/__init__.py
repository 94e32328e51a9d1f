"""From what a user wrote in a marker to a :class:`~pytest_vramfit.spec.Claim`.

`claim` merges the markers of a test and resolves defaults, `keywords` is the table of what each
keyword accepts, `values` reads one value, `architecture` finds a model's config values, and
`elsewhere` knows what other tools call our keywords.
"""
