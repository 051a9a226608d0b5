"""llama.cpp's library, by ctypes: it runs a GGUF file token by token.

Found in the folder that ATTNRES_LLAMA_CPP names, or where npm puts its prebuilt package: `./node_modules`. The layouts
of the structures below are those of llama.cpp 0.5.0, the version of that package.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PACKAGE = "@node-llama-cpp/linux-x64@3.22.1"
VARIABLE = "ATTNRES_LLAMA_CPP"
INSTALL = f"npm install --no-save --no-package-lock --omit=optional {PACKAGE}"

_CPU = 0
_NO_FLASH_ATTENTION = 0
_F32 = 0


class _ModelParams(Structure):
    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        *((name, c_bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts", "no_host", "no_alloc", "mtp")),
    ]


class _ContextParams(Structure):
    _fields_ = [
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, c_int32) for name in ("n_threads", "n_threads_batch")),
        *((name, c_int) for name in ("ctx_type", "rope_scaling_type", "pooling_type", "attention_type", "flash_attn")),
        *((name, c_float) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext", "yarn_attn")),
        *((name, c_float) for name in ("yarn_beta_fast", "yarn_beta_slow")),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        *((name, c_void_p) for name in ("cb_eval", "cb_eval_user_data")),
        *((name, c_int) for name in ("type_k", "type_v")),
        *((name, c_void_p) for name in ("abort_callback", "abort_callback_data")),
        *((name, c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]


class _Batch(Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


class Engine:
    """A model in llama.cpp, with what it keeps of the tokens so far. Made by `opened`."""

    def __init__(self, library: Any, model: int, context: int) -> None:
        self._library, self._context = library, context
        self._vocabulary = library.llama_model_get_vocab(model)
        self.vocab_size: int = library.llama_vocab_n_tokens(self._vocabulary)
        self._seen = 0

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Go on with these tokens: the logits after each of them, float32 [tokens, vocab_size]."""
        batch = self._library.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, self._seen + i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert self._library.llama_decode(self._context, batch) == 0
        self._library.llama_batch_free(batch)
        self._seen += len(tokens)
        found = self._library.llama_get_logits(self._context)
        values = ctypes.cast(found, POINTER(c_float * (len(tokens) * self.vocab_size))).contents
        return torch.frombuffer(bytearray(values), dtype=torch.float32).view(len(tokens), self.vocab_size)

    def forget(self) -> None:
        """Begin a new text."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        self._seen = 0

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text under the file's tokenizer; names of special tokens in it are read as such."""
        data = text.encode()
        ids = (c_int32 * (len(data) + 1))()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), ids, len(ids), False, True)
        return list(ids[:count])


@contextlib.contextmanager
def opened(path: str | Path, context: int = 512) -> Iterator[Engine]:
    """Load a GGUF file for texts of at most `context` tokens."""
    library = load_library()
    said.clear()
    params = library.llama_model_default_params()
    params.n_gpu_layers = _CPU
    model = library.llama_model_load_from_file(os.fsencode(path), params)
    assert model, "\n".join(said)
    wanted = library.llama_context_default_params()
    wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = context
    wanted.n_threads = wanted.n_threads_batch = 1
    wanted.flash_attn, wanted.type_k, wanted.type_v = _NO_FLASH_ATTENTION, _F32, _F32
    state = library.llama_init_from_model(model, wanted)
    assert state, "\n".join(said)
    try:
        yield Engine(library, model, state)
    finally:
        library.llama_free(state)
        library.llama_model_free(model)


said: list[str] = []
"""What llama.cpp has logged since the last call began: it has no other way to say what is wrong."""


def find_library() -> Path | None:
    """The folder with llama.cpp's libraries, None where there is none."""
    named = os.environ.get(VARIABLE)
    folders = [Path(named)] if named else sorted(Path("node_modules/@node-llama-cpp").glob("*/bins/*"))
    return next((folder for folder in folders if list(folder.glob("libllama.*"))), None)


@cache
def load_library() -> Any:
    """Load llama.cpp and declare what is used of it."""
    folder = find_library()
    assert folder is not None
    parts = {
        name: ctypes.CDLL(str(min(folder.glob(f"lib{name}.*"))), ctypes.RTLD_GLOBAL)
        for name in ("ggml-base", "ggml", "llama")
    }
    parts["ggml-base"].ggml_log_set(_LISTENER, None)
    parts["ggml"].ggml_backend_load_all_from_path(os.fsencode(folder))
    library = parts["llama"]
    handle, text = c_void_p, c_char_p
    for name, result, *arguments in (  # type: ignore[misc]
        ("llama_model_default_params", _ModelParams),
        ("llama_context_default_params", _ContextParams),
        ("llama_model_load_from_file", handle, text, _ModelParams),
        ("llama_init_from_model", handle, handle, _ContextParams),
        ("llama_model_free", None, handle),
        ("llama_free", None, handle),
        ("llama_model_get_vocab", handle, handle),
        ("llama_vocab_n_tokens", c_int32, handle),
        ("llama_batch_init", _Batch, c_int32, c_int32, c_int32),
        ("llama_batch_free", None, _Batch),
        ("llama_decode", c_int32, handle, _Batch),
        ("llama_get_logits", handle, handle),
        ("llama_get_memory", handle, handle),
        ("llama_memory_clear", None, handle, c_bool),
        ("llama_tokenize", c_int32, handle, text, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool),
        ("llama_log_set", None, handle, handle),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    # Its documented default, behind n_ctx: else the structures above are of another version.
    assert library.llama_context_default_params().n_batch == 2048, f"fetch the known llama.cpp with: {INSTALL}"
    library.llama_log_set(_LISTENER, None)
    parts["llama"].llama_backend_init()
    return library


@ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
def _LISTENER(level: int, line: bytes, _: Any) -> None:
    said.append(line.decode(errors="replace").strip())
