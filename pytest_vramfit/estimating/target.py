"""The device that a prediction is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pytest_vramfit.catalog import gpus
from pytest_vramfit.spec import Overflow

_MIB = 2**20
_OTHER_OUTSIDE_BYTES = 776 * _MIB
"""What a training process had beside PyTorch's allocator on an H200: context, kernels, libraries.
Taken for cards of which it is not known, as the largest that was seen.
"""
_OTHER_RESERVED_SHARE = 0.025
"""What the driver keeps of a card, at the most of those seen (NVML's memory version 2)."""
_OTHER_CAPABILITY = (8, 6)
"""A card that is given as a size is taken for one of Ampere or later."""


AMPERE = (8, 0)
SMALLER_SHARED_MEMORY = {(8, 6), (8, 9), (12, 0), (12, 1)}
"""Capabilities whose blocks of threads share less of it than those of data centres' cards."""

Version = tuple[int, int]
"""Major and minor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspaces:
    """What cuBLAS has in PyTorch's allocator for each thread that uses it.

    Both stay once they are there, but cublasLt's where ``lt_for_each_call``.
    """

    cublas_bytes: int
    cublas_lt_bytes: int
    """Beside that, of its extension for products with a bias."""
    lt_for_each_call: bool


def _workspaces(capability: tuple[int, int], torch: Version) -> Workspaces:
    """What ``parseChosenWorkspaceSize`` chooses (CublasHandlePool.cpp; the constants are those in
    the wheels of 2.7 to 2.14), and cublasLt's megabyte, which peaks of 2.11 (H200) and 2.14 (T4)
    show for each thread.
    """
    if torch < (2, 12):
        large = capability == (9, 0)
    else:
        large = capability[0] in ({9, 10, 12} if torch < (2, 14) else {9, 10, 11, 12})
    return Workspaces(
        cublas_bytes=32 * _MIB if large else 2 * 4096 * 1024 + 16 * 8 * 1024,
        cublas_lt_bytes=_MIB,
        lt_for_each_call=torch < (2, 9),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A GPU, or the CPU as the ``cpu`` engine measures it."""

    name: str
    total_bytes: int
    reserved_bytes: int = 0
    """What the driver keeps for itself."""
    outside_bytes: int = 0
    """What a training process has there beside PyTorch's allocator."""
    capability: tuple[int, int] | None = None
    """CUDA's compute capability; None: the CPU."""
    torch: Version | None = None
    """PyTorch's, whose kernels and allocator are meant; None: the installed one."""
    overflow: Overflow = "oom"
    """What it does when it is full."""

    @property
    def usable_bytes(self) -> int:
        """What a training process can have in all."""
        return self.total_bytes - self.reserved_bytes

    def to_json(self) -> dict[str, Any]:
        """Every field, as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Target:
        """The inverse of :meth:`to_json`, also after a pass through JSON text."""
        capability = values["capability"]
        version = values["torch"]
        return cls(
            **{
                **values,
                "capability": tuple(capability) if capability else None,
                "torch": tuple(version) if version else None,
            }
        )

    @property
    def workspaces(self) -> Workspaces | None:
        """Of cuBLAS; the CPU has none."""
        if self.capability is None:
            return None
        assert self.torch is not None
        return _workspaces(self.capability, self.torch)


def target_of(name: str | None, total_bytes: int, overflow: Overflow = "oom") -> Target:
    """A card of the catalogue, by its name there; without one any card of that memory."""
    gpu = gpus.find(name) if name else None
    if gpu is None:
        return Target(
            name=f"a card of {total_bytes // _MIB:,} MiB",
            total_bytes=total_bytes,
            reserved_bytes=int(total_bytes * _OTHER_RESERVED_SHARE),
            outside_bytes=_OTHER_OUTSIDE_BYTES,
            capability=_OTHER_CAPABILITY,
            overflow=overflow,
        )
    reserved, outside = gpu.reserved_bytes, gpu.outside_bytes
    return Target(
        name=gpu.name,
        total_bytes=gpu.memory_bytes,
        reserved_bytes=(
            int(gpu.memory_bytes * _OTHER_RESERVED_SHARE) if reserved is None else reserved
        ),
        outside_bytes=_OTHER_OUTSIDE_BYTES if outside is None else outside,
        capability=gpu.capability,
        overflow=overflow,
    )


def assumed(name: str | None, total_bytes: int) -> dict[str, str]:
    """What :func:`target_of` does not know of the card, and what it takes it to be."""
    gpu = gpus.find(name) if name else None
    taken = target_of(name, total_bytes)
    instead = {}
    if gpu is None:
        instead["compute capability"] = ".".join(map(str, _OTHER_CAPABILITY))
    if gpu is None or gpu.reserved_bytes is None:
        instead["what the driver keeps"] = _in_mib(taken.reserved_bytes)
    if gpu is None or gpu.outside_bytes is None:
        instead["what is outside the allocator"] = _in_mib(taken.outside_bytes)
    return instead


def _in_mib(number: int) -> str:
    return f"{number / _MIB:,.0f} MiB"
