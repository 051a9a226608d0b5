from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnres import Transformer, TransformerConfig, UsageError, mixing_matrix
from attnres.model import parameter_roles
from attnres.model.backbones.normed_linear import normed_linear
from tests.depth import randomise

SMALL = {"vocab_size": 50, "dim": 24, "layers": 3, "heads": 4, "context": 32}


@pytest.mark.parametrize("tied", [False, True])
def test_initialisation_is_as_documented(tied):
    model = Transformer(
        TransformerConfig(vocab_size=512, dim=128, layers=4, heads=4, embedding_std=0.5, tied=tied, connection="full")
    )
    expected = {"embedding.weight": 0.5, "head.weight": 0.02}
    for name, parameter in model.named_parameters():
        role = parameter_roles(model)[name]
        if role == "matrix":
            expected[name] = parameter.shape[1] ** -0.5 * (8**-0.5 if name.endswith("out.weight") else 1)
        if name in expected:
            assert parameter.std().item() == pytest.approx(expected[name], rel=0.05), name
        if role == "gain":
            assert (parameter == 1).all()
    assert ("head.weight" in dict(model.named_parameters())) is not tied
    with torch.no_grad():
        assert model(torch.randint(512, (4, 32))).std().item() == pytest.approx(0.02 * 128**0.5, rel=0.2)


@pytest.mark.parametrize("connection", ["block:block_size=4", "delta:reads=qkv"])
def test_checkpointing_gives_the_same_loss_and_gradients(connection):
    model = Transformer(TransformerConfig(**SMALL, connection=connection))
    randomise(model.connection)
    tokens = torch.randint(50, (2, 9))

    def gradients():
        model.zero_grad()
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients()
    model.checkpointing = True
    for actual, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-6)


def test_tokens_that_would_be_taken_silently_are_refused():
    model = Transformer(TransformerConfig(**{**SMALL, "vocab_size": 8, "layers": 1}))
    for read in (model, partial(mixing_matrix, model)):
        with pytest.raises(UsageError, match=r"tokens must be \[batch, time\], not \[4\]"):
            read(torch.zeros(4, dtype=torch.long))
    with pytest.raises(UsageError, match="33 tokens do not fit the model's context of 32"):
        model(torch.zeros(1, 33, dtype=torch.long))


def test_attention_and_mlp_read_each_mixture_where_it_belongs():
    model = Transformer(TransformerConfig(**SMALL, connection="residual"))
    attention, mlp = model.bound_sublayers(5)[:2]
    h, other, nothing = torch.randn(1, 5, 24), torch.randn(1, 5, 24), torch.zeros(1, 5, 24)
    torch.testing.assert_close(attention(h, h, h), attention(h))
    torch.testing.assert_close(mlp(h, h), mlp(h))
    part = model.sublayers[0]
    running_mean = part.v(part.norm(other)).cumsum(1) / torch.arange(1, 6).view(1, 5, 1)
    for q, k in ((nothing, h), (h, nothing)):  # all scores are zero
        torch.testing.assert_close(attention(q, k, other), part.out(running_mean), rtol=1e-4, atol=1e-5)
    part = model.sublayers[1]
    expected = part.out(F.silu(part.gate(part.norm(h))) * part.up(part.norm(other)))
    torch.testing.assert_close(mlp(h, other), expected)


@pytest.mark.parametrize("connection", ["block", "delta:block_size=4"])
def test_reads_of_their_own_start_as_one_read_and_train(connection):
    tokens = torch.randint(50, (2, 9))
    one, several = (
        Transformer(TransformerConfig(**SMALL, connection=connection + reads))
        for reads in ("", ("," if ":" in connection else ":") + "reads=qkv-gate-up")
    )
    torch.testing.assert_close(several(tokens), one(tokens))
    several.checkpointing = True
    several(tokens).logsumexp(-1).mean().backward()
    assert all(parameter.grad is not None for parameter in several.connection.parameters())
    assert mixing_matrix(several, tokens, per_read=True).shape[2] == 3


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_of_what_several_reads_normalise_one_tensor_is_kept(precision):
    """Value and gradients are those of the two modules; for the backward pass h is kept, and 1/rms(h)."""
    dtype = torch.float32 if precision == torch.bfloat16 else precision  # under autocast
    norm, linear = nn.RMSNorm(24, 1e-5).to(dtype), nn.Linear(24, 10, bias=False).to(dtype)
    nn.init.normal_(norm.weight)
    saved = []

    def results(function):
        h = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
        saved.clear()
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x.numel()), x)[1], lambda x: x),
            torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16),
        ):
            y = function(h)
        weights = torch.linspace(-1, 1, y.numel()).view_as(y).to(y.dtype)
        return y, *torch.autograd.grad((y * weights).sum(), [h, norm.weight, linear.weight])

    y, *expected = results(lambda h: linear(norm(h)))
    actual, *gradients = results(lambda h: normed_linear(norm, linear, h))
    assert sorted(saved) == [15, 24, 240, 360]
    tolerance = {torch.float64: 1e-12, torch.bfloat16: 2e-2}[precision]
    for got, other in zip([actual, *gradients], [y, *expected], strict=True):
        assert got.dtype == other.dtype and (got - other).norm() <= tolerance * other.norm()


class Adapted(nn.Module):
    """As PEFT's LoRA puts one in a projection's place."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.added = base, nn.Linear(base.in_features, base.out_features, bias=False)
        self.weight = base.weight

    def forward(self, x):
        return self.base_layer(x) + self.added(x)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *[
            ("norm", "hook"),
            ("q", "pre-hook"),
            ("up", "backward hook"),
            ("k", "adapter"),
            ("gate", "adapter"),
            ("v", "bias"),
        ],
    ],
)
def test_of_several_reads_a_changed_module_is_called(name, change):
    model = Transformer(TransformerConfig(**SMALL, connection="block:reads=qkv-gate-up"))
    sublayer, tokens = model.sublayers[int(name in ("gate", "up"))], torch.randint(50, (2, 5))
    part, gradients = getattr(sublayer, name), []
    before = model(tokens)
    if change == "hook":
        part.register_forward_hook(lambda module, read, y: 2 * y + 1)
    elif change == "pre-hook":
        part.register_forward_pre_hook(lambda module, read: (read[0] * 2 + 1,))
    elif change == "backward hook":
        part.register_full_backward_hook(lambda *_: gradients.append(1))
    elif change == "bias":
        part.bias = nn.Parameter(torch.ones(part.out_features))
    else:
        setattr(sublayer, name, Adapted(part))
    after = model(tokens)
    after.sum().backward()
    assert gradients or not torch.allclose(after, before)


@pytest.mark.parametrize("backbone", ["lab", "llama"])
def test_what_is_made_without_memory_and_loaded_is_the_same(backbone):
    """No state brings the angles of rotary positions: they are made again where the weights come to be."""
    if backbone != "lab":
        pytest.importorskip("transformers")
    config = TransformerConfig(vocab_size=16, dim=16, layers=2, heads=2, context=12, backbone=backbone)
    model, tokens = Transformer(config).eval(), torch.arange(12)[None]
    with torch.device("meta"):
        moved, assigned = (Transformer(config, seed=None).eval() for _ in range(2))
    moved.to_empty(device="cpu")
    moved.cos.fill_(math.nan), moved.sin.fill_(math.nan)
    moved.to_empty(device="cpu").load_state_dict(model.state_dict())
    assigned.load_state_dict(model.state_dict(), assign=True)
    for loaded in (moved, assigned):
        torch.testing.assert_close(loaded(tokens), model(tokens), rtol=0, atol=0)
    assert moved.bfloat16().cos.dtype == torch.bfloat16 and moved.double().cos.dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_made_on_a_gpu_is_the_cpus():
    config = TransformerConfig(dim=32, layers=2, heads=2)
    with torch.device("cuda"):
        model = Transformer(config)
    for ours, theirs in zip(model.parameters(), Transformer(config).parameters(), strict=True):
        assert ours.device.type == "cuda" and torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("name", ["block:block_size=3", "full", "rms-block:block_size=2"])
@pytest.mark.parametrize("training", [True, False])
def test_a_read_normalises_what_its_sublayer_would(name, training, monkeypatch):
    """Not where somebody sees what the sublayer reads, as a hook does."""
    model = Transformer(TransformerConfig(vocab_size=50, dim=24, layers=4, heads=2, context=16, connection=name))
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    tokens, found, calls = torch.randint(50, (2, 9 if training else 1)), [], []
    forward = nn.RMSNorm.forward
    monkeypatch.setattr(nn.RMSNorm, "forward", lambda self, x: calls.append(1) or forward(self, x))
    model(tokens)  # where a norm is used first, it is tried
    calls.clear()
    for alone in (True, False):
        for sublayer in model.sublayers if not alone else ():
            sublayer.register_forward_hook(lambda *_: None)
        model.zero_grad()
        with torch.set_grad_enabled(training):
            out = model(tokens)
        if training:
            out.sin().sum().backward()
        found.append([out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
        calls.append(0)
    assert calls == [1, 0, *[1] * (model.config.sublayers + 1), 0], "the final norm alone"
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm() + 1e-5
