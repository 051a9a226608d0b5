import json

from attnres.data.dataconfig import DataConfig
from attnres.model import TransformerConfig
from attnres.train import OptimizerConfig, RunConfig, config_from_json, config_to_json


def test_there_and_back():
    config = RunConfig(
        model=TransformerConfig(connection="hc:streams=2,dynamic=false"),
        data=DataConfig(paths=("a.txt", "b/*.txt")),
        optimizer=OptimizerConfig(hidden="adamw", lr=0.5),
        precision="bfloat16",
        compile=True,
    )
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config
