"""The line at the top of a run: what will be measured on."""

from __future__ import annotations

import re

import pytest
from inner import run

PYNVML = """
class NVMLError(Exception): pass
class NVMLError_NotSupported(NVMLError): pass

class Memory:
    total, reserved, used = 16303 * 2**20, 2**20, 2**20

class Field:
    nvmlReturn = 0
    class value: ullVal = 0

nvmlMemory_v2, NVML_SUCCESS = 2, 0
NVML_FI_DEV_RETIRED_PENDING = 31
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
def nvmlDeviceGetName(handle): return f"Card {handle}"
def nvmlDeviceGetMemoryInfo(handle, version=None): return Memory()
def nvmlDeviceGetFieldValues(handle, fields): return [Field() for _ in fields]
def nvmlDeviceGetCurrentClocksThrottleReasons(handle): return 0x40 if handle == 1 and HOT else 0
HOT = False
def nvmlSystemGetDriverVersion(): return "580.1"
"""
"""Found first: a folder that pytest is called in comes before all packages."""


@pytest.fixture(autouse=True)
def one_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(): pass")


@pytest.mark.parametrize("options", [(), ("--vramfit=off",)])
def test_none_without_engine(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    assert "vramfit: " not in run(pytester, *options).output


def test_results_without_an_engine(pytester: pytest.Pytester) -> None:
    """Whoever waits for the file learns why it does not come."""
    assert run(pytester, "--vramfit-json=out.json").line("vramfit: ") == (
        "vramfit: no engine was asked for, so no results are written; run with --gpu or "
        "--vramfit=cpu"
    )


def test_cpu(pytester: pytest.Pytester) -> None:
    line = run(pytester, "--vramfit=cpu").line("vramfit: ")
    assert re.fullmatch(r"vramfit: cpu engine on .+, \d+\.\d GiB", line)


def test_cpu_judged_by_a_card(pytester: pytest.Pytester) -> None:
    line = run(pytester, "--vramfit=cpu", "--vramfit-card=16303MiB").line("vramfit: ")
    assert line.endswith(" GiB, judged by a card of 16303MiB")


def test_gpus(pytester: pytest.Pytester) -> None:
    """Every card with its memory, and the driver."""
    pytester.makepyfile(pynvml=PYNVML)
    assert run(pytester, "--gpu").line("vramfit: ") == (
        "vramfit: gpu engine on Card 0 16,303 MiB, Card 1 16,303 MiB, driver 580.1"
    )


def test_a_gpu_with_which_something_is_wrong(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(pynvml=PYNVML.replace("HOT = False", "HOT = True"))
    assert run(pytester, "--gpu").line("vramfit: WARNING: ") == (
        "vramfit: WARNING: GPU 1 (Card 1): its clocks are held down by heat"
    )


def test_no_gpu(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(pynvml=PYNVML.replace("return 2", "return 0"))
    assert run(pytester, "--gpu").line("vramfit: ") == (
        "vramfit: gpu engine, but no usable GPU: NVML lists none"
    )


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetMemoryInfo"])
def test_nvml_that_cannot_be_read(pytester: pytest.Pytester, function: str) -> None:
    source = re.sub(
        rf"def {function}(.*): .*", rf"def {function}\1: raise NVMLError('no driver')", PYNVML
    )
    pytester.makepyfile(pynvml=source)
    ran = run(pytester, "--gpu")
    assert ran.line("vramfit: ") == "vramfit: gpu engine, but no usable GPU: NVML: no driver"
