"""A library that misbehaves inside the worker, in one case of a run."""

from __future__ import annotations

PSUTIL = '''
"""In front of the real one, whose times of the processors the worker reads in every case."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.remove(str(HERE))
del sys.modules["psutil"]
import psutil
sys.path.insert(0, str(HERE))

real = psutil.cpu_times

def cpu_times():
    fault = HERE / "fault.py"
    if fault.exists():
        code = fault.read_text()
        fault.unlink()
        exec(code)
    return real()

psutil.cpu_times = cpu_times
'''
"""To be ``psutil.py`` in a folder on PYTHONPATH: the next case runs ``fault.py`` beside it."""
