"""A run that begins with the weights of another."""

from __future__ import annotations

import dataclasses
import shutil
from unittest.mock import ANY

import pytest
import torch

from attnres.errors import UsageError
from attnres.train import Interrupted, RunConfig, load_run, train
from attnres.train.sweep import Job, run_jobs
from tests.train.conftest import stop_at
from tests.train.many import make_trainer


@pytest.fixture(scope="module")
def plain(make_config, tmp_path_factory):
    """A plain run that is done: its folder, and the configuration of one that begins with it."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    config = make_config(model={"connection": "residual"}, steps=6)
    train(config, folder)
    return folder, dataclasses.replace(config, start_from=str(folder), seed=7)


def with_model(config: RunConfig, **fields) -> RunConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **fields))


@pytest.mark.parametrize("connection", ["block:total=true", "delta:gate=true"])
def test_nothing_is_lost_by_another_connection(plain, connection, caplog):
    folder, config = plain
    trainer = make_trainer(with_model(config, connection=connection))
    before = load_run(folder)
    for name, weight in before.model.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], weight), name
    tokens = torch.arange(32).view(2, 16)
    torch.testing.assert_close(trainer.model(tokens), before.model(tokens), rtol=1e-4, atol=1e-5)
    assert not caplog.records


def test_the_same_connection_goes_on_as_it_was_trained(make_config, tmp_path):
    config = make_config(model={"connection": "block"}, steps=6)
    train(config, tmp_path / "block")
    trainer = make_trainer(dataclasses.replace(config, start_from=str(tmp_path / "block")))
    (query,) = (trainer.model.connection.query[1],)
    assert query.abs().sum() > 0
    assert torch.equal(query, load_run(tmp_path / "block").model.connection.query[1])


def test_the_weights_count_and_not_what_leads_to_them(make_config, tmp_path, monkeypatch):
    """Another run in its place is another start; the same one may have another name or place."""
    first, begun = tmp_path / "first", tmp_path / "begun"
    config = make_config(model={"connection": "residual"}, steps=6, save_every=2, evaluate_every=2)
    train(config, first)
    more = dataclasses.replace(config, start_from=str(first), seed=7)
    summary = train(more, begun)

    monkeypatch.chdir(tmp_path)
    assert train(dataclasses.replace(more, start_from="first"), begun) == summary
    shutil.copytree(first, tmp_path / "copy")
    copied = dataclasses.replace(more, start_from="copy")
    run_jobs([Job("done already", copied, begun)], 1)

    shutil.rmtree(first)
    train(dataclasses.replace(config, seed=1), first)
    with pytest.raises(UsageError, match=r"start_from is 'weights .*' there and 'weights .*' here"):
        train(more, begun)
    (begun / "summary.json").unlink()
    shutil.rmtree(begun / "checkpoints")
    with pytest.raises(Interrupted):
        train(copied, begun, stop_at(3))
    shutil.rmtree(tmp_path / "copy")
    assert train(copied, begun) == summary | {"step_seconds": ANY, "peak_memory_bytes": ANY}, "without its start"


def test_another_tokenizer_is_refused(plain, tmp_path):
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    path = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({str(number): number for number in range(300)}, unk_token="0")).save(str(path))
    for vocab_size in (256, 300):  # 300: what training raises it to
        config = with_model(plain[1], vocab_size=vocab_size)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=str(path)))
        with pytest.raises(UsageError, match=r"another tokenizer than this run's text; give the same --data.tokenizer"):
            make_trainer(config)
