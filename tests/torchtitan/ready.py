"""torchtitan imported on a CPU: what a test's processes are forked from (tests/torchtitan/processes.py)."""

from tests.torchtitan.on_cpu import stand_in

stand_in()

import torchtitan.train  # noqa: E402, F401

import tests.torchtitan.config_registry  # noqa: E402, F401
