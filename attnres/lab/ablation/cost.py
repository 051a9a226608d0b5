"""What a step of each arm costs, and how many steps each has so that all of them spend alike."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnres.data import Corpus
from attnres.errors import UsageError
from attnres.files import write_json
from attnres.lab.arms import arm_model
from attnres.lab.experiment import Progress
from attnres.lab.steptime import ROUNDS, WARM_UP, median_steps
from attnres.model.flops import training_flops
from attnres.train import RunConfig, config_to_json
from attnres.train.folder import fit_vocabulary

START_SECONDS = 6.0
"""About what a worker process takes before its first step."""


def operations_of_steps(arms: Sequence[str], config: RunConfig, corpus: Corpus) -> dict[str, float]:
    """What a step of each arm takes, over the first one's: operations counted, the connection's own among them."""
    model = fit_vocabulary(config, corpus.vocab_size).model
    operations = {arm: training_flops(arm_model(arm, model)) for arm in arms}
    return {arm: operations[arm] / operations[arms[0]] for arm in arms}


def seconds_of_steps(
    arms: Sequence[str], config: RunConfig, corpus: Corpus, kept: Path, progress: Progress
) -> dict[str, float]:
    """The same in seconds, measured on one thread. What the file `kept` has of this model is not measured again."""
    model = config_to_json(dataclasses.replace(config, model=arm_model(arms[0], config.model)))
    known = _known(kept, model)
    if missing := [arm for arm in arms if arm not in known]:
        configs = {arm: dataclasses.replace(config, model=arm_model(arm, config.model)) for arm in (arms[0], *missing)}
        with progress.bar(WARM_UP + ROUNDS) as advance:
            seconds = median_steps(configs, corpus, ROUNDS, lambda: advance(1, "a step of every arm, by turns"))
        known |= {arm: taken / seconds[arms[0]] for arm, taken in seconds.items()}
        write_json(kept, {"of": model, "costs": known})
    return {arm: known[arm] for arm in arms}


def _known(kept: Path, model: Mapping[str, Any]) -> dict[str, float]:
    """What the file says, if there is one and it was measured over a step of this model."""
    try:
        content = json.loads(kept.read_text())
        return {arm: float(cost) for arm, cost in content["costs"].items()} if content["of"] == model else {}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{kept} is damaged; delete it, and the steps are measured again") from error


def affordable_steps(steps: int, costs: Mapping[str, float]) -> dict[str, int]:
    """The steps of each arm for what so many of the first one cost. Raises UsageError where they are none."""
    first = next(iter(costs))
    affordable = {arm: round(steps / cost) for arm, cost in costs.items()}
    if none := [arm for arm in costs if not affordable[arm]]:
        raise UsageError(f"{steps} steps of {first} cost less than one of {none[0]}; raise --steps")
    return affordable


def seconds_of_a_run(config: RunConfig, corpus: Corpus) -> float:
    """Estimate the seconds of a run from three measured steps."""
    step = median_steps({"": config}, corpus, 3, lambda: None)[""]
    evaluations = 1 + math.ceil(config.steps / config.evaluate_every)
    forward = step / 3 * max(1.0, config.validation_tokens / config.tokens_per_step)
    return START_SECONDS + config.steps * step + evaluations * forward
