import contextlib
import io
import runpy
import subprocess
import sys
import warnings

import pytest
import torch

from attnres.bench import gpu, operator, readers
from tests.ops.conftest import kernel as kernel  # builds it, or skips the test


@pytest.fixture(autouse=True)
def nothing_large(monkeypatch):
    """Nothing is compiled, the bandwidth is not measured, and fla, whose import takes seconds, is a stand-in."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for module in (operator, gpu):
        monkeypatch.setattr(module, "copy_bandwidth", lambda *_: 1e10)
    monkeypatch.setitem(readers._LOADERS, "fla-core", lambda _: readers.stacked)


@pytest.fixture
def in_this_process(monkeypatch):
    """What starts `python -m MODULE` runs it here: importing torch again takes seconds.

    Returns a list of the environments that were given.
    """
    environments = []

    def run(command, *, env=None, **_):
        environments.append(env)
        what, arguments = command[2], command[3:]
        output, given = io.StringIO(), sys.argv
        try:
            sys.argv = [what, *arguments]
            with contextlib.redirect_stdout(output), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # runpy warns that the module is imported already
                runpy.run_module(what, run_name="__main__")
        finally:
            sys.argv = given
        return subprocess.CompletedProcess(command, 0, output.getvalue())

    monkeypatch.setattr(subprocess, "run", run)
    return environments
