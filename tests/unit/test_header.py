"""The lines that say what will be measured on."""

from __future__ import annotations

from typing import get_args

import pytest

from pytest_vramfit.measuring import health, host, nvml
from pytest_vramfit.measuring.health import Fault, Health
from pytest_vramfit.reporting import header


def card(name: str, mib: int, used_mib: int = 0) -> nvml.Card:
    return nvml.Card(
        uuid="GPU-1", name=name, driver="580.1", total_bytes=mib * 2**20, reserved_bytes=0,
        used_bytes=used_mib * 2**20,
    )  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "processor", lambda: "Some CPU")
    monkeypatch.setattr(host, "memory_bytes", lambda: 16 * 2**30)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("given", "line"),
    [
        (None, "vramfit: cpu engine on Some CPU, 16.0 GiB"),
        ("8GiB", "vramfit: cpu engine on Some CPU, 16.0 GiB, judged by a card of 8GiB"),
    ],
)
def test_cpu(given: str | None, line: str) -> None:
    assert header.line("cpu", given) == line


@pytest.mark.parametrize(
    ("cards", "line"),
    [
        ([card("H200", 143_771)], "vramfit: gpu engine on H200 143,771 MiB, driver 580.1"),
        (
            [card("A", 1), card("B", 2)],
            "vramfit: gpu engine on A 1 MiB, B 2 MiB, driver 580.1",
        ),
        (
            [card("A", 1_000, 100), card("B", 9, 101)],
            "vramfit: gpu engine on A 1,000 MiB, B 9 MiB (101 MiB held by others), driver 580.1",
        ),
        ([], "vramfit: gpu engine, but no usable GPU: NVML lists none"),
    ],
)
def test_gpu(cards: list[nvml.Card], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "cards", lambda: cards)
    assert header.line("gpu", None) == line


def test_gpu_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> list[nvml.Card]:
        raise nvml.NvmlUnavailableError("NVML: Driver Not Loaded")

    monkeypatch.setattr(nvml, "cards", unavailable)
    assert header.line("gpu", None) == (
        "vramfit: gpu engine, but no usable GPU: NVML: Driver Not Loaded"
    )


def test_a_line_for_each_gpu_with_which_something_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Health(number=0, name="A", faults=("pages pending", "hot")),
        Health(number=3, name=None, faults=("lost",)),
    ]
    monkeypatch.setattr(health, "ailing", lambda: found)
    assert header.ailments() == [
        (
            "vramfit: WARNING: GPU 0 (A): pages of its memory are to be retired with its next "
            "reset; its clocks are held down by heat"
        ),
        "vramfit: WARNING: GPU 3: it does not answer",
    ]


@pytest.mark.parametrize("fault", get_args(Fault))
def test_every_fault_has_its_words(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Health(number=0, name="A", faults=(fault,))
    monkeypatch.setattr(health, "ailing", lambda: [one])
    (line,) = header.ailments()
    assert len(line) > len("vramfit: WARNING: GPU 0 (A): ")


def test_without_nvml_nothing_is_said_to_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> list[Health]:
        raise nvml.NvmlUnavailableError("NVML: Driver Not Loaded")

    monkeypatch.setattr(health, "ailing", unavailable)
    assert header.ailments() == []
