"""The training step on ``meta``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pytest_vramfit.estimating.target import Target
from pytest_vramfit.estimating.trace import Trace
from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.step import Step

META = torch.device("meta")


class TracedStep(Step):
    """A step whose batches, autocast, scaler and threads are what ``meta`` has of them."""

    def __init__(self, model: nn.Module, spec: TrainSpec, target: Target, trace: Trace) -> None:
        self._target = target
        self._trace = trace
        super().__init__(model, spec, META)

    def token_ids(self, vocabulary: int, batch: int, seq: int) -> torch.Tensor:
        """Ids without values: ``meta`` has no generator."""
        return torch.randint(vocabulary, (batch, seq), device=META)

    @contextmanager
    def autocast(self, dtype: torch.dtype) -> Iterator[None]:
        """The CPU's state, which :class:`~pytest_vramfit.estimating.autocast.Autocast` goes by."""
        with torch.autocast("cpu", dtype=dtype), self._said_to_be_on():
            yield

    def make_scaler(self) -> torch.amp.GradScaler:
        """One whose gradients are always finite."""
        return _Scaler("meta")

    def backward(self, loss: torch.Tensor) -> None:
        """By the engine itself: the functions above it take modes away, which what is recomputed in
        the backward pass needs.
        """
        with self._trace.in_autograd(), self._said_to_be_on():
            torch.autograd.Variable._execution_engine.run_backward(
                (loss,),
                (torch.ones_like(loss),),
                False,  # keep_graph
                False,  # create_graph
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )
        gradients = (one.grad for one in self.trainable.values())
        self._trace.assign("gradients", (one for one in gradients if one is not None))

    def apply(self) -> bool:
        """The optimizer's step."""
        skipped = super().apply()
        self._trace.assign("optimizer", self.optimizer_states())
        return skipped

    def await_loss(self, loss: torch.Tensor) -> None:
        """There is nothing to wait for, and no value."""

    @contextmanager
    def _said_to_be_on(self) -> Iterator[None]:
        """PEFT asks whether autocast is on for CUDA, and casts its inputs where it is not."""
        before = torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled(
            "cuda", self._target.capability is not None and self._spec.autocast
        )
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", before)


class _Scaler(torch.amp.GradScaler):
    """Never reads whether a gradient overflowed, which ``meta`` does not know."""

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: Any, *args: Any, **kwargs: Any
    ) -> None:
        optimizer.step(*args, **kwargs)

    def get_scale(self) -> float:
        """The initial one."""
        return self.get_growth_factor()
