"""What pytest prints under FAILURES and ERRORS, to the letter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import (
    EVIDENCE,
    GIB,
    MEASUREMENT,
    MEMORY,
    MS,
    RAN_OUT,
    case,
    claim,
    compared,
    pinned,
    suggestion,
    timed,
    with_memory,
    with_phases,
)

from pytest_vramfit.estimating.advice import Advice
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.reporting import failure
from pytest_vramfit.verdict import judge
from pytest_vramfit.worker.protocol import NotMeasured

SOUND = """\
fits_vram: Small, QLoRA rank 16, seq 512, batch 2 on Card (24.0 GiB, 256 MiB held by others)
  pass  no OOM
  pass  peak within VRAM   10.5 GiB of 23.0 GiB               46 % of the card, 512 MiB of it outside the allocator
  pass  trained            8 of 8 steps applied
  pass  steady             no growth
  pass  resident           all on the card
  --    unchecked          step time, GPU time, peak baseline: no baseline; --vramfit-update-missing records one
  peaks                    load 7.0 GiB, forward 9.0 GiB, backward 10.0 GiB, optimizer 8.0 GiB"""  # noqa: E501

OUT_OF_MEMORY = """\
fits_vram: Small, QLoRA rank 16, seq 512, batch 2 on Card (24.0 GiB, 256 MiB held by others)
  FAIL  no OOM             2.0 GiB asked for, 512 MiB free    in the backward of step 1, with 21.0 GiB allocated
  --    unchecked          peak within VRAM, trained, steady, step time, GPU time, peak baseline, max step, resident: the step did not get through"""  # noqa: E501

EVERYTHING = """\
fits_vram: Small, QLoRA rank 16, seq 512, batch 2 for a card of 8.0 GiB, on Card
  FAIL  peak within VRAM   10.5 GiB of 8.0 GiB                131 % of the card, 2.5 GiB over; no error was raised
  FAIL  headroom           10.0 GiB of 6.7 GiB                allocated; 819 MiB must stay free
  FAIL  trained            8 of 8 steps applied               the loss is not finite; did not move: a.lora_B
  FAIL  max step           250 ms of 200 ms                   1.25 times the limit
  pass  no OOM
  pass  resident           all on the card
  --    unchecked          steady: one timed step cannot show growth
  --    unchecked          step time, GPU time, peak baseline: no baseline; --vramfit-update-missing records one
  memory off the card      yes  accounting    the allocator and what is beside it had 4.5 GiB more than the card
                           no   residency     all of the allocator's memory is read at the card's own speed, 700 GB/s, not at the bus', 25
                           --   pcie          could not look
                           --   utilisation   could not look
                           no   retries       the allocator never had to give back its cache
                           --   host memory   could not look
                           --   step time     could not look
  peaks                    load 7.0 GiB, forward 9.0 GiB, backward 10.0 GiB, optimizer 8.0 GiB"""  # noqa: E501

SECOND_RUN = """\
fits_vram: Small, QLoRA rank 16, seq 512, batch 2 for a card of 16.0 GiB, on Card
  FAIL  headroom           15.0 GiB of 13.9 GiB               out of memory in a second run, which had 1.6 GiB less to have
  pass  no OOM
  pass  peak within VRAM   10.5 GiB of 16.0 GiB               66 % of the card, 512 MiB of it outside the allocator
  pass  trained            8 of 8 steps applied
  pass  steady             no growth
  pass  resident           all on the card
  --    unchecked          step time, GPU time, peak baseline: no baseline; --vramfit-update-missing records one
  peaks                    load 7.0 GiB, forward 9.0 GiB, backward 10.0 GiB, optimizer 8.0 GiB"""  # noqa: E501

REGRESSED = """\
fits_vram: Small, QLoRA rank 16, seq 512, batch 2 on Card (24.0 GiB, 256 MiB held by others)
  FAIL  step time          500.00 ms of 312.50 ms             2.000 times the baseline (1.800 to 2.200); on the host's side: GPU time is 1.050 times that of the baseline; driver 1.2 → 1.3
  FAIL  peak baseline      11,264.0 MiB of 10,342.4 MiB       1.100 times the baseline; driver 1.2 → 1.3
  pass  no OOM
  pass  peak within VRAM   11.5 GiB of 23.0 GiB               50 % of the card, 512 MiB of it outside the allocator
  pass  trained            8 of 8 steps applied
  pass  steady             no growth
  pass  resident           all on the card
  --    unchecked          GPU time: too noisy to tell; 1.050 times the baseline (0.945 to 1.155); driver 1.2 → 1.3; SM clock 1980 MHz
  peaks                    load 7.0 GiB, forward 9.0 GiB, backward 11.0 GiB, optimizer 8.0 GiB"""  # noqa: E501


PHASES = """\
fits_vram: Small, QLoRA rank 16, seq 512, batch 2 on Card (24.0 GiB, 256 MiB held by others)
  FAIL  eval               23.5 GiB of 23.0 GiB               102 % of the card, 512 MiB over; no error was raised
  FAIL  save               2.0 GiB asked for, 512 MiB free    with 21.0 GiB allocated
  pass  no OOM
  pass  peak within VRAM   10.5 GiB of 23.0 GiB               46 % of the card, 512 MiB of it outside the allocator
  pass  trained            8 of 8 steps applied
  pass  steady             no growth
  pass  resident           all on the card
  --    unchecked          merge: the phase before ran out of memory
  --    unchecked          step time, GPU time, peak baseline: no baseline; --vramfit-update-missing records one
  peaks                    load 7.0 GiB, forward 9.0 GiB, backward 10.0 GiB, optimizer 8.0 GiB, eval 23.0 GiB"""  # noqa: E501


def test_case_that_fits() -> None:
    assert failure.text(case()) == SOUND


def test_out_of_memory() -> None:
    """No peaks: the step did not come that far."""
    assert failure.text(case(RAN_OUT, claim(max_step_ns=MS))) == OUT_OF_MEMORY


def test_phases_after_the_steps() -> None:
    asked = claim(phases=("eval", "save", "merge"))
    assert failure.text(case(with_phases(eval=23 * GIB, save=None), asked)) == PHASES


def test_failed_checks_come_first_and_each_reason_is_told_once() -> None:
    one_step = with_memory(allocated_after_step_bytes=(6 * GIB,))
    seen = replace(one_step, evidence=replace(EVIDENCE, loss=None, unmoved=("a.lora_B",)))
    asked = claim(card_bytes=8 * GIB, max_step_ns=200 * MS, headroom=Headroom(share=0.1))
    assert failure.text(case(seen, asked)) == EVERYTHING


def test_second_run_out_of_memory() -> None:
    asked = claim(card_bytes=16 * GIB, headroom=Headroom(share=0.1))
    judged = judge("a.py::b", "gpu", asked, with_memory(peak_reserved_bytes=15 * GIB), RAN_OUT)
    assert failure.text(judged) == SECOND_RUN


def test_case_against_a_baseline() -> None:
    """Slower by the wall clock, undecided by the GPU's, heavier, on another driver."""
    newer = {**MEASUREMENT.environment, "driver": "1.3"}
    heavier = replace(MEMORY, backward_peak_bytes=11 * GIB)
    seen = timed(step=2, gpu=1.05, memory=heavier, environment=newer)
    assert failure.text(pinned(compared(seen))) == REGRESSED


def test_checks_that_pass_against_a_baseline_say_by_how_much() -> None:
    lines = list(failure.lines(pinned(compared(timed(step=1.02)))))
    assert lines[5:8] == [
        (
            "  pass  step time          255.00 ms of 312.50 ms             "
            "1.020 times the baseline (0.918 to 1.122)"
        ),
        (
            "  pass  GPU time           225.00 ms of 236.25 ms             "
            "1.000 times the baseline (0.900 to 1.100)"
        ),
        "  pass  peak baseline      10,240.0 MiB of 10,342.4 MiB       1.000 times the baseline",
    ]


def test_required_check_that_could_not_be_made_fails_with_its_reason() -> None:
    asked = claim(require=frozenset({"gpu_time", "resident"}))
    lines = list(failure.lines(case(replace(MEASUREMENT, residency=None), asked)))
    assert lines[1:3] == [
        "  FAIL  GPU time           required; no baseline; --vramfit-update-missing records one",
        (
            "  FAIL  resident           required; where the memory lies could not be told by "
            "reading it"
        ),
    ]


OUT_OF_MEMORY_WITH_ADVICE = f"""\
{OUT_OF_MEMORY}
  would fit (estimated)    checkpointing=True                 9.5 GiB, 41 % of the card
                           batch=1, accumulation=2            16.5 GiB, 72 % of the card
                           targets="attention"                22.5 GiB, 98 % of the card"""


def test_what_would_fit_stands_at_the_end_as_it_is_written_in_the_marker() -> None:
    advice = Advice(
        ended="complete",
        suggestions=(
            suggestion(9 * GIB, checkpointing=True),
            suggestion(16 * GIB, batch=1, accumulation=2),
            suggestion(22 * GIB, targets="attention"),
        ),
    )
    judged = replace(case(RAN_OUT, claim(max_step_ns=MS)), advice=advice)
    assert failure.text(judged) == OUT_OF_MEMORY_WITH_ADVICE


def test_two_changes_that_are_long_have_their_figures_in_one_column() -> None:
    two = suggestion(9 * GIB, checkpointing=True, optimizer="paged_adamw_8bit")
    model = suggestion(8 * GIB, model="Qwen2.5-3B")
    judged = replace(case(RAN_OUT), advice=Advice(ended="complete", suggestions=(two, model)))
    assert list(failure.lines(judged))[-2:] == [
        (
            "  would fit (estimated)    "
            'checkpointing=True, optimizer="paged_adamw_8bit" 9.5 GiB, 41 % of the card'
        ),
        (
            "                           "
            'model="Qwen2.5-3B"                               8.5 GiB, 37 % of the card'
        ),
    ]


FOUND = (suggestion(9 * GIB, checkpointing=True),)


@pytest.mark.parametrize(
    ("advice", "says"),
    [
        pytest.param(
            Advice(ended="complete"),
            "no single change and no two of those tried would make it fit (estimated)",
            id="nothing helps",
        ),
        pytest.param(
            Advice(ended="out_of_time"),
            "not all was tried: predictions for one case end after 60 s",
            id="out of time",
        ),
        pytest.param(
            Advice(ended="out_of_time", suggestions=FOUND),
            "not all was tried: predictions for one case end after 60 s",
            id="out of time, something found",
        ),
        pytest.param(
            Advice(ended="fits_already"),
            "none: predicted to fit as it is, against what was measured",
            id="fits already",
        ),
        pytest.param(
            Advice(ended="broken", reason="RuntimeError: no\nmore"),
            "ended, as a prediction failed: RuntimeError: no",
            id="broken",
        ),
    ],
)
def test_what_there_is_to_say_of_advice_is_one_line_behind_it(advice: Advice, says: str) -> None:
    judged = replace(case(RAN_OUT), advice=advice)
    added = list(failure.lines(judged))[len(list(failure.lines(case(RAN_OUT)))) :]
    assert added[len(advice.suggestions) :] == [f"  advice                   {says}"]


def test_text_is_its_lines() -> None:
    assert failure.text(case()) == "\n".join(failure.lines(case()))


def test_no_line_ends_in_spaces() -> None:
    for judged in (case(), case(RAN_OUT), case(MEASUREMENT, claim(max_step_ns=1))):
        assert [line for line in failure.lines(judged) if line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        pytest.param(
            NotMeasured(outcome="crashed", says="the worker was killed by SIGKILL"),
            "fits_vram: Small, QLoRA rank 16, seq 512, batch 2 could not be measured (crashed): "
            "the worker was killed by SIGKILL",
            id="crashed",
        ),
        pytest.param(
            NotMeasured(
                outcome="timeout", says="the case took more than 600 s", output="loading\n50 %"
            ),
            "fits_vram: Small, QLoRA rank 16, seq 512, batch 2 could not be measured (timeout): "
            "the case took more than 600 s\n--- the worker's output ---\nloading\n50 %",
            id="timeout with output",
        ),
        pytest.param(
            NotMeasured(outcome="contaminated", says="others took 2.0 GiB", clean=True),
            "fits_vram: Small, QLoRA rank 16, seq 512, batch 2 could not be measured "
            "(contaminated): others took 2.0 GiB",
            id="contaminated",
        ),
        pytest.param(
            NotMeasured(outcome="unsupported", says="no usable GPU: NVML lists none"),
            "fits_vram: Small, QLoRA rank 16, seq 512, batch 2 could not be measured "
            "(unsupported): no usable GPU: NVML lists none",
            id="unsupported",
        ),
        pytest.param(
            NotMeasured(
                outcome="refused", says="targets: 'q' is not in this model", output="a warning"
            ),
            "fits_vram: targets: 'q' is not in this model",
            id="refused as a wrong marker is",
        ),
    ],
)
def test_case_that_could_not_be_measured(reply: NotMeasured, says: str) -> None:
    assert failure.not_measured(claim(), reply) == says
