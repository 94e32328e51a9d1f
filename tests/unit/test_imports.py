"""Imports point one way, and torch stays out of pytest's process.

The package is a flow from marker to report; a module may import what stands before it in the flow
or beside it, never what comes after, so that each can be read, tested and replaced without the
ones behind it. Pytest is known to ``plugin`` only: everything else can be used without it. The
training libraries take many seconds to import, hold the GPU's context and may crash the process,
so only what runs in the worker imports them, at any depth of a function.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pytest_vramfit

PACKAGE = Path(pytest_vramfit.__file__).parent

ORDER = (
    ("", "accumulation", "catalog", "events", "quantity", "spec", "recorder"),
    ("marker", "measurement", "training"),
    ("virtual_card",),
    ("estimating", "measuring"),
    ("worker",),
    ("baseline",),
    ("verdict",),
    ("advisor", "gate", "recording", "reporting"),
    ("plugin", "cli", "__main__"),
)
"""Modules and subpackages from the first to the last; "" is the package itself."""

TRAINING_LIBRARIES = {"torch", "transformers", "peft", "bitsandbytes", "accelerate"}
IN_THE_WORKER = (
    "accumulation",
    "recorder",
    "training",
    "estimating.after_steps",
    "estimating.attention",
    "estimating.attention_kernels",
    "estimating.autocast",
    "estimating.dispatch",
    "estimating.estimate",
    "estimating.kernels",
    "estimating.layers",
    "estimating.loading",
    "estimating.run",
    "estimating.shapes",
    "estimating.step",
    "estimating.trace",
    "measuring.bench",
    "measuring.case",
    "measuring.cpu",
    "measuring.cuda",
    "measuring.ledger",
    "measuring.profiler",
    "measuring.residency",
    "worker.server",
)


def module_of(file: Path) -> str:
    """``worker.client``; "" for the package itself."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imported(module: str) -> Iterator[str]:
    """Every name that a module imports at any depth, in full: ``pytest_vramfit.spec.Claim``."""
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            yield from (f"{node.module}.{one.name}" for one in node.names)


def own_modules(module: str) -> set[str]:
    """The package's modules among what a module imports."""
    found = set()
    for name in imported(module):
        package, _, rest = name.partition(".")
        if package == PACKAGE.name:
            # the name in a module is no module itself
            found.add(rest if rest in FILES else rest.rpartition(".")[0])
    return found


def level(module: str) -> int:
    part = module.partition(".")[0]
    return next(index for index, parts in enumerate(ORDER) if part in parts)


def in_the_worker(module: str) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in IN_THE_WORKER)


def test_every_module_has_its_place_in_the_order() -> None:
    placed = {part for parts in ORDER for part in parts}
    assert {module.partition(".")[0] for module in FILES} == placed


@pytest.mark.parametrize("module", FILES)
def test_imports_point_one_way(module: str) -> None:
    after = {one for one in own_modules(module) if level(one) > level(module)}
    assert after == set()


def test_no_modules_import_each_other() -> None:
    """Not even in a circle of several."""
    graph = {module: own_modules(module) - {module} for module in FILES}
    assert set(TopologicalSorter(graph).static_order()) == set(FILES)


@pytest.mark.parametrize("module", FILES)
def test_only_the_plugin_imports_pytest(module: str) -> None:
    roots = {name.partition(".")[0] for name in imported(module)}
    if module.partition(".")[0] != "plugin":
        assert roots.isdisjoint({"pytest", "_pytest", "pluggy"})


@pytest.mark.parametrize("module", FILES)
def test_only_the_worker_imports_training_libraries(module: str) -> None:
    roots = {name.partition(".")[0] for name in imported(module)}
    if not in_the_worker(module):
        assert roots.isdisjoint(TRAINING_LIBRARIES)


@pytest.mark.parametrize("module", FILES)
def test_only_the_worker_imports_what_the_worker_imports(module: str) -> None:
    """Else torch would come in through it. The client names the worker in a text for another
    interpreter only.
    """
    if not in_the_worker(module):
        assert {one for one in own_modules(module) if in_the_worker(one)} == set()


def test_everything_outside_the_worker_leaves_training_libraries_out_of_the_process() -> None:
    """In a fresh interpreter, with what the imported libraries import themselves."""
    modules = [f"{PACKAGE.name}.{one}".rstrip(".") for one in FILES if not in_the_worker(one)]
    code = (
        "import importlib, sys\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        f"print(sorted({TRAINING_LIBRARIES} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_only_the_plugin_needs_pytest_in_the_process() -> None:
    modules = [
        f"{PACKAGE.name}.{one}".rstrip(".")
        for one in FILES
        if not in_the_worker(one) and one.partition(".")[0] != "plugin"
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {modules}: importlib.import_module(name)\n"
        "print('pytest' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert run.stdout.strip() == "False"
