"""``pytest-vramfit baselines``: show, prune, accept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from entries import ENVIRONMENT, GIB, H200, document, entry, process, results, row, three

from pytest_vramfit.baseline import Entry, Store
from pytest_vramfit.cli.command import main

Capsys = pytest.CaptureFixture[str]

T4 = "Tesla T4"
KEPT = Path(".vramfit")
FILE = KEPT / "nvidia-h200.json"
A, B, C = process(240), process(250), process(260)
TOO_FEW = "run with --vramfit-update, which measures three, or give the results of three runs"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, which a collection is run in, without plugins of this environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return tmp_path


def keep(*entries: Entry) -> None:
    Store(KEPT).put(entries)


def kept() -> set[tuple[str, str, str]]:
    return {(one.device, one.nodeid, one.engine) for one in Store(KEPT).entries}


def nodeids() -> set[str]:
    return {nodeid for _, nodeid, _ in kept()}


def baselines(*arguments: str) -> int:
    return main(["baselines", *arguments])


def lines(capsys: Capsys, *arguments: str, status: int = 0) -> list[str]:
    assert baselines(*arguments) == status
    return capsys.readouterr().out.splitlines()


def as_json(capsys: Capsys, *arguments: str, status: int = 0) -> Any:
    assert baselines(*arguments, "--json") == status
    return json.loads(capsys.readouterr().out)


def refused(capsys: Capsys, *arguments: str) -> str:
    assert baselines(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.strip().removeprefix("pytest-vramfit: ")


# --- show


def test_show_lists_every_entry_in_order(capsys: Capsys) -> None:
    keep(
        entry("b.py::long_name[seq=512]"),
        entry("a.py::b", engine="cpu", processes=(process(9_400, None),), environment={}),
        entry("a.py::b", device=T4, peak_allocated_bytes=3 * GIB, processes=three(gpu_ms=None)),
    )
    assert lines(capsys, "show") == [
        "device       test                      engine  peak      step    GPU time   processes  driver  torch",  # noqa: E501
        "NVIDIA H200  a.py::b                   cpu     10.0 GiB  9.4 s   --         1          --      --",  # noqa: E501
        "NVIDIA H200  b.py::long_name[seq=512]  gpu     10.0 GiB  250 ms  225.00 ms  3          580.1   2.11.0",  # noqa: E501
        "Tesla T4     a.py::b                   gpu     3.0 GiB   250 ms  --         3          580.1   2.11.0",  # noqa: E501
    ]


def test_show_as_json_is_what_is_kept(capsys: Capsys) -> None:
    keep(entry())
    (one,) = as_json(capsys, "show")["baselines"]
    assert one == json.loads(FILE.read_text(encoding="utf-8"))["entries"][0] | {"device": H200}


def test_show_of_another_folder(capsys: Capsys) -> None:
    Store(Path("other")).put([entry()])
    assert len(lines(capsys, "show", "--baselines", "other")) == 2


@pytest.mark.parametrize("command", [["show"], ["prune"], ["prune", "a"]], ids=" ".join)
def test_no_baselines(command: list[str], capsys: Capsys) -> None:
    assert refused(capsys, *command) == "there are no baselines in .vramfit"


@pytest.mark.parametrize("command", [["show"], ["prune"], ["accept", "r.json"]], ids=" ".join)
def test_broken_baselines(command: list[str], capsys: Capsys) -> None:
    results(Path("r.json"), row(processes=(A, B, C)))
    keep(entry())
    text = FILE.read_text(encoding="utf-8").replace('"580.1"', "580.1")
    FILE.write_text(text, encoding="utf-8")
    assert refused(capsys, *command) == (
        f"{FILE}: entries[0].environment.driver is 580.1, not a text"
    )
    assert FILE.read_text(encoding="utf-8") == text


def test_file_in_place_of_the_folder(capsys: Capsys) -> None:
    Path("file").write_text("", encoding="utf-8")
    says = "file is a file, not a folder of baselines"
    assert refused(capsys, "show", "--baselines", "file") == says


# --- prune

TESTS = """
import pytest

@pytest.mark.parametrize("seq", [512, "a b"])
def test_a(seq): ...

class TestB:
    def test_c(self): ...
"""
COLLECTED = ("test_x.py::test_a[512]", "test_x.py::test_a[a b]", "test_x.py::TestB::test_c")


def tests(**files: str) -> None:
    for name, text in files.items():
        path = Path(f"{name}.py")
        path.write_text(text, encoding="utf-8")


def test_prune_removes_what_is_not_collected_any_more(capsys: Capsys) -> None:
    tests(test_x=TESTS)
    gone = ("test_x.py::test_a[1024]", "test_gone.py::test_a[512]")
    keep(*(entry(one) for one in (*COLLECTED, *gone)), entry(gone[0], device=T4))
    assert sorted(lines(capsys, "prune")) == [
        "removed test_gone.py::test_a[512] (gpu, NVIDIA H200)",
        "removed test_x.py::test_a[1024] (gpu, NVIDIA H200)",
        "removed test_x.py::test_a[1024] (gpu, Tesla T4)",
    ]
    assert nodeids() == {*COLLECTED}


def test_prune_with_nothing_to_remove(capsys: Capsys) -> None:
    tests(test_x=TESTS)
    keep(entry(COLLECTED[0]))
    before = FILE.read_bytes()
    assert lines(capsys, "prune") == [
        "nothing to remove: pytest collects the test of every other baseline"
    ]
    assert FILE.read_bytes() == before


def test_dry_run_lists_only(capsys: Capsys) -> None:
    tests(test_x=TESTS)
    keep(entry("a"))
    before = FILE.read_bytes()
    assert lines(capsys, "prune", "--dry-run") == ["would remove a (gpu, NVIDIA H200)"]
    assert lines(capsys, "prune", "--dry-run", "a") == ["would remove a (gpu, NVIDIA H200)"]
    assert FILE.read_bytes() == before


def test_prune_as_json(capsys: Capsys) -> None:
    keep(entry("a"))
    key = {"device": H200, "engine": "gpu", "nodeid": "a"}
    dry = as_json(capsys, "prune", "a", "--dry-run")
    assert dry == {"removed": [key], "kept": [], "dry_run": True}
    assert as_json(capsys, "prune", "a") == {**dry, "dry_run": False}
    assert nodeids() == set()


@pytest.mark.parametrize(
    "settings",
    [
        *("-q", "-qq", "-v", "-rN", "-m slow", "-k test_c", "-k none", "--color=yes"),
        *(
            "--deselect test_x.py::TestB",
            "--sw",
            "--ff",
            "-n 2 -p xdist",
            "--import-mode=importlib",
        ),
    ],
)
def test_prune_does_not_depend_on_how_pytest_is_set_up(settings: str, capsys: Capsys) -> None:
    """A test that the ini file deselects is not gone."""
    tests(test_x=TESTS)
    Path("pytest.ini").write_text(f"[pytest]\naddopts = {settings}\n", encoding="utf-8")
    keep(*(entry(one) for one in COLLECTED), entry("test_x.py::gone"))
    assert lines(capsys, "prune") == ["removed test_x.py::gone (gpu, NVIDIA H200)"]
    assert nodeids() == {*COLLECTED}


KEPT_UNKNOWN = "(gpu, NVIDIA H200): pytest collects nothing of its file"
SKIPS_ITSELF = "import pytest\npytest.skip('no', allow_module_level=True)"


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        ("", {"sub/test_y": SKIPS_ITSELF}),
        ("", {"conftest": "collect_ignore = ['sub']"}),
        ("", {"sub/conftest": "collect_ignore_glob = ['test_*.py']"}),
        ("addopts = --ignore=sub", {}),
        ("addopts = test_x.py", {}),
        ("testpaths = test_x.py", {}),
        ("norecursedirs = sub", {}),
        ("python_files = test_x*", {}),
    ],
)
def test_prune_keeps_what_stands_in_a_file_that_is_left_out(
    settings: str, files: dict[str, str], capsys: Capsys
) -> None:
    """As a file is that needs a GPU."""
    Path("sub").mkdir()
    tests(**{"test_x": TESTS, "sub/test_y": "def test_a(): ...", **files})
    Path("pytest.ini").write_text(f"[pytest]\n{settings}\n", encoding="utf-8")
    unknown, gone = "sub/test_y.py::test_a", ("test_gone.py::a", "test_x.py::gone")
    keep(*(entry(one) for one in (COLLECTED[0], unknown, *gone)))
    assert lines(capsys, "prune") == [
        *(f"removed {one} (gpu, NVIDIA H200)" for one in gone),
        f"kept {unknown} {KEPT_UNKNOWN}",
    ]
    assert nodeids() == {COLLECTED[0], unknown}


@pytest.mark.parametrize("options", ["--ignore=sub", "test_x.py", "--ignore-glob=*_y.py"])
def test_prune_keeps_what_options_of_the_environment_leave_out(
    options: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", options)
    Path("sub").mkdir()
    tests(**{"test_x": TESTS, "sub/test_y": "def test_a(): ..."})
    keep(entry("sub/test_y.py::test_a"), entry("test_gone.py::a"))
    assert lines(capsys, "prune") == [
        "removed test_gone.py::a (gpu, NVIDIA H200)",
        f"kept sub/test_y.py::test_a {KEPT_UNKNOWN}",
    ]


def test_prune_has_the_options_of_the_environment(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may be parametrized by them."""
    conftest = """
def pytest_addoption(parser):
    parser.addoption("--seq", default="512")

def pytest_generate_tests(metafunc):
    metafunc.parametrize("seq", metafunc.config.getoption("seq").split(","))
"""
    tests(test_x="def test_a(seq): ...", conftest=conftest)
    keep(*(entry(f"test_x.py::test_a[{seq}]") for seq in (512, 1024, 2048)))
    monkeypatch.setenv("PYTEST_ADDOPTS", "--seq=512,1024")
    assert lines(capsys, "prune") == ["removed test_x.py::test_a[2048] (gpu, NVIDIA H200)"]


@pytest.mark.parametrize("by", ["ini file", "environment"])
@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("test_x.py::test_a", "test_x.py::test_a"),
        ("test_x.py::TestB . ", "test_x.py::TestB"),
        ("--lf", "--lf"),
    ],
)
def test_prune_refuses_where_a_part_of_a_file_is_collected(
    option: str, named: str, by: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests(test_x=TESTS)
    if by == "environment":
        monkeypatch.setenv("PYTEST_ADDOPTS", option)
    else:
        Path("pytest.ini").write_text(f"[pytest]\naddopts = {option}\n", encoding="utf-8")
    keep(*(entry(one) for one in COLLECTED), entry("test_gone.py::a"))
    assert refused(capsys, "prune") == (
        f"pytest's settings here collect a part of a file only, by {named}; name the tests to prune"
    )
    assert len(nodeids()) == 4


def test_prune_refuses_with_pytest_s_words_where_collection_fails(capsys: Capsys) -> None:
    tests(test_x=TESTS, test_y="import missing_library")
    keep(entry("test_y.py::test_a"))
    says = refused(capsys, "prune")
    assert says.startswith("pytest cannot collect the tests, so none is gone for sure:\n")
    assert "No module named 'missing_library'" in says
    assert nodeids() == {"test_y.py::test_a"}


def test_prune_refuses_with_pytest_s_words_where_pytest_refuses(capsys: Capsys) -> None:
    tests(test_x=TESTS)
    Path("pytest.ini").write_text("[pytest]\naddopts = --unknown\n", encoding="utf-8")
    keep(entry("a"))
    assert "unrecognized arguments: --unknown" in refused(capsys, "prune")


def test_prune_refuses_where_there_are_no_tests(capsys: Capsys) -> None:
    keep(entry("a"))
    says = "pytest collects no test in this folder; run this where the tests are"
    assert refused(capsys, "prune") == says
    assert nodeids() == {"a"}


def test_prune_refuses_below_pytest_s_rootdir(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pytest would collect a part, under names from above."""
    tests(test_x=TESTS)
    Path("pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    keep(entry(COLLECTED[0]))
    Path("sub").mkdir()
    monkeypatch.chdir("sub")
    tests(test_z="def test_a(): ...")
    says = f"pytest's rootdir here is {Path.cwd().parent}; run this there"
    assert refused(capsys, "prune", "--baselines", "../.vramfit") == says


@pytest.mark.parametrize("option", ["--help", "--markers"])
def test_prune_refuses_where_pytest_does_something_else(option: str, capsys: Capsys) -> None:
    tests(test_x=TESTS)
    Path("pytest.ini").write_text(f"[pytest]\naddopts = {option}\n", encoding="utf-8")
    keep(entry("a"))
    assert refused(capsys, "prune").startswith("pytest cannot collect the tests, ")
    assert nodeids() == {"a"}


def test_prune_needs_no_text_of_pytest(capsys: Capsys) -> None:
    """Another plugin may print more, or the terminal may be off."""
    tests(test_x=TESTS, conftest="def pytest_collection_finish(): print('test_x.py::mine')")
    Path("pytest.ini").write_text("[pytest]\naddopts = -s -p no:terminal\n", encoding="utf-8")
    keep(entry("test_x.py::mine"), entry(COLLECTED[1]))
    assert lines(capsys, "prune") == ["removed test_x.py::mine (gpu, NVIDIA H200)"]


def test_prune_of_named_tests_needs_no_collection(capsys: Capsys) -> None:
    keep(entry("a"), entry("b"), entry("a", engine="cpu"), entry("a", device=T4), entry("c"))
    assert lines(capsys, "prune", "a", "c") == [
        "removed a (cpu, NVIDIA H200)",
        "removed a (gpu, NVIDIA H200)",
        "removed c (gpu, NVIDIA H200)",
        "removed a (gpu, Tesla T4)",
    ]
    assert kept() == {(H200, "b", "gpu")}


def test_name_without_a_baseline_gets_the_nearest(capsys: Capsys) -> None:
    keep(entry("test_x.py::test_qwen[seq=512]"), entry("test_y.py::other"))
    assert refused(capsys, "prune", "test_y.py::other", "test_x.py::test_qwn[seq=512]") == (
        "test_x.py::test_qwn[seq=512] has no baseline; the nearest is test_x.py::test_qwen[seq=512]"
    )
    assert len(nodeids()) == 2


# --- accept


def test_accept_takes_a_row_of_three_processes(capsys: Capsys) -> None:
    results(Path("r.json"), row(processes=(A, B, C), peak=9 * GIB))
    accepted, wrote = lines(capsys, "accept", "r.json")
    assert accepted == (
        "accepted test_a.py::test_b (gpu, NVIDIA H200): "
        "peak 9.0 GiB, step 250 ms, GPU time 225.00 ms of 3 processes (new)"
    )
    assert wrote == f"wrote {FILE}"
    assert Store(KEPT).entries == [entry(processes=(A, B, C), peak_allocated_bytes=9 * GIB)]


def test_accept_pools_the_processes_of_several_files(capsys: Capsys) -> None:
    """The smallest peak counts, as where one run records them all."""
    for name, one, peak in (("1", A, 11), ("2", B, 10), ("3", C, 12)):
        results(Path(name), row(processes=(one,), peak=peak * GIB))
    assert baselines("accept", "1", "2", "3") == 0
    assert Store(KEPT).entries == [entry(processes=(A, B, C), peak_allocated_bytes=10 * GIB)]


def test_accept_replaces_an_older_baseline_and_says_what_it_was(capsys: Capsys) -> None:
    keep(entry(peak_allocated_bytes=12 * GIB, processes=three(500, None)), entry("other"))
    results(Path("r.json"), row(processes=(A, B, C)))
    assert lines(capsys, "accept", "r.json")[0].endswith(
        "of 3 processes (before: peak 12.0 GiB, step 500 ms of 3 processes)"
    )
    assert {one.nodeid: one for one in Store(KEPT).entries} == {
        "test_a.py::test_b": entry(processes=(A, B, C)),
        "other": entry("other"),
    }


@pytest.mark.parametrize("files", [["1"], ["1", "2"], ["1", "1", "1"]], ids=" ".join)
def test_accept_refuses_less_than_three_processes(files: list[str], capsys: Capsys) -> None:
    """A file that is given again adds nothing."""
    results(Path("1"), row(processes=(A,)))
    results(Path("2"), row(processes=(B,)))
    number = {1: "one process", 2: "two processes"}[len(set(files))]
    assert lines(capsys, "accept", *files, status=1) == [
        f"refused test_a.py::test_b (gpu, NVIDIA H200): it has {number}; {TOO_FEW}"
    ]
    assert not KEPT.exists()


@pytest.mark.parametrize(
    ("outcome", "failed"),
    [("slower", ("step_time", "gpu_time")), ("heavier", ("peak_baseline",))],
)
def test_accept_takes_what_only_the_older_baseline_speaks_against(
    outcome: str, failed: tuple[str, ...], capsys: Capsys
) -> None:
    results(Path("r.json"), row(processes=(A, B, C), outcome=outcome, failed=failed))
    assert baselines("accept", "r.json") == 0
    assert nodeids() == {"test_a.py::test_b"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"outcome": "slower", "failed": ("max_step",)},
            "its outcome is slower (failed: max_step)",
        ),
        (
            {"outcome": "heavier", "failed": ("step_time", "steady")},
            "its outcome is heavier (failed: step_time, steady)",
        ),
        (
            {"outcome": "oom", "failed": ("no_oom",), "processes": ()},
            "its outcome is oom (failed: no_oom)",
        ),
        (
            {"outcome": "invalid", "failed": ("trained",)},
            "its outcome is invalid (failed: trained)",
        ),
        ({"outcome": "crashed", "processes": ()}, "its outcome is crashed"),
        ({"test": "failed"}, "its test failed"),
        (
            {"test": "failed", "outcome": "oom", "failed": ("no_oom",)},
            "its outcome is oom (failed: no_oom)",
        ),
        ({"test": "skipped"}, "its test was skipped"),
        (
            {"test": "skipped", "outcome": "slower", "failed": ("step_time",)},
            "its test was skipped",
        ),
        ({"conditions": {"others_cpu_share": 0.5}}, "other processes took 50% of the CPU"),
        (
            {"throttled": ["hardware thermal", "power brake"]},
            "the GPU's clocks were held down from outside: hardware thermal, power brake",
        ),
    ],
)
def test_accept_refuses_what_is_not_sound_and_writes_the_others(
    changes: dict[str, Any], says: str, capsys: Capsys
) -> None:
    bad = row("bad", **{"processes": (A, B, C), **changes})
    results(Path("r.json"), bad, row("good", processes=(A, B, C)))
    assert lines(capsys, "accept", "r.json", status=1)[-1] == (
        f"refused bad (gpu, NVIDIA H200): {says}"
    )
    assert nodeids() == {"good"}


@pytest.mark.parametrize(
    "changes",
    [
        {"test": "passed"},
        {"test": None},
        {"test": "failed", "outcome": "slower", "failed": ("gpu_time",)},
        {"test": "failed", "outcome": "heavier", "failed": ("peak_baseline",)},
        {"conditions": {"others_cpu_share": 0.3}},
        {"conditions": {"others_cpu_share": None}},
    ],
)
def test_accept_takes_what_failed_by_the_older_baseline_at_most(
    changes: dict[str, Any], capsys: Capsys
) -> None:
    results(Path("r.json"), row(processes=(A, B, C), **changes))
    assert baselines("accept", "r.json") == 0


def test_accept_leaves_out_what_a_test_only_measured(capsys: Capsys) -> None:
    results(Path("r.json"), row(processes=(A, B, C)), row("m", judged=False, processes=(A, B, C)))
    assert baselines("accept", "r.json") == 0
    assert nodeids() == {"test_a.py::test_b"}


def test_accept_does_not_pool_different_training(capsys: Capsys) -> None:
    results(Path("1"), row(processes=(A, B, C)))
    results(Path("2"), row(processes=(A, B, C), seq=1024))
    assert lines(capsys, "accept", "1", "2", status=1) == [
        "refused test_a.py::test_b (gpu, NVIDIA H200): the results differ in seq 512 and 1024"
    ]


def test_accept_does_not_pool_different_environments(capsys: Capsys) -> None:
    """A baseline names one, to tell what changed since."""
    results(Path("1"), row(processes=(A,)))
    results(Path("2"), row(processes=(B, C)), driver="590.2")
    assert lines(capsys, "accept", "1", "2", status=1) == [
        "refused test_a.py::test_b (gpu, NVIDIA H200): the results differ in driver 580.1 and 590.2"
    ]


def test_accept_pools_gpus_of_the_same_model(capsys: Capsys) -> None:
    results(Path("1"), row(processes=(A,)), gpu="aa")
    results(Path("2"), row(processes=(B, C)), gpu="bb")
    assert baselines("accept", "1", "2") == 0
    assert len(Store(KEPT).entries[0].processes) == 3


def test_accept_keeps_devices_and_engines_apart(capsys: Capsys) -> None:
    t4 = {**ENVIRONMENT, "device": T4}
    results(Path("1"), row(processes=(A, B, C)), row(engine="cpu", processes=(A, B, C)))
    results(Path("2"), row(processes=(A, B, C)), **t4)
    assert baselines("accept", "1", "2") == 0
    nodeid = "test_a.py::test_b"
    assert kept() == {(H200, nodeid, "gpu"), (H200, nodeid, "cpu"), (T4, nodeid, "gpu")}


def test_accept_is_all_or_nothing_where_a_file_cannot_be_read(capsys: Capsys) -> None:
    results(Path("1"), row(processes=(A, B, C)))
    document(Path("2"), [row(processes=()), row(checks=None)], ENVIRONMENT)
    assert refused(capsys, "accept", "1", "2") == "2: results[1].checks is missing"
    assert refused(capsys, "accept", "1", "3") == "3 cannot be read: No such file or directory"
    assert not KEPT.exists()


def test_accept_of_files_without_a_case(capsys: Capsys) -> None:
    results(Path("1"), row(judged=False))
    document(Path("2"), [], None)
    assert refused(capsys, "accept", "1", "2") == "no judged case in 1, 2"


def test_accept_into_a_folder_that_cannot_be_made(capsys: Capsys) -> None:
    results(Path("1"), row(processes=(A, B, C)))
    says = refused(capsys, "accept", "1", "--baselines", "1/below")
    assert says == "1/below: Not a directory"


def test_accept_as_json(capsys: Capsys) -> None:
    good, few = row("good", processes=(A, B, C)), row("few", processes=(A,))
    results(Path("r.json"), good, few)
    answer = as_json(capsys, "accept", "r.json", status=1)
    assert answer["accepted"] == [
        {"device": H200, **replace(entry("good"), processes=(A, B, C)).to_json()}
    ]
    assert answer["refused"] == [
        {
            "device": H200,
            "engine": "gpu",
            "nodeid": "few",
            "says": f"it has one process; {TOO_FEW}",
        }
    ]
    assert answer["files"] == [str(FILE)]
