"""vLLM's server on the folder of an attached model, without a flag about it.

Before test_vllm.py, by its name: where vLLM has run a llama, transformers' own one no longer generates.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
import torch

pytest.importorskip("vllm", reason="make vllm has an environment for it")
import openai

from tests.hf.models import generate, save_attached

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]  # theirs

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
# vLLM's attention on a CPU wants heads of at least 32.
SIZES = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, its folder and a client of the server that runs it: compiled, as is vLLM's default."""
    folder = tmp_path_factory.mktemp("attached")
    model = save_attached(folder, **SIZES)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "log"
    # What `vllm serve` runs: that command of vllm-cpu 0.32.0 asks for a package named vllm, and stops.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--dtype", "float32", "--max-model-len", "128", "--port", str(port)]
    cache = {"VLLM_CACHE_ROOT": str(log.parent / "cache")}
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **ENVIRONMENT, **cache})
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    while True:
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            client.models.list()
            break
        except openai.APIConnectionError:
            time.sleep(0.5)
    yield model, str(folder), client
    process.terminate()
    process.wait()


@pytest.mark.slow
def test_a_client_of_openai_gets_the_models_tokens(served):
    """At once and streamed."""
    model, folder, client = served
    text = torch.tensor([[5, 6, 7, 8, 9]])
    expected = generate(model, text, 8, repetition_penalty=1.0).sequences[0, 5:].tolist()
    asked = {"model": folder, "prompt": text[0].tolist(), "max_tokens": 8, "temperature": 0}
    more = {"extra_body": {"repetition_penalty": 1.0, "ignore_eos": True, "return_token_ids": True}}
    assert client.completions.create(**asked, **more).choices[0].token_ids == expected
    pieces = [piece.choices[0] for piece in client.completions.create(**asked, **more, stream=True)]
    assert [token for piece in pieces for token in piece.token_ids or ()] == expected
    assert len(pieces) > 1
