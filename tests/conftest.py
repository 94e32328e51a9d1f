"""For all tests."""

import os

# sleeping threads: tests that train run beside others on few cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

pytest_plugins = ["pytester"]
