"""The library's side in the worker's process."""

from __future__ import annotations

import ctypes


class VirtualCard:
    """What PyTorch's allocator may have of the GPU, and what it has beyond.

    Raises OSError where this process was not started with the library.
    """

    def __init__(self) -> None:
        loaded = ctypes.CDLL(None)
        try:
            self._set_budget = loaded.vramfit_set_budget
            self._device_bytes = loaded.vramfit_device_bytes
            self._host_bytes = loaded.vramfit_host_bytes
            self._host_peak_bytes = loaded.vramfit_host_peak_bytes
        except AttributeError as error:
            raise OSError("the process was not started with the library") from error
        self._set_budget.argtypes = (ctypes.c_size_t,)
        self._set_budget.restype = None
        for reading in (self._device_bytes, self._host_bytes, self._host_peak_bytes):
            reading.argtypes = ()
            reading.restype = ctypes.c_size_t

    def allow(self, budget_bytes: int) -> None:
        """From now on what goes beyond so many bytes is served from host memory."""
        self._set_budget(budget_bytes)

    @property
    def device_bytes(self) -> int:
        """Served from the GPU now."""
        return int(self._device_bytes())

    @property
    def host_bytes(self) -> int:
        """Served from host memory now."""
        return int(self._host_bytes())

    @property
    def host_peak_bytes(self) -> int:
        """The most at one time since the budget was set."""
        return int(self._host_peak_bytes())
