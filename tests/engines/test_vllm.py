"""Attached models in a real vLLM, on a CPU (`make vllm`): transformers is the oracle."""

from __future__ import annotations

import copy
import gc
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm", reason="make vllm has an environment for it")

import vllm
from vllm.distributed import cleanup_dist_env_and_memory

import attnres.hf
from tests.depth import randomise
from tests.hf.models import VOCABULARY, generate, make_model, make_tokens

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]  # theirs

# vLLM's attention on a CPU wants heads of at least 32.
SIZES = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
SIZES |= {"max_position_embeddings": 256}
DIAGONAL = {  # architecture: (what it has of its own, connection)
    "qwen3": ({"tie_word_embeddings": True}, "block", {"block_size": 3}),
    "llama": ({}, "full", {}),
    "gemma3_text": ({}, "delta", {"gate": True}),
    "qwen3_moe": ({}, "rms-block", {"block_size": 2, "gate": True, "total": True}),
}
COUNT = 12


def prompts() -> list[list[int]]:
    """Of different lengths, longer than the sliding window too."""
    tokens = make_tokens(4, 40).tolist()
    return [row[:length] for row, length in zip(tokens, (40, 3, 17, 1), strict=True)]


def long_prompts() -> list[list[int]]:
    """With the first 32 tokens in common, and nearly two blocks of 32: what is drawn needs a third."""
    shared = make_tokens(1, 32)[0].tolist()
    return [[*shared, *text] for text in make_tokens(4, 29).tolist()]


def small(name: str):
    """A plain model, the same attached, and this one with a connection that is no longer at its start."""
    own, connection, options = DIAGONAL[name]
    plain = make_model(name, **SIZES, **own)
    if own.get("tie_word_embeddings"):
        with torch.no_grad():
            plain.get_input_embeddings().weight.mul_(10)  # else its logits are nearly equal
    start = attnres.hf.attach(copy.deepcopy(plain), connection, **options)
    trained = copy.deepcopy(start)
    randomise(attnres.hf.connection_of(trained))
    return {"plain": plain, "start": start, "trained": trained}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Folders of models, with what transformers computes of them: vLLM changes the classes, for the whole process."""
    made = {}
    for name in DIAGONAL:
        for kind, model in small(name).items():
            if kind != "trained" and name != "qwen3":
                continue
            folder = tmp_path_factory.mktemp(f"{name}-{kind}")
            model.save_pretrained(folder)
            texts = [*prompts(), *(long_prompts() if name == "llama" else ())] if kind == "trained" else ()
            drawn = {tuple(text): drawn_by(model, text) for text in texts}
            made[name, kind] = SimpleNamespace(folder=folder, drawn=drawn)
            if name == "qwen3":
                made[name, kind].read, made[name, kind].rounded = read_by(model), read_by(model.bfloat16())
    return made


@torch.no_grad()
def read_by(model) -> torch.Tensor:
    """Log-probabilities of each prompt's tokens but the first, one below the other."""
    read = [model(torch.tensor([text])).logits[0, :-1].float().log_softmax(-1) for text in prompts()]
    return torch.cat(read)


def drawn_by(model, text):
    """What transformers draws greedily, and the log-probabilities it draws from."""
    made = generate(model, torch.tensor([text]), COUNT)
    return made.sequences[0, len(text) :].tolist(), torch.cat(made.logits).log_softmax(-1)


@pytest.fixture
def engine(monkeypatch):
    """engine(folder, ..): vLLM on the folder, in this process, without a flag."""
    for name, value in (("ENABLE_V1_MULTIPROCESSING", "0"), ("CPU_KVCACHE_SPACE", "1"), ("NO_USAGE_STATS", "1")):
        monkeypatch.setenv(f"VLLM_{name}", value)
    made = []

    def engine(folder, **options):
        settings = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4, "max_logprobs": VOCABULARY}
        settings |= {"skip_tokenizer_init": True, "enforce_eager": True, "disable_log_stats": False}
        made.append(vllm.LLM(str(folder), **{**settings, **options}))
        return made[-1]

    yield engine
    while made:
        made.pop().llm_engine.engine_core.shutdown()
        gc.collect()
        cleanup_dist_env_and_memory()


def answers(llm, texts, **sampling):
    settings = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "logprobs": VOCABULARY, "detokenize": False}
    parameters = vllm.SamplingParams(**{**settings, **sampling})
    requests = [{"prompt_token_ids": text} for text in texts]
    return llm.generate(requests, parameters, use_tqdm=False)


def table(steps) -> torch.Tensor:
    """Log-probabilities [step, token]."""
    return torch.tensor([[step[token].logprob for token in range(VOCABULARY)] for step in steps])


def assert_same(drawn, outputs) -> None:
    for output in outputs:
        tokens, log_p = drawn[tuple(output.prompt_token_ids)]
        assert list(output.outputs[0].token_ids) == tokens
        torch.testing.assert_close(table(output.outputs[0].logprobs), log_p, rtol=0, atol=1e-4)


ESSENTIAL = ("qwen3", "gemma3_text")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ESSENTIAL else pytest.mark.slow) for name in DIAGONAL]
)
def test_vllm_draws_what_transformers_draws(name, engine, kept):
    model = kept[name, "trained"]
    assert_same(model.drawn, answers(engine(model.folder), prompts()))


@pytest.mark.slow
def test_bfloat16_is_as_near_as_the_plain_model_s(engine, kept):
    """To transformers in float32, over all log-probabilities of the prompts; the connection stays in float32."""
    errors = {}
    for kind in ("plain", "start", "trained"):
        model = kept["qwen3", kind]
        llm = engine(model.folder, dtype="bfloat16")
        outputs = answers(llm, prompts(), prompt_logprobs=VOCABULARY)
        found = torch.cat([table(output.prompt_logprobs[1:]) for output in outputs if len(output.prompt_logprobs) > 1])
        for where, log_p in (("vLLM", found), ("transformers", model.rounded)):
            errors[kind, where] = (log_p - model.read).square().mean().sqrt().item()
    kinds = dict(llm.apply_model(lambda model: {name: p.dtype for name, p in model.named_parameters()})[0])
    assert {kind for name, kind in kinds.items() if ".connection." in name} == {torch.float32}
    assert {kind for name, kind in kinds.items() if ".connection." not in name} == {torch.bfloat16}
    assert errors["start", "vLLM"] < 1.1 * errors["plain", "vLLM"], errors  # the same function
    assert errors["trained", "vLLM"] < 1.1 * errors["trained", "transformers"], errors


def test_chunks_shared_prefixes_and_preemption(engine, kept):
    """Prompts are read in pieces of 32 tokens, a prefix is read once, and a cache too small for all puts some off."""
    model = kept["llama", "trained"]
    llm = engine(
        model.folder, max_num_batched_tokens=32, enable_prefix_caching=True, block_size=32, num_gpu_blocks_override=7
    )
    assert_same(model.drawn, answers(llm, long_prompts()))
    again = answers(llm, long_prompts()[:1])
    assert_same(model.drawn, again)
    assert again[0].num_cached_tokens >= 32
    counts = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    assert counts["vllm:num_preemptions"] > 0
