"""How far predictions are from peaks that were measured: every row of tests/data.

    python tests/accuracy.py [--markdown] [--peer] [ROW ...]

``--markdown`` prints the table of docs/accuracy.md; ``--peer`` puts the errors of fitcheck-llm
beside it (``pip install fitcheck-llm==0.3.1``). ROW: parts of rows' names.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from published import DATA, H200_ROWS, keywords
from torch import nn

from pytest_vramfit.estimating.allocator_settings import AllocatorSettings
from pytest_vramfit.estimating.estimate import answer, through
from pytest_vramfit.estimating.layers import Tracer
from pytest_vramfit.estimating.replay import GotThrough
from pytest_vramfit.estimating.target import Target, target_of
from pytest_vramfit.estimating.traced import Traced
from pytest_vramfit.events import Action
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.spec import Schedule, TrainSpec
from pytest_vramfit.training import adapters

MIB = 2**20
SHARES = tuple(range(97, 104))
"""Made-up cards, in percent of what a row used of its device."""

Phases = dict[tuple[int, str], float]
"""MiB by step (0 the first, 1 a later one) and phase."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured case."""

    source: str
    name: str
    spec: TrainSpec
    target: Target
    peak_mib: float
    reserved_mib: float | None
    phases: Phases
    schedule: Schedule = field(default_factory=Schedule)
    """What followed the steps."""
    outside_mib: float
    """What the process used beside the allocator."""
    keeps_output: bool = False
    """Whether its harness kept the model's output through the backward pass."""
    emptied: Literal["at last", "by PEFT", "never"] = "at last"
    """When the allocator's cache was emptied while the model was built."""
    cumulative: bool = False
    """Whether a phase's peak is that of the step so far."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What the trace of a row says."""

    row: Row
    peak_mib: float
    reserved_mib: float
    reserved_range_mib: tuple[float, float]
    phases: Phases
    answers: dict[int, bool | None]
    """Whether it fits a card of that many percent of the device use."""
    seconds: float
    peer_mib: float | None
    """What fitcheck-llm says of it, if it was asked and models it."""

    @property
    def peer_error(self) -> float | None:
        """Of that, in percent."""
        return None if self.peer_mib is None else 100 * (self.peer_mib / self.row.peak_mib - 1)

    @property
    def error(self) -> float:
        """Of the peak allocated, in percent."""
        return 100 * (self.peak_mib / self.row.peak_mib - 1)

    @property
    def reserved_error(self) -> float | None:
        """Of the peak reserved, in percent."""
        measured = self.row.reserved_mib
        return None if measured is None else 100 * (self.reserved_mib / measured - 1)

    @property
    def in_range(self) -> bool | None:
        """Whether the measured reserved lies in the range over orders, to a page of 2 MiB."""
        measured = self.row.reserved_mib
        low, high = self.reserved_range_mib
        return None if measured is None else low - 2 <= measured <= high + 2

    @property
    def worst_phase(self) -> float:
        """The largest error of a phase, in percent."""
        errors = [100 * abs(self.phases[key] / mib - 1) for key, mib in self.row.phases.items()]
        return max(errors, default=0.0)

    @property
    def unsafe(self) -> int:
        """Made-up cards that it was said to fit and whose memory it exceeds."""
        return sum(fits is True for share, fits in self.answers.items() if share < 100)


def rows() -> Iterator[Row]:
    """All of tests/data."""
    yield from _published_h200()
    yield from _published_t4()
    yield from _matrix()


def _claimed(keywords: Mapping[str, Any]) -> TrainSpec:
    return read_claim([dict(keywords)], rootdir=Path()).spec


def _published_h200() -> Iterator[Row]:
    target = replace(target_of("H200", 0), torch=(2, 11))
    for row in H200_ROWS:
        first, steady = row["first_step_peaks_mib"], row["steady_step_peaks_mib"]
        phases = ("forward", "backward", "optimizer")
        yield Row(
            source="H200, published",
            name=_name(row),
            spec=_claimed(keywords(row)),
            target=target,
            peak_mib=row["peak_allocated_mib"],
            reserved_mib=row["max_reserved_mib"],
            phases={
                (step, phase): peaks[index]
                for step, peaks in enumerate((first, steady))
                for index, phase in enumerate(phases)
            },
            outside_mib=776,
            emptied="by PEFT",
            cumulative=True,
        )


def _published_t4() -> Iterator[Row]:
    for row in json.loads((DATA / "t4_peaks.json").read_text())["rows"]:
        words: dict[str, Any] = {
            "model": row["model"],
            "method": row["method"],
            "rank": row["lora_r"],
            "dropout": 0.0,
            "targets": "attention",
            "seq": row["seq"],
            "batch": row["batch"],
            "precision": "fp16",
            "autocast": False,
            "max_grad_norm": None,
            "checkpointing": row["grad_checkpointing"],
            "attention": row["attn"],
        }
        if row["method"] == "qlora":
            words |= {"double_quant": row["double_quant"], "kbit_upcast": row["kbit_prep"]}
        torch = (2, 14) if row["archive"].startswith("t4-sweep") else (2, 10)
        phases = {phase: row[f"peak_{phase}_mib"] for phase in ("forward", "backward", "optimizer")}
        yield Row(
            source="T4, published",
            name=_name({**row, "checkpointing": row["grad_checkpointing"]}),
            spec=_claimed(words),
            target=replace(target_of("Tesla T4", 0), torch=torch),
            peak_mib=row["value_mib"],
            reserved_mib=row["reserved_mib"],
            phases={(1, phase): mib for phase, mib in phases.items() if mib},
            outside_mib=row["process_mib"] - row["reserved_mib"],
            keeps_output=True,
            emptied="never",  # PEFT before 0.21
        )


def _matrix() -> Iterator[Row]:
    file = DATA / "h200_matrix.json"
    if not file.exists():
        return
    target = replace(target_of("H200", 0), torch=(2, 11))
    for number, row in enumerate(json.loads(file.read_text())["rows"]):
        memory = row["memory"]
        if memory is None:
            continue
        claim = read_claim([row["keywords"]], rootdir=Path())
        outside = memory["outside"]
        phases = {(1, one): memory[one] / MIB for one in ("forward", "backward", "optimizer")}
        yield Row(
            # every other row, whose errors nobody looked at while the predictions were made
            source="H200, held out" if number % 2 else "H200, matrix",
            name=" ".join(f"{key}={value}" for key, value in row["keywords"].items()),
            spec=claim.spec,
            target=target,
            schedule=claim.schedule,
            peak_mib=max(phases.values()),
            reserved_mib=memory["reserved"] / MIB,
            phases=phases | {(1, one): peak / MIB for one, peak in row["phases"].items()},
            outside_mib=target.outside_bytes / MIB if outside is None else outside / MIB,
        )


def _name(row: Mapping[str, Any]) -> str:
    words = [row["model"].rpartition("/")[2], row["method"]]
    words += ["checkpointing"] if row["checkpointing"] else []
    words += ["eager"] if row.get("attn", row.get("attention")) == "eager" else []
    return " ".join([*words, f"seq {row['seq']}", f"batch {row['batch']}"])


def predict(row: Row, *, peer: bool) -> Predicted:
    """Trace the row's case, as its harness ran it, and replay it in several orders."""
    begin = time.perf_counter()
    with _keeping_output() if row.keeps_output else nullcontext():
        traced = Tracer().trace(row.spec, row.target, row.schedule.phases, row.schedule.eval_batch)
    seconds = time.perf_counter() - begin
    traced = _emptied(traced, row)
    settings = AllocatorSettings.parse(row.spec.alloc_conf or "")
    got = through(traced, settings)
    reserved = [one.peak_reserved_bytes / MIB for one in got]
    phases = _phases(got[0], cumulative=row.cumulative)
    used = ((row.reserved_mib or row.peak_mib) + row.outside_mib) * MIB
    outside = row.target.outside_bytes
    return Predicted(
        row=row,
        peak_mib=max(one.step for one in got[0].steps) / MIB,
        reserved_mib=reserved[0],
        reserved_range_mib=(min(reserved), max(reserved)),
        phases=phases,
        answers={
            share: answer(traced, settings, int(used * share / 100) - outside, got)[0]
            for share in SHARES
        },
        seconds=seconds,
        peer_mib=_of_peer(row) if peer else None,
    )


def _of_peer(row: Row) -> float | None:
    from peer import OutOfScopeError, peak_mib

    try:
        return peak_mib(row.spec)
    except OutOfScopeError:
        return None


def _phases(ran: GotThrough, *, cumulative: bool) -> Phases:
    found: Phases = {}
    for number, step in enumerate((ran.steps[0], ran.steps[-1])):
        peaks = [step.forward, step.backward, step.optimizer]
        if cumulative:
            peaks = [max(peaks[: index + 1]) for index in range(3)]
        for phase, peak in zip(("forward", "backward", "optimizer"), peaks, strict=True):
            found[number, phase] = peak / MIB
    return found | {(1, phase): peak / MIB for phase, peak in ran.phases.items()}


def _emptied(traced: Traced, row: Row) -> Traced:
    """The trace with the cache emptied when the row's harness did."""
    at = [index for index, one in enumerate(traced.events) if one[0] is Action.EMPTY_CACHE]
    dropped = {"at last": set(), "by PEFT": set(at[-1:]), "never": set(at)}[row.emptied]
    events = [one for index, one in enumerate(traced.events) if index not in dropped]
    return replace(traced, events=tuple(events))


def _keeping_output() -> AbstractContextManager[object]:
    """Keep each forward pass's output until the next one."""
    prepare = adapters.prepare

    def prepared(*args: Any) -> nn.Module:
        model, kept = prepare(*args), []
        model.register_forward_pre_hook(lambda *_: kept.clear())
        model.register_forward_hook(lambda _model, _args, output: kept.append(output))
        return model

    return patch("pytest_vramfit.training.adapters.prepare", prepared)


def summary(found: Sequence[Predicted]) -> Iterator[str]:
    """A line for each figure over some rows."""
    errors = sorted(abs(one.error) for one in found)
    reserved = sorted(abs(one.reserved_error) for one in found if one.reserved_error is not None)
    ranges = [one.in_range for one in found if one.in_range is not None]
    answers = [fits for one in found for fits in one.answers.values()]
    yield f"rows {len(found)}"
    yield f"peak allocated: {_spread(errors)}"
    yield f"worst phase of a step: {_spread(sorted(one.worst_phase for one in found))}"
    yield f"peak reserved: {_spread(reserved)}; in the range of orders {sum(ranges)}/{len(ranges)}"
    yield (
        f"cards of 97 to 103 %: {sum(one.unsafe for one in found)} unsafe answers, "
        f"{sum(fits is None for fits in answers)} of {len(answers)} left open"
    )
    peers = sorted(abs(one.peer_error) for one in found if one.peer_error is not None)
    if peers:
        yield f"fitcheck-llm: {_spread(peers)}, of the {len(peers)} that it models"
    yield f"trace: median {statistics.median(one.seconds for one in found):.1f} s"


def _spread(errors: Sequence[float]) -> str:
    high = errors[min(len(errors) - 1, int(0.95 * len(errors)))]
    return f"median {statistics.median(errors):.3f} %, 95th {high:.2f} %, worst {errors[-1]:.2f} %"


def main(arguments: argparse.Namespace) -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    chosen = [
        row
        for row in rows()
        if not arguments.row or any(part in f"{row.source} {row.name}" for part in arguments.row)
    ]
    found: dict[str, list[Predicted]] = {}
    for row in chosen:
        try:
            one = predict(row, peer=arguments.peer)
        except Exception as error:  # noqa: BLE001 (the others are still of interest)
            print(f"{row.source}: {row.name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        found.setdefault(row.source, []).append(one)
        print(_line(one, markdown=arguments.markdown), flush=True)
    for source, ones in found.items():
        print(f"\n{source}")
        for line in summary(ones):
            print(f"  {line}")


def _line(one: Predicted, *, markdown: bool) -> str:
    low, high = one.reserved_range_mib
    cells = [
        one.row.source,
        one.row.name,
        f"{one.row.peak_mib:,.1f}",
        f"{one.peak_mib:,.1f}",
        f"{one.error:+.3f} %",
        f"{one.worst_phase:.2f} %",
        f"{one.row.reserved_mib:,.0f}" if one.row.reserved_mib else "",
        f"{low:,.0f} to {high:,.0f}",
        f"{one.unsafe}",
    ]
    cells += [] if one.peer_error is None else [f"{one.peer_error:+.1f} %"]
    return f"| {' | '.join(cells)} |" if markdown else "  ".join(cells)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("row", nargs="*")
    main(parser.parse_args())
