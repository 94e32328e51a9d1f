"""Table and chart of the silent fallback in studies.md, from what `pytest --gpu` measured.

    pytest --gpu example_suite/test_silent_fallback.py --vramfit-json=results.json
    pip install matplotlib==3.11.2
    python docs/silent_fallback.py [results.json]

Prints the table and writes silent_fallback.svg beside this file, and silent_fallback.json, which
has of the results what is needed here and is read where none are given.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
MIB = 2**20
CARD_MIB = 16_303
PUBLISHED_MIB = {
    ("Qwen2.5-1.5B", False): 4000.7,
    ("Qwen2.5-1.5B", True): 2855.5,
    ("Qwen2.5-3B", False): 6749.0,
    ("Qwen2.5-3B", True): 4490.8,
    ("Qwen2.5-7B", False): 11897.9,
    ("Qwen2.5-7B", True): 9709.9,
    ("Qwen2.5-14B", False): 22189.8,
    ("Qwen2.5-14B", True): 17470.9,
}
"""Peaks allocated, by model and checkpointing."""
KEPT = {
    "spec": ("model", "checkpointing"),
    "memory": ("peak_allocated_bytes", "peak_reserved_bytes"),
    "spill": ("spilled_bytes", "served_from_host_bytes"),
    "time": ("step_ns", "gpu_ns"),
}
ENVIRONMENT = ("driver", "torch", "transformers", "peft", "bitsandbytes")
ON_CARD, OFF_CARD, INK, MUTED = "#3b6ea5", "#d1495b", "#222222", "#777777"


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One step of the ladder."""

    name: str
    outcome: str
    published_mib: float
    allocated_mib: float
    reserved_mib: float
    off_card_mib: float
    step_ms: float
    gpu_ms: float

    @property
    def row(self) -> str:
        """Of the table."""
        outcome = self.outcome if self.outcome == "fits" else f"**{self.outcome}**"
        return (
            f"| {self.name} | {self.published_mib:,.1f} | {self.allocated_mib:,.1f} | passes | "
            f"{outcome} | {self.off_card_mib:,.0f} | {self.step_ms:,.0f} ms | "
            f"{self.gpu_ms:,.0f} ms |"
        )


def main(arguments: Sequence[str]) -> None:
    """Print and write."""
    kept = HERE / "silent_fallback.json"
    if arguments:
        results = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        kept.write_text(json.dumps(_reduced(results), indent=1), encoding="utf-8")
    rows = json.loads(kept.read_text(encoding="utf-8"))["results"]
    ladder = [_rung(one) for one in rows if "test_naive_criterion" in one["nodeid"]]
    print("\n".join(one.row for one in ladder))
    _draw(ladder, HERE / "silent_fallback.svg")


def _reduced(results: dict[str, Any]) -> dict[str, Any]:
    return {
        "environment": {name: results["environment"][name] for name in ENVIRONMENT},
        "results": [
            {
                "nodeid": row["nodeid"],
                "outcome": row["outcome"],
                **{part: {name: row[part][name] for name in names} for part, names in KEPT.items()},
            }
            for row in results["results"]
        ],
    }


def _rung(row: dict[str, Any]) -> Rung:
    spec, memory, times = row["spec"], row["memory"], row["time"]
    how = "checkpointing" if spec["checkpointing"] else "off"
    return Rung(
        name=f"{spec['model'].rpartition('-')[2]}, {how}",
        outcome=row["outcome"],
        published_mib=PUBLISHED_MIB[spec["model"], spec["checkpointing"]],
        allocated_mib=memory["peak_allocated_bytes"] / MIB,
        reserved_mib=memory["peak_reserved_bytes"] / MIB,
        off_card_mib=row["spill"]["spilled_bytes"] / MIB,
        step_ms=statistics.median(times["step_ns"]) / 1e6,
        gpu_ms=statistics.median(times["gpu_ns"]) / 1e6,
    )


def _draw(ladder: Sequence[Rung], file: Path) -> None:
    mpl.rcParams.update({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "0"})
    figure, (memory, time) = plt.subplots(
        1, 2, figsize=(9, 3.6), width_ratios=(3, 2), sharey=True, layout="constrained"
    )
    places = range(len(ladder))
    on_card = [one.reserved_mib - one.off_card_mib for one in ladder]
    off_card = [one.off_card_mib for one in ladder]
    memory.barh(places, on_card, color=ON_CARD, label="reserved, on the card")
    memory.barh(places, off_card, left=on_card, color=OFF_CARD, label="reserved, off the card")
    published = [one.published_mib for one in ladder]
    memory.plot(
        published, places, "D", color=INK, markeredgecolor="white", label="published, allocated"
    )
    memory.axvline(CARD_MIB, color=INK, linestyle="--", linewidth=1)
    memory.annotate(
        f"{CARD_MIB:,} MiB",
        (CARD_MIB, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )
    memory.set_yticks(places, [one.name for one in ladder])
    memory.invert_yaxis()
    memory.set_xlabel("MiB")
    memory.xaxis.set_major_formatter("{x:,.0f}")
    figure.legend(loc="outside upper left", ncols=3, frameon=False)

    colours = [OFF_CARD if one.off_card_mib else ON_CARD for one in ladder]
    time.barh(places, [one.gpu_ms for one in ladder], color=colours)
    for place, one in zip(places, ladder, strict=True):
        time.annotate(
            f"{one.gpu_ms:,.0f}",
            (one.gpu_ms, place),
            (3, 0),
            textcoords="offset points",
            va="center",
        )
    time.set_xscale("log")
    time.set_xlim(10, 12_000)
    time.set_xlabel("GPU time of a step, ms")
    for axes in (memory, time):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=MUTED, labelcolor=INK)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1:])
