"""Where a model of transformers passes its hidden states through its layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import AutoModel

from attnres.errors import UsageError
from attnres.hf.stream import scope_of, without_matrices
from attnres.hf.syntax import (
    Unreadable,
    answer_to,
    below_decorators,
    decided,
    names,
    quoted,
    refuse_own_forward,
    value_of,
)


@dataclass(frozen=True)
class Loop:
    """The layers in their order, and the norm that is given what the last one returns, if one is."""

    layers: list[nn.Module]
    norm: nn.Module | None


def read_loop(decoder: nn.Module) -> Loop:
    """Find the loop over layers in a decoder's forward, or in that of one of its parts.

    Raises UsageError if anything but those layers touches the hidden states between the first and the last.
    """
    try:
        found = [loop for part in (decoder, *decoder.children()) if (loop := _loop_in(part)) is not None]
        if not found:
            raise Unreadable("its forward has no loop that passes the hidden states through a list of layers")
        refuse_own_forward(decoder)
        if len(found) > 1:
            raise Unreadable("it passes hidden states through more than one list of layers")
        return found[0]
    except Unreadable as error:
        raise UsageError(f"cannot attach to a decoder of class {type(decoder).__name__}: {error}") from None


def runs_layers(model_class: Any) -> bool:
    """Whether instances of a class of models run layers in their own forward, or in that of their encoder."""
    try:
        code = below_decorators(model_class.forward)
    except Unreadable:
        return False
    for loop in ast.walk(code.tree):
        if isinstance(loop, ast.For) and any(_layer_called(loop, statement) for statement in loop.body):
            return True
    base = AutoModel._model_mapping.get(model_class.config_class, None)
    return base is model_class and any("self.encoder(" in ast.unparse(statement) for statement in code.body)


def _loop_in(module: nn.Module) -> Loop | None:
    try:
        code = below_decorators(type(module).forward)
    except Unreadable:
        return None
    scope = scope_of(module, code)
    statements = decided(code.body, scope)
    found: list[Loop] = []
    for place, statement in enumerate(statements):
        if isinstance(statement, ast.For) and (passed := _passed(statement, scope)):
            stream, layers = passed
            after = (s for s in statements[place + 1 :] if stream in names(s, ast.Load))
            found.append(Loop(layers, _norm(next(after, None), stream, scope)))
    if found:
        refuse_own_forward(module)
    if len(found) > 1:
        raise Unreadable("its forward has more than one loop over layers")
    return found[0] if found else None


def _norm(statement: ast.stmt | None, stream: str, scope: Mapping[str, Any]) -> nn.Module | None:
    match statement:
        case ast.Assign(value=ast.Call(ast.Attribute() as function, [ast.Name(given)], [])) if given == stream:
            module = value_of(function, scope)
            return module if isinstance(module, nn.Module) and without_matrices(module) else None
    return None


def _passed(loop: ast.For, scope: Mapping[str, Any]) -> tuple[str, list[nn.Module]] | None:
    """The hidden states' name and the layers, if the loop's only use of them is `x = layer(x, ...)`."""
    layers = next(_lists(loop.iter, scope), [])
    body = list(_reached(loop.body, loop.target, len(layers), scope))
    for index, statement in enumerate(body):
        if called := _layer_called(loop, statement):
            first, stream = called
            others = [*body[:index], *body[index + 1 :]]
            rest = [other for other in others if not _takes_first(other, stream, first)]
            if layers and (first == stream or len(rest) < len(others)):
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
        try:
            value = value_of(node, scope)
        except Unreadable:
            value = None
        if isinstance(value, nn.ModuleList):
            yield list(value)
            return
    for child in ast.iter_child_nodes(node):
        yield from _lists(child, scope)


def _reached(body: list[ast.stmt], target: ast.expr, count: int, scope: Mapping[str, Any]) -> Iterator[ast.stmt]:
    """The statements without those that no layer's number leads to, as `if i == self.first_shared_layer:` may be."""
    for statement in decided(body, scope):
        numbers = target.elts[0] if isinstance(target, ast.Tuple) else None
        if isinstance(statement, ast.If) and isinstance(numbers, ast.Name) and not statement.orelse:
            scopes = [{**scope, numbers.id: number} for number in range(count)]
            if all(answer_to(statement.test, numbered) is False for numbered in scopes):
                continue
        yield statement


def _takes_first(statement: ast.stmt, stream: str, outputs: str) -> bool:
    """Whether it is `stream = outputs[0]`."""
    match statement:
        case ast.Assign([ast.Name(stored)], ast.Subscript(ast.Name(name), ast.Constant(0))):
            return (stored, name) == (stream, outputs)
    return False


def _refuse_touched(statements: list[ast.stmt], stream: str) -> None:
    """The rest of the loop may collect the hidden states, and must come to every layer."""
    for statement in statements:
        nodes = list(ast.walk(statement))
        collected = {
            id(item)
            for node in nodes
            if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load)
            for item in node.elts
        }
        uses = [n for n in nodes if isinstance(n, ast.Name) and n.id == stream and id(n) not in collected]
        if uses:
            raise Unreadable(f"{quoted(statement)} uses the hidden states between its layers")
        if any(isinstance(node, ast.Break | ast.Continue | ast.Return) for node in nodes):
            raise Unreadable(f"{quoted(statement)} leaves out layers")
