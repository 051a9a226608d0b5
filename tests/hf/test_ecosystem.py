"""Everybody else's tools find an attached model by its path alone, and compute that model."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, pipeline

from attnres.hf import classes
from tests.hf.models import assert_near, make_tokens

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

TEXTS = ["one and one is two", "two and two is four", "a cat sat", "where is the cat"]


@pytest.fixture(scope="module")
def folder(kept) -> str:
    return str(kept.folder)


@pytest.fixture
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder)


def is_attached(model) -> bool:
    return isinstance(model, classes.AttnResLlamaForCausalLM)


def arguments(folder, **others):
    return {
        "output_dir": str(folder), "max_steps": 2, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "logging_steps": 1, "dataloader_pin_memory": False, "save_strategy": "no",
        "bf16": False,  # under autocast a policy and its reference round apart
        **others,
    }  # fmt: skip


def test_pipeline(folder, model):
    generate = pipeline("text-generation", model=folder, device="cpu")
    assert is_attached(generate.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("the cat", return_tensors="pt").input_ids
    given = {"max_new_tokens": 6, "do_sample": False}
    expected = tokenizer.decode(model.generate(ids, **given)[0], skip_special_tokens=True)
    assert generate("the cat", **given)[0]["generated_text"] == expected


@pytest.mark.slow
def test_preferences_with_trl(folder, tmp_path):
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    data = Dataset.from_list([{"prompt": text, "chosen": " yes", "rejected": " no"} for text in TEXTS])
    trainer = trl.DPOTrainer(folder, args=trl.DPOConfig(**arguments(tmp_path)), train_dataset=data)
    refuse_another_reference(trainer)
    trainer.train()
    first = next(record for record in trainer.state.log_history if "rewards/margins" in record)
    assert first["rewards/margins"] == pytest.approx(0, abs=1e-4)


def refuse_another_reference(trainer):
    tokens = make_tokens()
    policy, reference = (part.eval()(tokens).logits for part in (trainer.model, trainer.ref_model))
    assert is_attached(trainer.ref_model) and trainer.ref_model is not trainer.model
    assert_near(reference, policy)


def test_trainer_resumes(folder, tmp_path):
    """One step, and one more from its checkpoint: by plain gradient descent, which rounding moves by as little."""
    data = [{"input_ids": row, "labels": row} for row in make_tokens(4)]

    def train(model, output, **resume):
        options = arguments(output, max_steps=2, save_strategy="steps", save_steps=1, learning_rate=0.1)
        options |= {"lr_scheduler_type": "constant", "label_smoothing_factor": 0.1, "optim": "sgd"}
        trainer = Trainer(model, TrainingArguments(**options), train_dataset=data)
        trainer.train(**resume)
        return trainer

    whole = train(AutoModelForCausalLM.from_pretrained(folder), tmp_path / "whole")
    other = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    resumed = train(other, tmp_path / "half", resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert_near(list(resumed.model.parameters()), list(whole.model.parameters()))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "half" / "checkpoint-2")
    logits = whole.model.eval()(make_tokens()).logits
    assert_near(again(make_tokens()).logits, logits)
    smoothed = Trainer.compute_loss(whole, whole.model, {"input_ids": make_tokens(), "labels": make_tokens()})
    shifted = logits[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(shifted, make_tokens()[:, 1:].flatten(), label_smoothing=0.1)
    assert_near(smoothed, expected)
