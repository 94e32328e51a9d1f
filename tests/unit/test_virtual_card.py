"""The library that stands in for CUDA's allocation: built once, loaded before the user's own."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_vramfit.measurement import UnsupportedError
from pytest_vramfit.virtual_card import library
from pytest_vramfit.virtual_card.card import VirtualCard

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or CC is None, reason="it is built under Linux, by a C compiler"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "cache" / "pytest-vramfit"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Of the compilers that were started."""
    started: list[list[str]] = []
    run = subprocess.run

    def noted(command: list[str], **settings: Any) -> Any:
        started.append(command)
        return run(command, **settings)

    monkeypatch.setattr(library.subprocess, "run", noted)
    return started


def script(file: Path, does: str) -> None:
    file.write_text(f"#!/bin/sh\n{does}\n")
    file.chmod(0o755)


def refusal() -> str:
    with pytest.raises(UnsupportedError) as refused:
        library.preloading(None)
    return str(refused.value)


@pytest.mark.parametrize("name", ["my cache", "a:b"])
def test_a_folder_that_the_loader_would_split(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    assert refusal() == (
        'overflow="spill" needs a cache folder whose path has neither a blank nor a colon, and it '
        f"would be {tmp_path / name / 'pytest-vramfit'}; set XDG_CACHE_HOME"
    )


def test_a_folder_beside_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert Path(library.preloading(None)).is_relative_to(tmp_path / "cache")


def test_it_is_compiled_once(cache: Path, commands: list[list[str]]) -> None:
    file = Path(library.preloading(None))
    made = file.stat()
    assert library.preloading(None) == str(file)
    assert (len(commands), file.stat()) == (1, made)
    assert list(cache.iterdir()) == [file]
    assert file.name.startswith("overflow-")


def test_it_is_compiled_anew_for_another_source(
    cache: Path, commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = library.preloading(None)
    other = tmp_path / "other.c"
    other.write_bytes(library._SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(library, "_SOURCE", other)
    assert library.preloading(None) != before
    assert len(list(cache.iterdir())) == len(commands) == 2


def test_without_a_cache_of_its_own_it_lies_in_the_home(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Path(library.preloading(None)).parent == tmp_path / ".cache" / "pytest-vramfit"


@pytest.mark.parametrize(
    ("inherited", "after"),
    [(None, ""), ("", ""), ("/a.so", " /a.so"), ("/a.so b.so", " /a.so b.so")],
)
def test_what_is_preloaded_anyway_comes_after_it(
    cache: Path, inherited: str | None, after: str
) -> None:
    alone = library.preloading(None)
    assert library.preloading(inherited) == alone + after


@pytest.mark.parametrize("flags", ["", " -O0 -Wall -Werror"])
def test_the_user_s_compiler_with_its_options_comes_first(
    cache: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    monkeypatch.setenv("CC", f"{CC}{flags}")
    library.preloading(None)
    assert commands[0][: 1 + len(flags.split())] == [CC, *flags.split()]


def test_compiler_that_is_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert refusal() == (
        'overflow="spill" could not build its library: [Errno 2] No such file or directory: '
        "'no-such-compiler'"
    )
    assert list(cache.iterdir()) == []


def test_no_compiler_on_the_path(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal() == (
        'overflow="spill" needs a C compiler for its library, and there is no cc, gcc or clang on '
        "the PATH"
    )


def test_any_of_the_compilers_will_do(
    cache: Path, commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "clang", f'PATH={os.environ["PATH"]} exec {CC} "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))
    library.preloading(None)
    assert [command[0] for command in commands] == ["clang"]


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("echo 'a.c: no such header' >&2; echo more >&2; exit 1", "a.c: no such header"),
        ("exit 3", "returned non-zero exit status 3."),
    ],
)
def test_compiler_that_fails_is_told_in_one_line(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, says: str
) -> None:
    script(tmp_path / "compiler", does)
    monkeypatch.setenv("CC", str(tmp_path / "compiler"))
    told = refusal()
    assert told.startswith('overflow="spill" could not build its library: ')
    assert told.endswith(says)
    assert "\n" not in told
    assert list(cache.iterdir()) == []


def test_cache_that_cannot_be_written(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert refusal() == (
        'overflow="spill" could not build its library: [Errno 20] Not a directory: '
        f"'{file / 'pytest-vramfit'}'"
    )


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_other_systems_have_none(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.sys, "platform", platform)
    assert refusal() == 'overflow="spill" emulates a full card under Linux only'


def test_library_has_what_stands_in_for_cuda_and_what_the_worker_asks(cache: Path) -> None:
    loaded = ctypes.CDLL(library.preloading(None))
    for name in ("cudaMalloc", "cudaFree", "vramfit_set_budget"):
        assert getattr(loaded, name)
    for name in ("device", "host", "host_peak"):
        assert getattr(loaded, f"vramfit_{name}_bytes")() == 0


def test_process_that_was_started_with_it_has_a_card(cache: Path) -> None:
    code = (
        "from pytest_vramfit.virtual_card.card import VirtualCard\n"
        "card = VirtualCard()\n"
        "card.allow(5)\n"
        "print(card.device_bytes, card.host_bytes, card.host_peak_bytes)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"LD_PRELOAD": library.preloading(None)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["0", "0", "0"]


def test_process_that_was_started_without_it_has_none() -> None:
    with pytest.raises(OSError, match=r"^the process was not started with the library$"):
        VirtualCard()
