"""What follows the training steps, on ``meta``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from bitsandbytes.nn import Int8Params

from pytest_vramfit.estimating.step import TracedStep
from pytest_vramfit.estimating.target import Target
from pytest_vramfit.estimating.trace import Trace
from pytest_vramfit.spec import Phase
from pytest_vramfit.training import phases as real


def run(
    phases: Sequence[Phase], step: TracedStep, eval_batch: int, target: Target, recorded: Trace
) -> None:
    """Do what each phase does, between its marks."""
    with _without_values(), _by_way_of_the_host(target, recorded):
        for phase in phases:
            step.phase = phase
            recorded.reset_peak()
            real.run(phase, step, eval_batch)
            recorded.peak_allocated_bytes()


@contextmanager
def _without_values() -> Iterator[None]:
    """What is saved has no values and no address; gathering it takes memory, writing it none of the
    device's.
    """

    def write_nothing(*_args: object, **_kwargs: object) -> None:
        pass

    with (
        patch("torch.Tensor.item", lambda _: 0.0),
        patch("peft.peft_model.id_tensor_storage", lambda one: one.untyped_storage()._cdata),
        patch("peft.peft_model.safe_save_file", write_nothing),
        patch("transformers.modeling_utils.safe_save_file", write_nothing),
    ):
        yield


@contextmanager
def _by_way_of_the_host(target: Target, recorded: Trace) -> Iterator[None]:
    """PEFT merges into a quantised weight by ``Params4bit(merged.to("cpu")).to(weight.device)``,
    which quantises again (``merge`` in peft/tuners/lora/bnb.py).
    """
    to = torch.Tensor.to

    def moved(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args != ("cpu",):
            return to(tensor, *args, **kwargs)
        if target.capability is None:
            return tensor  # it is there
        with recorded.beside():
            return torch.empty_like(tensor)

    def quantised(self: Any, device: torch.device) -> Any:
        if target.capability is not None:  # to the device again; int8 is cast on the way
            dtype = torch.float16 if isinstance(self, Int8Params) else self.data.dtype
            self.data = torch.empty_like(self.data, dtype=dtype)
        return self._quantize(device)

    with (
        patch("torch.Tensor.to", moved),
        patch("bitsandbytes.nn.Params4bit.to", quantised),
        patch("bitsandbytes.nn.Int8Params.to", quantised),
    ):
        yield
