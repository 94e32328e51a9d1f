"""The library that stands in for CUDA's allocation, built on first use. Linux only."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_vramfit.measurement import UnsupportedError

_SOURCE = Path(__file__).with_name("overflow.c")
_COMPILERS = ("cc", "gcc", "clang")


def preloading(inherited: str | None) -> str:
    """The value of ``LD_PRELOAD`` for a worker with the library, before what the user has there.

    Raises UnsupportedError.
    """
    file = str(_built().absolute())
    if " " in file or ":" in file:  # where the system's loader splits its list
        raise UnsupportedError(
            'overflow="spill" needs a cache folder whose path has neither a blank nor a colon, and '
            f"it would be {file.rpartition('/')[0]}; set XDG_CACHE_HOME"
        )
    return " ".join(filter(None, (file, inherited)))


def _built() -> Path:
    """The library's file, compiled if this source was not before. Raises UnsupportedError."""
    if sys.platform != "linux":
        raise UnsupportedError('overflow="spill" emulates a full card under Linux only')
    source = _SOURCE.read_bytes()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-vramfit"
    file = folder / f"overflow-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not file.exists():
        _compile(file)
    return file


def _compile(file: Path) -> None:
    wanted = os.environ.get("CC", "").split()
    compiler = wanted or [next((one for one in _COMPILERS if shutil.which(one)), "")]
    if not compiler[0]:
        raise UnsupportedError(
            'overflow="spill" needs a C compiler for its library, and there is no '
            f"{', '.join(_COMPILERS[:-1])} or {_COMPILERS[-1]} on the PATH"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            options = ["-O2", "-shared", "-fPIC", "-pthread", "-o", str(made)]
            subprocess.run(  # noqa: S603 (the user's compiler)
                [*compiler, *options, str(_SOURCE), "-ldl"],
                check=True,
                capture_output=True,
                text=True,
            )
            made.replace(file)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or "").strip() or str(error)
        raise UnsupportedError(
            f'overflow="spill" could not build its library: {said.splitlines()[0]}'
        ) from error
