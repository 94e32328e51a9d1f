"""``compare``: two runs, or baselines and a run, case by case."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from pytest_vramfit.cli import arguments, pair_words, sides
from pytest_vramfit.cli.answer import Answer
from pytest_vramfit.cli.pairs import Pair
from pytest_vramfit.spec import Limits

_DEFAULTS = Limits()


def add(commands: arguments.Commands) -> None:
    """Register it."""
    parser = arguments.subcommand(
        commands,
        "compare",
        _compare,
        "compare two runs, or baselines and a run, case by case; exit 1 where a check fails",
    )
    text = "results (--vramfit-json), a file of baselines or a folder of them"
    parser.add_argument("old", type=Path, metavar="OLD", help=text)
    parser.add_argument("new", type=Path, metavar="NEW", help="the same of what is judged")
    for name, default, what in (
        ("step", _DEFAULTS.step_ratio, "wall time of the step"),
        ("gpu", _DEFAULTS.gpu_ratio, "GPU time of the step"),
        ("peak", _DEFAULTS.peak_ratio, "peak allocated"),
    ):
        parser.add_argument(
            f"--{name}-ratio",
            type=_ratio,
            default=default,
            metavar="RATIO",
            help=f"new ÷ old at most: {what} (default: {default}; none: not judged)",
        )
    parser.add_argument(
        "--require-all", action="store_true", help="exit 1 also where a case of OLD is not in NEW"
    )


def _ratio(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, or none, not {text!r}")
    return number


def _compare(given: argparse.Namespace) -> Answer:
    limits = Limits(
        step_ratio=given.step_ratio, gpu_ratio=given.gpu_ratio, peak_ratio=given.peak_ratio
    )
    old, new = sides.read(given.old), sides.read(given.new)
    pairs = [
        Pair.of(old[key], new[key], limits) for key in sides.common(old, new, given.old, given.new)
    ]
    only_old, only_new = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    return Answer(
        lines=(
            f"{given.old} → {given.new}",
            *pair_words.environment_lines(pairs),
            *_cases(pairs, limits),
            "",
            *_only(given.old, only_old, "FAIL  " if given.require_all else ""),
            *_only(given.new, only_new),
            pair_words.statuses(pairs),
        ),
        json={
            "old": str(given.old),
            "new": str(given.new),
            "limits": _limits(limits),
            "environment": [
                {"name": name, "old": before, "new": now, "cases": number}
                for name, before, now, number in pair_words.environment(pairs)
            ],
            "cases": [pair_words.to_json(pair) for pair in pairs],
            "only_old": [_named(*key) for key in only_old],
            "only_new": [_named(*key) for key in only_new],
        },
        holds=all(pair.status != "fail" for pair in pairs) and not (given.require_all and only_old),
    )


def _cases(pairs: Sequence[Pair], limits: Limits) -> Iterator[str]:
    for (device, engine), group in groupby(pairs, lambda one: (one.new.device, one.new.engine)):
        yield ""
        yield f"{device}, {engine}"
        for pair in group:
            yield from pair_words.lines(pair, _limits(limits))


def _limits(limits: Limits) -> dict[str, float | None]:
    return {
        "peak_baseline": limits.peak_ratio,
        "gpu_time": limits.gpu_ratio,
        "step_time": limits.step_ratio,
    }


def _only(path: Path, keys: Sequence[sides.Key], mark: str = "") -> Iterator[str]:
    for device, nodeid, engine in keys:
        yield f"{mark}only in {path}: {nodeid} ({engine}, {device})"


def _named(device: str, nodeid: str, engine: str) -> dict[str, str]:
    return {"device": device, "engine": engine, "nodeid": nodeid}
