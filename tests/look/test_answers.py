"""What the page is told, against the same done in Python."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnres import load_run, mixing_matrix
from attnres.analysis import Mute, intervene
from attnres.errors import UsageError
from attnres.look.subject import open_subjects
from tests.look.conftest import CONNECTIONS
from tests.look.runs import numbers, serving

TEXT = "the brown 🙂 dog é́"
CHANGES = [
    {"kind": "Mute", "source": 0, "sites": [2]},
    {"kind": "Pin", "source": 1, "weight": 0.7, "tokens": [1, 4, 9]},
    {"kind": "Scale", "source": 2, "by": -2},
    {"kind": "Patch", "source": 1, "prompt": "another text here", "sites": [3, 4]},
    {"kind": "Patch", "source": 2, "prompt": "another text here"},
    {"kind": "Off", "source": 3, "tokens": [2]},
    {"kind": "Uniform", "sites": [3]},
    {"kind": "Plain", "sites": [1]},
]


def view(model: int = 1, text: str = TEXT, **more) -> dict:
    return {"view": {"model": model, "text": text, **more}}


@pytest.mark.parametrize("model", range(len(CONNECTIONS)))
def test_the_picture_is_what_the_model_does(client, runs, model):
    told, run = client.one("look", **view(model)), load_run(runs[model])
    ids = torch.tensor([run.tokenizer.encode(TEXT)])
    with torch.no_grad():
        logits = run.model(ids)[0]
    losses = F.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")
    assert told["loss"][0] is None and told["loss"][1:] == pytest.approx(losses.tolist(), abs=1e-5)
    assert told["mean_loss"] == pytest.approx(float(losses.mean()), abs=1e-5) and told["unchanged_loss"] is None
    rows, columns = torch.tril_indices(5, 5)
    matrix = mixing_matrix(run.model, ids)[0]
    np.testing.assert_allclose(numbers(told["weights"]), matrix[:, rows, columns], atol=1e-5)
    top = logits.softmax(-1).max(-1)
    assert [row[0]["id"] for row in told["next"]] == top.indices.tolist()
    assert [row[0]["probability"] for row in told["next"]] == pytest.approx(top.values.tolist(), abs=1e-5)
    assert client.session()["models"][model]["per_channel"] == (model == 2)


@pytest.mark.parametrize("model", range(len(CONNECTIONS)))
def test_a_change_does_what_its_python_does(client, model):
    told = client.one("look", **view(model, changes=CHANGES))
    space: dict = {}
    exec(told["python"], space)
    assert told["mean_loss"] == pytest.approx(float(space["loss"]), abs=1e-5)
    assert told["unchanged_loss"] == pytest.approx(client.one("look", **view(model))["mean_loss"], abs=1e-6)


def test_characters_that_tokens_cut_are_shown_as_bytes(client):
    tokens = client.one("look", **view())["tokens"]
    cut = [token for token in tokens if token["text"].startswith("\\x")]
    assert [token["text"] for token in cut[:4]] == [r"\xf0", r"\x9f", r"\x99", r"\x82"]
    assert {(token["start"], token["stop"]) for token in cut[:4]} == {(10, 11)}
    covered = {at for token in tokens for at in range(token["start"], token["stop"])}
    assert covered == set(range(len(TEXT)))


def test_a_token_taken_apart_closes(client, runs):
    told = client.one("explain", **view(), position=4)
    run = load_run(runs[1])
    ids = run.tokenizer.encode(TEXT)
    assert told["target"]["id"] == ids[5] and len(told["lens"]) == 5
    share = np.zeros((5, 5))
    share[np.tril_indices(5)] = told["share"]
    logits = [row["logit"] for row in told["lens"]]
    assert share.sum(1) + told["rest"] == pytest.approx(logits, abs=1e-5)
    assert max(map(abs, told["rest"])) < 1e-5
    with torch.no_grad():
        own = run.model(torch.tensor([ids]))[0, 4]
    assert logits[-1] == pytest.approx(float(own[ids[5]]), abs=1e-5)
    chosen = client.one("explain", **view(), position=len(ids) - 1, target=100)
    assert chosen["target"]["text"] == "d"


@pytest.mark.parametrize(
    "change", [{"kind": "exec"}, {"kind": "Mute"}, {"kind": "Mute", "source": 9}, {"kind": "Off", "source": 1, "by": 2}]
)
def test_what_is_no_change_is_said(client, change):
    assert client.one("look", **view(changes=[change]))["kind"] == "failure"


def test_removal_goes_through_all_sources(client):
    effects = client.ask("remove", **view(), site=4)
    assert [effect["source"] for effect in effects] == [0, 1, 2, 3, 4]
    without = client.one("look", **view(changes=[{"kind": "Mute", "source": 2, "sites": [4]}]))
    assert effects[2]["removed"] == pytest.approx(without["mean_loss"] - without["unchanged_loss"], abs=1e-5)
    assert client.one("remove", **view(), site=9)["kind"] == "failure"


MUTED = {"kind": "Mute", "source": 1, "tokens": [3, 30]}
"""At a token of the text, and at one of what follows."""


@pytest.mark.parametrize(("told", "changes"), [([], []), ([MUTED], [Mute(1, tokens=[3, 30])])], ids=["plain", "muted"])
def test_the_continuation_is_that_of_generate(client, runs, told, changes):
    from attnres.generate import generate

    run = load_run(runs[1])
    ids = run.tokenizer.encode(TEXT)
    with intervene(run.model, *changes), torch.no_grad():
        expected = list(generate(run.model, ids, 40, temperature=0.8))
        likely = run.model(torch.tensor([[*ids, *expected[:-1]]]))[0, len(ids) - 1 :].softmax(-1).max(-1).values
    *drawn, ended = client.ask("continue", **view(changes=told))
    assert [line["token"]["id"] for line in drawn] == expected and ended["reason"] == "count"
    text = "".join(line["text"] for line in drawn) + ended["text"]
    assert text == run.tokenizer.decode(expected)
    found = [line["likeliest"][0]["probability"] for line in drawn]
    assert found == pytest.approx(likely.tolist(), abs=1e-6)
    *drawn, ended = client.ask("continue", **view(text="x" * 94))
    assert ended["reason"] == "context" and len(drawn) == 2  # with more it could not be looked at


def test_steps_of_a_run(client, runs):
    steps = client.session()["models"][1]["steps"]
    assert steps == [2, 4, 6]
    pictures = [client.one("look", **view(step=step)) for step in (*steps, None)]
    assert [picture["step"] for picture in pictures] == [*steps, 6]
    losses = [picture["mean_loss"] for picture in pictures[:3]]
    assert losses[0] > losses[1] > losses[2] == client.one("look", **view())["mean_loss"]
    assert "no checkpoint of step 3" in client.one("look", **view(step=3))["message"]


def test_an_empty_text_and_a_short_one(client):
    empty = client.one("look", **view(text=""))
    assert empty["tokens"] == [] and empty["mean_loss"] is None and numbers(empty["weights"]).shape == (0, 15)
    short = client.one("look", **view(text="x"))
    assert len(short["tokens"]) == 1 and short["mean_loss"] is None and len(short["next"]) == 1
    assert "empty" in client.one("continue", **view(text=""))["message"]
    assert "two tokens" in client.one("remove", **view(text="x"), site=1)["message"]
    assert client.one("explain", **view(text=""), position=0)["kind"] == "failure"


def test_models_of_transformers(saved_models, tmp_path):
    """Plain, attached, and a released one whose own rule is looked at."""
    from tests.hf.small import small_model

    small_model("beam", vocab_size=256, eos_token_id=None).save_pretrained(tmp_path / "beam")
    shutil.copy(saved_models[0] / "tokenizer.json", tmp_path / "beam")
    with serving(open_subjects([*saved_models, tmp_path / "beam"])) as client:
        told = client.session()["models"]
        assert [model["connection"] for model in told] == ["residual", "block:block_size=2,total=true", "depth-scaled"]
        for model in (0, 1, 2):
            for changes in ([], CHANGES):
                picture = client.one("look", **view(model, changes=changes))
                if changes:
                    space: dict = {}
                    exec(picture["python"], space)
                    assert picture["mean_loss"] == pytest.approx(float(space["loss"]), abs=1e-5)
            assert [token["text"] for token in picture["tokens"]][10:14] == [r"\xf0", r"\x9f", r"\x99", r"\x82"]
            assert max(map(abs, client.one("explain", **view(model), position=3)["rest"])) < 1e-4
            *drawn, _ = client.ask("continue", **view(model, changes=CHANGES), temperature=0.0)
            assert len(drawn) == 40
        assert (numbers(client.one("look", **view(0))["weights"]) == 1).all()


def test_a_text_ends_where_the_model_says_as_a_chat_does(saved_models, tmp_path):
    """The tokenizer knows no end here; of the ids that end a text one may be none of those drawn."""
    shutil.copytree(saved_models[0], tmp_path / "model")
    with serving(open_subjects([tmp_path / "model"])) as client:
        drawn = [line["token"]["id"] for line in client.ask("continue", **view(0), temperature=0.0)[:6]]
    file, other = tmp_path / "model" / "generation_config.json", next(id for id in range(256) if id not in drawn)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [other, drawn[-1]]}))
    with serving(open_subjects([tmp_path / "model"])) as client:
        *told, ended = client.ask("continue", **view(0), temperature=0.0)
    assert [line["token"]["id"] for line in told] == drawn[: drawn.index(drawn[-1])] != []
    assert ended["reason"] == "end of text"


@pytest.mark.slow
def test_a_model_keeps_the_weights_that_it_was_opened_with(saved_models, tmp_path):
    """Whatever is written over the file, as by cp; a file cut short would end the process."""
    shutil.copytree(saved_models[0], tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    (subject,) = open_subjects([tmp_path / "model"])
    before = {name: tensor.clone() for name, tensor in subject.model(0).state_dict().items()}
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(b"\0" * (file.stat().st_size // 2))
        opened.truncate(4096)
    assert all(torch.equal(before[name], tensor) for name, tensor in subject.model(0).state_dict().items())


def test_nothing_is_unpickled_and_no_code_of_a_model_is_run(saved_models, tmp_path):
    """A folder may hold both; what opening it would do is leave a mark."""
    mark, folder = tmp_path / "mark", tmp_path / "model"
    shutil.copytree(saved_models[0], folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {name: f"evil.{name}" for name in ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    (subject,) = open_subjects([folder])
    assert subject.model(0) is not None and not mark.exists()
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Marking(str(mark))}, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"safetensors"):
        open_subjects([folder])
    assert not mark.exists()


class Marking:
    """Pickled, it writes a file when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")
