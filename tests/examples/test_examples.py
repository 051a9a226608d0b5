"""The examples run, learn, and show what they say."""

from __future__ import annotations

import json
import re
import runpy
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attnres.data import load_tokenizer, tokenizer_from_json

EXAMPLES = Path(__file__).parents[2] / "examples"

needs_node = pytest.mark.skipif(
    not (EXAMPLES.parent / "node_modules" / "node-llama-cpp").is_dir(),
    reason="npm's node-llama-cpp is not here: docs/serve.md",
)


def test_a_gpt_of_ones_own(capsys):
    before, after = runpy.run_path(str(EXAMPLES / "gpt.py"))["main"]("full", steps=50)
    assert after < 0.7 * before
    printed = capsys.readouterr().out
    assert "step 50: " in printed and "a sample: 'def " in printed
    rows = [line.split() for line in printed.splitlines()[-9:]]
    assert [len(row) for row in rows] == [9] * 9 and rows[0] == ["100", *"00000000"]


def test_a_vision_transformer_of_ones_own(capsys):
    accuracy = runpy.run_path(str(EXAMPLES / "vit.py"))["main"]("full", steps=25)
    assert accuracy > 0.25  # by chance 1 / 8, and over 512 images 0.02 around it
    share = [int(value) for value in capsys.readouterr().out.splitlines()[-1].split()]
    assert len(share) == 9 and share[0] == 100 > share[-1]


def test_a_corpus_of_small_talk(tmp_path):
    example = runpy.run_path(str(EXAMPLES / "chat_corpus.py"))
    example["main"](tmp_path)
    lines = (tmp_path / "text.jsonl").read_text().splitlines()
    tokenizer = load_tokenizer(str(tmp_path))
    text = json.loads(lines[0])["text"]
    assert len(lines) == 4000 and tokenizer.decode(tokenizer.encode("café 3")) == "café 3"
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Template((tmp_path / "template.jinja").read_text())
    speakers = re.findall(r"<\|(user|assistant)\|>([^<]*)", text)
    messages = [{"role": role, "content": content} for role, content in speakers]
    assert template.render(messages=messages) == text + "<|endoftext|>"
    prompt = template.render(messages=messages[:1], add_generation_prompt=True)
    assert text.startswith(prompt) and prompt.endswith("<|assistant|>")
    assert tokenizer.encode(prompt)[-1] == tokenizer.encode(text)[len(tokenizer.encode(prompt)) - 1]


@needs_node
@pytest.mark.slow
def test_a_server_that_speaks_openais_protocol(tmp_path):
    pytest.importorskip("gguf")
    from attnres.kimi_k3.gguf import write_gguf
    from tests.kimi_k3.small import small_k3

    template = runpy.run_path(str(EXAMPLES / "chat_corpus.py"))["TEMPLATE"]
    bytes_ = tokenizer_from_json({"kind": "bytes"})
    model = small_k3(num_hidden_layers=2)
    with torch.no_grad():
        model.lm_head.weight[bytes_.end] = 0  # it never ends by itself: some other token's logit is above 0
    write_gguf(model, tmp_path / "k3.gguf", bytes_, chat_template=template)
    command = ["node", str(EXAMPLES / "serve.mjs"), str(tmp_path / "k3.gguf"), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(line for line in server.stdout if line.startswith("http")).strip()
            messages = [{"role": "user", "content": "Hi"}]
            body = json.dumps({"messages": messages, "max_tokens": 8}).encode()
            with urllib.request.urlopen(f"{address}/chat/completions", body) as response:
                answer = json.load(response)
            (choice,) = answer["choices"]
            assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
            said, long = {"role": "assistant", "content": "Yes"}, [{"role": "user", "content": "Hi! " * 130}]
            port = int(address.split(":")[2].removesuffix("/v1"))
            with socket.create_connection(("127.0.0.1", port)) as client:  # one that is gone before it has asked
                client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 99\r\n\r\n{")

            def refused(body: bytes) -> str:
                with pytest.raises(urllib.error.HTTPError, match="400") as error:
                    urllib.request.urlopen(f"{address}/chat/completions", body)
                with error.value:
                    return error.value.read().decode()

            refused(b"{")
            for bad, why in (
                ({}, "messages must be a list"),
                ({"messages": [{"role": "usr", "content": "Hi"}]}, "a role of system, user, assistant"),
                ({"messages": messages, "max_tokens": 0}, "max_tokens must be a whole number"),
                ({"messages": messages, "stream": True}, "there are no streams here"),
                ({"messages": [*messages, said]}, "the last of messages must be the user's"),
                ({"messages": [*long, said, *messages]}, "do not fit the context of 512 tokens"),
            ):
                assert why in refused(json.dumps(bad).encode())

            with urllib.request.urlopen(f"{address}/chat/completions", body) as response:
                assert json.load(response)["choices"] == [choice]
        finally:
            server.terminate()


@needs_node
@pytest.mark.parametrize(("path", "said"), [("nope.gguf", "nope.gguf: there is no such file"), (None, "usage: node ")])
def test_the_server_says_what_it_needs(path, said):
    command = ["node", str(EXAMPLES / "serve.mjs"), *([path] if path else [])]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith(said) and ended.stderr.count("\n") == 1


def test_the_notebook_runs(monkeypatch, capsys):
    """Its cells in this process, with a stand-in for the notebook's display."""
    pictures = []
    display = lambda picture, **_: pictures.append(picture) or SimpleNamespace(update=pictures.append)  # noqa: E731
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(version_info=(9, 0)))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    notebook = json.loads((EXAMPLES / "depth_matrix.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells), "strip the outputs before a commit"
    namespace: dict = {}
    for cell in cells:
        code = "".join(line for line in cell["source"] if not line.startswith("%"))
        exec(code.replace('STEPS, EVERY = "full", 40, 10', 'STEPS, EVERY = "full", 4, 2'), namespace)
    assert len(pictures) == 3 and "nats per byte" in capsys.readouterr().out
