"""One case on ``meta``: from spec to the memory events of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import nn

from pytest_vramfit.estimating import after_steps, attention_kernels, kernels, loading
from pytest_vramfit.estimating.dispatch import Dispatch, replaced
from pytest_vramfit.estimating.step import META, TracedStep
from pytest_vramfit.estimating.target import Target
from pytest_vramfit.estimating.trace import Trace
from pytest_vramfit.estimating.traced import Traced
from pytest_vramfit.spec import Phase, TrainSpec
from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.model import forget_tables

STEPS = 2
"""Adam's states and the autograd thread's workspaces appear in the first: the second is steady."""


def trace(
    spec: TrainSpec, target: Target, phases: Sequence[Phase] = (), eval_batch: int = 1
) -> Traced:
    """The memory events of building the model, of two optimizer steps, and of the phases that
    follow them.

    Raises UnbuildableError where the spec does not fit the model.
    """
    if target.torch is None:
        major, minor, *_ = torch.__version__.split(".")
        target = replace(target, torch=(int(major), int(minor)))
    outline = model.outline(spec)
    adapted = adapters.targets(outline, spec)
    dispatch = Dispatch(target)
    if target.capability is None:
        recorded = Trace(kernels.EVERYWHERE)
    else:
        recorded = Trace({**kernels.CUDA, **attention_kernels.lowerings(target)}, target.workspaces)
    with recorded, dispatch, replaced(target, dispatch, recorded), _own_tables():
        with (
            recorded.beside()
        ):  # outlines have no bytes, though a module above may set their values
            for one in (*outline.parameters(), *outline.buffers()):
                recorded.count(one, "outline")
        if spec.weights == "pretrained" and target.capability is not None:
            loading.load(outline, spec, target)
        else:
            model.materialise(outline, spec, META)
        recorded.mark("weights")
        with _emptying(recorded):
            trained = adapters.prepare(outline, spec, adapted)
        recorded.mark("loaded")
        recorded.empty_cache()
        recorded.mark("settled")
        _assign_parameters(recorded, trained)
        step = TracedStep(trained, spec, target, recorded)
        recorded.follow(step)
        for _ in range(STEPS):
            step.run(recorded)
        after_steps.run(phases, step, eval_batch, target, recorded)
    return Traced(
        events=tuple(recorded.events),
        blocks=tuple(recorded.blocks),
        marks=tuple(recorded.marks),
        managed_bytes=step.managed_bytes,
        vocabulary=step.vocabulary,
    )


def _assign_parameters(recorded: Trace, trained: nn.Module) -> None:
    """Whose the bytes are that live through all steps; a name for them would keep them longer."""
    for part, tensors in adapters.parts(trained).items():
        recorded.assign(part, tensors)
    # what else lives are scales and tables of quantised weights
    recorded.assign_rest("quantisation")


@contextmanager
def _emptying(recorded: Trace) -> Iterator[None]:
    """PEFT empties CUDA's cache, where there is CUDA, after it cast the base for k-bit training."""
    with (
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.empty_cache", recorded.empty_cache),
    ):
        yield


@contextmanager
def _own_tables() -> Iterator[None]:
    """Bitsandbytes keeps tables for the life of the process, of which the next case needs its own
    device's.
    """
    forget_tables()
    try:
        yield
    finally:
        forget_tables()
