"""lm-eval's tasks on the lab's runs and on folders of transformers, against sums of log-probabilities made by hand."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
import torch

from attnres.errors import UsageError
from attnres.evaluation import compare_models, evaluate_model, load_tasks
from attnres.evaluation.harness import jackknife
from attnres.generate import generate
from attnres.train import load_run
from tests.data.text import library_tokenizer
from tests.evaluation.conftest import DOCUMENTS

pytest.importorskip("lm_eval")


def log_likelihood(model, given: list[int], asked: list[int]) -> float:
    """Token by token, each with a forward pass of its own over the newest ids that fit."""
    total, ids = 0.0, list(given)
    for token in asked:
        logits = model(torch.tensor([ids[-model.config.context :]]))[0, -1]
        total += logits.double().log_softmax(-1)[token].item()
        ids.append(token)
    return total


def by_name(scores):
    return {(score.task, score.metric): score for score in scores}


@torch.inference_mode()
def test_multiple_choice_of_a_run(run, tasks):
    scores = by_name(evaluate_model(run, load_tasks([tasks["choice"]]), batch_size=5))
    model, encode = load_run(run).model, load_run(run).tokenizer.encode
    right, right_per_byte = [], []
    for document in DOCUMENTS:
        # Sequences here are shorter than the context: what is read for each token is all that stands before it.
        values = [log_likelihood(model, encode(document["question"]), encode(f" {c}")) for c in document["choices"]]
        right.append(values.index(max(values)) == document["answer"])
        values = [value / len(choice) for value, choice in zip(values, document["choices"], strict=True)]
        right_per_byte.append(values.index(max(values)) == document["answer"])
    for metric, expected in (("acc", right), ("acc_norm", right_per_byte)):
        score = scores["sums_choice", metric]
        assert score.documents == len(DOCUMENTS) == 12
        assert score.samples == tuple(map(float, expected))
        assert score.value == pytest.approx(statistics.fmean(expected))
        assert score.error == pytest.approx(statistics.stdev(expected) / math.sqrt(12))
        assert score.higher_is_better


@torch.inference_mode()
def test_whole_texts_longer_than_the_context(run, tasks):
    """Every token once: a first window behind the separator, then one that ends with the text and is as long."""
    (score,) = evaluate_model(run, load_tasks([tasks["text"]]), batch_size=3)
    loaded = load_run(run)
    nats = size = 0
    for document in DOCUMENTS:
        text = "{question} {all}, and {question} {answer}".format(all=" ".join(document["choices"]), **document)
        ids = loaded.tokenizer.encode(text)
        assert 24 < len(ids) <= 48
        nats -= log_likelihood(loaded.model, [0], ids[:24])
        nats -= log_likelihood(loaded.model, ids[len(ids) - 25 : 24], ids[24:])
        size += len(text.encode())
    assert score.metric == "bits_per_byte" and score.higher_is_better is False
    assert score.value == pytest.approx(nats / size / math.log(2), rel=1e-5)
    # Of a ratio of sums, by linearising it.
    ratio = sum(n for n, _ in score.samples) / sum(b for _, b in score.samples)
    rest = [n - ratio * b for n, b in score.samples]
    expected = math.sqrt(12 * statistics.variance(rest)) / sum(b for _, b in score.samples) / math.log(2)
    assert score.error == pytest.approx(expected, rel=0.1)


def test_generated_answers(run, tasks, monkeypatch):
    from attnres.evaluation.run_lm import RunLM

    said = []
    original = RunLM.generate_until
    monkeypatch.setattr(RunLM, "generate_until", lambda *a, **k: said.extend(r := original(*a, **k)) or r)
    (score,) = evaluate_model(run, load_tasks([tasks["answer"]]))
    assert score.metric == "exact_match" and 0 <= score.value <= 1
    loaded = load_run(run)
    for document, text in zip(DOCUMENTS, said, strict=True):
        ids = list(generate(loaded.model, loaded.tokenizer.encode(document["question"]), 12, temperature=0))
        ids = ids[: ids.index(0)] if 0 in ids else ids
        assert text == loaded.tokenizer.decode(ids).partition("o")[0]


def run_lm(run):
    from attnres.evaluation.run_lm import RunLM

    return RunLM(load_run(run), 4, torch.device("cpu"))


def requested(kind: str, *arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, pair, 0) for pair in arguments]


def test_repeated_requests_draw_other_texts(run):
    """As pass@k and self-consistency count on."""
    asked = {"until": [], "do_sample": True, "temperature": 1.0, "max_gen_toks": 8}
    requests = requested("generate_until", *[("3 + 4 =", asked)] * 4)
    texts = run_lm(run).generate_until(requests, disable_tqdm=True)
    assert len(set(texts)) > 1 and texts == run_lm(run).generate_until(requests, disable_tqdm=True)


@pytest.mark.parametrize(("length", "limit", "read"), [(20, 6, 18), (40, 256, 12)])
def test_a_prompt_keeps_half_the_context_whatever_the_answer_may_take(run, monkeypatch, length, limit, read):
    prompt, seen = ("1 + 2 = 3; " * 4)[:length], []
    monkeypatch.setattr("attnres.evaluation.run_lm.generate", lambda _, given, *__, **___: seen.append(given) or [])
    run_lm(run).generate_until(requested("generate_until", (prompt, {"until": [], "max_gen_toks": limit})), True)
    assert seen == [list(prompt.encode())[-read:]]


def test_an_answer_goes_on_behind_unknown_words(run, monkeypatch):
    """A tokenizer without an end of text has no id to stop at: not that of its separator, here of unknown words."""
    tokenizers = pytest.importorskip("tokenizers")
    from attnres.data.tokenizer import LibraryTokenizer

    lm = run_lm(run)
    words = tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]")
    lm.ids = LibraryTokenizer(tokenizers.Tokenizer(words))
    monkeypatch.setattr("attnres.evaluation.run_lm.generate", lambda *_, **__: iter([1, 0, 2]))
    (text,) = lm.generate_until(requested("generate_until", ("a", {"until": []})), disable_tqdm=True)
    assert lm.ids.separator == (0,) and text == "a [UNK] b"


def test_a_run_beside_its_twin_is_paired_by_document(run, plain_run, tasks):
    loaded = load_tasks([tasks["choice"], tasks["text"]])
    scores, others = evaluate_model(run, loaded), evaluate_model(plain_run, loaded)
    differences = compare_models(scores, others)
    for score, other, difference in zip(scores, others, differences, strict=True):
        assert difference.value == score.value - other.value
        if score.metric.startswith("acc"):
            pairs = [a - b for a, b in zip(score.samples, other.samples, strict=True)]
            assert difference.error == pytest.approx(statistics.stdev(pairs) / math.sqrt(12))
        else:
            assert 0 < difference.error < score.error + other.error
    assert {score.task for score in scores} == {"sums_choice", "sums_text"}
    again = evaluate_model(run, loaded)
    # tasks keep nothing of the model before
    assert all(abs(difference.value) < 1e-9 for difference in compare_models(scores, again))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """A folder of transformers with a small model and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=280, max_position_embeddings=64, **sizes)).save_pretrained(folder)
    tokenizer = library_tokenizer(special_tokens=["<|endoftext|>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    return folder


@torch.inference_mode()
def test_a_folder_of_transformers_beside_a_run(llama, run, tasks):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = load_tasks([tasks["choice"]])
    scores = evaluate_model(llama, loaded)
    model, encode = AutoModelForCausalLM.from_pretrained(llama).eval(), AutoTokenizer.from_pretrained(llama).encode
    right = []
    for document in DOCUMENTS:
        given, values = encode(document["question"]), []
        for choice in document["choices"]:
            ids = encode(f"{document['question']} {choice}")
            log_p = model(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
            values.append(sum(log_p[i, ids[i + 1]].item() for i in range(len(given) - 1, len(ids) - 1)))
        right.append(values.index(max(values)) == document["answer"])
    assert by_name(scores)["sums_choice", "acc"].samples == tuple(map(float, right))
    (difference, _) = compare_models(scores, evaluate_model(run, loaded))
    assert difference.error is not None


def test_a_tokenizer_without_an_eos_token_takes_the_models(llama, tasks, tmp_path):
    from transformers import AutoModelForCausalLM

    model, loaded = AutoModelForCausalLM.from_pretrained(llama), load_tasks([tasks["text"]])
    model.config.eos_token_id = [5, 0]  # 0 is <|endoftext|>, 5 a piece of text
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text((llama / "tokenizer.json").read_text())
    scores = evaluate_model(tmp_path, loaded)
    assert [score.samples for score in scores] == [score.samples for score in evaluate_model(llama, loaded)]
    model.config.eos_token_id = 5
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"its tokenizer names no eos or bos token, .* name one in tokenizer_config"):
        evaluate_model(tmp_path, loaded)


def test_the_jackknife_of_many_documents_leaves_out_groups():
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0)).tolist()
    assert jackknife(statistics.fmean, values) == pytest.approx(1 / math.sqrt(5000), rel=0.15)
    assert jackknife(statistics.fmean, values[:150]) == pytest.approx(statistics.stdev(values[:150]) / math.sqrt(150))
    assert jackknife(statistics.fmean, [1.0]) is None
