"""The code of docs/transformers.md runs, in its order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_guides_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/transformers.md").read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict = {}
    for block in blocks:
        one_rate = block.replace("(5e-4, 1e-3, 2e-3)", "(1e-3,)")
        exec(compile(one_rate, "docs/transformers.md", "exec"), namespace)
    plain, attached = re.findall(r"(?:plain|attached): (\d\.\d+) nats", capsys.readouterr().out)[:2]
    assert plain == attached
    assert (tmp_path / "hf-depth-matrix.png").stat().st_size > 10_000
