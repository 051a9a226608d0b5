"""Where a Hugging Face model passes its hidden states through its layers, and whether a connection fits them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModel
from transformers.modeling_utils import local_torch_dtype

from attnres.connections import Connection, connection_class, make_connection
from attnres.errors import UsageError
from attnres.hf.cut import LayerCode, read_layer
from attnres.hf.source import (
    Unreadable,
    answer_to,
    code_of,
    decided,
    names,
    quoted,
    refuse_own_forward,
    value_of,
)
from attnres.hf.stream import without_matrices


@dataclass(frozen=True)
class Anatomy:
    """Where the parts of a decoder are that a connection is attached to."""

    decoder: nn.Module
    layers: list[nn.Module]
    codes: list[LayerCode]
    dim: int

    @property
    def first_sites(self) -> list[int]:
        """The site of each layer's first sublayer."""
        return [0, *itertools.accumulate(len(code.pieces) for code in self.codes[:-1])]

    @property
    def sublayers(self) -> int:
        """How many sublayers the layers have."""
        return sum(len(code.pieces) for code in self.codes)


def read_anatomy(model: Any) -> Anatomy:
    """Find the decoder and its layers. Raises UsageError where their code cannot be read."""
    decoder = decoder_of(model)
    layers, _ = read_loop(decoder)
    codes = [read_layer(layer) for layer in layers]
    return Anatomy(decoder, layers, codes, model.config.get_text_config().hidden_size)


def no_model(given: Any) -> UsageError:
    """Say what to give in place of what is no model of transformers."""
    return UsageError(
        f"give a model of transformers, not a {type(given).__name__}; attach before wrapping it (PEFT, DDP)"
    )


def decoder_of(model: Any) -> nn.Module:
    """The module of a Hugging Face model that holds the layers."""
    if not callable(getattr(model, "get_decoder", None)) or not hasattr(model, "config"):
        raise no_model(model)
    decoder = model.get_decoder()
    if decoder is model and not runs_layers(type(model)):  # llama4's text model says so of its head
        parts = (part for part in model.children() if hasattr(part, "config"))
        decoder = next((part for part in parts if runs_layers(type(part))), model)
    return decoder if hasattr(decoder, "config") else model.base_model  # some call their head a decoder


def norm_of(decoder: nn.Module) -> nn.Module:
    """The final norm of a decoder, plain or attached. Raises UsageError if it has none, as post-norm models."""
    # A decoder that is made with its connection, as Kimi K3's, has no such loop.
    norm = read_loop(decoder)[1] if runs_layers(type(decoder)) else getattr(decoder, "norm", None)
    if norm is None:
        raise UsageError(f"no norm follows the layers of {type(decoder).__name__}")
    return norm


def fitting_connection(connection: str, dim: int, sublayers: int) -> Connection:
    """Make the connection in float32, on the CPU.

    Raises UsageError if it does not fit the decoder.
    """
    if not connection_class(connection).pre_norm:
        raise UsageError(f"{connection} is defined on sublayers without a norm of their own; this model's have one")
    # transformers makes a model of bfloat16 under that default, which would round the connection's start.
    with torch.device("cpu"), local_torch_dtype(torch.float32):
        made = make_connection(connection, dim, sublayers)
    made.rate = 1.0
    return made


def runs_layers(model_class: Any) -> bool:
    """Whether instances of a class of models run layers in their own forward, or in that of their encoder."""
    try:
        code = code_of(model_class.forward, goes_on_running=True)
    except Unreadable:
        return False
    for loop in ast.walk(code.tree):
        if isinstance(loop, ast.For) and any(_layer_called(loop, statement) for statement in loop.body):
            return True
    base = AutoModel._model_mapping.get(model_class.config_class, None)
    return base is model_class and any("self.encoder(" in ast.unparse(statement) for statement in code.body)


Loop = tuple[list[nn.Module], nn.Module | None]
"""The layers in their order, and the norm that is given what the last one returns, if one is."""


def read_loop(decoder: nn.Module) -> Loop:
    """Find the loop over layers in a decoder's forward, or in that of one of its parts.

    Raises UsageError if anything but those layers touches the hidden states between the first and the last.
    """
    try:
        found = [loop for part in (decoder, *decoder.children()) for loop in _loops_in(part)]
        if not found:
            raise Unreadable("its forward has no loop that passes the hidden states through a list of layers")
        refuse_own_forward(decoder)
        if len(found) > 1:
            raise Unreadable("it passes hidden states through more than one list of layers")
        return found[0]
    except Unreadable as error:
        raise UsageError(f"cannot attach to a decoder of class {type(decoder).__name__}: {error}") from None


def _loops_in(module: nn.Module) -> Iterator[Loop]:
    try:
        code = code_of(type(module).forward, goes_on_running=True)
    except Unreadable:
        return
    scope = code.scope(module)
    statements = decided(code.body, scope)
    for place, statement in enumerate(statements):
        if isinstance(statement, ast.For) and (passed := _passed(statement, scope)):
            refuse_own_forward(module)
            stream, layers = passed
            after = (later for later in statements[place + 1 :] if stream in names(later, ast.Load))
            yield layers, _norm(next(after, None), stream, scope)


def _norm(statement: ast.stmt | None, stream: str, scope: Mapping[str, Any]) -> nn.Module | None:
    match statement:
        case ast.Assign(value=ast.Call(ast.Attribute() as function, [ast.Name(given)], [])) if given == stream:
            (module,) = value_of(function, scope) or (None,)
            return module if isinstance(module, nn.Module) and without_matrices(module) else None
    return None


def _passed(loop: ast.For, scope: Mapping[str, Any]) -> tuple[str, list[nn.Module]] | None:
    """The hidden states' name and the layers, if the loop's only use of them is `x = layer(x, ...)`."""
    layers = next(_lists(loop.iter, scope), [])
    body = list(_reached(loop.body, loop.target, len(layers), scope))
    for index, statement in enumerate(body):
        if layers and (called := _layer_called(loop, statement)):
            first, stream = called
            others = [*body[:index], *body[index + 1 :]]
            rest = [other for other in others if ast.unparse(other) != f"{stream} = {first}[0]"]
            if first == stream or len(rest) < len(others):
                _refuse_touched(rest, stream)
                return stream, layers
    return None


def _layer_called(loop: ast.For, statement: ast.stmt) -> tuple[str, str] | None:
    """The names y and x of `y = layer(x, ..)` or `y, .. = layer(x, ..)`, where the loop is over layers."""
    match statement:
        case ast.Assign([target], ast.Call(ast.Name(layer), [ast.Name(stream), *_])):
            first = target.elts[0] if isinstance(target, ast.Tuple) else target
            if layer in names(loop.target, ast.Store) and isinstance(first, ast.Name):
                return first.id, stream
    return None


def _lists(node: ast.AST, scope: Mapping[str, Any]) -> Iterator[list[nn.Module]]:
    """The lists of modules in `self.layers[: self.config.num_hidden_layers]`, outermost first."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        (value,) = value_of(node, scope) or (None,)
        if isinstance(value, nn.ModuleList):
            yield list(value)
            return
    for child in ast.iter_child_nodes(node):
        yield from _lists(child, scope)


def _reached(body: list[ast.stmt], target: ast.expr, count: int, scope: Mapping[str, Any]) -> Iterator[ast.stmt]:
    """The statements without those that no layer's number leads to, as `if i == self.first_shared_layer:` may be."""
    for statement in decided(body, scope):
        match target, statement:
            case ast.Tuple([ast.Name(number), *_]), ast.If(test, _, []):
                if all(answer_to(test, {**scope, number: index}) is False for index in range(count)):
                    continue
        yield statement


def _refuse_touched(statements: list[ast.stmt], stream: str) -> None:
    """The rest of the loop may collect the hidden states, and must come to every layer."""
    for statement in statements:
        nodes = list(ast.walk(statement))
        collected = [
            item
            for node in nodes
            if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load)
            for item in node.elts
            if isinstance(item, ast.Name) and item.id == stream
        ]
        if len(collected) < sum(isinstance(node, ast.Name) and node.id == stream for node in nodes):
            raise Unreadable(f"{quoted(statement)} uses the hidden states between its layers")
        if any(isinstance(node, ast.Break | ast.Continue | ast.Return) for node in nodes):
            raise Unreadable(f"{quoted(statement)} leaves out layers")
