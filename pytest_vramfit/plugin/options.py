"""The command line and its ini twins."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_vramfit.baseline import Store
    from pytest_vramfit.gate import Update
    from pytest_vramfit.measurement import Engine

_ENGINES = ("gpu", "cpu", "estimate", "auto", "off")
_GPU = "--gpu"

_TWINS = {
    "card": ("CARD", "default for the marker's card: a size such as 16303MiB (cpu engine)"),
    "json": ("FILE", "write the results of all cases to FILE"),
    "baselines": ("DIR", "folder of the baselines (.vramfit under the rootdir)"),
    "require": ("CHECK,...", "checks that fail where they cannot be made"),
    "report": ("FILE.html", "(not built yet) write a report to FILE"),
}
"""Options with a value that can also stand in the ini file, as vramfit_NAME."""

_NOT_BUILT = ("report",)
_UPDATES: dict[Update, str] = {
    "all": "update",
    "missing": "update-missing",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The options as the plugin uses them."""

    engine: Engine | None
    """None: marked tests are skipped."""
    gpu_option: str
    """The option that runs marked tests on the GPU, for messages."""
    card: str | None
    card_option: str
    """The command line's part in ``card``, to repeat it."""
    json: Path | None
    isolate: bool
    baselines: Store | None
    """None where nothing is measured."""
    update: Update | None
    require: frozenset[str]
    against: str | None
    """The interpreter to measure every case in, too."""

    @property
    def gpu_command(self) -> str:
        """How pytest is called for the GPU."""
        return f"pytest {self.gpu_option}"

    @property
    def command(self) -> str:
        """How pytest was called, as far as it matters for a verdict."""
        if self.engine == "gpu":
            return self.gpu_command
        return f"pytest --vramfit={self.engine}{self.card_option}"


def add(parser: pytest.Parser) -> None:
    """Register every option but ``--gpu``."""
    group = parser.getgroup("vramfit", "fine-tuning steps that must fit the hardware")
    group.addoption(
        "--vramfit",
        choices=_ENGINES,
        default=None,
        help="run tests marked fits_vram: gpu, cpu (small cases, for real), estimate (their "
        "memory, without running them), auto (the GPU where there is one, else estimate), off",
    )
    for name, (metavar, text) in _TWINS.items():
        group.addoption(f"--vramfit-{name}", metavar=metavar, default=None, help=text)
        parser.addini(f"vramfit_{name}", help=f"the same as --vramfit-{name}")
    group.addoption(
        "--vramfit-isolate",
        action="store_true",
        default=None,
        help="a fresh worker process for every case",
    )
    parser.addini("vramfit_isolate", type="bool", default=False, help="as --vramfit-isolate")
    group.addoption(
        "--vramfit-update",
        action="store_true",
        default=None,
        help="record baselines of all cases that run, each in three processes",
    )
    group.addoption(
        "--vramfit-update-missing",
        action="store_true",
        default=None,
        help="record baselines where there is none",
    )
    group.addoption(
        "--vramfit-against",
        metavar="PYTHON",
        default=None,
        help="measure every case in that interpreter too, in turn, and judge the ratio",
    )


def take_gpu(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Take ``--gpu`` out of the arguments, unless a conftest or another plugin has its own.

    It is registered for ``--help`` only: a conftest in a sub-folder, found during collection, may
    still add its own, and pytest would refuse that.
    """
    try:
        free = _GPU in parser.parse_known_and_unknown_args([_GPU, *args])[1]
    except pytest.UsageError:  # it is somebody's and takes a value, or pytest is about to say more
        return
    if not free:
        return
    # xdist's workers have the option from their controller
    config.option.vramfit_gpu = getattr(config.option, "vramfit_gpu", False) or _GPU in args
    args[:] = [one for one in args if one != _GPU]
    if {"-h", "--help"} & {*args}:
        group = parser.getgroup("vramfit")
        group.addoption(_GPU, action="store_true", help="short for --vramfit=gpu")


def read(config: pytest.Config) -> Settings:
    """The settings of this run. Raises pytest.UsageError."""
    for name in _NOT_BUILT:
        value, source = _given(config, name)
        if value:
            raise pytest.UsageError(f"{source} is not built yet")
    engine = _engine(config)
    card, card_option = _card(config)
    update, against = _update(config), _against(config)
    if engine is None and (update or against):
        option = f"--vramfit-{_UPDATES[update]}" if update else "--vramfit-against"
        raise pytest.UsageError(f"{option} measures, so it needs --gpu or --vramfit=cpu")
    if engine == "estimate" and (update or against):
        option = f"--vramfit-{_UPDATES[update]}" if update else "--vramfit-against"
        raise pytest.UsageError(f"{option} measures, and --vramfit=estimate only predicts")
    if update and against:
        raise pytest.UsageError(
            f"--vramfit-{_UPDATES[update]} and --vramfit-against contradict each other: what is "
            "compared in one run is not recorded"
        )
    return Settings(
        engine=engine,
        gpu_option=_GPU if hasattr(config.option, "vramfit_gpu") else "--vramfit=gpu",
        card=card,
        card_option=card_option,
        json=_json_path(config),
        isolate=bool(_given(config, "isolate")[0]),
        baselines=None if engine is None else _baselines(config),
        update=update,
        require=_require(config),
        against=against,
    )


def _engine(config: pytest.Config) -> Engine | None:
    engine: str | None = config.getoption("vramfit")
    if getattr(config.option, "vramfit_gpu", False):
        if engine not in {None, "gpu"}:
            raise pytest.UsageError(f"--gpu and --vramfit={engine} contradict each other")
        engine = "gpu"
    if engine == "gpu":
        return "gpu"
    if engine == "auto":
        return "gpu" if _has_gpu() else "estimate"
    return "cpu" if engine == "cpu" else "estimate" if engine == "estimate" else None


def _has_gpu() -> bool:
    from pytest_vramfit.measuring import nvml

    try:
        return bool(nvml.cards())
    except nvml.NvmlUnavailableError:
        return False


def _card(config: pytest.Config) -> tuple[str | None, str]:
    """The default card, and the command line's part in it."""
    card, source = _given(config, "card")
    if not card:
        return None, ""
    from pytest_vramfit.marker.keywords import card_bytes

    try:
        card_bytes(card)
    except ValueError as error:
        raise pytest.UsageError(f"{source}={card} must be {error}") from None
    if not source.startswith("-"):
        return card, ""
    return card, f' {source}="{card}"' if " " in card else f" {source}={card}"


def _baselines(config: pytest.Config) -> Store:
    """The baselines, read before anything is measured: a bad file stops the run."""
    from pytest_vramfit.baseline import BaselineError, Store

    given, source = _given(config, "baselines")
    if not given:
        folder = config.rootpath / ".vramfit"
    else:
        base = config.invocation_params.dir if source.startswith("-") else config.rootpath
        folder = base / given
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            return Store(folder)
    except FileNotFoundError:
        return Store(folder)
    except BaselineError as error:
        raise pytest.UsageError(str(error)) from None
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"{source}={given or folder} cannot be read: {error}") from None
    raise pytest.UsageError(f"{source}={given or folder} is a file, not a folder")


def _update(config: pytest.Config) -> Update | None:
    asked = [
        update for update, name in _UPDATES.items() if _given(config, name.replace("-", "_"))[0]
    ]
    if len(asked) > 1:
        raise pytest.UsageError("--vramfit-update records what --vramfit-update-missing would, too")
    return asked[0] if asked else None


def _require(config: pytest.Config) -> frozenset[str]:
    """The names of checks that are required in this run."""
    given, source = _given(config, "require")
    if not given:
        return frozenset()
    from pytest_vramfit.marker.keywords import KEYWORDS

    names = [name.strip() for name in given.split(",") if name.strip()]
    try:
        return frozenset(KEYWORDS["require"].read(names))
    except ValueError as error:
        raise pytest.UsageError(f"{source}={given} must be {error}") from None


def _against(config: pytest.Config) -> str | None:
    """The interpreter; a relative path is taken from where pytest was called."""
    given, source = _given(config, "against")
    if given is None:
        return None
    found = shutil.which(given, path=None) or shutil.which(
        str(config.invocation_params.dir / given)
    )
    if found is None:
        raise pytest.UsageError(f"{source}={given} must be a Python interpreter that can be run")
    # not resolved: a virtual environment's interpreter is a link, and works by where it lies
    return os.path.abspath(found)  # noqa: PTH100


def _given(config: pytest.Config, name: str) -> tuple[Any, str]:
    """The value of an option, or of its ini twin, and what it is called there.

    An empty one of the ini file is none; an option without its value is refused.
    """
    value = config.getoption(f"vramfit_{name}")
    if value is None and (name in _TWINS or name == "isolate"):
        return config.getini(f"vramfit_{name}"), f"vramfit_{name}"
    option = f"--vramfit-{name.replace('_', '-')}"
    if value == "":  # such as of a variable that CI did not set
        raise pytest.UsageError(f"{option}= has no value")
    return value, option


def _json_path(config: pytest.Config) -> Path | None:
    """Where the results go: relative to where pytest was called, in the ini file to the rootdir."""
    given, source = _given(config, "json")
    if not given:
        return None
    base = config.invocation_params.dir if source.startswith("-") else config.rootpath
    path: Path = base / given
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return path
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"{source}={given} cannot be written: {error}") from None
    if not is_file:
        raise pytest.UsageError(f"{source}={given} is a folder or a device, not a file")
    return path
