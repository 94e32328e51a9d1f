"""Having the plugin installed costs a run that does not need it almost nothing."""

from __future__ import annotations

import pytest

MOST_SHARE = 0.4
"""Of an empty run's 70 ms: the pace of the machine, and of what runs beside, is in both."""
SCRIPT = """
import sys
import time

import pytest

def milliseconds(*options):
    for module in set(sys.modules) - known:
        del sys.modules[module]
    begin = time.process_time_ns()
    assert pytest.main(["-q", *options]) == 0
    return (time.process_time_ns() - begin) / 1e6

known = set(sys.modules)
milliseconds("-p", "no:vramfit")
known = set(sys.modules)
pairs = [(milliseconds(), milliseconds("-p", "no:vramfit")) for _ in range(15)]
empty = min(other for _, other in pairs)
cost = min(one for one, _ in pairs) - empty
print(f"the plugin costs {cost:.1f} ms beside {empty:.1f} ms")
"""


def test_unrelated_run_pays_little(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processor time of an empty test with and without it, in turn, the least of each; in one
    process, which forgets in between what was imported for the plugin: over processes of their own
    the same time varies by 30 %.
    """
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makepyfile("def test_empty(): pass")
    last = pytester.runpython(pytester.makepyfile(measure=SCRIPT)).outlines[-1]
    print(last)
    cost, empty = (float(word) for word in last.split() if word[-1].isdigit())
    assert cost < MOST_SHARE * empty
