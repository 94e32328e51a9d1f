"""The pytest side: hooks, options, marker layers, fixture, progress.

Nothing else in the package imports pytest.
"""
