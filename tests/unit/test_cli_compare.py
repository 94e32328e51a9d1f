"""``pytest-vramfit compare``, and what all subcommands share."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from entries import ENVIRONMENT, GIB, document, entry, process, results, row, three

from pytest_vramfit.baseline import Store
from pytest_vramfit.cli.command import main

Capsys = pytest.CaptureFixture[str]

TEXT = """\
old.json → new.json
driver  580.1 → 590.2

NVIDIA H200, gpu
a.py::crashes_on_both
  --    outcome     crashed on both sides
a.py::longer
  --    not compared    rank None → 8, seq 512 → 1024
a.py::noisy
  pass  peak        10,240.0 MiB → 10,240.0 MiB     1.000
  pass  GPU time    225.00 ms → 225.00 ms           1.000 (0.998 to 1.002)
  --    step time   250.00 ms → 325.00 ms           1.300 (1.098 to 1.539)  at most 1.25; too noisy: more processes would decide it; GPU time 1.000: it is the host
a.py::out
  FAIL  outcome     fits → oom (failed: no_oom)
a.py::slow
  FAIL  peak        10,240.0 MiB → 11,264.0 MiB     1.100                   at most 1.01
  FAIL  GPU time    225.00 ms → 246.00 ms           1.093 (1.091 to 1.096)  at most 1.05
  pass  step time   250.00 ms → 250.00 ms           1.000 (0.926 to 1.080)

only in old.json: a.py::gone (gpu, NVIDIA H200)
only in new.json: a.py::new (cpu, NVIDIA H200)
5 cases in both: 2 failed, 1 undecided, 1 changed and not compared, 1 without figures to compare
"""  # noqa: E501

CRASHED = row("a.py::crashes_on_both", outcome="crashed", processes=())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, so that files go by short names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def old(*rows: dict[str, Any], **environment: str) -> None:
    results(Path("old.json"), *(rows or [row(processes=three())]), **environment)


def new(*rows: dict[str, Any], **environment: str) -> None:
    results(Path("new.json"), *(rows or [row()]), **environment)


def compare(*arguments: str) -> int:
    return main(["compare", "old.json", "new.json", *arguments])


def as_json(capsys: Capsys, *arguments: str) -> Any:
    compare("--json", *arguments)
    return json.loads(capsys.readouterr().out)


def refused(capsys: Capsys, *arguments: str) -> str:
    """The one sentence about wrong use."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.strip().removeprefix("pytest-vramfit: ")


def test_everything_that_may_be_said(capsys: Capsys) -> None:
    """But for "slower": that is the run's verdict against its own baseline."""
    names = ("slow", "noisy", "longer", "gone", "out")
    old(*(row(f"a.py::{name}", processes=three()) for name in names), CRASHED)
    new(
        row("a.py::slow", peak=11 * GIB, processes=(process(250, 246),), outcome="slower"),
        row("a.py::noisy", processes=(process(325),)),
        row("a.py::longer", seq=1024, spec={"model": "Small", "seq": 1024, "rank": 8}),
        row("a.py::new", engine="cpu"),
        row("a.py::out", processes=(), outcome="oom", failed=("no_oom",)),
        CRASHED,
        driver="590.2",
    )
    assert compare() == 1
    assert capsys.readouterr().out == TEXT


def test_same_figures_hold(capsys: Capsys) -> None:
    old()
    new()
    assert compare() == 0
    assert capsys.readouterr().out.splitlines() == [
        "old.json → new.json",
        "same environment",
        "",
        "NVIDIA H200, gpu",
        "test_a.py::test_b",
        "  pass  peak        10,240.0 MiB → 10,240.0 MiB     1.000",
        "  pass  GPU time    225.00 ms → 225.00 ms           1.000 (0.998 to 1.002)",
        "  pass  step time   250.00 ms → 250.00 ms           1.000 (0.926 to 1.080)",
        "",
        "1 case in both: 1 passed",
    ]


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"processes": (process(500),)}, "--step-ratio"),
        ({"processes": (process(250, 245),)}, "--gpu-ratio"),
        ({"peak": 11 * GIB}, "--peak-ratio"),
    ],
)
def test_ratio_beyond_its_limit_fails_unless_it_is_allowed(
    changed: dict[str, Any], option: str, capsys: Capsys
) -> None:
    old()
    new(row(**changed))
    assert compare() == 1
    assert compare(option, "3") == 0
    assert compare(option, "none") == 0
    assert compare(option, "1.0") == 1


def test_switched_off_checks_are_not_in_the_table(capsys: Capsys) -> None:
    old()
    new(row(peak=99 * GIB))
    assert compare("--peak-ratio", "none", "--step-ratio", "NONE") == 0
    text = capsys.readouterr().out
    assert "GPU time" in text
    assert "peak" not in text
    assert "step" not in text


@pytest.mark.parametrize("ratio", ["0.99", "nan", "inf", "5%", "", "1e400"])
def test_ratio_that_is_none(ratio: str, capsys: Capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        compare(f"--gpu-ratio={ratio}")
    assert caught.value.code == 2
    assert (
        f"argument --gpu-ratio: must be a number of at least 1, or none, not {ratio!r}"
        in capsys.readouterr().err
    )


def test_time_that_is_too_noisy_does_not_fail(capsys: Capsys) -> None:
    old()
    new(row(processes=(process(325),)))
    assert compare() == 0
    assert "too noisy" in capsys.readouterr().out


def test_slow_time_under_held_down_clocks_does_not_fail(capsys: Capsys) -> None:
    old()
    held = {"throttled_ns": {"hardware thermal": 10**9}, "others_cpu_share": None}
    new(row(processes=(process(500, 450),), conditions=held))
    assert compare() == 0
    text = capsys.readouterr().out
    assert text.count("the GPU's clocks were held down from outside: hardware thermal") == 2


def test_slow_step_beside_other_processes_does_not_fail(capsys: Capsys) -> None:
    old()
    new(row(processes=(process(500),), conditions={"others_cpu_share": 0.7}))
    assert compare() == 0
    assert "other processes took 70% of the CPU" in capsys.readouterr().out


def test_changed_case_does_not_fail(capsys: Capsys) -> None:
    old()
    new(row(seq=1024, peak=99 * GIB))
    assert compare() == 0
    assert "1 case in both: 1 changed and not compared" in capsys.readouterr().out


@pytest.mark.parametrize("outcome", ["oom", "crashed", "timeout", "unsupported"])
def test_case_that_does_not_get_through_any_more_fails(outcome: str, capsys: Capsys) -> None:
    old()
    new(row(processes=(), outcome=outcome))
    assert compare() == 1
    assert f"  FAIL  outcome     fits → {outcome}" in capsys.readouterr().out


def test_case_that_does_not_train_any_more_fails_with_its_figures(capsys: Capsys) -> None:
    old()
    new(row(outcome="invalid", failed=("trained",)))
    assert compare() == 1
    text = capsys.readouterr().out
    assert "  FAIL  outcome     fits → invalid (failed: trained)" in text
    assert "  pass  peak" in text


def test_case_that_does_not_get_through_any_more_fails_also_where_it_changed(
    capsys: Capsys,
) -> None:
    old(row(), row("other"))
    new(row(seq=1024, processes=(), outcome="oom", failed=("no_oom",)), row("other"))
    assert compare() == 1
    text = capsys.readouterr().out
    assert (
        "  --    not compared    seq 512 → 1024\n  FAIL  outcome     fits → oom (failed: no_oom)\n"
    ) in text
    assert "2 cases in both: 1 passed, 1 failed" in text
    case = as_json(capsys)["cases"][1]
    assert (case["status"], len(case["changed"])) == ("fail", 1)


@pytest.mark.parametrize(
    ("before", "now", "line"),
    [
        ("oom", "fits", "  --    outcome     oom → fits\n"),
        ("oom", "oom", ""),
        ("fits", "slower", ""),
    ],
)
def test_changed_case_whose_outcome_is_no_worse_does_not_fail(
    before: str, now: str, line: str, capsys: Capsys
) -> None:
    old(row(outcome=before))
    new(row(seq=1024, outcome=now))
    assert compare() == 0
    assert f"not compared    seq 512 → 1024\n{line}\n" in capsys.readouterr().out


def test_outcome_that_is_worse_under_the_same_word_fails_and_says_by_what(capsys: Capsys) -> None:
    old(row(outcome="slower", failed=("step_time",)))
    new(row(outcome="slower", failed=("max_step",)))
    assert compare() == 1
    says = "  FAIL  outcome     slower → slower (failed: max_step)"
    assert says in capsys.readouterr().out


def test_missing_case_fails_where_all_are_required(capsys: Capsys) -> None:
    old(row("a"), row("b"))
    new(row("a"), row("c"))
    assert compare() == 0
    assert "\nonly in old.json: b (gpu, NVIDIA H200)\nonly in new.json: c " in (
        capsys.readouterr().out
    )
    assert compare("--require-all") == 1
    assert "\nFAIL  only in old.json: b (gpu, NVIDIA H200)\nonly in new.json: c " in (
        capsys.readouterr().out
    )
    new(row("a"), row("b"), row("c"))
    assert compare("--require-all") == 0


@pytest.mark.parametrize(
    ("before", "now", "figures", "ratio"),
    [
        # two processes, three: the middle of an even number
        ((80, 125), (90, 101, 110), "100.00 ms → 101.00 ms", "1.010"),
        ((90, 110), (80, 125), "99.50 ms → 100.00 ms", "1.005"),
        ((100, 100, 100), (100, 90, 100, 90), "100.00 ms → 94.87 ms", "0.949"),
    ],
)
def test_figures_are_those_that_the_ratio_is_of(
    before: tuple[int, ...],
    now: tuple[int, ...],
    figures: str,
    ratio: str,
    capsys: Capsys,
) -> None:
    old(row(processes=[process(one, one) for one in before]))
    new(row(processes=[process(one, one) for one in now]))
    compare()
    _, gpu, step = (one for one in capsys.readouterr().out.splitlines() if " → " in one[10:50])
    for line in (gpu, step):
        assert f"{figures} " in line
        assert f" {ratio} (" in line


def test_figures_of_an_even_number_of_steps_are_those_that_the_ratio_is_of(
    capsys: Capsys,
) -> None:
    steps = (80_000_000, 90_000_000, 100_000_000, 120_000_000)
    old(row(processes=[replace(process(), step_ns=steps)]))
    new(row(processes=[process(95)]))
    (check,) = as_json(capsys, "--gpu-ratio=none", "--peak-ratio=none")["cases"][0]["checks"]
    assert (check["old"], check["new"]) == (95_000_000, 95_000_000)
    assert check["ratio"] == pytest.approx(1)


def test_case_that_gets_through_now_holds(capsys: Capsys) -> None:
    old(row(processes=(), outcome="oom"), row("other"))
    new(row(), row("other"))
    assert compare() == 0
    assert "  --    outcome     oom → fits" in capsys.readouterr().out


def test_part_of_the_cases_in_another_environment(capsys: Capsys) -> None:
    old(row("a"), row("b"))
    new(row("a"), row("b", environment={**ENVIRONMENT, "allocator settings": "x"}))
    assert compare() == 0
    text = capsys.readouterr().out
    assert "allocator settings  none → x  (1 of 2 cases)" in text


def test_another_gpu_of_the_model_is_said_once(capsys: Capsys) -> None:
    old(gpu="aa")
    new(gpu="bb")
    assert compare() == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "same environment",
        "on another GPU of the same model",
    ]


def test_gpu_time_that_one_side_has_not(capsys: Capsys) -> None:
    old(row(processes=three(gpu_ms=None)))
    new()
    assert compare() == 0
    assert "  --    GPU time" in (text := capsys.readouterr().out)
    assert "the old side has no GPU time" in text
    assert "1 undecided" in text


def test_cpu_has_no_line_of_gpu_time(capsys: Capsys) -> None:
    old(row(engine="cpu", processes=three(gpu_ms=None)))
    new(row(engine="cpu", processes=(process(gpu_ms=None),)))
    assert compare() == 0
    text = capsys.readouterr().out
    assert "NVIDIA H200, cpu" in text
    assert "GPU time" not in text
    assert "1 case in both: 1 passed" in text


def test_devices_are_apart(capsys: Capsys) -> None:
    """The same test on two devices, one of which both sides have."""
    t4 = {**ENVIRONMENT, "device": "Tesla T4"}
    Store(Path("kept")).put([entry(), entry(device="Tesla T4", environment=t4)])
    new()
    assert main(["compare", "kept", "new.json"]) == 0
    text = capsys.readouterr().out
    assert "only in kept: test_a.py::test_b (gpu, Tesla T4)" in text
    assert "1 case in both" in text


@pytest.mark.parametrize("path", ["kept", "kept/nvidia-h200.json", "./kept/"])
def test_baselines_may_be_either_side(path: str, capsys: Capsys) -> None:
    Store(Path("kept")).put([entry()])
    new(row(processes=(process(250, 245),)))
    assert main(["compare", path, "new.json"]) == 1
    assert main(["compare", "new.json", path]) == 0
    assert "improved" not in (text := capsys.readouterr().out)
    assert "better" in text


def test_json_has_every_figure(capsys: Capsys) -> None:
    old(row("a", processes=three()), row("gone"))
    new(row("a", processes=(process(500, 450),), peak=9 * GIB), row("new"), driver="590.2")
    answer = as_json(capsys, "--step-ratio", "none")
    assert {key: answer[key] for key in ("old", "new", "limits", "environment")} == {
        "old": "old.json",
        "new": "new.json",
        "limits": {"peak_baseline": 1.01, "gpu_time": 1.05, "step_time": None},
        "environment": [{"name": "driver", "old": "580.1", "new": "590.2", "cases": 1}],
    }
    assert [one["nodeid"] for one in answer["only_old"]] == ["gone"]
    assert answer["only_new"] == [{"device": "NVIDIA H200", "engine": "gpu", "nodeid": "new"}]
    (case,) = answer["cases"]
    peak, gpu = case.pop("checks")
    assert case == {
        "device": "NVIDIA H200",
        "engine": "gpu",
        "nodeid": "a",
        "status": "fail",
        "outcome": {"old": "fits", "new": "fits"},
        "changed": [],
    }
    assert (peak["name"], peak["old"], peak["new"]) == ("peak_baseline", 10 * GIB, 9 * GIB)
    assert (gpu["name"], gpu["status"]) == ("gpu_time", "fail")
    assert (gpu["old"], gpu["new"], gpu["unit"]) == (225_000_000, 450_000_000, "ns")
    assert gpu["ratio"] == pytest.approx(2)
    low, high = gpu["interval"]
    assert low < 2 < high


def test_json_names_changed_fields(capsys: Capsys) -> None:
    old()
    new(row(seq=1024))
    (case,) = as_json(capsys)["cases"]
    assert case["status"] == "changed"
    assert case["changed"] == [{"name": "seq", "old": 512, "new": 1024}]
    assert case["checks"] == []


def test_other_devices_have_nothing_in_common(capsys: Capsys) -> None:
    old()
    new(device="Tesla T4")
    assert refused(capsys, "compare", "old.json", "new.json") == (
        "old.json and new.json have nothing in common: "
        "the first is of NVIDIA H200, the other of Tesla T4"
    )


def test_other_tests_have_nothing_in_common(capsys: Capsys) -> None:
    old(row("a"))
    new(row("b"))
    assert refused(capsys, "compare", "old.json", "new.json") == (
        "old.json and new.json have nothing in common: no test is in both"
    )


def test_side_without_a_case(capsys: Capsys) -> None:
    old()
    new(row(judged=False))
    Path("empty").mkdir()
    says = "has no case that was measured"
    assert refused(capsys, "compare", "old.json", "new.json") == f"new.json {says}"
    assert refused(capsys, "compare", "empty", "old.json") == f"empty {says}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "bad.json cannot be read: No such file or directory"),
        ("{", "bad.json is not JSON: "),
        ("[]", "bad.json: the file is [], not an object"),
        ('{"schema": "x"}', 'bad.json: schema is "x", not "pytest-vramfit/results/1"'),
        (
            '{"schema": "pytest-vramfit/baselines/9"}',
            'bad.json: schema is "pytest-vramfit/baselines/9", not "pytest-vramfit/baselines/1" (',
        ),
    ],
    ids=["none", "cut", "list", "other", "newer"],
)
def test_unreadable_file_is_named_with_its_place(
    text: str | None, says: str, capsys: Capsys
) -> None:
    old()
    if text is not None:
        Path("bad.json").write_text(text, encoding="utf-8")
    for arguments in (("bad.json", "old.json"), ("old.json", "bad.json")):
        assert refused(capsys, "compare", *arguments).startswith(says)


def test_wrong_value_deep_in_a_file(capsys: Capsys) -> None:
    old()
    document(Path("new.json"), [row("a"), row(memory={"peak_allocated_bytes": -5})], ENVIRONMENT)
    assert refused(capsys, "compare", "old.json", "new.json") == (
        "new.json: results[1].memory.peak_allocated_bytes is -5, not an integer above 0"
    )


@pytest.mark.parametrize("command", ["explain"])
def test_what_is_not_built_yet_says_so_with_any_arguments(command: str, capsys: Capsys) -> None:
    says = f"{command} is not built yet"
    assert refused(capsys, command) == says
    assert refused(capsys, command, "--model", "Qwen2.5-7B", "--json") == says


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["compere"],
        ["compare", "old.json"],
        ["compare", "old.json", "new.json", "--ratio", "2"],
        ["baselines"],
    ],
    ids=" ".join,
)
def test_wrong_use_ends_with_2(arguments: list[str], capsys: Capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: pytest-vramfit" in capsys.readouterr().err


def run(*arguments: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pytest_vramfit", *arguments]
    environment = {"PYTHONIOENCODING": encoding, "COLUMNS": "80"}
    return subprocess.run(command, capture_output=True, env=environment, check=False)


def test_module_runs_as_the_command() -> None:
    ran = run("--help")
    assert ran.returncode == 0
    assert ran.stdout.startswith(b"usage: pytest-vramfit ")
    assert ran.stderr == b""


def test_status_is_that_of_the_process() -> None:
    old()
    new(row(peak=11 * GIB))
    assert run("compare", "old.json", "new.json").returncode == 1
    assert run("compare", "old.json", "none.json").returncode == 2


def test_terminal_that_lacks_the_arrow() -> None:
    old()
    new()
    ran = run("compare", "old.json", "new.json", encoding="ascii")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert rb"old.json \u2192 new.json" in ran.stdout


def test_reader_that_goes_away() -> None:
    """As ``| head`` does."""
    old(*(row(f"a.py::{index}") for index in range(2_000)))
    command = f"{sys.executable} -m pytest_vramfit compare old.json old.json | head -n 1"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert ran.stdout.decode() == "old.json → old.json\n"
    assert ran.stderr == b""
