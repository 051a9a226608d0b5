"""Which of a layer's variables hold the residual stream, read from its code.

What the code of a layer computes from its hidden states is sorted into the kinds of `Kind`. Where a module or a
function is given the stream itself, as bloom's MLP is given the residual that it adds, its code is read too.
"""

from __future__ import annotations

import ast
import enum
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from attnres.hf.syntax import Code, Unreadable, answer_to, code_of, decided, names, own_forward, value_of

DEPTH = 4
"""So many calls deep is code read."""

_SAME_NUMBERS = frozenset({"clone", "contiguous", "flatten", "float", "reshape", "to", "type_as", "unflatten", "view"})
_ABOUT = frozenset({"device", "dim", "dtype", "ndim", "new_zeros", "shape", "size"})


class Kind(enum.Enum):
    NOTHING = enum.auto()
    """Does not depend on the stream."""
    MADE = enum.auto()
    """Made from the stream."""
    SCALED = enum.auto()
    """The stream times or plus something that does not depend on it."""
    STREAM = enum.auto()
    """The stream, perhaps in another shape."""
    SUM = enum.auto()
    """The stream and what was added, where a zero in the stream's place leaves what was added."""
    CHANGED = enum.auto()
    """A function of the sum of the stream and something made from it, such as its norm."""


Kinds = Any
"""A Kind, or a tuple of them for a tuple."""

SUMS = (Kind.SUM, Kind.CHANGED)


class Reader:
    """Reads expressions in one function's scope: its globals and, by the name of its first argument, its module."""

    def __init__(self, scope: Mapping[str, Any], depth: int = 0) -> None:
        self.scope = scope
        self.depth = depth
        self.kinds: dict[str, Kinds] = {}

    def kind(self, node: ast.AST | None) -> Kinds:
        match node:
            case ast.Name(name):
                return self.kinds.get(name, Kind.NOTHING)
            case ast.Tuple(elts) | ast.List(elts):
                return tuple(self.kind(item) for item in elts)
            case ast.Starred(value) | ast.NamedExpr(value=value):
                return self.kind(value)
            case ast.Subscript(value, ast.Constant(int(index))) if isinstance(found := self.kind(value), tuple):
                return found[index] if -len(found) <= index < len(found) else Kind.MADE
            case ast.Attribute(value, attr):
                return Kind.NOTHING if attr in _ABOUT else _made([self.kind(value)])
            case ast.BinOp(left, ast.Add(), right):
                kinds = self.kind(left), self.kind(right)
                return kinds if any(isinstance(kind, tuple) for kind in kinds) else _added(*kinds)
            case ast.BinOp(left, ast.Mult(), right):
                return _scaled(_one(self.kind(left)), _one(self.kind(right)))
            case ast.IfExp(test, then, otherwise):
                answer = answer_to(test, self.scope)
                taken = [then] * (answer is not False) + [otherwise] * (answer is not True)
                return joined(self.kind(part) for part in taken)
            case ast.Call():
                return self._call(node)
            case None:
                return Kind.NOTHING
        return _made(self.kind(child) for child in ast.iter_child_nodes(node))

    def bind(self, target: ast.AST, kind: Kinds) -> None:
        match target:
            case ast.Name(name):
                self.kinds[name] = kind
            case ast.Tuple(elts) if isinstance(kind, tuple) and len(kind) == len(elts):
                for item, part in zip(elts, kind, strict=True):
                    self.bind(item, part)
            case _:
                for name in names(target, ast.Store):
                    self.kinds[name] = _made([kind])

    def pass_over(self, statement: ast.stmt) -> None:
        """What a statement that is not looked into stores, may be made from all that it loads."""
        stored = names(statement, ast.Store)
        kind = _made(self.kinds.get(name, Kind.NOTHING) for name in names(statement, ast.Load) | stored)
        self.kinds.update({name: (kind,) if isinstance(self.kinds.get(name), tuple) else kind for name in stored})

    def returned(self, statements: Iterable[ast.stmt]) -> Kinds:
        """The kind of what a function's body returns."""
        for statement in statements:
            match statement:
                case ast.Return(value):
                    return self.kind(value)
                case ast.Assign([target], value):
                    self.bind(target, self.kind(value))
                case ast.AugAssign(ast.Name(name), op, value):
                    self.kinds[name] = self.kind(ast.BinOp(ast.Name(name, ast.Load()), op, value))
                case _ if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
                    return _made(self.kinds.values())
                case _:
                    self.pass_over(statement)
        return Kind.NOTHING

    def _call(self, call: ast.Call) -> Kinds:
        if isinstance(call.func, ast.Attribute) and (of := self.kind(call.func.value)) is not Kind.NOTHING:
            if call.func.attr in _ABOUT:
                return Kind.NOTHING
            return of if call.func.attr in _SAME_NUMBERS else Kind.MADE
        given = [self.kind(argument) for argument in call.args]
        named = {keyword.arg: self.kind(keyword.value) for keyword in call.keywords}
        everything = [*given, *named.values()]
        if _made(everything) is Kind.NOTHING:
            return Kind.NOTHING
        if all(kind in (Kind.NOTHING, Kind.MADE) for kind in _flat(everything)) or self.depth == DEPTH:
            return Kind.MADE
        callee = self._value(call.func)
        if isinstance(callee, nn.Module) and without_matrices(callee):
            return Kind.CHANGED if any(kind in SUMS for kind in _flat(everything)) else Kind.MADE
        methods = [value for argument in call.args if isinstance(value := self._value(argument), MethodType)]
        if len(methods) == 1:  # apply_chunking_to_forward(self.feed_forward_chunk, .., hidden_states)
            kinds = [kind for kind in given if kind is not Kind.NOTHING]
            return _additive_at_most_changed(self._read_call(methods[0], kinds, {}))
        return self._read_call(callee, given, named)

    def _value(self, node: ast.expr) -> Any:
        if not all(isinstance(part, ast.Attribute | ast.Name | ast.expr_context) for part in ast.walk(node)):
            return None
        try:
            return value_of(node, self.scope)
        except Unreadable:
            return None

    def _read_call(self, callee: Any, given: list[Kinds], named: Mapping[str | None, Kinds]) -> Kinds:
        function, receiver = _code_and_receiver(callee)
        if function is None:
            return Kind.MADE
        try:
            code = code_of(function)
        except Unreadable:
            return Kind.MADE
        own = [receiver] * (receiver is not None)
        scope = {**code.function.__globals__, **dict(zip(code.arguments, own, strict=False))}
        reader = Reader(scope, self.depth + 1)
        positional = code.arguments[len(own) :]
        reader.kinds.update(zip(positional, given, strict=False))
        reader.kinds.update({name: kind for name, kind in named.items() if name is not None})
        streams = [name for name, kind in reader.kinds.items() if kind is Kind.STREAM]
        body = decided(code.body, scope)
        kind = reader.returned(body)
        return kind if all(_loads(body, name) == 1 for name in streams) else _additive_at_most_changed(kind)


def scope_of(module: nn.Module, code: Code) -> dict[str, Any]:
    """The names in a method of a module that have values before it is called."""
    return {**code.function.__globals__, code.arguments[0]: module}


def without_matrices(module: nn.Module) -> bool:
    """Whether it is a norm, a dropout, an activation, or has other reason to treat channels alone."""
    return all(parameter.ndim < 2 for parameter in module.parameters())


def joined(kinds: Iterable[Kinds]) -> Kinds:
    """The kind of what is one of several."""
    listed = list(kinds)
    return listed[0] if all(kind == listed[0] for kind in listed) else _made(listed)


def _code_and_receiver(callee: Any) -> tuple[Callable[..., Any] | None, Any]:
    if isinstance(callee, nn.Module):
        return type(callee).forward if own_forward(callee) is None else None, callee
    if isinstance(callee, MethodType):
        return callee.__func__, callee.__self__
    return (callee, None) if isinstance(inspect.unwrap(callee) if callee else None, FunctionType) else (None, None)


def _loads(body: list[ast.stmt], name: str) -> int:
    nodes = (node for statement in body for node in ast.walk(statement))
    return sum(isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in nodes)


def _flat(kinds: Iterable[Kinds]) -> list[Kind]:
    return [part for kind in kinds for part in (_flat(kind) if isinstance(kind, tuple) else [kind])]


def _made(kinds: Iterable[Kinds]) -> Kind:
    return Kind.NOTHING if all(kind is Kind.NOTHING for kind in _flat(kinds)) else Kind.MADE


def _one(kind: Kinds) -> Kind:
    return kind if isinstance(kind, Kind) else _made([kind])


def _additive_at_most_changed(kind: Kinds) -> Kinds:
    if isinstance(kind, tuple):
        return tuple(_additive_at_most_changed(part) for part in kind)
    return Kind.CHANGED if kind is Kind.SUM else kind


def _added(left: Kind, right: Kind) -> Kind:
    kinds = {left, right}
    whole = sum(kind in (Kind.STREAM, Kind.SUM) for kind in (left, right))
    if Kind.CHANGED in kinds or whole == 2 or (Kind.SCALED in kinds and (Kind.MADE in kinds or whole)):
        return Kind.CHANGED
    if Kind.NOTHING in kinds:
        return _with_nothing(left if right is Kind.NOTHING else right)
    return Kind.SUM if whole else Kind.MADE


def _scaled(left: Kind, right: Kind) -> Kind:
    if Kind.NOTHING not in (left, right):
        return Kind.MADE
    return _with_nothing(left if right is Kind.NOTHING else right)


def _with_nothing(kind: Kind) -> Kind:
    """The kind of it times or plus something that does not depend on the stream."""
    if kind is Kind.STREAM:
        return Kind.SCALED
    return Kind.CHANGED if kind in SUMS else kind
