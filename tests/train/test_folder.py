"""The run's folder: which ones are refused, and that nothing in them is touched then."""

import subprocess

import pytest

from attnres.errors import UsageError
from attnres.train import environment, load_run, train
from attnres.train.folder import RunFolder
from tests.train.many import RULE


def test_a_folder_of_something_else_is_left_alone(make_config, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text('{"mine": 1}')
    with pytest.raises(UsageError, match=r"holds files and no run \(tokenizer.json\); give a new or empty"):
        train(make_config(steps=1), tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ['{"mine": 1}']
    file.unlink()
    train(make_config(steps=1), tmp_path)


def test_nothing_is_written_before_the_options_are_known_to_be_good(make_config, tmp_path):
    (tmp_path / "rule.py").write_text(RULE.replace("values[0] * weights[0]", "values[0] ** 2 * weights[0]"))
    for bad in ({"connection": "nothing"}, {"connection": f"{tmp_path / 'rule.py'}:Scaled"}, {"context": 10**6}):
        with pytest.raises(UsageError):
            train(make_config(model=bad), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_two_processes_on_one_folder(make_config, tmp_path):
    with RunFolder(tmp_path).lock(), pytest.raises(UsageError, match="another process is training"):
        train(make_config(), tmp_path)
    train(make_config(steps=1), tmp_path)


def test_a_folder_that_is_no_run(make_config, tmp_path):
    """It is not written to, whatever it holds."""
    with pytest.raises(UsageError, match="not a run folder"):
        load_run(tmp_path)
    with pytest.raises(UsageError, match="there is no such folder"):
        load_run(tmp_path / "nowhere")
    for text in ('{"model_type": "llama"}', "{"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UsageError, match=r"model of transformers|not valid JSON"):
            train(make_config(), tmp_path)
        assert (tmp_path / "config.json").read_text() == text


def test_a_commit_is_dirty_by_what_a_run_may_read_and_not_by_records(tmp_path, monkeypatch):
    names = ("attnres/environment.py", "recipes/rule.py", "results/record.json")
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("as committed")
    author = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    monkeypatch.setattr(environment, "__file__", str(tmp_path / names[0]))

    clean = environment._commit()
    assert clean is not None and len(clean) == 40
    for name, mark in zip(names, ("-dirty", "-dirty", ""), strict=True):
        (tmp_path / name).write_text("changed")
        assert environment._commit() == clean + mark
        (tmp_path / name).write_text("as committed")
