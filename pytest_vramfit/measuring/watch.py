"""What the timed steps ran under: energy, clocks, throttling, other work on the machine."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from statistics import fmean
from typing import Literal

import psutil  # a dependency of PEFT

from pytest_vramfit.measurement import Conditions, median
from pytest_vramfit.measuring.nvml import Counters, Gpu

_EnergyFrom = Literal["counter", "samples", "power limit"]
_ROUND = 2**32
"""Where NVML's counters of bytes over the bus begin anew."""
_SHORTEST_NS = 100_000_000
"""The operating system counts the time of processors in ticks of 10 ms."""


class Watch:
    """Started before the timed steps, sampled after each, asked at the end.

    Without a ``gpu`` it sees the machine's processors only.
    """

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu
        self._samples: list[Counters] = []
        self._begin_ns = self._end_ns = time.perf_counter_ns()
        self._begin_cpu = self._end_cpu = _cpu_seconds()
        self.sample()

    def sample(self) -> None:
        """Read the GPU's counters; the last sample ends the window of energy and other work."""
        if self._gpu is not None:
            self._samples.append(self._gpu.counters())
        self._end_ns = time.perf_counter_ns()
        self._end_cpu = _cpu_seconds()

    def conditions(self) -> Conditions:
        """What the window saw; throttling up to now."""
        others = self._others_cpu_share()
        if self._gpu is None:
            return Conditions(others_cpu_share=others)
        first, last = self._samples[0], self._samples[-1]
        now = self._gpu.counters()
        energy_mj, energy_from = self._energy(self._gpu)
        clocks = [one.sm_clock_mhz for one in self._samples[1:] if one.sm_clock_mhz is not None]
        return Conditions(
            energy_mj=energy_mj,
            energy_from=energy_from,
            pcie_bytes=self._pcie_bytes(),
            gpu_busy_percent=last.gpu_busy_percent,
            memory_busy_percent=last.memory_busy_percent,
            sm_clock_mhz=median(clocks) if clocks else None,
            temperature_c=last.temperature_c,
            throttled_ns={
                name: now.throttled_ns[name] - before
                for name, before in first.throttled_ns.items()
                if name in now.throttled_ns
            }
            or None,
            others_cpu_share=others,
        )

    def _pcie_bytes(self) -> int | None:
        """At least so many: a counter that went round more than once between two samples does not
        show it.
        """
        readings = [one.pcie_bytes for one in self._samples]
        if len(readings) == 1:
            return None
        total = 0
        for before, after in pairwise(readings):
            if before is None or after is None:
                return None
            total += sum((after[name] - before[name]) % _ROUND for name in before)
        return total

    def _energy(self, gpu: Gpu) -> tuple[int | None, _EnergyFrom | None]:
        """The best that this GPU has to say."""
        first, last = self._samples[0].energy_mj, self._samples[-1].energy_mj
        if first is not None and last is not None and last > first:
            return last - first, "counter"
        seconds = (self._end_ns - self._begin_ns) / 1e9
        drawn = [one.power_mw for one in self._samples[1:] if one.power_mw is not None]
        if drawn:
            return round(fmean(drawn) * seconds), "samples"
        limit = gpu.power_limit_mw()
        return (None, None) if limit is None else (round(limit * seconds), "power limit")

    def _others_cpu_share(self) -> float | None:
        elapsed_ns = self._end_ns - self._begin_ns
        if elapsed_ns < _SHORTEST_NS:
            return None
        (all_before, own_before), (all_after, own_after) = self._begin_cpu, self._end_cpu
        others = (all_after - all_before) - (own_after - own_before)
        return round(max(0.0, others) / (elapsed_ns / 1e9 * (os.cpu_count() or 1)), 3)


def _cpu_seconds() -> tuple[float, float]:
    """The busy time of all processors and of this process so far."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # the guests' time is counted in user and nice already
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    own = psutil.Process().cpu_times()
    return sum(times) - idle - guests, own.user + own.system
