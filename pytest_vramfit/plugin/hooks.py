"""What pytest loads: options, marker, fixture; a :class:`~pytest_vramfit.plugin.run.Run` does the
rest.

These modules import others of the package where they need them: each of its dataclasses would cost
every run of pytest a millisecond.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_vramfit.plugin import items, options
from pytest_vramfit.plugin.run import Run

if TYPE_CHECKING:
    from pytest_vramfit.plugin.fixture import Vramfit

_RUN = "vramfit-run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options that nobody else can have."""
    options.add(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Take ``--gpu`` when the conftests had their turn."""
    result = yield
    options.take_gpu(early_config, parser, args)
    return result


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, read the options."""
    config.addinivalue_line(
        "markers",
        f"{items.MARKER}(*, model, method, rank, seq, batch, ...): run this fine-tuning step and "
        "assert that it fits; see the README for every keyword",
    )
    settings = options.read(config)
    run = Run(config, settings)
    config.pluginmanager.register(run, _RUN)
    if settings.engine in {"gpu", "cpu"}:  # others have no times
        from pytest_vramfit.plugin import benchmark

        config.pluginmanager.register(benchmark.Replay(run.case_of))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """``seq=512`` for the fixture's parameters."""
    if argname != items.FIXTURE:
        return None
    from pytest_vramfit.plugin import layers

    return layers.parameter_id(val)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the fixture to tests that are parametrized over it without naming it."""
    names = metafunc.fixturenames
    if items.FIXTURE not in names and items.is_parametrized(metafunc.definition):
        names.append(items.FIXTURE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """When all fixtures are there, make sure that a case was measured."""
    yield
    _run(item.config).ensure_measured(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Let no marker pass unmeasured that came too late for set-up."""
    yield
    _run(item.config).ensure_measured(item)


@pytest.fixture
def vramfit(request: pytest.FixtureRequest) -> Vramfit:
    """The marked test's case, measured before the test and judged around it."""
    from pytest_vramfit.plugin import benchmark

    benchmark.keep(request)
    return _run(request.config).fixture(request.node)


def _run(config: pytest.Config) -> Run:
    run: Run = config.pluginmanager.getplugin(_RUN)
    return run
