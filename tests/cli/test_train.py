"""`attnres train` as a user sees it."""

import pytest

from attnres.cli import main
from attnres.ops import cpu
from attnres.train import load_run
from tests.cli.conftest import forget_rules

SHAPE = ["--model.dim=8", "--model.layers=1", "--model.heads=1", "--model.context=8"]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Options of a run of milliseconds, in an empty working folder."""
    cpu.load()  # the first process to need the kernel builds it, and says so
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text(f"{number} fox " * 50)
    text = ["--data.paths", "text", "--data.cache", "cache", "--data.validation-fraction", "0.2"]
    return [*SHAPE, *text, "--batch-size", "2", "--validation-tokens", "64"]


def test_train(small, tmp_path, capsys):
    assert main(["train", "out", *small, "--steps", "3", "--model.connection", "block:block_size=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "connection: block:block_size=2"
    assert lines[1].startswith("parameters: ")
    assert lines[2].startswith("corpus: ")
    assert lines[3].split() == ["folder:", "out"]
    assert any(line.startswith("step 3: validation loss") for line in lines)
    assert lines[-1] == "folder: out"
    run = load_run("out")
    assert (run.step, run.config.model.connection) == (3, "block:block_size=2")
    assert main(["train", "out", *small, "--steps", "3", "--model.connection", "block:block_size=2"]) == 0
    assert "done: validation loss" in capsys.readouterr().out


RULE = """
import torch
from attnres.connections import Connection

class MyRule(Connection):
    def weigh(self, values, site):
        return ()
    def gather(self, values, weights, site):
        return values[0]
    def scatter(self, values, weights, site, h, y):
        return (values[0] + FACTOR * y,)
"""


def test_a_run_whose_connections_file_has_changed_is_refused(small, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(RULE.replace("FACTOR", "1"))
    command = ["train", "out", *small, "--steps", "2", "--model.connection", "mine.py:MyRule"]
    assert main(command) == 0 and main(command) == 0
    (tmp_path / "mine.py").write_text(RULE.replace("FACTOR", "0"))
    assert main(command) == 0, "this process has run the other text, which it goes on with"
    forget_rules()
    for again in (command, ["generate", "out", "--prompt", "fox"]):
        assert main(again) == 2
        assert "out: the file of mine.py:MyRule has changed since this run began" in capsys.readouterr().err
    (tmp_path / "mine.py").write_text(RULE.replace("FACTOR", "1"))
    forget_rules()
    assert main(command) == 0


def test_a_connections_file_is_found_from_every_folder(small, tmp_path, capsys, monkeypatch):
    (tmp_path / "mine.py").write_text(RULE.replace("FACTOR", "1"))
    options = [*small, "--steps", "2", "--data.paths", str(tmp_path / "text"), "--data.cache", str(tmp_path / "cache")]
    assert main(["train", "out", *options, "--model.connection", "mine.py:MyRule"]) == 0
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    generate = ["generate", "../out", "--prompt", "fox", "--tokens", "2"]
    assert main(generate) == 0, capsys.readouterr().err
    assert main(["train", "../out", *options, "--model.connection", "../mine.py:MyRule"]) == 0, capsys.readouterr().err
    (tmp_path / "below" / "mine.py").write_text(RULE.replace("FACTOR", "0"))  # another file of that name
    assert main(generate) == 0, capsys.readouterr().err
    assert main(["train", "../out", *options, "--model.connection", "mine.py:MyRule"]) == 2
    assert "holds a run of another configuration: model.connection is" in capsys.readouterr().err


def test_default_folder_tells_runs_apart_and_finds_them_again(small, tmp_path):
    for options in (["--seed", "1"], ["--seed", "2"], ["--optimizer.lr", "1e-3"], ["--seed", "1"]):
        assert main(["train", *small, "--steps", "2", *options]) == 0
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(folders) == 3
    assert all(name.startswith("block-1x8-seed") for name in folders)


def test_options_override_the_recipe(small, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from attnres.train import RunConfig, OptimizerConfig\n"
        "from attnres import TransformerConfig\n"
        "config = RunConfig(steps=5, seed=9, optimizer=OptimizerConfig(lr=0.5, clip=2.0),\n"
        "    model=TransformerConfig(connection='hc:streams=2'))\n"
    )
    assert main(["train", "out", "--recipe", "mine.py", *small, "--steps", "2", "--optimizer.lr", "0.25"]) == 0
    config = load_run("out").config
    assert (config.steps, config.seed) == (2, 9)
    assert (config.optimizer.lr, config.optimizer.clip) == (0.25, 2.0)
    assert config.model.connection == "hc:streams=2"
    assert main(["train", "other", "--recipe", "first.py", "--recipe=mine.py", *small, "--steps", "2"]) == 0
    assert load_run("other").config.optimizer.lr == 0.5


@pytest.mark.slow
def test_each_option_of_a_backbone_has_a_flag_of_its_own(small, tmp_path):
    pytest.importorskip("transformers")
    given = (("num_experts", "4"), ("num_experts_per_tok", "2"), ("moe_intermediate_size", "16"))
    options = [word for pair in given for word in ("--model.backbone-options", *pair)]
    assert main(["train", "out", *small, "--steps", "2", "--model.backbone", "qwen3_moe", *options]) == 0
    assert load_run("out").config.model.backbone_options == {name: int(value) for name, value in given}
