"""Settings of the unit tests: the same examples in every run."""

from hypothesis import settings

settings.register_profile("unit", database=None, deadline=None, derandomize=True, max_examples=100)
settings.load_profile("unit")
