"""Optimizer steps as ``transformers.Trainer`` takes them, with the peak of each phase.

Per micro-batch: a full-length batch of random ids with labels = inputs, forward under autocast,
loss ÷ accumulation, backward; the output is not kept beyond the loss. Then unscale, clip, step,
update, zero_grad.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import bitsandbytes
import torch
from torch import nn
from transformers import Adafactor

from pytest_vramfit.measurement import Peaks
from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.model import DTYPES, SEED

LEARNING_RATE = 1e-4
BITSANDBYTES = ("adamw_8bit", "paged_adamw", "paged_adamw_8bit")
"""Optimizers of bitsandbytes; the states of paged ones are in managed memory."""
SGD_LEARNING_RATE = 0.1
"""With less, LoRA's A would not move: its gradient is as small as B, and SGD does not scale it."""


FULL_LENGTH = (1.0,)
VARIED_LENGTHS = (1.0, 0.25, 0.75, 0.5)
"""Of ``seq``, in turn: short and long ones mixed fragment the allocator's memory."""


class Meter(Protocol):
    """What an engine offers to the step: the bytes in use and their peak."""

    def reset_peak(self) -> None:
        """Start the peak anew from what is in use now."""

    def peak_allocated_bytes(self) -> int:
        """The most bytes in use since the last reset."""


class Step:
    """One model, its optimizer and its batches; :meth:`run` is one optimizer step.

    ``phase`` names what is running, so that an out-of-memory error can be placed. ``applied`` and
    ``skipped`` count optimizer steps; the scaler skips those whose gradients overflow.
    """

    def __init__(self, model: nn.Module, spec: TrainSpec, device: torch.device) -> None:
        self.model = model
        self.trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.phase = "forward"
        self.applied = 0
        self.skipped = 0
        self._loss: torch.Tensor | None = None
        self._spec = spec
        self._device = device
        self._optimizer = make_optimizer(list(self.trainable.values()), spec)
        self._scaler = self.make_scaler() if spec.scaler else None
        embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
        self.vocabulary = embeddings.weight.shape[0]
        self.vary_lengths(FULL_LENGTH)
        if spec.compile:
            model.compile()

    @property
    def loss(self) -> float:
        """Of the last micro-batch, before the division by accumulation; waits for the device."""
        return math.nan if self._loss is None else float(self._loss)

    @property
    def managed_bytes(self) -> int:
        """Optimizer states in managed memory, which no allocator counts."""
        return sum(one.nbytes for one in self.optimizer_states() if getattr(one, "is_paged", False))

    def optimizer_states(self) -> Iterator[torch.Tensor]:
        """The optimizer's tensors, wherever they are."""
        for state in self._optimizer.state.values():
            yield from (one for one in state.values() if isinstance(one, torch.Tensor))
        # bitsandbytes' tables of 8-bit states, which are in no state where all are too small
        yield from getattr(self._optimizer, "name2qmap", {}).values()

    def vary_lengths(self, lengths: Sequence[float]) -> None:
        """From now on batches have these shares of ``seq`` in turn."""
        seq = self._spec.seq
        self._seqs = itertools.cycle(max(2, int(seq * share)) for share in lengths)

    def run(self, meter: Meter, inspect: Callable[[], None] | None = None) -> Peaks:
        """One optimizer step; ``inspect`` is called when the gradients are complete, unscaled and
        not yet clipped.
        """
        forward = backward = 0
        for _ in range(self._spec.accumulation):
            self.phase = "forward"
            meter.reset_peak()
            loss = self._forward()
            forward = max(forward, meter.peak_allocated_bytes())
            self.phase = "backward"
            meter.reset_peak()
            self.backward(self._scaler.scale(loss) if self._scaler else loss)
            backward = max(backward, meter.peak_allocated_bytes())
            del loss
        self.phase = "optimizer"
        meter.reset_peak()
        self._update(inspect)
        return Peaks(forward=forward, backward=backward, optimizer=meter.peak_allocated_bytes())

    @functools.cached_property
    def _generator(self) -> torch.Generator:
        return torch.Generator(device=self._device).manual_seed(SEED)

    def token_ids(self, vocabulary: int, batch: int, seq: int) -> torch.Tensor:
        """Random ids below ``vocabulary``, the same in every process."""
        return torch.randint(
            vocabulary, (batch, seq), device=self._device, generator=self._generator
        )

    def autocast(self, dtype: torch.dtype) -> AbstractContextManager[object]:
        """Autocast to ``dtype``."""
        return torch.autocast(self._device.type, dtype=dtype)

    def make_scaler(self) -> torch.amp.GradScaler:
        """The gradient scaler of fp16."""
        return torch.amp.GradScaler(self._device.type)

    def backward(self, loss: torch.Tensor) -> None:
        """The backward pass."""
        loss.backward()

    def apply(self) -> bool:
        """Take the optimizer's step; whether the scaler skipped it, for gradients overflowed."""
        if self._scaler is None:
            self._optimizer.step()
            return False
        before = self._scaler.get_scale()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return self._scaler.get_scale() < before

    def await_loss(self, loss: torch.Tensor) -> None:
        """Wait until the device has the loss."""
        float(loss)

    def evaluate(self, batch: int) -> None:
        """A batch of full-length sequences in evaluation mode, without gradients."""
        self.model.eval()
        with torch.no_grad(), self._autocast():
            ids = self.token_ids(self.vocabulary, batch, self._spec.seq)
            # bound to a name: the logits live as long as the loss is awaited
            output = self.model(input_ids=ids, labels=ids)
        self.await_loss(output.loss)
        self.model.train()

    def _forward(self) -> torch.Tensor:
        spec = self._spec
        ids = self.token_ids(self.vocabulary, spec.batch, next(self._seqs))
        with self._autocast():
            loss: torch.Tensor = self.model(input_ids=ids, labels=ids).loss
        self._loss = loss.detach()
        return loss / spec.accumulation if spec.accumulation > 1 else loss

    def _autocast(self) -> AbstractContextManager[object]:
        if not self._spec.autocast:
            return nullcontext()
        return self.autocast(DTYPES[self._spec.precision])

    def _update(self, inspect: Callable[[], None] | None) -> None:
        if self._scaler:
            self._scaler.unscale_(self._optimizer)
        if inspect is not None:
            inspect()
        if self._spec.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.trainable.values(), self._spec.max_grad_norm)
        skipped = self.apply()
        self.model.zero_grad()
        self.skipped += skipped
        self.applied += not skipped


def make_optimizer(parameters: list[nn.Parameter], spec: TrainSpec) -> torch.optim.Optimizer:
    """The optimizer under its name in the spec, without weight decay, as Trainer's default."""
    if spec.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=SGD_LEARNING_RATE)
    if spec.optimizer == "adafactor":
        # as Trainer sets it
        adafactor: torch.optim.Optimizer = Adafactor(
            parameters, lr=LEARNING_RATE, scale_parameter=False, relative_step=False
        )
        return adafactor
    if spec.optimizer in BITSANDBYTES:
        theirs: torch.optim.Optimizer = bitsandbytes.optim.AdamW(
            parameters,
            lr=LEARNING_RATE,
            weight_decay=0.0,
            optim_bits=8 if "8bit" in spec.optimizer else 32,
            is_paged=spec.paged,
        )
        return theirs
    fused = True if spec.optimizer == "adamw_fused" else None
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0, fused=fused)
