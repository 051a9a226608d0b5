"""The step and the evaluation, against plain PyTorch."""

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnres.data import Sampler, open_corpus, validation_batches
from attnres.model import Transformer
from attnres.train.trainer import NonFinite, Trainer, forward_backward, in_memory


@pytest.fixture
def make_trainer(make_config):
    def make(**fields) -> Trainer:
        config = make_config(**fields)
        return Trainer(config, open_corpus(config.data))

    return make


def plain_loss(model, rows):
    """Written from the definition: -log p of each next token, averaged over all of them."""
    log_p = torch.log_softmax(model(rows[:, :-1]).double(), -1)
    return -log_p.gather(-1, rows[:, 1:, None]).mean()


def test_step_is_the_plain_step_in_adamw(make_trainer):
    """One accumulated, clipped step equals the textbook one on the whole batch."""
    trainer = make_trainer(accumulate=3, optimizer={"hidden": "adamw", "clip": 0.5, "lr": 1e-2, "adamw_lr": 5e-3})
    config = trainer.config
    sampler = Sampler(trainer.corpus.train, config.model.context, config.batch_size, config.seed)
    rows = torch.cat([torch.from_numpy(sampler.next()) for _ in range(3)])
    model = Transformer(config.model, config.seed)
    loss = plain_loss(model, rows)
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert norm > 0.5, "the test must clip"
    result = trainer.train_step()
    assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert result["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    moments = trainer.tensors()[1]  # the step itself hides the clipping: it has the gradient's sign but not its size
    for (name, ours), plain in zip(trainer.model.named_parameters(), model.parameters(), strict=True):
        if plain.grad is None:
            continue
        matrix = name.startswith("sublayers") and "norm" not in name
        decay = 0.1 if matrix or name.startswith("head") else 0.0
        rate = result["lr"] * (1.0 if matrix else 0.5)
        gradient = plain.grad * (0.5 / norm)
        # AdamW's first step: m/(1-b1) = g and v/(1-b2) = g^2.
        torch.testing.assert_close(moments[name + "/exp_avg"], 0.1 * gradient, rtol=1e-3, atol=1e-6)
        step = gradient / (gradient.abs() + 1e-8)
        expected = plain * (1 - rate * decay) - rate * step
        clear = gradient.abs() > 1e-5  # where eps and rounding do not decide the sign
        torch.testing.assert_close(ours[clear], expected[clear], rtol=1e-3, atol=1e-4)  # of a step of 5e-3 or more


def test_evaluation_is_the_mean_over_all_tokens(make_trainer):
    """The last batch is smaller than the others: a mean of batch means would be wrong."""
    trainer = make_trainer(batch_size=3, validation_tokens=16 * 7)
    config = trainer.config
    rows = torch.cat([torch.from_numpy(b) for b in validation_batches(trainer.corpus, 16, 3, 16 * 7)])
    assert len(rows) == 7
    trainer.model.register_forward_pre_hook(lambda module, _: pytest.fail("train mode") if module.training else None)
    with torch.no_grad():
        expected = plain_loss(Transformer(config.model, config.seed), rows)
    assert trainer.evaluate() == pytest.approx(expected.item(), rel=1e-5)
    assert trainer.model.training
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_bfloat16_rounds_products_and_keeps_weights_in_float32(make_trainer):
    exact, rounded = make_trainer(), make_trainer(precision="bfloat16")
    a, b = exact.train_step()["loss"], rounded.train_step()["loss"]
    assert a != b and a == pytest.approx(b, rel=0.05)  # ten units of bfloat16
    assert {p.dtype for p in rounded.model.parameters()} == {torch.float32}


def test_checkpointing_changes_nothing_but_rounding(make_trainer):
    """The gradient of the embedding, which several segments read, is summed in another order."""
    plain, recomputed = make_trainer(), make_trainer(checkpointing=True)
    assert recomputed.model.checkpointing
    assert plain.train_step() == pytest.approx(recomputed.train_step(), rel=1e-4)


@pytest.mark.slow
def test_compile_changes_nothing_but_rounding(make_trainer, monkeypatch):
    # The whole graph is captured and differentiated ahead of time; only the C++ of it, half a minute, is left out.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    plain, compiled = make_trainer(model={"layers": 1}), make_trainer(model={"layers": 1}, compile=True)
    assert compiled.forward is not compiled.model
    assert compiled.train_step()["loss"] == pytest.approx(plain.train_step()["loss"], rel=1e-4)
    names = compiled.tensors()[0]
    assert names.keys() == plain.tensors()[0].keys(), "a compiled run's checkpoint is any run's checkpoint"


@pytest.mark.parametrize(
    ("connection", "hidden", "precision"),
    [
        ("block", "muon", "float32"),
        ("hc", "adamw", "bfloat16"),
    ],
)
def test_restore_is_bit_equal(make_trainer, hidden, precision, connection):
    fields = {"model": {"connection": connection}, "optimizer": {"hidden": hidden}, "precision": precision}
    straight, first, second = (make_trainer(**fields) for _ in range(3))
    for trainer, steps in ((straight, 4), (first, 2)):
        for _ in range(steps):
            trainer.train_step()
    model, optimizer = ({n: t.clone() for n, t in part.items()} for part in first.tensors())
    drawn = torch.rand(3)
    second.restore(model, optimizer, first.state())
    assert torch.equal(torch.rand(3), drawn), "random numbers go on, for sublayers that draw them"
    torch.set_rng_state(straight.tensors()[1]["rng/cpu"])
    for _ in range(2):
        second.train_step()
    for ours, theirs in zip(second.tensors(), straight.tensors(), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def poison(trainer: Trainer, name: str, value=math.nan):
    with torch.no_grad():
        trainer.model.get_parameter(name).view(-1)[0] = value


@pytest.mark.parametrize(
    "parameter, place",
    [
        ("embedding.weight", "the embedding"),
        ("sublayers.3.out.weight", "the output of site 3 (layer 1 MLP)"),
        ("connection.query.3", "the input of site 3 (layer 1 MLP)"),
        ("connection.gain.4", "site 4 (readout)"),
        ("head.weight", "the logits"),
    ],
)
def test_non_finite_activation_is_found(make_trainer, parameter, place):
    trainer = make_trainer()
    trainer.train_step()
    if parameter == "embedding.weight":
        with torch.no_grad():
            trainer.model.embedding.weight.fill_(math.inf)
    else:
        poison(trainer, parameter)
    before = trainer.sampler.state()
    with pytest.raises(NonFinite, match="step 2: the loss is nan") as caught:
        trainer.train_step()
    assert str(caught.value).endswith(f"first non-finite activation: {place}")
    assert trainer.step == 1
    assert before != trainer.sampler.state()
    with pytest.raises(NonFinite, match="step 1: the loss is nan"):
        trainer.evaluate()


def test_forward_backward_adds_to_gradients():
    """The mean over the micro-batches, whatever stands in .grad before."""
    weight = torch.nn.Parameter(torch.randn(5, 7))
    batches = [torch.randint(7, (2, 5)) % 5 for _ in range(2)]
    model = lambda tokens: weight[tokens]  # noqa: E731
    loss = forward_backward(model, batches, torch.autocast("cpu", enabled=False))
    once = weight.grad.clone()
    expected = torch.stack([F.cross_entropy(weight[b[:, :-1]].flatten(0, 1), b[:, 1:].flatten()) for b in batches])
    assert loss == pytest.approx(expected.mean().item(), rel=1e-5)
    torch.testing.assert_close(once, torch.autograd.grad(expected.mean(), weight)[0])
    forward_backward(model, batches, torch.autocast("cpu", enabled=False))
    torch.testing.assert_close(weight.grad, 2 * once)


def test_batches_wait_for_a_gpu_in_pinned_memory(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tokens: ("pinned", tokens))
    batch = np.arange(6).reshape(2, 3)
    assert torch.equal(in_memory(batch, torch.device("cpu")), torch.from_numpy(batch))
    pinned, tokens = in_memory(batch, torch.device("cuda"))
    assert pinned == "pinned" and torch.equal(tokens, torch.from_numpy(batch))


def test_a_step_asks_the_device_twice(make_trainer, monkeypatch):
    """For the losses of all its micro-batches at once, and for the gradient's norm: a GPU waits no more often."""
    asked = []
    for name in ("item", "tolist"):
        plain = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda tensor, plain=plain: asked.append(tensor) or plain(tensor))
    make_trainer(accumulate=4, optimizer={"hidden": "adamw"}).train_step()
    assert len(asked) == 2 and asked[0].shape == (4,)
