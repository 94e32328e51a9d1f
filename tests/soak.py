"""Many cases in one run: what they cost in memory and time must not grow.

python tests/soak.py 1000
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# In the run itself, after each test: the resident bytes of pytest and of its worker, and the time.
CONFTEST = """\
import os
import time
import psutil

begin = time.perf_counter()

def pytest_runtest_logfinish():
    me = psutil.Process()
    worker = max((one.memory_info().rss for one in me.children(recursive=True)), default=0)
    with open("soak.txt", "a") as file:
        print(time.perf_counter() - begin, me.memory_info().rss, worker, file=file)
"""
SUITE = """\
import pytest

@pytest.mark.fits_vram(model="tiny", seq=4, warmup=2, steps=1)
@pytest.mark.parametrize("number", range({cases}))
def test_case(number): ...
"""
MIB = 2**20


def run(folder: Path, cases: int) -> list[tuple[float, ...]]:
    """Seconds since the start, bytes of pytest, bytes of its worker, after each case."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_soak.py").write_text(SUITE.format(cases=cases))
    command = [sys.executable, "-m", "pytest", "-q", "--vramfit=cpu"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "soak.txt").read_text().splitlines()
    return [tuple(float(one) for one in line.split()) for line in lines]


def growth(seen: list[tuple[float, ...]]) -> dict[str, float]:
    """From the second quarter of the cases to the last: bytes a case, time as a ratio."""
    quarter = len(seen) // 4
    early, late = seen[quarter : 2 * quarter], seen[-quarter:]
    apart = len(seen) - 2 * quarter

    def middle(rows: list[tuple[float, ...]], column: int) -> float:
        return statistics.median(row[column] for row in rows)

    def pace(rows: list[tuple[float, ...]]) -> float:
        times = [row[0] for row in rows]
        return statistics.median(b - a for a, b in itertools.pairwise(times))

    return {
        "parent": (middle(late, 1) - middle(early, 1)) / apart,
        "worker": (middle(late, 2) - middle(early, 2)) / apart,
        "time": pace(late) / pace(early),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        seen = run(Path(name), int(sys.argv[1]))
    grown = growth(seen)
    sizes = [f"{seen[0][one] / MIB:.0f} to {seen[-1][one] / MIB:.0f} MiB" for one in (1, 2)]
    print(
        f"{len(seen)} cases in {seen[-1][0]:.0f} s; "
        f"pytest {sizes[0]} ({grown['parent'] / 1024:.1f} KiB a case), "
        f"worker {sizes[1]} ({grown['worker'] / 1024:.1f} KiB a case); "
        f"a case in the last quarter took {grown['time']:.2f} times one in the second"
    )
