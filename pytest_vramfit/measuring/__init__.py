"""Measuring one case on a device: `case` takes it through its steps on a `bench`, `cuda` or `cpu`.

Imports torch and runs in the worker, but for `nvml` and `host`, which pytest's process asks too.
"""
