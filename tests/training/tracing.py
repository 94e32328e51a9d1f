"""Traces of tiny cases, and what the CPU engine says of them in the same words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch

from pytest_vramfit.estimating.target import Target
from pytest_vramfit.events import Action, block_bytes
from pytest_vramfit.measuring.cpu import CpuBench
from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.step import Step

CPU = Target(name="The CPU", total_bytes=2**40)
CARD = Target(name="A card", total_bytes=2**40, capability=(8, 6), torch=(2, 13))
STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Bytes of whole blocks."""

    loaded: int
    load_peak: int
    phases: tuple[tuple[str, int], ...]
    """The peak of each phase of both steps, of every micro-batch."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tensors are tiny: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def shown(value):
    """As the id of a test: configs by their type only."""
    if isinstance(value, dict) and isinstance(value.get("model"), dict):
        value = {**value, "model": value["model"]["model_type"]}
    return str(value)


def described(results):
    """Shape, strides and type of each tensor."""
    every = results if isinstance(results, tuple | list) else (results,)
    return [
        (tuple(one.shape), one.stride(), one.dtype) if isinstance(one, torch.Tensor) else one
        for one in every
    ]


def living(events):
    """The bytes of living blocks after each event."""
    size = {number: block_bytes(b) for action, number, b in events if action is Action.ALLOCATE}
    sign = {Action.ALLOCATE: 1, Action.FREE: -1}
    changes = (sign[one] * size[number] if one in sign else 0 for one, number, _ in events)
    return list(accumulate(changes))


def traced_figures(traced):
    """Of a trace, its blocks added up without an allocator."""
    live = living(traced.events)
    at = {}
    phases = []
    for index, (action, number, _) in enumerate(traced.events):
        if action is Action.MARK:
            phase, _, moment = traced.marks[number].partition(" ")
            at[moment or phase] = index
            if moment == "ends":
                phases.append((phase, max(live[at["begins"] : index])))
    loaded = at["loaded"]
    return Figures(loaded=live[loaded], load_peak=max(live[:loaded]), phases=tuple(phases))


def measured_figures(spec):
    """Of the CPU engine, which runs the case for real."""
    bench = CpuBench()
    bench.begin(None)
    try:
        return _figures(spec, bench)
    finally:
        assert bench.end()


def _figures(spec, bench):
    outline = model.outline(spec)
    adapted = adapters.targets(outline, spec)
    base = model.build(outline, spec, bench.torch_device)
    trained = adapters.prepare(base, spec, adapted)
    loaded, load_peak = bench.allocated_bytes(), bench.peak_allocated_bytes()
    bench.settle()
    step = Step(trained, spec, bench.torch_device)
    phases = []

    class Meter:
        def reset_peak(self):
            bench.reset_peak()

        def peak_allocated_bytes(self):
            phases.append((step.phase, bench.peak_allocated_bytes()))
            return bench.peak_allocated_bytes()

    for _ in range(STEPS):
        step.run(Meter())
    return Figures(loaded=loaded, load_peak=load_peak, phases=tuple(phases))
