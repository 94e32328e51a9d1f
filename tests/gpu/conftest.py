"""Tests that need a GPU: skipped loudly where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_vramfit.estimating.target import Target, target_of
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.measurement import Device, Measurement
from pytest_vramfit.measuring import nvml
from pytest_vramfit.worker.client import Worker
from pytest_vramfit.worker.protocol import Measured, Request

HERE = Path(__file__).parent


def missing_gpu() -> str | None:
    """Why there is no GPU to test on; None where there is one."""
    try:
        return None if nvml.cards() else "NVML lists no GPU"
    except nvml.NvmlUnavailableError as error:
        return str(error)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing_gpu()
    if reason is not None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if "needs a GPU" in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.write_line(
            f"NOT TESTED: {len(skipped)} tests need a GPU ({missing_gpu()}); "
            "run `pytest tests/gpu` on a GPU machine",
            yellow=True,
        )


Measure = Callable[..., Measurement]


def measure_in(
    worker: Worker,
    keywords: dict[str, object],
    *,
    target: Target | None = None,
    card: Device | None = None,
) -> Measurement:
    """One case in this worker; it must be measured, whatever comes out."""
    claim = read_claim([keywords], rootdir=HERE)
    request = Request(spec=claim.spec, schedule=claim.schedule, target=target, card=card)
    reply = worker.measure(request, lambda _: None)
    assert isinstance(reply, Measured), reply
    return reply.measurement


@pytest.fixture(scope="session")
def measure_with() -> Measure:
    """:func:`measure_in`, for tests that have workers of their own."""
    return measure_in


@pytest.fixture(scope="module")
def predict() -> Iterator[Measure]:
    """Predict a case for this GPU."""
    card = nvml.cards()[0]
    target = target_of(card.name, card.total_bytes)
    worker = Worker("estimate")
    yield lambda **keywords: measure_in(worker, keywords, target=target)
    worker.stop()


@pytest.fixture(scope="session")
def shared_worker() -> Iterator[Worker]:
    worker = Worker("gpu")
    yield worker
    worker.stop()


@pytest.fixture(scope="session")
def measure(shared_worker: Worker) -> Measure:
    """Measure a case in the worker that all tests share."""
    return lambda **keywords: measure_in(shared_worker, keywords)


@pytest.fixture(scope="module")
def measure_apart() -> Iterator[Measure]:
    """Measure a case in a worker that ran nothing but cases of this module."""
    worker = Worker("gpu")
    yield lambda **keywords: measure_in(worker, keywords)
    worker.stop()


@pytest.fixture(scope="session")
def measure_fresh() -> Measure:
    """Measure a case in a process of its own."""

    def measure(**keywords: object) -> Measurement:
        worker = Worker("gpu")
        try:
            return measure_in(worker, keywords)
        finally:
            worker.stop()

    return measure
