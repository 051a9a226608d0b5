import json

import pytest

from attnres.data.config import DataConfig
from attnres.errors import UsageError
from attnres.model import TransformerConfig
from attnres.train import OptimizerConfig, RunConfig, config_from_json, config_to_json
from attnres.train.folder import RunFolder
from attnres.version import __version__


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(),
        RunConfig(
            model=TransformerConfig(connection="hc:streams=2,dynamic=false"),
            data=DataConfig(paths=("a.txt", "b/*.txt")),
            optimizer=OptimizerConfig(hidden="adamw", lr=0.5),
            precision="bfloat16",
            compile=True,
        ),
    ],
)
def test_there_and_back(config):
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


def test_a_run_of_another_version_says_both(tmp_path):
    corpus = {"description": "a text", "sha256": "0" * 64, "vocab_size": 256}
    record = {"config": {"depth": 7}, "corpus": corpus, "versions": {"attnres": "99.0"}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=rf"attnres 99\.0, and this is attnres {__version__}: unknown .* depth"):
        RunFolder(tmp_path).config()
