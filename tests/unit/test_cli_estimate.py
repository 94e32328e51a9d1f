"""``pytest-vramfit estimate``, and the marker's keywords as arguments."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from predicting import CASE, Command, command
from samples import MIB

from pytest_vramfit.cli.command import main
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.marker.elsewhere import ELSEWHERE
from pytest_vramfit.marker.keywords import KEYWORDS
from pytest_vramfit.worker.protocol import NotMeasured

FITS = """\
Qwen2.5-0.5B, QLoRA rank 16, seq 512, batch 1 for Tesla T4 (15.0 GiB, 14.6 GiB of it usable)
fits: 1.3 GiB of 14.6 GiB, 9.3 %

peak allocated   1.2 GiB
peak reserved    1.2 GiB to 1.3 GiB, by the order of the driver's addresses
outside of that  141 MiB: context, kernels, libraries
on the card      1.3 GiB allocated and outside, 9.3 % of what is usable
peaks            load 471 MiB, forward 1.2 GiB, backward 1.2 GiB, optimizer 727 MiB

of the peak      MiB          bytes  share
activations    512.0    536,870,912   41 %
weights        471.1    494,032,768   38 %
adapters       256.0    268,435,456   21 %
all          1,239.1  1,299,339,136  100 %
"""

TOO_CLOSE = (
    "undecided: within 0.5 % of the limit, as near as predictions go: only the card itself tells"
)
CACHE_IN_THE_WAY = (
    "undecided: it may get through if the allocator gives back what it keeps in reserve: only the "
    "card itself tells"
)
RAN_OUT = (
    "does not fit: out of memory in the backward of step 2, with 13.9 GiB allocated (300 MiB asked "
    "for, 200 MiB free)"
)

WRONG_USE = {
    "--card T4": "--model is needed, such as --model Qwen2.5-7B",
    "--model tiny": "--card is needed, such as --card 'RTX 5070 Ti' or --card 16303MiB",
    "--model tiny --card none": (
        "--card is needed, such as --card 'RTX 5070 Ti' or --card 16303MiB"
    ),
    "--model tiny --card 24": "--card 24 must be a size such as '16303MiB' or '15.9GiB'",
    "--model tiny --card 4090": "--card 4090 must be a size such as '16303MiB' or a GPU "
    "(did you mean 'GeForce RTX 4090'?)",
    "--model tiny --card rtx-5070-tie": (
        "--card 'rtx-5070-tie' must be a known GPU (did you mean 'GeForce RTX 5070 Ti'?) or a size "
        "such as '16303MiB'"
    ),
    "--model Qwen2.5-8B --card T4": (
        "--model 'Qwen2.5-8B' is not in the catalogue and no folder with a config.json; the "
        "nearest is 'Qwen2.5-7B'"
    ),
    "--model tiny --card T4 --seq 1.5": "--seq 1.5 must be an integer from 2 to 16,777,216",
    "--model tiny --card T4 --max-grad-norm -1": (
        "--max-grad-norm -1 must be a number above 0, or None"
    ),
    "--model tiny --card T4 --checkpointing maybe": (
        "--checkpointing 'maybe' must be False, True or 'reentrant'"
    ),
    "--model tiny --card T4 --phases evil": (
        "--phases ['evil'] must be a list of 'train', 'eval', 'save' or 'merge' (did you mean "
        "'eval'?)"
    ),
    "--model tiny --card T4 --method full --double-quant true": (
        "--double-quant True has no meaning with --method 'full', only with 'qlora'"
    ),
    "--model gpt2 --card T4 --seq 4096": (
        "--seq 4096 must be at most 1,024, the learned positions of gpt2"
    ),
    "--config rank=16.yaml --card T4": (
        "--config 'rank=16.yaml' asks for training-config files: not built yet"
    ),
}


@pytest.fixture
def estimate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys)


def answer(estimate: Command, *arguments: str) -> tuple[int, str]:
    """The exit status and the line that answers."""
    status, text = estimate("estimate", *CASE, *arguments)
    return status, text.splitlines()[1]


def test_a_case_that_fits(estimate: Command) -> None:
    assert estimate("estimate", *CASE) == (0, FITS)


def test_a_case_that_does_not_fit_says_where_it_runs_out(estimate: Command) -> None:
    assert answer(estimate, "--seq", "16384") == (1, RAN_OUT)


def test_a_case_within_the_margin_is_undecided(estimate: Command) -> None:
    """14,827 MiB are allocated, of 14,771."""
    assert answer(estimate, "--seq", "14100") == (1, TOO_CLOSE)


def test_a_case_whose_cache_is_in_the_way_is_undecided(estimate: Command) -> None:
    """14,677 MiB are allocated, and with 64 MiB of cache reserved."""
    assert answer(estimate, "--seq", "13950") == (1, CACHE_IN_THE_WAY)


@pytest.mark.parametrize(
    ("headroom", "status", "says"),
    [
        # 13,420 MiB for the allocator, 13,352.9 less a margin; reserved are 1,303.1
        ("1351MiB", 0, "fits: 1.3 GiB of 14.6 GiB, 9.3 %; 1.3 GiB of headroom stay free"),
        ("10%", 0, "fits: 1.3 GiB of 14.6 GiB, 9.3 %; 1.5 GiB of headroom stay free"),
        # 1,271 MiB
        ("13500MiB", 1, CACHE_IN_THE_WAY),
        # 1,240 MiB
        ("13531MiB", 1, TOO_CLOSE),
        (
            "13600MiB",
            1,
            "does not fit: headroom 1.3 GiB of 1.1 GiB, reserved; 13.3 GiB must stay free",
        ),
        ("99.9%", 1, "does not fit: headroom 1.3 GiB of 0 B, reserved; 14.5 GiB must stay free"),
    ],
)
def test_headroom_that_must_stay_free(
    headroom: str, status: int, says: str, estimate: Command
) -> None:
    assert answer(estimate, "--headroom", headroom) == (status, says)


def test_managed_memory_stands_apart(estimate: Command) -> None:
    lines = estimate.lines("estimate", *CASE, "--optimizer", "paged_adamw")
    assert "managed          32.0 MiB, which the driver moves between card and host" in lines
    assert [line.split()[0] for line in lines[-4:]] == ["activations", "weights", "adapters", "all"]
    assert lines[-1] == FITS.splitlines()[-1]


def test_a_required_check_that_no_estimate_makes_does_not_hold(estimate: Command) -> None:
    given = ("--require", "no_oom,step_time,gpu_time")
    says = "does not hold: required, and no estimate can tell: step time, GPU time"
    assert estimate("estimate", *CASE, *given) == (1, f"{FITS}\n{says}\n")
    assert estimate.json("estimate", *CASE, *given)["holds"] is False


def test_whether_all_stays_on_a_card_that_refuses_is_not_for_an_estimate(
    estimate: Command,
) -> None:
    says = "does not hold: required, and no estimate can tell: resident"
    assert estimate("estimate", *CASE, "--require", "resident") == (1, f"{FITS}\n{says}\n")


def test_a_required_check_that_is_undecided_is_so(estimate: Command) -> None:
    status, says = answer(estimate, "--seq", "14100", "--require", "no_oom")
    assert status == 1
    assert says.startswith("undecided: required; within 0.5 % of the limit")


def test_arguments_without_a_part_in_an_estimate_are_named(estimate: Command) -> None:
    lines = estimate.lines("estimate", *CASE, "--steps", "3", "--max-step", "2s")
    assert lines[-1] == "no part in an estimate, where nothing runs: --max-step, --steps"


def test_what_follows_the_steps_has_peaks_of_its_own(estimate: Command) -> None:
    given = (*CASE, "--phases", "eval,save", "--eval-batch", "3")
    status, text = estimate("estimate", *given)
    assert status == 0
    assert "optimizer 727 MiB, eval 2.0 GiB, save 471 MiB\n" in text
    assert text.splitlines()[1] == "fits: 2.1 GiB of 14.6 GiB, 14 % (eval)"
    assert "2.1 GiB allocated and outside, 14 % of what is usable (eval)\n" in text
    phases = estimate.json("estimate", *given)["memory"]["phases"]
    assert phases["eval"] == phases["save"] + 3 * 512 * MIB


@pytest.mark.parametrize(
    ("seq", "says"),
    [
        (4740, "fits: "),
        (4742, "undecided: eval: within 0.5 % of the limit"),
        (4791, "undecided: eval: within 0.5 % of the limit"),
        (4793, "does not fit: eval 14.6 GiB of 14.6 GiB, 101 % of the "),
    ],
)
def test_what_follows_the_steps_may_be_what_does_not_fit(
    estimate: Command, seq: int, says: str
) -> None:
    given = ("--phases", "eval", "--eval-batch", "3")
    status, text = answer(estimate, "--seq", str(seq), *given)
    assert (status, text[: len(says)]) == (0 if says == "fits: " else 1, says)


@pytest.mark.parametrize(
    ("card", "unknown"),
    [
        ("L4", "what the driver keeps (576 MiB), what is outside the allocator (776 MiB)"),
        (
            "24GiB",
            (
                "compute capability (8.6), what the driver keeps (614 MiB), "
                "what is outside the allocator (776 MiB)"
            ),
        ),
    ],
)
def test_what_is_not_known_of_the_card_is_named(card: str, unknown: str, estimate: Command) -> None:
    lines = estimate.lines("estimate", "--model", "tiny", "--card", card)
    assert lines[-1] == f"not known of this card, so taken as on others: {unknown}"


def test_json_has_all_that_the_answer_comes_from(estimate: Command) -> None:
    told = estimate.json("estimate", *CASE, "--optimizer", "paged_adamw")
    assert (told["answer"], told["holds"], told["assumed"]) == ("fits", True, [])
    assert told["spec"]["optimizer"] == "paged_adamw"
    assert told["target"]["capability"] == [7, 5]
    assert told["card"]["usable_bytes"] == 14_912 * MIB
    memory = told["memory"]
    managed = memory["ledger"].pop("managed")
    assert managed == memory["managed_bytes"] == 32 * MIB
    assert sum(memory["ledger"].values()) == memory["peak_allocated_bytes"] == 1_299_339_136
    assert told["prediction"] == {
        "fits": True,
        "margin": 0.005,
        "reserved_bytes": [1_299_339_136, 1_299_339_136 + 64 * MIB],
        "undecided": [],
    }
    assert told["oom"] is None


def test_json_of_a_case_that_does_not_fit(estimate: Command) -> None:
    status, text = estimate("estimate", *CASE, "--seq", "16384", "--json")
    told = json.loads(text)
    assert status == 1
    assert (told["answer"], told["holds"]) == ("does not fit", False)
    assert told["oom"]["phase"] == "backward"


def test_the_defaults_are_the_markers(estimate: Command) -> None:
    estimate("estimate", *CASE)
    claim = read_claim([{"model": "Qwen2.5-0.5B", "card": "T4"}], rootdir=Path())
    (request,) = estimate.worker.asked
    assert (request.spec, request.schedule) == (claim.spec, claim.schedule)
    assert request.target is not None
    assert request.target.name == "Tesla T4"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("method", "lora", "lora"),
        ("seq", "1024", 1024),
        ("alpha", "8", 8.0),
        ("dropout", "1e-1", 0.1),
        ("max_grad_norm", "none", None),
        ("max_grad_norm", "0.5", 0.5),
        ("checkpointing", "true", True),
        ("checkpointing", "False", False),
        ("checkpointing", "reentrant", "reentrant"),
        ("double_quant", "false", False),
        ("targets", "all-linear", "all-linear"),
        ("targets", "q_proj", ("q_proj",)),
        ("targets", "v_proj, q_proj", ("q_proj", "v_proj")),
        ("modules_to_save", "lm_head", ("lm_head",)),
        ("modules_to_save", "none", None),
        ("optimizer", "adamw_torch_fused", "adamw_fused"),
        ("alloc_conf", "expandable_segments:True", "expandable_segments:True"),
    ],
)
def test_values_are_read_as_a_command_line_gives_them(
    name: str, text: str, value: object, estimate: Command
) -> None:
    estimate("estimate", *CASE, f"--{name.replace('_', '-')}", text)
    read = getattr(estimate.worker.spec, name)
    assert (type(read), read) == (type(value), value)


def test_a_revision_of_digits_stays_a_text(estimate: Command) -> None:
    case = ("--model", "someone/model", "--card", "T4", "--revision", "1234567")
    estimate.worker.reply = lambda _: NotMeasured(outcome="refused", says="no such model")
    estimate.refusal("estimate", *case)
    assert estimate.worker.spec.revision == "1234567"


def test_a_model_may_be_a_json_object(estimate: Command) -> None:
    estimate.worker.reply = lambda _: NotMeasured(outcome="refused", says="no such model")
    config = '{"model_type": "llama", "hidden_size": 64}'
    estimate.refusal("estimate", "--model", config, "--card", "T4")
    assert estimate.worker.spec.config == {"model_type": "llama", "hidden_size": 64}


def test_a_folder_is_taken_from_the_current_one(
    estimate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    estimate.worker.reply = lambda _: NotMeasured(outcome="refused", says="no such model")
    estimate.refusal("estimate", "--model", "own", "--card", "T4")
    assert estimate.worker.spec.config == {"model_type": "llama"}


@pytest.mark.parametrize("subcommand", ["estimate", "ceiling"])
def test_every_keyword_of_the_marker_has_its_argument(
    subcommand: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([subcommand, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    arguments = {line.split()[0] for line in text.splitlines() if line.startswith("  --")}
    assert {f"--{name.replace('_', '-')}" for name in KEYWORDS} <= arguments
    assert "'full', 'lora' or 'qlora'" in text
    assert text.count("(not built yet)") == 4  # files and own steps
    assert {"Qwen2.5-7B", "GeForce RTX 5070 Ti"} <= {*" ".join(text.split()).split(", ")}


@pytest.mark.parametrize(("arguments", "says"), WRONG_USE.items())
def test_wrong_use_is_one_sentence_with_the_arguments_as_written(
    arguments: str, says: str, estimate: Command
) -> None:
    assert estimate.refusal("estimate", *arguments.split()) == says
    assert estimate.worker.asked == []


@pytest.mark.parametrize("other", ELSEWHERE)
def test_another_tools_name_gets_a_hint(
    other: str, estimate: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for spelling in (f"--{other}", f"--{other.replace('_', '-')}"):
        with pytest.raises(SystemExit) as caught:
            main(["estimate", *CASE, spelling, "1"])
        assert caught.value.code == 2
        says = capsys.readouterr().err.splitlines()[-1]
        here = says.partition(f"there is no {spelling}: here it is --")[2]
        assert here.partition(" ")[0].rstrip(",").replace("-", "_") in KEYWORDS


def test_a_hint_has_the_value_where_the_name_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["estimate", *CASE, "--bf16"])
    assert "there is no --bf16: here it is --precision 'bf16'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--mod", "1"], "there is no --mod; the nearest is --model"),
        (["--sequ=1"], "there is no --sequ; the nearest is --seq"),
        (["--check", "1"], "there is no --check"),
        (
            ["1", "--chekpointing", "1"],
            "there is no --chekpointing; the nearest is --checkpointing",
        ),
        (["1"], "unrecognized arguments: 1"),
    ],
)
def test_names_are_not_abbreviated(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a name that is mistyped might mean that of another tool."""
    with pytest.raises(SystemExit):
        main(["estimate", *CASE, *given])
    assert capsys.readouterr().err.endswith(f"{says}\n")


@pytest.mark.parametrize("outcome", ["refused", "unsupported"])
def test_a_spec_that_cannot_be_predicted_is_one_sentence(outcome: Any, estimate: Command) -> None:
    says = "GPT2LMHeadModel does not have attention='sdpa'; write attention='eager'"
    estimate.worker.reply = lambda _: NotMeasured(outcome=outcome, says=says, clean=True)
    assert estimate.refusal("estimate", *CASE) == (
        "GPT2LMHeadModel does not have --attention 'sdpa'; write --attention 'eager'"
    )


def test_a_name_that_a_sentence_begins_with_is_an_argument_too(estimate: Command) -> None:
    estimate.worker.reply = lambda _: NotMeasured(
        outcome="refused", says="targets: 'targets: seq=1' is not in this model"
    )
    assert estimate.refusal("estimate", *CASE) == (
        "--targets: 'targets: seq=1' is not in this model"
    )


def test_a_worker_that_crashes_is_told_with_what_it_printed(estimate: Command) -> None:
    estimate.worker.reply = lambda _: NotMeasured(
        outcome="crashed", says="the worker exited with status 1", output="Traceback"
    )
    assert estimate.refusal("estimate", *CASE) == (
        "Qwen2.5-0.5B, QLoRA rank 16, seq 512, batch 1 could not be predicted (crashed): the "
        "worker exited with status 1\nTraceback"
    )


def test_interrupted_it_ends_its_worker_and_says_nothing(
    estimate: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> NotMeasured:
        raise KeyboardInterrupt

    estimate.worker.reply = interrupted
    assert main(["estimate", *CASE]) == 130
    assert capsys.readouterr() == ("", "")
    assert not estimate.worker.alive


def test_on_a_terminal_it_says_what_it_does_and_takes_that_back(
    estimate: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["estimate", *CASE]) == 0
    out, err = capsys.readouterr()
    assert out == FITS
    written, *erased = err.split("\r")[1:]
    assert "predicting Qwen2.5-0.5B, QLoRA rank 16, seq 512, batch 1" in written
    assert {*erased} == {"\x1b[?7l\x1b[K\x1b[?7h"}
