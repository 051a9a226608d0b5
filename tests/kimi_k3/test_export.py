from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from attnres.cli import main
from attnres.train import load_recipe, train

pytest.importorskip("transformers")
pytest.importorskip("gguf")

from transformers import AutoModelForCausalLM

from attnres.kimi_k3 import load
from tests.kimi_k3 import llamacpp

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVE = EXAMPLES.parent / "docs" / "serve.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the recipe, of two steps."""
    root = tmp_path_factory.mktemp("k3")
    folder = root / "run"
    for index in range(30):
        (root / f"{index}.txt").write_text(f"return {index} + x\n" * 100)
    config = load_recipe("recipes/kimi_k3.py")
    data = replace(config.data, paths=(str(root),), cache=str(root / "cache"))
    model = replace(config.model, context=64)
    train(replace(config, model=model, data=data, steps=2, batch_size=2, validation_tokens=128), folder)
    return folder


def test_a_checkpoint_comes_back_and_can_be_exported_again(run, tmp_path, capsys):
    folder, file = tmp_path / "k3", tmp_path / "k3.gguf"
    assert main(["export", str(run), "--checkpoint", str(folder)]) == 0
    assert load(folder).config.attn_res_block_size == 1
    command = ["export", str(folder), "--gguf", str(file), "--type", "bf16"]
    assert main(command) == 0
    assert "k3.gguf: bf16" in capsys.readouterr().out
    assert main(["export", str(run), "--checkpoint", str(folder)]) == 2
    assert "exists; give a new folder" in capsys.readouterr().err


def test_a_checkpoint_has_the_tokenizer_of_bytes(run, tmp_path, capsys):
    """transformers reads the same ids from it, and a file for llama.cpp has the same bytes as one made from the run."""
    import gguf
    from transformers import AutoTokenizer

    def tokens(file) -> list[str]:
        return gguf.GGUFReader(str(file)).fields["tokenizer.ggml.tokens"].contents()

    published = str(tmp_path / "published")
    assert main(["export", str(run), "--checkpoint", published, "--gguf", str(tmp_path / "run.gguf")]) == 0
    assert main(["export", published, "--gguf", str(tmp_path / "checkpoint.gguf")]) == 0
    library = AutoTokenizer.from_pretrained(published)
    text = "".join(map(chr, range(1, 300))) + "naïve 你好 🙂  \r\n\t"
    assert library.encode(text) == list(text.encode()) and library.decode(library.encode(text)) == text
    assert library.eos_token_id == 0
    assert tokens(tmp_path / "checkpoint.gguf")[1:256] == tokens(tmp_path / "run.gguf")[1:256]
    assert tokens(tmp_path / "checkpoint.gguf")[0] == library.eos_token
    if llamacpp.find_library() is not None:
        with llamacpp.opened(tmp_path / "checkpoint.gguf") as engine:
            assert engine.tokenize(text) == list(text.encode())
    (tmp_path / "published" / "tokenizer.json").unlink()
    capsys.readouterr()
    assert main(["export", published, "--gguf", str(tmp_path / "ids.gguf")]) == 0
    assert "published has no tokenizer, so llama.cpp takes and gives token ids alone" in capsys.readouterr().out


def test_what_cannot_be_exported_is_refused_in_one_line(run, tmp_path, capsys):
    def refused(*arguments: object) -> str:
        assert main(["export", *map(str, arguments)]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    file = tmp_path / "k3.gguf"
    file.write_text("mine")
    assert "no new file can be written there" in refused(run, "--gguf", file)
    assert file.read_text() == "mine"
    file.unlink()
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert "is a model of type llama: llama.cpp has attention over depth in Kimi K3 alone" in refused(
        tmp_path / "llama", "--gguf", file
    )
    assert not file.exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an old name
def test_the_code_of_serve_it_runs(run, tmp_path, monkeypatch):
    """An attached model; Transformers, Trainer and PEFT on an exported folder: the page's Python, in its order."""
    pytest.importorskip("peft")
    corpus = runpy.run_path(str(EXAMPLES / "chat_corpus.py"))
    monkeypatch.setitem(corpus["main"].__globals__, "dialogues", lambda count: corpus["dialogues"](100))
    corpus["main"](tmp_path / "runs" / "text")
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--checkpoint", "runs/published"]) == 0
    namespace: dict = {}
    for block in re.findall(r"```python\n(.*?)```", SERVE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(SERVE), "exec"), namespace)
    assert type(AutoModelForCausalLM.from_pretrained("models/attached")).__name__ == "AttnResLlamaForCausalLM"
    first, *changed = (load(Path("runs") / name).state_dict() for name in ("published", "trained", "merged"))
    for weights in changed:
        assert weights.keys() == first.keys() and any(not w.equal(first[name]) for name, w in weights.items())
