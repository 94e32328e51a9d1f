"""``pytest-vramfit ceiling``, and the search along an axis."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
from predicting import CASE, Command, command
from samples import MIB

from pytest_vramfit.cli.axes import axis_of, find_last
from pytest_vramfit.cli.command import main
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.worker.protocol import NotMeasured

SEQ = """\
Qwen2.5-0.5B, QLoRA rank 16, seq 13888, batch 1 for Tesla T4 (15.0 GiB, 14.6 GiB of it usable)
seq 13,888 is the largest that fits; 13,952 is undecided: @

   seq                peak allocated  peak reserved, at most
 8,192  fits             8,919.1 MiB             8,983.1 MiB
12,288  fits            13,015.1 MiB            13,079.1 MiB
13,312  fits            14,039.1 MiB            14,103.1 MiB
13,824  fits            14,551.1 MiB            14,615.1 MiB
13,888  fits            14,615.1 MiB            14,679.1 MiB
13,952  undecided       14,679.1 MiB            14,743.1 MiB
14,080  undecided       14,807.1 MiB            14,871.1 MiB
14,336  does not fit    15,063.1 MiB            15,127.1 MiB
16,384  does not fit    17,111.1 MiB            17,175.1 MiB
the allocator can have 14,771.0 MiB: what is usable, less headroom and what is outside
""".replace(
    "@",
    "it may get through if the allocator gives back what it keeps in reserve: only the card itself "
    "tells",
)
"""727.1 MiB beside the tokens, and at most 14,697.1 reserved."""

WRONG_USE = {
    "--axis model --card T4": (
        "--axis model needs a --model, whose family is tried: Qwen2.5-7B stands for Qwen2.5-0.5B, "
        "Qwen2.5-1.5B, Qwen2.5-3B, Qwen2.5-7B, Qwen2.5-14B, Qwen2.5-32B, Qwen2.5-72B"
    ),
    "--axis model --card T4 --model someone/model": (
        "--axis model needs a --model of the catalogue, and 'someone/model' is none"
    ),
    "--axis seq --model tiny --card T4 --seq 0": "--seq 0 must be an integer from 2 to 16,777,216",
    "--axis batch --model tiny": (
        "--card is needed, such as --card 'RTX 5070 Ti' or --card 16303MiB"
    ),
}


@pytest.fixture
def ceiling(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys)


def tried(ceiling: Command, axis: str) -> list[int]:
    """The values, in the order in which they were tried."""
    return [getattr(request.spec, axis) for request in ceiling.worker.asked]


@pytest.mark.parametrize("count", range(1, 20))
def test_the_last_that_holds_is_found_from_anywhere(count: int) -> None:
    for start, last in itertools.product(range(count), range(-1, count)):
        asked: list[int] = []

        def holds(index: int, asked: list[int] = asked, last: int = last) -> bool:
            asked.append(index)
            return index <= last

        assert find_last(count, start, holds) == last
        assert len(asked) == len({*asked})
        assert {*asked} <= {*range(count)}
        # the edge was looked at from both sides
        assert {last, last + 1} & {*range(count)} <= {*asked}


@pytest.mark.parametrize("last", [-1, 0, 7, 1_000, 2**18 - 1])
def test_few_predictions_suffice(last: int) -> None:
    asked: list[int] = []

    def holds(index: int) -> bool:
        asked.append(index)
        return index <= last

    find_last(2**18, 7, holds)
    assert len(asked) <= 2 * math.log2(last + 2) + 4


def test_the_longest_sequence(ceiling: Command) -> None:
    assert ceiling("ceiling", "--axis", "seq", *CASE, "--seq", "8192") == (0, SEQ)


def test_the_search_begins_with_what_the_case_has(ceiling: Command) -> None:
    ceiling("ceiling", "--axis", "seq", *CASE, "--seq", "13900")
    assert tried(ceiling, "seq")[0] == 13_888
    ceiling.worker.asked.clear()
    ceiling("ceiling", "--axis", "seq", *CASE)
    assert tried(ceiling, "seq")[:3] == [512, 1_024, 2_048]


@pytest.mark.parametrize("begin", ["2", "100", "5000", "200000"])
def test_where_it_begins_does_not_matter(begin: str, ceiling: Command) -> None:
    told = ceiling.json("ceiling", "--axis", "seq", *CASE, "--seq", begin)
    assert told["largest"] == 13_888


def test_the_largest_batch(ceiling: Command) -> None:
    """13,970 MiB are left, 64 less for what is cached: 27 times 512."""
    told = ceiling.json("ceiling", "--axis", "batch", *CASE)
    assert (told["largest"], told["next"]) == (27, 28)
    assert max(tried(ceiling, "batch")) == 32


def test_the_largest_rank_has_the_alpha_of_the_marker(ceiling: Command) -> None:
    """471.1 + 512 + 64 MiB from 14,697.1: 853 times 16."""
    told = ceiling.json("ceiling", "--axis", "rank", *CASE)
    assert told["largest"] == 853
    assert all(one.spec.alpha == 2 * one.spec.rank for one in ceiling.worker.asked)


def test_the_largest_model_of_the_family(ceiling: Command) -> None:
    """768 MiB beside a byte a parameter, of which the 14B has 14,085.8 MiB."""
    given = ("--axis", "model", "--model", "Qwen/Qwen2.5-3B-Instruct", "--card", "T4")
    assert ceiling.lines("ceiling", *given)[1:7] == [
        (
            "model Qwen2.5-7B is the largest that fits; Qwen2.5-14B does not fit: out of memory in "
            "the backward of step 2, with 13.9 GiB allocated (300 MiB asked for, 200 MiB free)"
        ),
        "",
        "      model                peak allocated  peak reserved, at most",
        " Qwen2.5-3B  fits             3,711.0 MiB             3,775.0 MiB",
        " Qwen2.5-7B  fits             8,030.8 MiB             8,094.8 MiB",
        "Qwen2.5-14B  does not fit    14,853.8 MiB            14,917.8 MiB",
    ]


def test_the_end_of_an_axis_that_fits_whole(ceiling: Command) -> None:
    status, text = ceiling("ceiling", "--axis", "seq", "--model", "gpt2-medium", "--card", "T4")
    assert status == 0
    assert "\nseq 1,024 fits, and is the longest sequence of the model\n" in text
    assert tried(ceiling, "seq") == [512, 1_024]
    lines = ceiling.lines("ceiling", "--axis", "model", "--model", "gpt2", "--card", "T4")
    assert lines[1] == "model gpt2-xl fits, and is the largest of its family"


def test_nothing_fits(ceiling: Command) -> None:
    given = ("--model", "Qwen2.5-72B", "--card", "T4")
    status, text = ceiling("ceiling", "--axis", "batch", *given)
    assert status == 1
    _, second, third, *_ = text.splitlines()
    assert second == "no batch fits, not even 1"
    assert third.startswith("does not fit: out of memory in the backward of step 2, with 13.9 GiB")
    told = ceiling.json("ceiling", "--axis", "seq", *given)
    assert (told["largest"], told["next"], told["holds"]) == (None, 64, False)
    assert [one["value"] for one in told["tried"]] == [64, 128, 256, 512]


def test_json_has_every_prediction(ceiling: Command) -> None:
    status, text = ceiling("ceiling", "--axis", "seq", *CASE, "--seq", "8192", "--json")
    told = json.loads(text)
    assert status == 0
    assert [told[name] for name in ("axis", "largest", "next", "holds")] == [
        "seq",
        13_888,
        13_952,
        True,
    ]
    answers = {one["value"]: one["answer"] for one in told["tried"]}
    assert list(answers) == sorted(answers)
    assert answers[13_888] == "fits"
    assert answers[13_952] == "undecided"
    peaks = [one["memory"]["peak_allocated_bytes"] for one in told["tried"]]
    seqs = [one["spec"]["seq"] for one in told["tried"]]
    assert seqs == list(answers)
    assert {peak - seq * MIB for peak, seq in zip(peaks, seqs, strict=True)} == {
        494_032_768 + 256 * MIB
    }


def test_headroom_must_stay_free_here_too(ceiling: Command) -> None:
    """1,491.2 MiB of the T4: 13,279.8 for the allocator, 13,213.4 of them for sure."""
    lines = ceiling.lines("ceiling", "--axis", "seq", *CASE, "--headroom", "10%")
    assert lines[1].startswith("seq 12,416 is the largest that fits; 12,480 is undecided: ")
    assert lines[-1].startswith("the allocator can have 13,279.8 MiB: ")


def test_what_follows_the_steps_may_decide(ceiling: Command) -> None:
    """20 MiB a token; the steps alone would fit with 13,888 tokens."""
    given = (*CASE, "--phases", "eval", "--eval-batch", "20")
    line = ceiling.lines("ceiling", "--axis", "seq", *given)[1]
    assert line.startswith(
        "seq 704 is the largest that fits; 768 does not fit: eval 15.6 GiB of 14.6 GiB, "
    )


def test_a_required_check_that_no_estimate_makes_does_not_hold(ceiling: Command) -> None:
    status, text = ceiling("ceiling", "--axis", "batch", *CASE, "--require", "step_time")
    assert status == 1
    assert "\nbatch 27 is the largest that fits; 28 does not fit: out of memory " in text
    assert text.endswith("\ndoes not hold: required, and no estimate can tell: step time\n")


@pytest.mark.parametrize(
    ("model", "first", "second", "last"),
    [
        ("tiny", 64, 128, 2_048),
        ("gpt2", 64, 128, 1_024),
        ("Qwen2.5-7B", 64, 128, 2**24),
        ({"model_type": "opt", "max_position_embeddings": 1_000}, 64, 128, 1_000),
        ({"model_type": "llama", "max_position_embeddings": 100}, 64, 100, 100),
    ],
    ids=str,
)
def test_sequences_go_by_64_up_to_the_longest_of_the_model(
    model: object, first: int, second: int, last: int
) -> None:
    spec = read_claim([{"model": model, "seq": 64}], rootdir=Path()).spec
    values = axis_of("seq", spec).values
    assert (values[0], values[1], values[-1]) == (first, second, last)


@pytest.mark.parametrize(("arguments", "says"), WRONG_USE.items())
def test_wrong_use_is_one_sentence(arguments: str, says: str, ceiling: Command) -> None:
    assert ceiling.refusal("ceiling", *arguments.split()) == says
    assert ceiling.worker.asked == []


@pytest.mark.parametrize("arguments", [[], ["--axis", "optimizer"]])
def test_the_axis_must_be_one_of_them(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["ceiling", *CASE, *arguments])
    assert caught.value.code == 2
    assert "--axis" in capsys.readouterr().err


def test_a_value_that_cannot_be_predicted_ends_it(ceiling: Command) -> None:
    ceiling.worker.reply = lambda _: NotMeasured(outcome="unsupported", says="not this", clean=True)
    assert ceiling.refusal("ceiling", "--axis", "seq", *CASE) == "not this"
    assert len(ceiling.worker.asked) == 1
