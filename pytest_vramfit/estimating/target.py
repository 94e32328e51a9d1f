"""The device that a prediction is for."""

from __future__ import annotations

from dataclasses import dataclass

_HOPPER = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspaces:
    """What cuBLAS keeps in PyTorch's allocator for each thread that uses it."""

    cublas_bytes: int
    cublas_lt_bytes: int
    """Beside that, of its extension for products with a bias; 0 where it shares the other one."""


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

    @property
    def workspaces(self) -> Workspaces | None:
        """By its capability: ``parseChosenWorkspaceSize`` in CublasHandlePool.cpp."""
        if self.capability is None:
            return None
        hopper = self.capability[0] == _HOPPER
        return Workspaces(
            cublas_bytes=32 * 2**20 if hopper else 4096 * 1024 * 2 + 16 * 8 * 1024,
            cublas_lt_bytes=2**20,
        )
