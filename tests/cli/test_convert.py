from __future__ import annotations

import pytest
import torch

from attnres import UsageError, hf
from attnres.files import added_folder
from attnres.hf.convert import convert
from tests.hf.models import make_model, make_tokens


@pytest.fixture
def plain(tmp_path):
    make_model("llama").save_pretrained(tmp_path / "plain")
    (tmp_path / "plain" / "tokenizer.json").write_text("{}")
    return tmp_path / "plain"


def test_convert(attnres, plain, tmp_path):
    target = tmp_path / "attached"
    options = ("--connection", "block:block_size=3,eps=1e-5")
    done = attnres("convert", plain, target, *options)
    assert done.returncode == 0, done.stderr
    assert "576 parameters in 18 tensors added to" in done.stdout and "differ by at most" in done.stdout
    assert {f.name for f in target.iterdir()} == {*(f.name for f in plain.iterdir()), "modeling_attnres.py"}
    assert sorted(f.name for f in tmp_path.iterdir()) == ["attached", "plain"]
    model, tokens = hf.load(target), make_tokens()
    assert (hf.connection_of(model).block_size, hf.connection_of(model).options.eps) == (3, 1e-5)
    torch.testing.assert_close(model(tokens).logits, make_model("llama")(tokens).logits, rtol=1e-4, atol=1e-5)

    again = attnres("convert", plain, target)
    assert again.returncode == 2 and again.stderr == f"attnres: {target} exists; give a new folder\n"
    other = attnres("convert", plain, tmp_path / "other", "--connection", "mhc")
    assert other.returncode == 2 and "the logits would differ by" in other.stderr
    assert "Traceback" not in other.stderr
    assert sorted(f.name for f in tmp_path.iterdir()) == ["attached", "plain"]


def test_bfloat16_stays_and_lossy_is_allowed(plain, tmp_path):
    make_model("llama").to(torch.bfloat16).save_pretrained(plain)
    done = convert(plain, tmp_path / "a", "mhc", lossy=True)
    assert done.difference > 1e-3
    done = convert(plain, tmp_path / "b", "full")
    assert done.difference < 1e-5
    model = hf.load(tmp_path / "b", dtype="auto")
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.model.norm.weight, make_model("llama").to(torch.bfloat16).model.norm.weight)


def test_a_model_without_a_head_is_compared_by_what_it_returns(tmp_path):
    base = make_model("llama").model
    base.save_pretrained(tmp_path / "base")
    assert convert(tmp_path / "base", tmp_path / "new", "full").difference < 1e-5
    tokens = make_tokens()
    found = hf.load(tmp_path / "new").eval()(tokens).last_hidden_state
    torch.testing.assert_close(found, base.eval()(tokens).last_hidden_state, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="the logits would differ by"):
        convert(tmp_path / "base", tmp_path / "other", "mhc")


def test_a_target_that_another_command_is_writing_or_has_written_stays(plain, tmp_path):
    (tmp_path / "new.partial").mkdir()  # the user's own
    with added_folder(tmp_path / "new"), pytest.raises(UsageError, match="new: another command is writing it"):
        convert(plain, tmp_path / "new")

    def make_it(text):
        (tmp_path / "late").mkdir(exist_ok=True)
        (tmp_path / "late" / "file").touch()

    with pytest.raises(UsageError, match="late was made by another command meanwhile"):
        convert(plain, tmp_path / "late", step=make_it)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["late", "new", "new.partial", "plain"]
    assert [f.name for f in (tmp_path / "late").iterdir()] == ["file"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_checkpoint_that_is_not_finite_itself_is_blamed_and_no_connection(plain, tmp_path, number):
    model = make_model("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = number
    model.save_pretrained(plain)
    for lossy in (False, True):
        with pytest.raises(UsageError, match="plain: its own logits are not finite"):
            convert(plain, tmp_path / "new", lossy=lossy)
    assert [f.name for f in tmp_path.iterdir()] == ["plain"]


@pytest.mark.parametrize(
    ("options", "message"), [("block_size=99", "block_size 99 is more than"), ("size=1", "has no option 'size'")]
)
def test_bad_options_leave_nothing(plain, tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        convert(plain, tmp_path / "new", f"block:{options}")
    assert [f.name for f in tmp_path.iterdir()] == ["plain"]
    with pytest.raises(UsageError, match=r"no config\.json"):
        convert(tmp_path / "nowhere", tmp_path / "new")
