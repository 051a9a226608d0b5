"""Models whose depth is changed while they run: the lab's, attached ones and others."""

from __future__ import annotations

import copy
from inspect import signature

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

import attnres.analysis
import attnres.generate
import attnres.hf
from attnres import Transformer, TransformerConfig, UsageError, mixing_matrix
from attnres.analysis import Mute, Noise, Off, Patch, Pin, Plain, Scale, intervene
from attnres.analysis.interventions import sources_of
from tests.analysis.test_interventions import ALL
from tests.depth import DIM, in_blocks, randomise
from tests.hf.models import make_model

SITES = 5


def lab(connection: str, dim: int = 8) -> Transformer:
    config = TransformerConfig(vocab_size=16, dim=dim, layers=3, heads=2, context=24, connection=in_blocks(connection))
    model = Transformer(config).eval()
    randomise(model.connection)
    return model


def attached(connection: str):
    model = attnres.hf.attach(make_model("llama", num_hidden_layers=3), in_blocks(connection))
    randomise(attnres.hf.connection_of(model))
    return model


def logits_of(model, tokens: list[int]) -> Tensor:
    out = model(torch.tensor([tokens]))
    return (out if isinstance(out, Tensor) else out.logits)[0]


CHANGES = [Mute(1, sites=[2, 4], tokens=[1, 6]), Scale(2, by=0.5, tokens=5), Off(3, tokens=[0, 7]), Pin(0, weight=0.3)]


def test_generate_of_transformers_is_changed_at_the_same_positions():
    model, tokens = attached("block"), [3, 5, 1, 8]
    with torch.no_grad(), intervene(model, *CHANGES):
        options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
        out = model.generate(torch.tensor([tokens]), output_logits=True, **options)
        direct = logits_of(model, out.sequences[0].tolist())[3:-1]
    torch.testing.assert_close(torch.cat(out.logits), direct, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert not torch.allclose(logits_of(model, out.sequences[0].tolist())[3:-1], direct, atol=1e-2)


def logits_step_by_step(model, tokens: list[int]) -> Tensor:
    if isinstance(model, Transformer):
        caches = model.new_caches(1)
        return torch.cat([model(torch.tensor([[token]]), caches)[0] for token in tokens])
    cache, logits = DynamicCache(config=model.config), []
    name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"  # before transformers 5.24
    for token in tokens:
        logits.append(model(torch.tensor([[token]]), **{name: cache}).logits[0])
    return torch.cat(logits)


@pytest.mark.parametrize("dim", [8, 12])
def test_noise_is_the_same_for_a_token_whatever_follows_it(dim):
    model, tokens, noise = lab("block", dim), [3, 5, 1, 8, 2, 7, 4], [Noise(0), Noise(2, seed=1, sites=[3, 5])]
    with torch.no_grad(), intervene(model, *noise):
        whole = logits_of(model, tokens)
        torch.testing.assert_close(logits_step_by_step(model, tokens), whole, rtol=1e-4, atol=1e-5)
    for count in (1, 4):
        with torch.no_grad(), intervene(model, *noise):
            torch.testing.assert_close(logits_of(model, tokens[:count]), whole[:count], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [lab, attached])
def test_a_deep_copy_has_the_changes_and_weights_of_its_own(make):
    model, tokens = make("block"), [3, 5, 1, 8, 2, 7, 4, 9]
    with intervene(model, *CHANGES):
        changed, copied = logits_of(model, tokens), copy.deepcopy(model)
    logits_of(copied, tokens).sum().backward()
    assert all(weight.grad is None for weight in model.parameters())
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        assert torch.equal(logits_of(copied, tokens), changed)
        torch.testing.assert_close(logits_step_by_step(copied, tokens), changed, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [lab, attached])
def test_a_patch_takes_the_other_prompts_sources(make):
    model = make("full")
    text, other = [3, 5, 1, 8], (2, 7, 4, 9)
    with torch.no_grad():
        with intervene(model, *(Patch(source, prompt=other) for source in range(7))):
            everything = logits_of(model, text)
        torch.testing.assert_close(everything, logits_of(model, list(other)), rtol=1e-4, atol=1e-5)
        with intervene(model, Patch(3, prompt=tuple(text))):
            torch.testing.assert_close(logits_of(model, text), logits_of(model, text), rtol=1e-4, atol=1e-5)
    assert len(sources_of(model, other)) == 7


def test_the_model_is_as_before_even_after_an_error():
    model, tokens = lab("block"), [3, 5, 1, 8]
    before, names = logits_of(model, tokens), list(model.state_dict())
    with pytest.raises(ZeroDivisionError), intervene(model, Mute(0)):
        raise ZeroDivisionError
    assert torch.equal(logits_of(model, tokens), before)
    assert list(model.state_dict()) == names and "bound_sublayers" not in vars(model)


def test_a_model_under_changes_is_saved_as_it_is(tmp_path):
    model, tokens = attached("block"), [3, 5, 1, 8]
    with intervene(model, Mute(0)):
        model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(attnres.hf.load(tmp_path), tokens), logits_of(model, tokens))


@pytest.mark.parametrize("make", [lab, attached])
def test_the_matrix_under_changes_is_that_of_trace(make):
    model, tokens = make("block"), torch.tensor([[3, 5, 1, 8]])
    with intervene(model, Mute(0)), pytest.raises(UsageError, match=r"under changes; attnres\.analysis\.trace"):
        mixing_matrix(model, tokens)


def test_a_change_as_text_is_the_python_that_makes_it():
    for change in [*ALL, Noise(2, seed=3), *CHANGES]:
        assert eval(str(change), vars(attnres.analysis)) == change
    assert str(Mute(3, sites=8)) == "Mute(3, sites=(8,))" and str(Plain()) == "Plain()"
    assert Mute(np.int64(3), sites=torch.tensor([3, 4]), tokens=np.arange(2)) == Mute(3, sites=[3, 4], tokens=[0, 1])
    assert str(Mute(np.int64(3), sites=np.int64(4), tokens=torch.tensor(2))) == "Mute(3, sites=(4,), tokens=(2,))"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Mute(7), "sources are 0, the embedding, to 6"),
        (lambda: Mute(3, sites=[4, 2]), r"Mute\(3, sites=\(4, 2\)\): sites that can read it are 3 to 6"),
        (lambda: Off(0), "source 0 is the embedding"),
    ],
)
def test_bad_changes_are_refused_in_one_line(make, says):
    model = lab("block")
    with pytest.raises(UsageError, match=says), intervene(model, make()):
        pass


class OwnModel(nn.Module):
    """A model of one's own; each token is by itself, so that a cache needs to count alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, DIM)
        self.sublayers = nn.ModuleList(nn.Sequential(nn.RMSNorm(DIM), nn.Linear(DIM, DIM)) for _ in range(SITES))
        self.connection = attnres.make_connection("block", DIM, sublayers=SITES)

    def forward(self, tokens: Tensor, cache: object = None) -> Tensor:
        values = self.connection.run(self.connection.start(self.embed(tokens)), self.sublayers)
        return self.connection.readout(values)


class Counted:
    length = 0

    def get_seq_length(self) -> int:
        return self.length


def test_a_model_of_ones_own_tells_what_its_cache_holds():
    model, tokens, cache, made = OwnModel(), torch.arange(9)[None], Counted(), []
    with torch.no_grad(), intervene(model, Mute(3, tokens=[0, 5]), Noise(2)):
        whole = model(tokens)
        for part in tokens.split([4, 1, 1, 1, 1, 1], 1):
            made.append(model(part, cache))
            cache.length += part.shape[1]
    torch.testing.assert_close(torch.cat(made, 1), whole)
