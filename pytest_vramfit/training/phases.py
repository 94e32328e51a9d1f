"""What follows the training steps where it is asked for: evaluation, saving, merging."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from pytest_vramfit.spec import Phase
from pytest_vramfit.training.step import Step


def run(phase: Phase, step: Step, eval_batch: int) -> None:
    """Do what the phase does, on the model as it is after the steps before.

    ``eval`` is a batch of ``eval_batch`` full-length sequences without gradients, its logits kept
    until the loss is there; ``save`` writes to a temporary folder what ``Trainer.save_model``
    writes, the adapters or the whole model; ``merge`` adds the adapters to the base in place.
    """
    phases: Mapping[Phase, Callable[[], object]] = {
        "eval": lambda: step.evaluate(eval_batch),
        "save": lambda: _save(step.model),
        "merge": lambda: _merge(step.model),
    }
    phases[phase]()


def _save(model: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)


def _merge(model: Any) -> nn.Module:
    merged: nn.Module = model.merge_and_unload()
    return merged
