"""A run of the lab as lm-eval sees a language model."""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from attnres.data import StreamDecoder
from attnres.errors import UsageError
from attnres.generate import generate
from attnres.train import Run

Pair = tuple[list[int], list[int]]
"""The ids that are given and the ids that are asked for."""


class RunLM(TemplateLM):
    """Scores and generates with a run's model and tokenizer. An empty context is what separates two documents."""

    def __init__(self, run: Run, batch_size: int, device: torch.device) -> None:
        super().__init__()
        self.model = run.model.to(device)
        self.ids = run.tokenizer
        self.max_length = run.config.model.context
        self.batch_size = batch_size
        self._device = device

    @property
    def eot_token_id(self) -> int:
        if not self.ids.separator:
            raise UsageError(
                "the run's tokenizer has nothing between two documents, which a text's first token is scored behind; "
                "choose tasks that give a context"
            )
        return self.ids.separator[-1]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self.ids.encode(string)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        # A context of spaces alone is empty, too: lm-eval has moved them to what is asked for.
        return self.score([(given or [self.eot_token_id], asked) for _, given, asked in requests], disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        pairs: list[Pair] = []
        owner = []
        for number, request in enumerate(requests):
            windows = get_rolling_token_windows(self.ids.encode(request.args[0]), self.eot_token_id, self.max_length, 1)
            for window in map(make_disjoint_window, windows):
                pairs.append(window)
                owner.append(number)
        totals = [0.0] * len(requests)
        for number, (value, _) in zip(owner, self.score(pairs, disable_tqdm), strict=True):
            totals[number] += value
        return totals

    @torch.inference_mode()
    def score(self, pairs: list[Pair], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log p(asked | given) in nats, whether asked is what greedy decoding gives) for each pair.

        Of what is given, as much as fits is read.

        Raises:
            UsageError: what is asked for does not fit, even alone.
        """
        longest = max((len(asked) for _, asked in pairs), default=0)
        if longest > self.max_length:
            raise UsageError(
                f"the task asks for {longest} tokens at once and the model's context is {self.max_length}; "
                "choose another task"
            )
        results = [(0.0, True)] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]) + len(pairs[i][1]))
        with tqdm(total=len(pairs), desc="scoring", disable=disable_tqdm) as bar:
            for first in range(0, len(order), self.batch_size):
                chosen = order[first : first + self.batch_size]
                rows = [(pairs[i][0] + pairs[i][1])[-(self.max_length + 1) :] for i in chosen]
                # Padded behind the end, where a causal model cannot see it from any token that counts.
                width = max(map(len, rows)) - 1
                tokens = torch.tensor([row[:-1] + [0] * (width + 1 - len(row)) for row in rows], device=self._device)
                log_p = self.model(tokens).float().log_softmax(-1)
                for i, row, predicted in zip(chosen, rows, log_p, strict=True):
                    count = len(pairs[i][1])
                    asked = torch.tensor(row[len(row) - count :], device=self._device)
                    predicted = predicted[len(row) - 1 - count : len(row) - 1]
                    value = predicted.double().gather(-1, asked[:, None]).sum().item()
                    results[i] = value, bool((predicted.argmax(-1) == asked).all())
                bar.update(len(chosen))
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        bar = tqdm(requests, desc="generating", disable=disable_tqdm)
        return [self._continue(*request.args, seed=seed) for seed, request in enumerate(bar)]

    def _continue(self, prompt: str, options: dict[str, Any], seed: int) -> str:
        """The text behind the end of the prompt: as much of it as leaves room for the answer, at least half a context.

        A task that repeats a request wants draws that differ: each has a seed of its own.
        """
        options = {"temperature": 0.0, "top_k": None, "top_p": None, **normalize_gen_kwargs(options)}
        limit = options["max_gen_toks"]
        kept = max(self.max_length - limit, (self.max_length + 1) // 2)
        given = self.ids.encode(prompt)[-kept:] or [self.eot_token_id]
        sampling = {name: options[name] for name in ("temperature", "top_k", "top_p")}
        decoder, text = StreamDecoder(self.ids), ""
        for token in generate(self.model, given, limit, **sampling, seed=seed):
            if token == self.ids.end:
                break
            text += decoder.feed(token)
            if any(stop in text for stop in options["until"] if stop):
                break
        text += decoder.finish()
        for stop in filter(None, options["until"]):
            text = text.partition(stop)[0]
        return text
