"""GPU time as the union of intervals; the profiler itself runs with a GPU only."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_vramfit.measuring import profiler
from pytest_vramfit.measuring.profiler import gpu_work, union_ns

INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda one: (one[0], sum(one))),
    max_size=12,
)
"""Begin and end, few enough values that they touch, overlap, repeat and are empty."""


@settings(database=None, deadline=None, derandomize=True, max_examples=500)
@given(intervals=INTERVALS)
def test_union_is_the_number_of_ns_in_any_interval(intervals):
    covered = {ns for begin, end in intervals for ns in range(begin, end)}
    assert union_ns(intervals) == len(covered)


@pytest.mark.parametrize(
    ("intervals", "total"),
    [
        ([], 0),
        ([(5, 5)], 0),
        ([(10, 20), (20, 30)], 20),
        ([(10, 20), (21, 30)], 19),
        ([(10, 20), (15, 30)], 20),
        ([(10, 100), (20, 30), (40, 50)], 90),  # one that lies in another ends nothing
        ([(40, 50), (10, 20)], 20),
        ([(10**18, 10**18 + 7)], 7),  # since 1970
    ],
)
def test_union(intervals, total):
    assert union_ns(intervals) == total
    assert union_ns(iter(intervals)) == total


class Event:
    """One of the profiler's."""

    def __init__(self, begin, end, device="DeviceType.CUDA", *, annotation=False):
        self.start_ns = lambda: begin
        self.duration_ns = lambda: end - begin
        self.device_type = lambda: device
        self.is_user_annotation = lambda: annotation


@pytest.fixture
def profiled(monkeypatch):
    """What :func:`gpu_work` makes of these events, and what happened in which order."""

    def profiled(events):
        happened = []

        class Profile:
            def __init__(self, activities):
                assert activities == [profiler.ProfilerActivity.CUDA]
                results = None if events is None else SimpleNamespace(events=lambda: events)
                self.profiler = SimpleNamespace(kineto_results=results)

            def __enter__(self):
                happened.append("begin")
                return self

            def __exit__(self, *_):
                happened.append("end")

        monkeypatch.setattr(profiler, "profile", Profile)
        monkeypatch.setattr(
            profiler.torch.cuda, "synchronize", lambda: happened.append("synchronize")
        )
        return gpu_work(lambda: happened.append("run")), happened

    return profiled


def test_work_is_that_of_kernels_and_copies(profiled):
    """Not of the host's calls, not of annotations, which span many kernels."""
    events = [
        Event(100, 130),
        Event(120, 150),
        Event(200, 210),
        Event(0, 1_000, "DeviceType.CPU"),
        Event(0, 1_000, annotation=True),
    ]
    work, _ = profiled(events)
    assert work == (60, 3)


def test_work_from_before_is_left_out_and_all_of_the_run_is_in(profiled):
    _, happened = profiled([Event(1, 2)])
    assert happened == ["synchronize", "begin", "run", "synchronize", "end"]


@pytest.mark.parametrize("events", [None, [], [Event(0, 9, "DeviceType.CPU")]])
def test_profiler_that_sees_no_kernel_knows_no_gpu_time(events, profiled):
    """Which is not a GPU time of zero."""
    work, _ = profiled(events)
    assert work is None
