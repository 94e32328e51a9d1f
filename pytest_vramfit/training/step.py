"""Optimizer steps as ``transformers.Trainer`` takes them, with the peak of each phase.

Per micro-batch: a full-length batch of random ids with labels = inputs, forward under autocast,
loss ÷ accumulation, backward; the output is not kept beyond the loss. Then unscale, clip, step,
update, zero_grad.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from bitsandbytes.optim import AdamW8bit
from torch import nn

from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.model import DTYPES, SEED

LEARNING_RATE = 1e-4
SGD_LEARNING_RATE = 0.1
"""With less, LoRA's A would not move: its gradient is as small as B, and SGD does not scale it."""


class Meter(Protocol):
    """What an engine offers to the step: the bytes in use and their peak."""

    def reset_peak(self) -> None:
        """Start the peak anew from what is in use now."""

    def peak_allocated_bytes(self) -> int:
        """The most bytes in use since the last reset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """The peak allocated bytes of one optimizer step by phase (the worst micro-batch of each)."""

    forward: int
    backward: int
    optimizer: int

    @property
    def step(self) -> int:
        """The peak of the whole step."""
        return max(self.forward, self.backward, self.optimizer)


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
        self._loss = torch.tensor(float("nan"))
        self._spec = spec
        self._device = device
        self._optimizer = make_optimizer(list(self.trainable.values()), spec)
        self._scaler = torch.amp.GradScaler(device.type) if spec.scaler else None
        self._generator = torch.Generator(device=device).manual_seed(SEED)
        embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
        self._vocabulary = embeddings.weight.shape[0]

    @property
    def loss(self) -> float:
        """Of the last micro-batch, before the division by accumulation; waits for the device."""
        return float(self._loss)

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
            (self._scaler.scale(loss) if self._scaler else loss).backward()
            backward = max(backward, meter.peak_allocated_bytes())
            del loss
        self.phase = "optimizer"
        meter.reset_peak()
        self._update(inspect)
        return Peaks(forward=forward, backward=backward, optimizer=meter.peak_allocated_bytes())

    def _forward(self) -> torch.Tensor:
        spec = self._spec
        ids = torch.randint(
            self._vocabulary,
            (spec.batch, spec.seq),
            device=self._device,
            generator=self._generator,
        )
        autocast = (
            torch.autocast(self._device.type, dtype=DTYPES[spec.precision])
            if spec.autocast
            else contextlib.nullcontext()
        )
        with autocast:
            loss: torch.Tensor = self.model(input_ids=ids, labels=ids).loss
        self._loss = loss.detach()
        return loss / spec.accumulation if spec.accumulation > 1 else loss

    def _update(self, inspect: Callable[[], None] | None) -> None:
        scaler = self._scaler
        if scaler:
            scaler.unscale_(self._optimizer)
        if inspect is not None:
            inspect()
        if self._spec.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.trainable.values(), self._spec.max_grad_norm)
        skipped = False
        if scaler:
            before = scaler.get_scale()
            scaler.step(self._optimizer)
            scaler.update()
            skipped = scaler.get_scale() < before
        else:
            self._optimizer.step()
        self.model.zero_grad()
        self.skipped += skipped
        self.applied += not skipped


def make_optimizer(parameters: list[nn.Parameter], spec: TrainSpec) -> torch.optim.Optimizer:
    """The optimizer under its name in the spec, without weight decay, as Trainer's default."""
    if spec.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=SGD_LEARNING_RATE)
    if spec.optimizer == "adamw_8bit":
        eight_bit: torch.optim.Optimizer = AdamW8bit(parameters, lr=LEARNING_RATE, weight_decay=0.0)
        return eight_bit
    fused = True if spec.optimizer == "adamw_fused" else None
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0, fused=fused)
