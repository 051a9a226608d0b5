"""Exported models in llama.cpp, an engine that nobody here wrote: its logits are the oracle."""

from __future__ import annotations

import json

import pytest
import torch

from attnres.errors import UsageError
from tests.kimi_k3 import llamacpp
from tests.kimi_k3.small import SIZES, KimiK3Config, KimiK3ForCausalLM, decided_tokens, small_k3, some_tokens

pytest.importorskip("gguf", reason="the gguf library writes the files")

from attnres.data import DataConfig, load_tokenizer, open_corpus, tokenizer_from_json
from attnres.kimi_k3.export import write_published
from attnres.kimi_k3.gguf import write_gguf
from attnres.kimi_k3.vocabulary import _EXPRESSIONS, vocabulary_of

BYTES = tokenizer_from_json({"kind": "bytes"})
needs_llama_cpp = pytest.mark.skipif(
    llamacpp.find_library() is None, reason=f"llama.cpp is not here; fetch it with: {llamacpp.INSTALL}"
)


@needs_llama_cpp
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"q_lora_rank": None, "attn_res_block_size": 3, "n_shared_experts": 1},
        {"attn_res_block_size": None, "num_hidden_layers": 4},
    ],
    ids=["queries in a latent space", "blocks of three layers", "plain residual"],
)
@torch.no_grad()
def test_llama_cpp_computes_the_same(sizes, tmp_path):
    model = small_k3(**sizes)
    tokens = decided_tokens(model, 60, drawn=16)
    write_gguf(model, tmp_path / "k3.gguf", BYTES)
    drawn, steps = tokens.tolist(), []
    with llamacpp.opened(tmp_path / "k3.gguf", context=200) as engine:
        assert engine.vocab_size == 256
        prompt = logits = engine.logits(drawn)
        for _ in range(16):
            drawn.append(int(logits[-1].argmax()))
            logits = engine.logits(drawn[-1:])
            steps.append(logits)
        engine.forget()
        one_by_one = torch.cat([engine.logits([token]) for token in tokens.tolist()])
    ours = model(torch.tensor([drawn])).logits[0]
    assert ours.std() > 0.3
    assert (prompt - ours[:60]).abs().max() < 1e-3
    assert (one_by_one - ours[:60]).abs().max() < 1e-3
    assert (torch.cat(steps) - ours[60:]).abs().max() < 1e-3


@needs_llama_cpp
@torch.no_grad()
def test_narrower_types_stay_near(tmp_path):
    sizes = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256}
    # With AMX, llama.cpp 0.5.0 multiplies prompts by q8_0 rows of 32 numbers wrongly: here none is so short.
    sizes |= {"linear_head_dim": 32}
    # Every expert is chosen: where a router chooses, it flips at a touch.
    sizes |= {"routed_expert_hidden_size": 256, "num_local_experts": 2, "num_experts_per_tok": 2}
    model = small_k3(**sizes, num_hidden_layers=4)
    tokens, largest = some_tokens(60), {}
    ours = model(tokens[None]).logits[0]
    write_gguf(model, tmp_path / "f32.gguf", BYTES)
    for kind in ("f16", "bf16"):
        write_gguf(model, tmp_path / f"{kind}.gguf", BYTES, kind)
    sizes = {file.stem: file.stat().st_size for file in tmp_path.glob("*.gguf")}
    for kind in sizes:
        with llamacpp.opened(tmp_path / f"{kind}.gguf", context=100) as engine:
            theirs = engine.logits(tokens.tolist())
        divergence = (ours.log_softmax(-1).exp() * (ours.log_softmax(-1) - theirs.log_softmax(-1))).sum(-1).mean()
        largest[kind] = divergence.item()
    assert sizes["f32"] > 1.8 * sizes["bf16"]
    assert largest["f32"] < 1e-6 and largest["f16"] < 1e-3 and largest["bf16"] < 0.03


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"linear_num_heads": 3}, "as many linear_num_heads as num_attention_heads; this one does not"),
        ({"layer_types": ["full_attention"] * 6}, "both kinds of attention"),
        ({"attention_bias": True}, "no place for this model's attention_bias"),
    ],
    ids=str,
)
def test_what_llama_cpp_has_no_place_for_is_refused(tmp_path, sizes, message):
    with torch.device("meta"):
        model = KimiK3ForCausalLM(KimiK3Config(**SIZES | sizes))
    with pytest.raises(UsageError, match=message):
        write_gguf(model, tmp_path / "k3.gguf")
    assert not list(tmp_path.iterdir())


@needs_llama_cpp
@torch.no_grad()
def test_another_eps_is_warned_of_and_near(tmp_path, caplog):
    sizes = {"num_hidden_layers": 4, "num_local_experts": 2, "num_experts_per_tok": 2}  # every expert is chosen
    model, tokens = small_k3(**sizes, rms_norm_eps=1e-5), some_tokens(40)
    write_gguf(model, tmp_path / "k3.gguf")
    assert "one eps for all norms" in caplog.text
    with llamacpp.opened(tmp_path / "k3.gguf", context=100) as engine:
        assert (engine.logits(tokens.tolist()) - model(tokens[None]).logits[0]).abs().max() < 0.02


@needs_llama_cpp
def test_texts_are_cut_as_the_tokenizer_cuts_them(tmp_path):
    library = pytest.importorskip("tokenizers")
    texts = [
        "What's 12 + 345?  Ça va, naïve\n\n  tabs\tand ▁under_scores...",
        "<|user|>Hi there!<|assistant|>Hello 你好",
    ]
    bpe = library.Tokenizer(library.models.BPE())
    bpe.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = library.decoders.ByteLevel()
    special = ["<|endoftext|>", "<|user|>", "<|assistant|>"]
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts * 3, trainer)
    tokenizer = tokenizer_from_json({"kind": "tokenizers", "tokenizer": json.loads(bpe.to_str())})
    for made in (tokenizer, BYTES):
        write_gguf(small_k3(vocab_size=320, num_hidden_layers=2), tmp_path / "k3.gguf", made)
        with llamacpp.opened(tmp_path / "k3.gguf") as engine:
            assert [engine.tokenize(text) for text in texts] == [made.encode(text) for text in texts]


class Recorded:
    """A tokenizer of which nothing but its record is asked."""

    end = None

    def __init__(self, tokenizer: dict) -> None:
        self.tokenizer = tokenizer

    def to_json(self) -> dict:
        return {"kind": "tokenizers", "tokenizer": self.tokenizer}


def byte_level(changed: dict) -> Recorded:
    return Recorded({"model": BPE, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, **changed})


def test_a_run_gets_no_special_tokens_and_a_published_model_keeps_its_own(tmp_path):
    """A run was published with <s> in front of every text, which its training had never seen."""
    transformers, tokenizers = map(pytest.importorskip, ("transformers", "tokenizers"))
    from tests.data.text import library_tokenizer

    library = library_tokenizer(["<s>", "</s>"])
    around = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    library.post_processor = tokenizers.processors.Sequence([tokenizers.processors.ByteLevel(), around])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("some text " * 90)
    source = str(tmp_path / "tokenizer.json")
    config = DataConfig(paths=(str(tmp_path / "a.txt"),), tokenizer=source, cache=str(tmp_path / "cache"))
    run = open_corpus(config).tokenizer
    write_published(small_k3(vocab_size=300), tmp_path / "out", run, None)
    published = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert published("some text").input_ids == run.encode("some text") == run.encode("some text", special=True)
    assert vocabulary_of(run, 300).begin is None
    assert vocabulary_of(load_tokenizer(str(tmp_path / "out")), 300).begin is None
    assert vocabulary_of(load_tokenizer(source), 300).begin == 0
    library.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    library.save(source)
    with pytest.raises(UsageError, match="none after it"):
        vocabulary_of(load_tokenizer(source), 300)


BPE = {"type": "BPE", "vocab": {"a": 0}, "merges": []}


def expression(behavior: str) -> dict:
    split = {"type": "Split", "pattern": {"Regex": next(iter(_EXPRESSIONS))}, "behavior": behavior, "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": {"type": "WordLevel"}}, r"byte-level BPE without a normalizer only.*WordLevel"),
        ({"model": BPE | {"continuing_subword_prefix": "##"}}, "no continuing_"),
        ({"added_tokens": [{"id": 1, "content": "<x>", "special": False, "lstrip": True}]}, "without its lstrip"),
        ({"model": BPE | {"unk_token": "<unk>"}}, "leaves out the 255 bytes"),
        ({"model": BPE | {"dropout": 0.1}}, "no dropout of merges"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "cut texts otherwise"),
        (expression("Removed"), "cut texts otherwise"),
    ],
)
def test_what_would_cut_texts_otherwise_is_refused(changed, message):
    with pytest.raises(UsageError, match=message):
        vocabulary_of(byte_level(changed), 2)


def test_the_expression_of_llama_3_is_known():
    assert vocabulary_of(byte_level(expression("Isolated")), 1).splitting == "llama-bpe"
