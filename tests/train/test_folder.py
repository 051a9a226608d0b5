"""The run's folder: which ones are refused, and that nothing in them is touched then."""

import pytest

from attnres.errors import UsageError
from attnres.train import train
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
