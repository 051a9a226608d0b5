import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch

from tests.browser import browser as browser  # one for the whole session, wherever pages are tested

if not os.access(Path.home(), os.W_OK):  # then caches, ours and those of other libraries, go to a folder of the user's
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TRITON_CACHE_DIR"):
        os.environ.setdefault(name, f"{tempfile.gettempdir()}/attnres-tests-{os.getuid()}")


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    """Several torch processes with two threads each on two cores are far slower than with one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard():
    """A shell starts background jobs with SIGINT ignored, and processes inherit that: Ctrl-C could not be tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
