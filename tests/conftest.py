"""For all tests."""

import os

# sleeping threads: tests that train run beside others on few cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# pytest runs that a test starts are of their own, also in a worker of xdist
for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
    os.environ.pop(name, None)

pytest_plugins = ["pytester"]
