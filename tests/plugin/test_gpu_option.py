"""``--gpu`` is ours only where nobody else has it, and without a GPU it is an error."""

from __future__ import annotations

import pytest
from inner import HEAD, Ran, RunOnce, run

OWN = """
def pytest_addoption(parser):
    parser.addoption("--gpu", action="store_true", help="their own"{more})
"""
OWN_PLAIN = OWN.format(more="")
OWN_WITH_DEST = OWN.format(more=', dest="use_gpu"')
OWN_IN_A_GROUP = OWN_PLAIN.replace("parser.", 'parser.getgroup("theirs").')
OWN_WITH_A_VALUE = OWN_PLAIN.replace('action="store_true"', "type=int")
READS_IT = """
def test_it(request):
    assert request.config.getoption("--gpu") == {value}
"""
MARKED = HEAD + "@pytest.mark.fits_vram(**TINY)\ndef test_marked(): pass\n"


@pytest.fixture(
    params=[OWN_PLAIN, OWN_WITH_DEST, OWN_IN_A_GROUP],
    ids=["plain", "dest", "group"],
)
def with_their_own(request: pytest.FixtureRequest, run_once: RunOnce) -> Ran:
    source = READS_IT.format(value=True) + MARKED
    return run_once("--gpu", "-rs", conftest=request.param, test_it=source)


def test_conftest_keeps_its_own(with_their_own: Ran) -> None:
    assert with_their_own.word("test_it") == "PASSED"


def test_their_option_is_not_our_engine(with_their_own: Ran) -> None:
    assert with_their_own.word("test_marked") == "SKIPPED"


def test_reason_names_an_option_that_is_ours(with_their_own: Ran) -> None:
    assert with_their_own.line("SKIPPED [1]").endswith(
        ": runs with --vramfit=gpu, small cases also with --vramfit=cpu; "
        "--vramfit=estimate predicts it"
    )


def test_conftest_keeps_its_own_where_it_is_not_given(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(conftest=OWN_PLAIN, test_it=READS_IT.format(value=False))
    assert run(pytester).word("test_it") == "PASSED"


def test_conftest_keeps_its_own_with_a_value(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(conftest=OWN_WITH_A_VALUE, test_it=READS_IT.format(value=7))
    assert run(pytester, "--gpu=7").word("test_it") == "PASSED"


def test_help_shows_theirs_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(conftest=OWN_PLAIN)
    assert run(pytester, "--help").line("  --gpu").split() == ["--gpu", "their", "own"]


def test_help_shows_ours(pytester: pytest.Pytester) -> None:
    shown = run(pytester, "--help").line("  --gpu")
    assert shown.split(maxsplit=1) == ["--gpu", "short for --vramfit=gpu"]


@pytest.mark.parametrize("option", [(), ("--gpu",)], ids=["not-given", "given"])
def test_conftest_of_a_folder_below(pytester: pytest.Pytester, option: tuple[str, ...]) -> None:
    """It is found while pytest collects: ours is not in its way, and stays ours."""
    pytester.makepyfile(**{"below/conftest": OWN_PLAIN, "below/test_it": "def test_it(): pass"})
    assert run(pytester, *option).word("test_it") == "PASSED"


def test_conftest_of_a_folder_below_that_is_asked_for(pytester: pytest.Pytester) -> None:
    """It is loaded first, so ``--gpu`` is theirs."""
    pytester.makepyfile(
        **{"below/conftest": OWN_PLAIN, "below/test_it": READS_IT.format(value=True)}
    )
    assert run(pytester, "below", "--gpu").word("test_it") == "PASSED"


@pytest.mark.parametrize("how", ["argument", "environment", "ini"])
def test_is_the_gpu_engine(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Wherever pytest takes its options from."""
    pytester.makepyfile(test_it="def test_it(): pass")
    if how == "environment":
        monkeypatch.setenv("PYTEST_ADDOPTS", "--gpu")
    elif how == "ini":
        pytester.makeini("[pytest]\naddopts = --gpu")
    ran = run(pytester, *(["--gpu"] if how == "argument" else []))
    assert ran.line("vramfit: ").startswith("vramfit: gpu engine")


@pytest.mark.parametrize("workers", ["-n1", "-n2"])
def test_workers_of_xdist_have_it_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """Only the GPU engine needs a GPU; with no engine the test would be skipped."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makepyfile(test_it=MARKED)
    assert run(pytester, "--gpu", workers).word("test_marked") == "ERROR"


@pytest.fixture
def without_gpu(run_once: RunOnce, monkeypatch: pytest.MonkeyPatch) -> Ran:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    source = MARKED + "\n@pytest.mark.xfail\n@pytest.mark.fits_vram(**TINY)\ndef test_xfail(): pass"
    source += '\n@pytest.mark.fits_vram(**TINY, card="1GiB")\ndef test_card(): pass'
    return run_once("--gpu", test_it=source + "\n\ndef test_plain(): pass\n")


@pytest.mark.parametrize("test", ["test_marked", "test_xfail", "test_card"])
def test_no_gpu_is_an_error(without_gpu: Ran, test: str) -> None:
    """Never a skip: a gate that ran nothing must not be green."""
    assert (without_gpu.word(test), without_gpu.status) == ("ERROR", pytest.ExitCode.TESTS_FAILED)


@pytest.mark.parametrize("test", ["test_marked", "test_card"])
def test_no_gpu_is_the_reason(without_gpu: Ran, test: str) -> None:
    first = without_gpu.text(test).splitlines()[0]
    assert first.startswith(
        "fits_vram: tiny, QLoRA rank 4, seq 16, batch 1 could not be measured (unsupported): "
        "no usable GPU: "
    )


def test_no_gpu_lets_unmarked_tests_run(without_gpu: Ran) -> None:
    assert without_gpu.word("test_plain") == "PASSED"


def test_no_gpu_does_not_advise_gpu(without_gpu: Ran) -> None:
    """The summary proposes ``--gpu`` for what the CPU cannot measure, but not to who used it."""
    assert "on a GPU machine" not in without_gpu.output
