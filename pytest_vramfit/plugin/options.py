"""The command line and its ini twins."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_vramfit.keywords import MarkerError, card_bytes
from pytest_vramfit.measurement import Engine

_ENGINES = ("gpu", "cpu", "estimate", "auto", "off")
_NOT_BUILT_ENGINES = ("estimate", "auto")

_TWINS = {
    "card": ("CARD", "default for the marker's card: a size such as 16303MiB (cpu engine)"),
    "json": ("FILE", "write the results of all cases to FILE"),
    "baselines": ("DIR", "(not built yet) folder of the baselines"),
    "require": ("CHECK,...", "(not built yet) checks that may not stay unchecked"),
    "report": ("FILE.html", "(not built yet) write a report to FILE"),
}
"""Options with a value that can also stand in the ini file, as vramfit_NAME."""

_NOT_BUILT = ("baselines", "require", "report", "update", "update_missing", "against")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The options as the plugin uses them."""

    engine: Engine | None
    """None: marked tests are skipped."""
    run_option: str
    """The option that runs marked tests on the GPU, for messages."""
    card: str | None
    json: Path | None
    isolate: bool

    @property
    def command(self) -> str:
        """How pytest is called for this engine."""
        return f"pytest {self.run_option if self.engine == 'gpu' else f'--vramfit={self.engine}'}"


def add(parser: pytest.Parser) -> None:
    """Register every option but ``--gpu``."""
    group = parser.getgroup("vramfit", "fine-tuning steps that must fit the hardware")
    group.addoption(
        "--vramfit",
        choices=_ENGINES,
        default=None,
        help="run tests marked fits_vram: gpu, cpu (small cases, for real), off; "
        "estimate and auto are not built yet",
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
    for name in ("update", "update-missing"):
        group.addoption(
            f"--vramfit-{name}",
            action="store_true",
            default=None,
            help="(not built yet) record baselines",
        )
    group.addoption(
        "--vramfit-against",
        metavar="PYTHON",
        default=None,
        help="(not built yet) measure every case in that interpreter too",
    )


def add_gpu(parser: pytest.Parser) -> None:
    """Register ``--gpu``, unless a conftest or another plugin has its own."""
    try:
        parser.getgroup("vramfit").addoption(
            "--gpu",
            action="store_true",
            dest="vramfit_gpu",
            default=False,
            help="short for --vramfit=gpu",
        )
    except (ValueError, argparse.ArgumentError):  # before and since pytest 9.2
        return


def read(config: pytest.Config) -> Settings:
    """The settings of this run. Raises pytest.UsageError."""
    for name in _NOT_BUILT:
        if _value(config, name):
            raise pytest.UsageError(f"--vramfit-{name.replace('_', '-')} is not built yet")
    engine = _engine(config)
    return Settings(
        engine=engine,
        run_option="--gpu" if hasattr(config.option, "vramfit_gpu") else "--vramfit=gpu",
        card=_card(config, engine),
        json=_json_path(config),
        isolate=bool(_value(config, "isolate")),
    )


def _engine(config: pytest.Config) -> Engine | None:
    engine: str | None = config.getoption("vramfit")
    if getattr(config.option, "vramfit_gpu", False):
        if engine not in {None, "gpu"}:
            raise pytest.UsageError(f"--gpu and --vramfit={engine} contradict each other")
        engine = "gpu"
    if engine == "gpu":
        if _several_xdist_workers(config):
            raise pytest.UsageError(
                "--gpu with several xdist workers is not built yet: they would share the GPU; "
                "use -n 1"
            )
        return "gpu"
    if engine in _NOT_BUILT_ENGINES:
        raise pytest.UsageError(f"--vramfit={engine} is not built yet; gpu, cpu and off are")
    return "cpu" if engine == "cpu" else None


def _card(config: pytest.Config, engine: Engine | None) -> str | None:
    card = str(_value(config, "card") or "") or None
    if card is None:
        return None
    try:
        card_bytes(card)
    except MarkerError as error:
        raise pytest.UsageError(f"--vramfit-card: {error}") from None
    except ValueError as error:
        raise pytest.UsageError(f"--vramfit-card={card} must be {error}") from None
    if engine == "gpu":
        raise pytest.UsageError(
            "--vramfit-card with --gpu asks for the emulation of a card, which is not built yet; "
            "without it the device's own memory is judged by"
        )
    return card


def _value(config: pytest.Config, name: str) -> str | bool | None:
    """The option, or its ini twin where there is one."""
    value: str | bool | None = config.getoption(f"vramfit_{name}")
    if value is None and (name in _TWINS or name == "isolate"):
        twin: str | bool = config.getini(f"vramfit_{name}")
        return twin
    return value


def _json_path(config: pytest.Config) -> Path | None:
    """Where the results go: relative to where pytest was called, in the ini file to the rootdir."""
    given = config.getoption("vramfit_json")
    if given is None:
        twin = str(config.getini("vramfit_json") or "")
        path = config.rootpath / twin if twin else None
    else:
        path = config.invocation_params.dir / given
    if path is not None and path.is_dir():
        raise pytest.UsageError(f"--vramfit-json={path} is a folder, not a file")
    return path


def _several_xdist_workers(config: pytest.Config) -> bool:
    number = getattr(config.option, "numprocesses", None)
    return number not in {None, 0, 1} and not hasattr(config, "workerinput")
