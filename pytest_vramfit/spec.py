"""What is trained, what must hold, and for how long it is measured.

Three frozen value objects, made by :mod:`pytest_vramfit.marker` and read by everything after it.
They hold resolved values only: config values instead of a name or a path, ``alpha`` instead of
"twice the rank", bytes instead of text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from pytest_vramfit.quantity import NO_HEADROOM, Headroom

Method = Literal["full", "lora", "qlora"]
Dtype = Literal["bf16", "fp16", "fp32"]
Phase = Literal["eval", "save", "merge"]
Overflow = Literal["oom", "spill"]
"""What an emulated card does when it is full: refuse, or serve from host memory as Windows does."""
PHASES: tuple[Phase, ...] = ("eval", "save", "merge")
"""What may follow the training steps, in this order."""
CHECKS = (
    "no_oom",
    "peak_within_vram",
    *PHASES,
    "resident",
    "headroom",
    "trained",
    "max_step",
    "step_time",
    "gpu_time",
    "steady",
    "peak_baseline",
)
"""What is claimed of a case, in the order in which a failed one names its outcome."""
ConfigValues = Mapping[str, Any]
"""Hugging Face config values, JSON all through, with ``model_type``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSpec:
    """The training step: model, method, batch, numerics, optimizer.

    Fields that a method does not use are None: adapter fields for ``full``, quantisation fields
    for ``full`` and ``lora``. A field added later must have a default that means "as before":
    the digest leaves out every field at its default, so old digests stay.
    """

    model: str
    """The name to show; not part of what is trained."""
    config: ConfigValues
    """Empty where only the worker can read it, from ``checkpoint``."""
    method: Method
    seq: int
    """Tokens in a sequence."""
    batch: int
    """Sequences in a micro-batch."""
    accumulation: int
    """Micro-batches in an optimizer step."""
    precision: Dtype
    """The dtype of the arithmetic."""
    dtype: Dtype
    """The dtype in which the unquantised base is kept."""
    optimizer: str
    autocast: bool = True
    max_grad_norm: float | None = 1.0
    checkpointing: bool | Literal["reentrant"] = False
    attention: str = "sdpa"
    rank: int | None = None
    alpha: float | None = None
    dropout: float | None = None
    targets: str | tuple[str, ...] | None = None
    adapter_dtype: Dtype | None = None
    quant: str | None = None
    double_quant: bool | None = None
    kbit_upcast: bool | None = None
    modules_to_save: tuple[str, ...] | None = None
    """Modules that are trained as a whole beside the adapters."""
    dora: bool = False
    rslora: bool = False
    liger: bool = False
    compile: bool = False
    alloc_conf: str | None = None
    """PyTorch's allocator settings, as in its environment variable."""
    weights: Literal["random", "pretrained"] = "random"
    checkpoint: str | None = None
    """The folder or hub id that pretrained weights come from, or an unknown config; what is trained
    does not depend on it where ``config`` is known."""
    revision: str | None = None
    """Of a hub id: a branch, tag or commit."""
    lengths: Literal["full", "varied"] = "full"
    """Whether every batch has ``seq`` tokens a sequence, or some have less in turn."""

    @property
    def tokens(self) -> int:
        """Tokens that one optimizer step trains on, where every batch is full-length."""
        return self.seq * self.batch * self.accumulation

    @property
    def paged(self) -> bool:
        """Whether the optimizer's states are in managed memory."""
        return self.optimizer.startswith("paged")

    @property
    def scaler(self) -> bool:
        """Whether a gradient scaler is used, as ``Trainer(fp16=True)`` does."""
        return self.precision == "fp16" and self.autocast

    def to_json(self) -> dict[str, Any]:
        """Every field, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        # as it is read back, so that what was recorded can be compared with what is asked now
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainSpec:
        """The inverse of :meth:`to_json`, also after a pass through JSON text."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**fields)

    @property
    def digest(self) -> str:
        """16 hex digits that two specs share when they train the same thing.

        SHA-256 over the canonical JSON of all fields that differ from their default, without
        the model's name and, where its config is known, its checkpoint.
        """
        digest = self.digest_of(self.to_json())
        assert digest is not None
        return digest

    @classmethod
    def digest_of(cls, values: Mapping[str, Any]) -> str | None:
        """The digest of a spec as JSON values, whatever they are.

        None where they have a field that only a newer version knows: whether it is at its
        default, and so left out, cannot be told.
        """
        defaults = {field.name: field.default for field in fields(cls)}
        if not defaults.keys() >= values.keys():
            return None
        names = {"model", "checkpoint"} if values.get("config") else {"model"}
        trained = {
            name: value
            for name, value in values.items()
            if name not in names and (defaults[name] is MISSING or value != defaults[name])
        }
        text = json.dumps(trained, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What must hold for the case to pass."""

    card_bytes: int | None = None
    """The memory to judge by; None for the device's own."""
    card: str | None = None
    """The catalogue's name of the card with that memory, where it has one."""
    overflow: Overflow = "oom"
    """What that card does when it is full, where a larger GPU passes for it."""
    headroom: Headroom = NO_HEADROOM
    max_step_ns: int | None = None
    step_ratio: float | None = 1.25
    """Wall time of the step ÷ that of the baseline, at most; None: not judged."""
    gpu_ratio: float | None = 1.05
    """The same of GPU time."""
    peak_ratio: float | None = 1.01
    """The same of the peak allocated."""
    require: frozenset[str] = frozenset()
    """Checks that fail where they cannot be made."""

    def to_json(self) -> dict[str, Any]:
        """Every limit, as JSON values."""
        return {
            "card_bytes": self.card_bytes,
            "card": self.card,
            "overflow": self.overflow,
            "headroom": {"share": self.headroom.share, "size_bytes": self.headroom.size_bytes},
            "max_step_ns": self.max_step_ns,
            "step_ratio": self.step_ratio,
            "gpu_ratio": self.gpu_ratio,
            "peak_ratio": self.peak_ratio,
            "require": sorted(self.require),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Limits:
        """The inverse of :meth:`to_json`."""
        return cls(
            **{
                **values,
                "headroom": Headroom(**values["headroom"]),
                "require": frozenset(values["require"]),
            }
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How long a case is measured."""

    warmup: int = 3
    """Applied optimizer steps before the timed ones. Adam's state appears in the first, LoRA's A
    moves from the second, so two are the least."""
    steps: int = 5
    """Timed optimizer steps."""
    timeout_s: float = 600.0
    """Seconds for the case from the moment it has the device."""
    phases: tuple[Phase, ...] = ()
    """What is measured after the training steps."""
    eval_batch: int = 8
    """Sequences in a batch of the phase ``eval``; 8 as Trainer's ``per_device_eval_batch_size``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A training configuration as a claim about hardware: what one marker says."""

    spec: TrainSpec
    limits: Limits
    schedule: Schedule
