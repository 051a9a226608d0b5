"""Start a run with the weights of another."""

from __future__ import annotations

import logging

from attnres.connections import connection_class
from attnres.connections.start import difference_at_start
from attnres.data import Tokenizer
from attnres.errors import UsageError
from attnres.model import Transformer, TransformerConfig
from attnres.train.jsonconfig import flat_fields, model_to_json
from attnres.train.run import Run, load_run
from attnres.train.runconfig import RunConfig

log = logging.getLogger("attnres")

CONNECTION = "connection"


def first_model(config: RunConfig, tokenizer: Tokenizer) -> Transformer:
    """Make the model that a run begins with: a new one, or one with the last weights of `start_from`.

    A connection other than that run's keeps the start that it has; one line is logged if that is not the plain
    residual's, so that the model does not compute what the run's did. Raises UsageError for another model or tokens.
    """
    model = Transformer(config.model, config.seed)
    if not config.start_from:
        return model
    run = load_run(config.start_from)
    if run.tokenizer.to_json() != tokenizer.to_json():  # before the model, whose vocabulary follows from it
        raise UsageError(f"{run.folder} has another tokenizer than this run's text; give the same --data.tokenizer")
    _require_same(model.config, run)
    weights = run.model.state_dict()
    if run.config.model.connection != model.config.connection:
        kept = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(f"{CONNECTION}.")}
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(f"{CONNECTION}.")} | kept
        if differs := difference_at_start(model.connection):
            log.warning("%s does not begin as the plain residual: %s", model.config.connection, differs)
    model.load_state_dict(weights)
    return model


def _require_same(model: TransformerConfig, run: Run) -> None:
    """Refuse a run whose weights mean something else in the model."""
    there, here = (flat_fields(model_to_json(config)) for config in (run.config.model, model))
    differing = [name for name in {**there, **here} if name != CONNECTION and there.get(name) != here.get(name)]
    if differing:
        name = differing[0]
        raise UsageError(
            f"{run.folder} is a run of another model: {name} is {there.get(name)!r} there and {here.get(name)!r} here; "
            f"give the same --model.{name.replace('_', '-')}"
        )
    classes = [connection_class(config.connection) for config in (run.config.model, model)]
    if classes[0].pre_norm != classes[1].pre_norm:
        raise UsageError(
            f"{run.folder}: one of {run.config.model.connection} and {model.connection} is defined "
            "on sublayers without a norm; take one that is like the run's"
        )
