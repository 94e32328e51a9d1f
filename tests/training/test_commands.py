"""``estimate`` and ``ceiling`` as a user calls them, with a worker that predicts."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

from pytest_vramfit import catalog
from pytest_vramfit.spec import TrainSpec

BLOCK = 512
"""What PyTorch's allocator rounds to, in bytes."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_vramfit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def adapters_bytes(config: Any, rank: int) -> int:
    """Of A and B in fp32 for every linear of a llama but the head: rank · in and rank · out."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    widths = [
        *((hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)),
        *((hidden, inner), (hidden, inner), (inner, hidden)),
    ]
    blocks = sum(-(4 * rank * width // -BLOCK) for pair in widths for width in pair)
    return int(config["num_hidden_layers"] * blocks * BLOCK)


def test_estimate() -> None:
    case = ("--model", "tiny", "--rank", "4", "--seq", "16", "--card", "RTX 5070 Ti")
    ran = run("estimate", *case, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    told = json.loads(ran.stdout)
    assert told["answer"] == "fits"
    assert told["target"]["name"] == "GeForce RTX 5070 Ti"
    assert TrainSpec.from_json(told["spec"]).digest == told["digest"]
    memory, tiny = told["memory"], catalog.find("tiny")
    assert tiny is not None
    ledger = memory["ledger"]
    assert sum(ledger.values()) - ledger["managed"] == memory["peak_allocated_bytes"]
    assert ledger["adapters"] == adapters_bytes(tiny.config, rank=4)


def test_ceiling() -> None:
    """Beside what a process takes on any card, this one has room for a few batches."""
    ran = run("ceiling", "--axis", "batch", "--model", "tiny", "--card", "900MiB", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    told = json.loads(ran.stdout)
    answers = {one["value"]: one["answer"] for one in told["tried"]}
    fit = [value for value, answer in answers.items() if answer == "fits"]
    assert told["largest"] == max(fit)
    assert told["next"] == max(fit) + 1
    assert answers[told["next"]] != "fits"
    peaks = [one["memory"]["peak_allocated_bytes"] for one in told["tried"]]
    assert all(less < more for less, more in pairwise(peaks))


def test_a_spec_that_does_not_fit_the_model_is_wrong_use() -> None:
    ran = run("estimate", "--model", "tiny", "--targets", "q_prj", "--card", "L4")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("pytest-vramfit: ")
    assert ran.stderr.count("\n") == 1
    assert "q_prj" in ran.stderr
