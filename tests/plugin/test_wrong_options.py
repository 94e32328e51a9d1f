"""A wrong option ends the run before it begins: exit status 4 and one sentence."""

from __future__ import annotations

import os
import shlex

import pytest
from inner import run

CARD = "must be a size in B, KiB, MiB, GiB, TiB; write '16GiB' for powers of 1024"
UNKNOWN = "must be a known GPU such as 'RTX 5070 Ti' or a size such as '16303MiB'"
CHECKS = (
    "must be a list of 'no_oom', 'peak_within_vram', 'eval', 'save', 'merge', 'resident', "
    "'headroom', 'trained', 'max_step', 'step_time', 'gpu_time', 'steady' or 'peak_baseline'"
)
GPU_TIME = f"{CHECKS} (did you mean 'gpu_time'?)"
FILE = "test_one_sentence.py"
SIZE = "must be a size such as '16303MiB' or '15.9GiB'"
NO_FOLDER = "is a file, not a folder"
PREDICTS = "measures, and --vramfit=estimate only predicts"
WRONG = {
    "--vramfit-card=16GB": f"--vramfit-card=16GB {CARD}",
    "-o vramfit_card=16GB": f"vramfit_card=16GB {CARD}",
    "--vramfit-card=0GiB": "--vramfit-card=0GiB must be a size above zero",
    "--vramfit-card=17TiB": "--vramfit-card=17TiB must be a size of at most 16TiB",
    "--vramfit-card=nanGiB": f"--vramfit-card=nanGiB {UNKNOWN}",
    "-o vramfit_card=nanGiB": f"vramfit_card=nanGiB {UNKNOWN}",
    "--gpu --vramfit=cpu": "--gpu and --vramfit=cpu contradict each other",
    "--gpu --vramfit=off": "--gpu and --vramfit=off contradict each other",
    "--vramfit=estimate --vramfit-update": f"--vramfit-update {PREDICTS}",
    "--vramfit=estimate --vramfit-update-missing": f"--vramfit-update-missing {PREDICTS}",
    "--vramfit=estimate --vramfit-against=python3": f"--vramfit-against {PREDICTS}",
    f"--vramfit=cpu --vramfit-baselines={FILE}": f"--vramfit-baselines={FILE} {NO_FOLDER}",
    f"--vramfit=cpu -o vramfit_baselines={FILE}": f"vramfit_baselines={FILE} {NO_FOLDER}",
    "--vramfit-require=gpu_tim": f"--vramfit-require=gpu_tim {GPU_TIME}",
    "-o vramfit_require=gpu_tim": f"vramfit_require=gpu_tim {GPU_TIME}",
    "--vramfit-report=r.html": "--vramfit-report is not built yet",
    "-o vramfit_report=r.html": "vramfit_report is not built yet",
    "--vramfit-update": "--vramfit-update measures, so it needs --gpu or --vramfit=cpu",
    "--vramfit-against=python3": "--vramfit-against measures, so it needs --gpu or --vramfit=cpu",
    "--vramfit=cpu --vramfit-update --vramfit-update-missing": "--vramfit-update records what "
    "--vramfit-update-missing would, too",
    "--vramfit=cpu --vramfit-update --vramfit-against=python3": "--vramfit-update and "
    "--vramfit-against contradict each other: what is compared in one run is not recorded",
    "--vramfit=cpu --vramfit-against=./nothing": "--vramfit-against=./nothing must be a Python "
    "interpreter that can be run",
    "--vramfit=cpu --vramfit-against=.": "--vramfit-against=. must be a Python interpreter that "
    "can be run",
    "--vramfit=cpu --vramfit-against=": "--vramfit-against= has no value",
    "--vramfit-card=": "--vramfit-card= has no value",
    "--vramfit-require=": "--vramfit-require= has no value",
    "--vramfit=cpu --vramfit-baselines=": "--vramfit-baselines= has no value",
    "--vramfit-card=-1GiB": f"--vramfit-card=-1GiB {SIZE}",
    "--vramfit-card=1e999GiB": f"--vramfit-card=1e999GiB {SIZE}",
    "--vramfit-card=16": "--vramfit-card=16 must be a size in B, KiB, MiB, GiB, TiB",
    "--vramfit-require=,": f"--vramfit-require=, {CHECKS}",
    "--vramfit-require=wobbly": f"--vramfit-require=wobbly {CHECKS}",
    "--vramfit-json=.": "--vramfit-json=. is a folder or a device, not a file",
    "-o vramfit_json=.": "vramfit_json=. is a folder or a device, not a file",
    "--vramfit-json=": "--vramfit-json= has no value",
    "--vramfit-json=/dev/null": "--vramfit-json=/dev/null is a folder or a device, not a file",
}


@pytest.mark.parametrize("options", WRONG)
def test_one_sentence(pytester: pytest.Pytester, options: str) -> None:
    pytester.makepyfile("def test_a(): pass")
    ran = run(pytester, *shlex.split(options))
    assert (ran.status, ran.output.strip()) == (4, f"ERROR: {WRONG[options]}")


@pytest.mark.parametrize("options", ["--gpu --vramfit-card=16GiB", "--gpu -o vramfit_card=16GiB"])
def test_card_that_a_gpu_is_to_emulate_is_no_mistake(
    pytester: pytest.Pytester, options: str
) -> None:
    pytester.makepyfile("def test_a(): pass")
    ran = run(pytester, *shlex.split(options))
    assert (ran.status, ran.word("test_a")) == (0, "PASSED")


@pytest.mark.parametrize("value", ["CPU", "cuda", ""])
def test_unknown_engine(pytester: pytest.Pytester, value: str) -> None:
    """pytest's own words for a value that is none of the choices."""
    ran = run(pytester, f"--vramfit={value}")
    assert ran.status == pytest.ExitCode.USAGE_ERROR
    assert (f"argument --vramfit: invalid choice: '{value}' (choose from ") in ran.output


@pytest.mark.parametrize("name", ["a" * 300, "test_a.py/results.json"], ids=["long", "in-a-file"])
def test_results_file_that_cannot_be(pytester: pytest.Pytester, name: str) -> None:
    """Said at the start, not after an hour of measuring."""
    pytester.makepyfile(test_a="def test_a(): pass")
    ran = run(pytester, f"--vramfit-json={name}")
    assert ran.status == pytest.ExitCode.USAGE_ERROR
    assert ran.output.startswith(f"ERROR: --vramfit-json={name} cannot be written: ")


def test_baselines_that_are_a_pipe(pytester: pytest.Pytester) -> None:
    """Nobody writes into it."""
    os.mkfifo(pytester.mkdir("kept") / "a.json")
    ran = run(pytester, "--vramfit=cpu", "--vramfit-baselines=kept")
    place = pytester.path / "kept" / "a.json"
    assert (ran.status, ran.output.strip()) == (
        pytest.ExitCode.USAGE_ERROR,
        f"ERROR: {place} cannot be read: Is a named pipe",
    )
