"""The training step itself: one piece of code for every engine.

:func:`~pytest_vramfit.training.model.build` makes the base model, `adapters` prepares it as a
trainer does, `step` runs optimizer steps, `proof` collects the evidence that they trained.
Imports torch; runs in the worker only.
"""
