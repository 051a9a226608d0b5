"""Which variables hold a layer's hidden states, its stream, and what its code makes of them."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Mapping
from types import MethodType
from typing import Any

from torch import nn

from attnres.hf.source import Unreadable, answer_to, code_of, decided, names, own_forward, plain, value_of

DEPTH = 4
"""So many calls deep is code read."""

_SAME_NUMBERS = frozenset({"clone", "contiguous", "flatten", "float", "reshape", "to", "type_as", "unflatten", "view"})
_ABOUT = frozenset({"device", "dim", "dtype", "ndim", "new_zeros", "shape", "size"})


class Kind(enum.Enum):
    """What code makes of a layer's hidden states, its stream."""

    NOTHING = "does not depend on the stream"
    MADE = "made from the stream"
    SCALED = "the stream times or plus something that does not depend on it"
    STREAM = "the stream, perhaps in another shape"
    SUM = "the stream and what was added, where a zero in the stream's place leaves what was added"
    CHANGED = "a function of the sum of the stream and something made from it, such as its norm"


Kinds = Any
"""A Kind, or a tuple of them for a tuple."""

SUMS = (Kind.SUM, Kind.CHANGED)


class Reader:
    """Sorts the expressions of one function into kinds.

    Where a module or a function is given the stream itself, as bloom's MLP is given the residual that it adds, its
    code is read too. scope: the function's globals and, by the name of its first argument, its module.
    """

    def __init__(self, scope: Mapping[str, Any], depth: int = 0) -> None:
        self.scope = scope
        self.depth = depth
        self.kinds: dict[str, Kinds] = {}

    def kind(self, node: ast.AST | None) -> Kinds:
        match node:
            case None:
                return Kind.NOTHING
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
                return _scaled(
                    *(kind if isinstance(kind, Kind) else _made(kind) for kind in map(self.kind, (left, right)))
                )
            case ast.IfExp(test, then, otherwise):
                answer = answer_to(test, self.scope)
                first, *rest = map(self.kind, [then] * (answer is not False) + [otherwise] * (answer is not True))
                return first if all(kind == first for kind in rest) else _made([first, *rest])
            case ast.Call():
                return self._call(node)
        return _made(map(self.kind, ast.iter_child_nodes(node)))

    def bind(self, target: ast.AST, kind: Kinds) -> None:
        match target:
            case ast.Name(name):
                self.kinds[name] = kind
            case ast.Tuple(elts) if isinstance(kind, tuple) and len(kind) == len(elts):
                for item, part in zip(elts, kind, strict=True):
                    self.bind(item, part)
            case _:
                self.kinds.update(dict.fromkeys(names(target, ast.Store), _made([kind])))

    def pass_over(self, statement: ast.stmt) -> None:
        """What a statement that is not looked into stores, may be made from all that it loads."""
        stored = names(statement, ast.Store)
        kind = _made(self.kinds.get(name, Kind.NOTHING) for name in names(statement, ast.Load) + stored)
        self.kinds.update({name: (kind,) if isinstance(self.kinds.get(name), tuple) else kind for name in stored})

    def returned(self, statements: Iterable[ast.stmt]) -> Kinds:
        """The kind of what a function's body returns."""
        for statement in map(plain, statements):
            match statement:
                case ast.Return(value):
                    return self.kind(value)
                case ast.Assign([target], value):
                    self.bind(target, self.kind(value))
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
        everything = set(flat([*given, *named.values()]))
        if everything <= {Kind.NOTHING}:
            return Kind.NOTHING
        if everything <= {Kind.NOTHING, Kind.MADE} or self.depth == DEPTH:
            return Kind.MADE
        callee = self._value(call.func)
        if isinstance(callee, nn.Module) and without_matrices(callee):
            return Kind.CHANGED if everything & set(SUMS) else Kind.MADE
        methods = [value for argument in call.args if isinstance(value := self._value(argument), MethodType)]
        if len(methods) == 1:  # apply_chunking_to_forward(self.feed_forward_chunk, .., hidden_states)
            kinds = [kind for kind in given if kind is not Kind.NOTHING]
            return _at_most_changed(self._read_call(methods[0], kinds, {}))
        return self._read_call(callee, given, named)

    def _value(self, node: ast.expr) -> Any:
        dotted = all(isinstance(part, ast.Attribute | ast.Name | ast.expr_context) for part in ast.walk(node))
        return (value_of(node, self.scope) or (None,))[0] if dotted else None

    def _read_call(self, callee: Any, given: list[Kinds], named: Mapping[str | None, Kinds]) -> Kinds:
        function, own = callee, []
        if isinstance(callee, nn.Module):
            function, own = None if own_forward(callee) else type(callee).forward, [callee]
        elif isinstance(callee, MethodType):
            function, own = callee.__func__, [callee.__self__]
        try:
            code = code_of(function)  # type: ignore[arg-type]
        except Unreadable:
            return Kind.MADE
        reader = Reader({**code.function.__globals__, **dict(zip(code.arguments, own, strict=False))}, self.depth + 1)
        reader.kinds.update(zip(code.arguments[len(own) :], given, strict=False))
        reader.kinds.update({name: kind for name, kind in named.items() if name is not None})
        streams = [name for name, kind in reader.kinds.items() if kind is Kind.STREAM]
        body = decided(code.body, reader.scope)
        loaded = names(body, ast.Load)
        kind = reader.returned(body)
        return kind if all(loaded.count(name) == 1 for name in streams) else _at_most_changed(kind)


def without_matrices(module: nn.Module) -> bool:
    """Whether it is a norm, a dropout, an activation, or has other reason to treat channels alone."""
    return all(parameter.ndim < 2 for parameter in module.parameters())


def flat(kinds: Iterable[Kinds]) -> list[Kind]:
    return [part for kind in kinds for part in (flat(kind) if isinstance(kind, tuple) else [kind])]


def _made(kinds: Iterable[Kinds]) -> Kind:
    return Kind.NOTHING if set(flat(kinds)) <= {Kind.NOTHING} else Kind.MADE


def _at_most_changed(kind: Kinds) -> Kinds:
    if isinstance(kind, tuple):
        return tuple(map(_at_most_changed, kind))
    return Kind.CHANGED if kind is Kind.SUM else kind


def _added(left: Kind, right: Kind) -> Kind:
    kinds = {left, right}
    whole = sum(kind in (Kind.STREAM, Kind.SUM) for kind in (left, right))
    if Kind.CHANGED in kinds or whole == 2 or (Kind.SCALED in kinds and (Kind.MADE in kinds or whole)):
        return Kind.CHANGED
    if Kind.NOTHING in kinds:
        return _scaled(left, right)
    return Kind.SUM if whole else Kind.MADE


def _scaled(left: Kind, right: Kind) -> Kind:
    """The kind of a product; and of a sum with what does not depend on the stream."""
    if Kind.NOTHING not in (left, right):
        return Kind.MADE
    kind = left if right is Kind.NOTHING else right
    return {Kind.STREAM: Kind.SCALED, Kind.SUM: Kind.CHANGED}.get(kind, kind)
