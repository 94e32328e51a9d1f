"""Both clocks on a real GPU: they repeat, they raise no false alarm, they see what they must."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import permutations
from pathlib import Path

import psutil
import pytest

from pytest_vramfit.baseline import Entry, Process
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.measurement import Conditions, Measurement, median
from pytest_vramfit.spec import Limits
from pytest_vramfit.verdict import Check, regressions
from pytest_vramfit.worker.client import Worker
from pytest_vramfit.worker.protocol import Measured, Request

HERE = Path(__file__).parent
PROCESSES = 12
CASES: dict[str, dict[str, object]] = {
    "1.5B": {"model": "Qwen2.5-1.5B", "warmup": 2},
    "7B": {"model": "Qwen2.5-7B", "warmup": 2},
}
STRICT = Limits(gpu_ratio=1.01)
_IDLE_PERCENT = 15


def claim_of(name: str):
    return read_claim([CASES[name]], rootdir=HERE)


def entry(name: str, processes: Sequence[Process]) -> Entry:
    spec = claim_of(name).spec
    return Entry(
        nodeid=name,
        engine="gpu",
        device="this one",
        digest=spec.digest,
        spec=spec.to_json(),
        peak_allocated_bytes=1,
        processes=tuple(processes),
        environment={},
    )


def check(
    name: str,
    limits: Limits,
    now: Entry,
    before: Entry,
    conditions: Sequence[Conditions] = (),
) -> Check:
    (found,) = (one for one in regressions(limits, now, before, conditions) if one.name == name)
    return found


def until_idle() -> None:
    """Wait until the imports of the workers are over."""
    deadline = time.monotonic() + 120
    while psutil.cpu_percent(2) > _IDLE_PERCENT and time.monotonic() < deadline:
        pass


def spin() -> None:
    while True:
        pass


@contextmanager
def all_cores_busy() -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    busy = [context.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for one in busy:
        one.start()
    try:
        yield
    finally:
        for one in busy:
            one.kill()


def in_fresh_processes(load: AbstractContextManager[None]) -> dict[str, list[Measurement]]:
    """Every case in each of twelve processes, one process after the other, under this load."""
    workers = [Worker("gpu") for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    until_idle()
    taken: dict[str, list[Measurement]] = {name: [] for name in CASES}
    with load:
        for worker in workers:
            try:
                for name in CASES:
                    claim = claim_of(name)
                    request = Request(spec=claim.spec, schedule=claim.schedule)
                    reply = worker.measure(request, lambda _: None)
                    assert isinstance(reply, Measured), reply
                    taken[name].append(reply.measurement)
            finally:
                worker.stop()
    return taken


@pytest.fixture(scope="module")
def idle() -> dict[str, list[Measurement]]:
    return in_fresh_processes(nullcontext())


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[Measurement]]:
    return in_fresh_processes(all_cores_busy())


@pytest.fixture(params=["idle", "loaded"])
def taken(request) -> dict[str, list[Measurement]]:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", CASES)
def test_gpu_time_repeats(taken, name):
    medians = [one.median_gpu_ns for one in taken[name]]
    walls = [one.median_step_ns for one in taken[name]]
    print(f"\n{name} GPU ms", [f"{one / 1e6:.2f}" for one in medians])
    print(f"{name} wall ms", [f"{one / 1e6:.0f}" for one in walls])
    print(f"{name} others", [one.conditions.others_cpu_share for one in taken[name]])
    spread = max(medians) / min(medians) - 1
    print(f"{name} spread: GPU {spread:.3%}, wall {max(walls) / min(walls) - 1:.1%}")
    assert spread <= 0.005


def test_no_false_alarm(taken):
    """264 ordered pairs of processes, one as the baseline of the other."""
    statuses: Counter[tuple[str, str]] = Counter()
    for name, measurements in taken.items():
        for now, before in permutations(measurements, 2):
            sides = entry(name, [Process.of(now)]), entry(name, [Process.of(before)])
            for label, limits in (("default", Limits()), ("1.01", STRICT)):
                found = check("gpu_time", limits, *sides)
                statuses[f"gpu_time at {label}", found.status] += 1
            found = check("step_time", Limits(), *sides, [now.conditions])
            statuses["step_time", found.status] += 1
    print("\n", dict(statuses))
    pairs = len(CASES) * PROCESSES * (PROCESSES - 1)
    assert statuses["gpu_time at default", "pass"] == pairs == 264
    assert statuses["gpu_time at 1.01", "pass"] == pairs
    assert statuses["step_time", "fail"] == 0


def test_clocks_cost_little(idle):
    """Beside the steps themselves: at most 4 s in a 7B case."""
    for one in idle["7B"]:
        profiled = one.stages_ns["profiled"] - 3 * one.median_step_ns
        assert profiled < 4e9
    worst = max(one.stages_ns["profiled"] for one in idle["7B"])
    print(f"\nprofiling 3 steps of the 7B took at most {worst / 1e9:.2f} s")


CHANGES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "checkpointing off": ({"checkpointing": True}, {}),
    "eager attention": ({}, {"attention": "eager"}),
    "one more target": (
        {"targets": ["q_proj", "v_proj"]},
        {"targets": ["q_proj", "v_proj", "o_proj"]},
    ),
    "k-bit upcast": ({"kbit_upcast": False}, {}),
    "adapters in fp32": ({"adapter_dtype": "bf16"}, {}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_config_is_caught(measure, change):
    """As it would be if its digest did not already tell: by the peak or by GPU time, at 1.01."""
    sides = [
        Entry.of("a", "gpu", read_claim([keywords], rootdir=HERE).spec, [measure(**keywords)])
        for keywords in ({**CASES["1.5B"], **one} for one in CHANGES[change])
    ]
    before, now = sides
    found = {one.name: one for one in regressions(STRICT, now, before)}
    print(f"\n{change}: peak {found['peak_baseline'].ratio:.4f}, GPU {found['gpu_time'].ratio:.4f}")
    assert "fail" in {found["peak_baseline"].status, found["gpu_time"].status}


@pytest.fixture(scope="module")
def usual(measure_fresh: Callable[..., Measurement]) -> Entry:
    """The step as it is, from three processes, as a baseline has it."""
    taken = [measure_fresh(**CASES["1.5B"]) for _ in range(3)]
    return entry("1.5B", [Process.of(one) for one in taken])


@pytest.fixture(scope="module")
def slowed() -> dict:
    command = [sys.executable, str(HERE / "slowed_step.py"), json.dumps(CASES["1.5B"])]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    line = next(one for one in run.stdout.splitlines() if one.startswith("SAMPLES "))
    return json.loads(line.removeprefix("SAMPLES "))


def test_power_of_gpu_time(usual, slowed):
    """2 % more work on the GPU is caught every time at gpu_ratio=1.01; no more work is not."""
    caught: dict[str, Counter[str]] = {}
    usual_ns = usual.median_gpu_ns
    assert usual_ns is not None
    for slowdown, trials in slowed["trials"].items():
        for samples in trials:
            process = Process(step_ns=(1,), gpu_ns=tuple(samples), kernels=None)
            found = check("gpu_time", STRICT, entry("1.5B", [process]), usual)
            caught.setdefault(slowdown, Counter())[found.status] += 1
        ratios = sorted(median(one) / usual_ns for one in trials)
        print(f"{slowdown}: {dict(caught[slowdown])}, ratios {ratios[0]:.4f} to {ratios[-1]:.4f}")
    assert caught["0.0"]["fail"] == 0
    for slowdown in ("0.02", "0.03", "0.05", "0.1"):
        assert caught[slowdown] == {"fail": 20}


def test_a_sleep_on_the_host_is_seen_by_the_wall_clock_alone(usual, slowed):
    gpu = tuple(slowed["trials"]["0.0"][0])
    process = Process(step_ns=tuple(slowed["asleep_ns"]), gpu_ns=gpu, kernels=None)
    step, gpu_time = (
        check(name, Limits(), entry("1.5B", [process]), usual) for name in ("step_time", "gpu_time")
    )
    print("\nasleep", step.ratio, step.interval, gpu_time.ratio)
    assert (step.status, gpu_time.status) == ("fail", "pass")
    assert "host_side" in {finding.kind for finding in step.findings}
