"""Measured and does not hold: FAILED. Could not measure: ERROR. Not for this engine: skipped."""

from __future__ import annotations

import re
import shlex

import pytest
from inner import HEAD, Ran, RunOnce, run

SUITE = (
    HEAD
    + """
TWO_STEPS = {**TINY, "steps": 2}

@pytest.mark.fits_vram(**TWO_STEPS)
def test_fits(): pass

@pytest.mark.fits_vram(**TWO_STEPS, card="1MiB")
def test_over_vram(vramfit): pass

@pytest.mark.fits_vram(**TWO_STEPS, card="3MiB", headroom="50%")
def test_no_headroom(): pass

@pytest.mark.fits_vram(**TWO_STEPS, card="1GiB", headroom="50%")
def test_headroom(): pass

@pytest.mark.fits_vram(**TWO_STEPS, max_step="1ns")
def test_max_step(): pass

@pytest.mark.fits_vram(**TINY, max_step="60s")
def test_one_step(): pass

@pytest.mark.fits_vram(model="Qwen2.5-72B", method="full")
def test_too_large(): raise AssertionError("its body ran")

@pytest.mark.fits_vram(model="Qwen2.5-72B", method="full", seq=1024)
def test_too_large_too(vramfit): raise AssertionError("its body ran")

@pytest.mark.fits_vram(model="tiny", batch=2**20)
def test_too_slow(): raise AssertionError("its body ran")

@pytest.mark.fits_vram(**TINY, targets=["foo"])
def test_targets(): pass

@pytest.mark.fits_vram(model={"model_type": "lama"})
def test_model_type(): pass

@pytest.mark.fits_vram(model={"model_type": "llama", "hidden_act": "wobble"})
def test_config_value(): pass

@pytest.mark.fits_vram(model={"model_type": "llama", "rms_norm_eps": "small"})
def test_config_type(): pass

@pytest.mark.fits_vram(model={"model_type": "clip"})
def test_no_causal_lm(): pass

@pytest.mark.fits_vram(**TWO_STEPS)
def test_fits_after_all_that(): pass
"""
)
CONFIG = "tiny, QLoRA rank 4, seq 16, batch 1"


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=cpu", test_it=SUITE)


@pytest.mark.parametrize(
    ("test", "word", "outcome"),
    [
        ("test_fits", "PASSED", "fits"),
        ("test_over_vram", "FAILED", "over_vram"),
        ("test_no_headroom", "FAILED", "no_headroom"),
        ("test_headroom", "PASSED", "fits"),
        ("test_max_step", "FAILED", "slower"),
        ("test_one_step", "PASSED", "fits"),
        ("test_too_large", "SKIPPED", "unsupported"),
        ("test_too_large_too", "SKIPPED", "unsupported"),
        ("test_too_slow", "SKIPPED", "unsupported"),
        ("test_targets", "ERROR", "refused"),
        ("test_model_type", "ERROR", "refused"),
        ("test_config_value", "ERROR", "refused"),
        ("test_config_type", "ERROR", "refused"),
        ("test_no_causal_lm", "ERROR", "refused"),
        ("test_fits_after_all_that", "PASSED", "fits"),
    ],
)
def test_word_and_outcome(ran: Ran, test: str, word: str, outcome: str) -> None:
    assert (ran.word(test), ran.cases[test]) == (word, outcome)


def test_failure_text(ran: Ran) -> None:
    """What was claimed, then each check: failed ones first."""
    lines = ran.text("test_over_vram").splitlines()
    peak = r"\d+(\.\d)? MiB"
    silent, last = "no error was raised", f"optimizer {peak}"
    patterns = [
        rf"fits_vram: {CONFIG} for a card of 1\.0 MiB, on .+",
        rf"  FAIL  peak within VRAM   {peak} of 1\.0 MiB +\d+ % of the card, {peak} over; {silent}",
        r"  pass  no OOM",
        r"  pass  trained            4 of 4 steps applied",
        r"  pass  steady             no growth",
        r"  --    unchecked          step time, peak baseline: no baseline; .+ records one",
        r"  --    unchecked          GPU time: no GPU time under the cpu engine",
        r"  --    unchecked          resident: no card under the cpu engine",
        rf"  peaks                    load {peak}, forward {peak}, backward {peak}, {last}",
        r"  of the peak              weights .+, adapters .+",
    ]
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line


def test_headroom_text(ran: Ran) -> None:
    """Half of 3 MiB must stay free."""
    assert re.search(
        r"^  FAIL  headroom           \S+ MiB of 1\.5 MiB +allocated; 1\.5 MiB must stay free$",
        ran.text("test_no_headroom"),
        re.MULTILINE,
    )


def test_max_step_text(ran: Ran) -> None:
    assert re.search(
        r"^  FAIL  max step           \S+ ms of \S+ \S+ +[\d,.]+ times the limit$",
        ran.text("test_max_step"),
        re.MULTILINE,
    )


def test_refused_names_the_modules_there_are(ran: Ran) -> None:
    assert ran.text("test_targets") == (
        "fits_vram: targets: 'foo' is not in this model, whose linear modules are called "
        "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    )


def test_unknown_model_type(ran: Ran) -> None:
    assert ran.text("test_model_type") == (
        "fits_vram: model_type 'lama' is unknown to transformers; the nearest is 'llama'"
    )


@pytest.mark.parametrize("test", ["test_config_value", "test_config_type"])
def test_what_transformers_refuses_is_one_line(ran: Ran, test: str) -> None:
    assert re.fullmatch(r"fits_vram: model: \w+: [^\n]+", ran.text(test))


def test_model_of_another_kind(ran: Ran) -> None:
    assert ran.text("test_no_causal_lm") == (
        "fits_vram: model_type 'clip' is no causal language model to transformers"
    )


def test_summary_has_a_line_for_each_case(ran: Ran) -> None:
    assert len(ran.cases) == 15


def test_summary_counts_unchecked_checks(ran: Ran) -> None:
    """Of seven cases that were measured, four checks each; and one case has one timed step."""
    counts = [line for line in ran.summary if " unchecked (" in line]
    assert counts == [
        (
            "14 checks unchecked (no baseline; --vramfit-update-missing records one): step_time, "
            "peak_baseline"
        ),
        "7 checks unchecked (no GPU time under the cpu engine): gpu_time",
        "7 checks unchecked (no card under the cpu engine): resident",
        "1 check unchecked (one timed step cannot show growth): steady",
    ]


def test_summary_counts_unsupported_cases(ran: Ran) -> None:
    """With the reason of the first."""
    counts = [line for line in ran.summary if " unsupported" in line and "--" not in line[:90]]
    assert len(counts) == 1
    assert counts[0].startswith(
        "3 unsupported, such as test_it.py::test_too_large: on the CPU it needs at least "
    )


def test_next_command_runs_the_first_failure(ran: Ran) -> None:
    assert ran.line("again: ") == "again: pytest --vramfit=cpu test_it.py::test_over_vram"


def test_next_command_for_what_a_cpu_cannot_measure(ran: Ran) -> None:
    assert ran.line("on a GPU machine: ") == "on a GPU machine: pytest --gpu test_it.py"


@pytest.mark.parametrize("card", ["1MiB", "1 MiB"])
def test_next_command_can_be_pasted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, card: str
) -> None:
    """It fails again: from where pytest was called, and with the card that it was judged by."""
    source = HEAD + "@pytest.mark.fits_vram(**TINY)\ndef test_small(): pass\n"
    pytester.makepyfile(**{"below/test_small": source})
    pytester.makeini("[pytest]")
    monkeypatch.chdir(pytester.path / "below")
    line = run(pytester, "--vramfit=cpu", f"--vramfit-card={card}").line("again: ")
    command = shlex.split(line)
    again = run(pytester, *command[2:])
    assert (command[:2], again.word("test_small")) == (["again:", "pytest"], "FAILED")
