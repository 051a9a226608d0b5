"""The step and the evaluation, against plain PyTorch."""

import functools
from collections.abc import Callable

import pytest
import torch

from attnres.data import Sampler, validation_batches
from attnres.model import Transformer
from attnres.train.trainer import Trainer
from tests.train import many


@pytest.fixture
def make_trainer(make_config) -> Callable[..., Trainer]:
    return lambda **fields: many.make_trainer(make_config(**fields))


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
