"""Task files with their data, and runs of a fraction of a second, all local."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from attnres.data import DataConfig
from attnres.model import TransformerConfig
from attnres.train import RunConfig, train

DOCUMENTS = [
    {"question": f"{a} + {b} =", "choices": [f"{a + b}", f"{a * b + 1}", "many!"], "answer": (a + b) % 3}
    for a in range(2, 6)
    for b in range(3)
]


@pytest.fixture(scope="session")
def tasks(tmp_path_factory) -> dict[str, str]:
    """Kind of task -> its yaml file: `choice`, `text` (perplexity of the whole) and `answer` (generated)."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "sums.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    mean = {"aggregation": "mean", "higher_is_better": True}
    kinds = {
        "choice": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "metric_list": [
                {"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")
            ],
        },
        "text": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{question}} {{choices | join(' ')}}, and {{question}} {{answer}}",
            "metric_list": [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}],
        },
        "answer": {
            "output_type": "generate_until",
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{choices[0]}}",
            "generation_kwargs": {"until": ["o"], "max_gen_toks": 12},
            "metric_list": [{**mean, "metric": "exact_match"}],
        },
    }
    files = {}
    for kind, config in kinds.items():
        file = folder / f"sums_{kind}.yaml"
        file.write_text(yaml.safe_dump({"task": f"sums_{kind}", **common, **config}))
        files[kind] = str(file)
    return files


@pytest.fixture(scope="session")
def make_run(tmp_path_factory) -> Callable[[str], Path]:
    """A finished run of that connection."""
    corpus = tmp_path_factory.mktemp("corpus")
    for number in range(20):
        (corpus / f"{number:02}.txt").write_text(" ".join(f"{a} + {number} = {a + number};" for a in range(30)))
    cache = str(tmp_path_factory.mktemp("cache"))

    def make(connection: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / connection
        config = RunConfig(
            model=TransformerConfig(dim=16, layers=2, context=24, connection=connection),
            data=DataConfig(paths=(str(corpus),), cache=cache, validation_fraction=0.2),
            steps=10,
            batch_size=4,
            validation_tokens=64,
        )
        train(config, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def run(make_run) -> Path:
    return make_run("block")


@pytest.fixture(scope="session")
def plain_run(make_run) -> Path:
    return make_run("residual")
