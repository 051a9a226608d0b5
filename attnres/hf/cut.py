"""How a layer of transformers is read: its own code is cut at its residual sums.

Nearly every layer in transformers is written as

    residual = hidden_states
    hidden_states = ...                          # norms, attention, whatever the model's authors put there
    hidden_states = residual + hidden_states

once for attention and once for the MLP. Between the first and the last line is the sublayer; the connection replaces
those two lines. So a layer's `forward` is cut where a sum with the stream leaves nothing else of it
alive, and each piece becomes a function of its own that returns what the plain layer would have added. Parallel
attention and MLP (cohere, phi) are one piece, because one sum ends them.

Where more than a sum happens to the stream, as in post-norm layers (bert: x = norm(x + f(x))), the piece returns what
it changes, y = norm(h + f(h)) - h: with the plain residual these add up to the model's own stream as well.

Nothing is rewritten by hand, and a new model type needs no entry in a table. Code of another form raises an error that
shows the statement. source.py has code as syntax, stream.py which variables hold the stream.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from attnres.errors import UsageError
from attnres.hf.source import (
    Unreadable,
    code_of,
    compiled,
    decided,
    is_of_transformers,
    names,
    plain,
    quoted,
    refuse_own_forward,
)
from attnres.hf.stream import SUMS, Kind, Reader, flat

CARRIED, READ = "_carried", "_read"
"""Variables of a piece: what the layer returns beside its hidden states, and h where it is needed at the end."""


class Piece:
    """A part of a layer's forward as a function: f(carried, layer, h, *args, **kwargs) -> y.

    The arguments are those of the layer's forward; y is what the plain layer adds to h. What the layer returns beside
    its hidden states is put into the dictionary `carried`. Pickled as its syntax tree.

    prefix: what the layer makes of h before it gives it to the module that takes several mixtures (several.py).
    norm: the layer's module that is given h and no more, where nothing else is; `behind` is what follows it.
    """

    def __init__(self, tree: ast.FunctionDef, home: type, prefix: ast.FunctionDef | None = None) -> None:
        self.tree, self.home, self.prefix = tree, home, prefix
        self.function = compiled(tree, home)
        self.prefix_function = prefix and compiled(prefix, home)
        self.norm, behind = _behind_norm(tree)
        self.behind = behind and compiled(behind, home)

    def __reduce__(self) -> tuple[Any, ...]:
        return Piece, (self.tree, self.home, self.prefix)

    def __deepcopy__(self, memo: Any) -> Piece:
        return self


def _behind_norm(tree: ast.FunctionDef) -> tuple[str, ast.FunctionDef | None]:
    """The name of a module by which a piece begins, and the piece as a function of what that returns."""
    _, layer, stream = (argument.arg for argument in tree.args.args[:3])
    match tree.body:
        case [ast.Assign([ast.Name(normed)], ast.Call(ast.Attribute(ast.Name(of), name), [ast.Name(x)], [])), *rest]:
            if (of, x) == (layer, stream) and (normed == stream or stream not in names(rest, ast.Load)):
                behind = copy.deepcopy(tree)
                behind.body[0] = _statement(f"{normed} = {stream}")
                return name, behind
    return "", None


@dataclass(frozen=True)
class LayerCode:
    """A layer, cut into sublayers."""

    pieces: tuple[Piece, ...]
    parameters: tuple[str, ...]
    """The names of the layer's positional arguments after the hidden states."""
    absent: tuple[str, ...]
    """Arguments that must be None: what they switch on, such as cross-attention, was left out."""
    beside: tuple[str, ...] | None
    """What the layer returns behind its hidden states in a tuple; None if it returns them alone."""
    changes: bool
    """Whether a sublayer returns what it changes, because the layer does more to its stream than add to it."""


def read_layer(layer: nn.Module) -> LayerCode:
    """Cut a layer's forward at its residual sums. Raises UsageError with the statement that is in the way."""
    try:
        return _Cut(layer).code()
    except Unreadable as error:
        raise UsageError(f"cannot attach to layers of class {type(layer).__name__}: {error}") from None


@dataclass
class _Segment:
    """The statements of one sublayer."""

    entering: str
    """The variable that holds the stream before them."""
    statements: list[ast.stmt] = field(default_factory=list)
    leaving: str = ""
    """The variable that holds it behind them."""
    added: ast.stmt | None = None
    """The last statement without the stream, which leaves in that variable what it adds; None if it does more."""
    changes: bool = False
    """Whether more than a sum happens to the stream."""

    def extend(self, other: _Segment, leaving: str) -> None:
        self.statements += other.statements
        self.leaving, self.changes = leaving, True


class _Cut:
    """One reading of a layer's forward, from its first statement to its last."""

    def __init__(self, layer: nn.Module) -> None:
        self.home = type(layer)
        code = code_of(self.home.forward)  # type: ignore[attr-defined]
        self.tree, self.stream, self.parameters = code.tree, code.stream, code.arguments[2:]
        refuse_own_forward(layer)
        call: Any = self.home.__call__
        if call is not nn.Module.__call__ and not is_of_transformers(call):
            raise Unreadable(f"{self.home.__name__} has a __call__ of its own, which would be left out")
        self.reader = Reader(code.scope(layer))
        self.reader.kinds[self.stream] = Kind.STREAM
        self.statements = [plain(statement) for statement in decided(code.body, self.reader.scope)]
        self.end = self.statements.pop()
        self.returned, self.beside = self._returned()
        self.absent: list[str] = []
        self.done: list[_Segment] = []
        self.segment = _Segment(self.stream)
        self.changes_first = False  # whether the layer changes its stream before it adds to it
        self.obstacle = ""

    def code(self) -> LayerCode:
        for statement, live in zip(self.statements, _live_after(self.statements, self.returned), strict=True):
            self._read(statement, live)
        if self.reader.kinds.get(self.returned) is not Kind.STREAM:
            raise Unreadable(f"{self.returned!r}, which it returns, is not all that is left of its hidden states")
        if not self.done:
            raise Unreadable(self.obstacle or f"{quoted(self.end)} returns no sum with its hidden states")
        if self.segment.statements:
            self.done[-1].extend(self.segment, self.returned)
        self._refuse_shared_names()
        pieces = tuple(Piece(self._function(segment), self.home) for segment in self.done)
        changes = any(segment.changes for segment in self.done)
        return LayerCode(pieces, tuple(self.parameters), tuple(self.absent), self.beside, changes)

    def _returned(self) -> tuple[str, tuple[str, ...] | None]:
        """The variable returned as hidden states, and those behind it in a tuple."""
        match self.end:
            case ast.Return(ast.Tuple([ast.Name(stream), *beside])) if all(
                isinstance(item, ast.Name) or (isinstance(item, ast.Constant) and item.value is None) for item in beside
            ):
                return stream, tuple(ast.unparse(item) for item in beside)
            case ast.Return(ast.Name(stream)):
                return stream, None
            case ast.Return(ast.BinOp() as total):
                target = ast.Name(self.stream, ast.Store())
                self.statements.append(ast.copy_location(ast.Assign([target], total), self.end))
                return self.stream, None
        raise Unreadable(f"it does not return its hidden states first, but ends with {quoted(self.end)}")

    def _read(self, statement: ast.stmt, live: set[str]) -> None:
        reader = self.reader
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            raise Unreadable(f"{quoted(statement)} returns from inside a sublayer")
        if optional := self._optional_argument(statement):
            self.absent.append(optional)
            return
        self.segment.statements.append(statement)
        self.segment.added = None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            kind = reader.kind(statement.value)
            if Kind.SUM in flat([kind]) and (added := self._without_stream(statement.value)) is not None:
                self.segment.added = ast.copy_location(ast.Assign(statement.targets, added), statement)
            reader.bind(statement.targets[0], kind)
        elif not isinstance(statement, ast.Expr):
            reader.pass_over(statement)
        left = {name: kind for name in live if (kind := reader.kinds.get(name, Kind.NOTHING)) is not Kind.NOTHING}
        if not left:
            raise Unreadable(f"{quoted(statement)} leaves nothing of its hidden states")
        if len(left) == 1 and isinstance(kind := next(iter(left.values())), Kind) and kind is not Kind.STREAM:
            self._pass_on(*left.popitem())
        elif not self.obstacle and any(kind in SUMS for kind in left.values()):
            self.obstacle = f"{quoted(statement)} is a sum with the hidden states, but more of them is used later"

    def _pass_on(self, name: str, kind: Kind) -> None:
        """Let one variable hold all there is of the stream from here on."""
        segment = self.segment
        self.reader.kinds = {name: Kind.STREAM}
        if kind in SUMS:
            segment.leaving = name
            segment.changes |= segment.added is None
            self.done.append(segment)
        elif self.done and not self.changes_first:
            self.done[-1].extend(segment, name)  # the norm of a post-norm sublayer
        else:
            self.changes_first |= not self.done
            segment.changes = True
            return
        self.segment = _Segment(name)

    def _optional_argument(self, statement: ast.stmt) -> str | None:
        """x of `if x is not None: ...` where x is one of the layer's arguments, and switches a sublayer on."""
        match statement:
            case ast.If(ast.Compare(ast.Name(name), [ast.IsNot()], [ast.Constant(None)]), body, []):
                inside = Reader(self.reader.scope)
                inside.kinds = dict(self.reader.kinds)
                inside.returned(body)
                if name in self.parameters and any(inside.kinds[stored] in SUMS for stored in names(body, ast.Store)):
                    return name
        return None

    def _without_stream(self, node: ast.expr) -> ast.expr | None:
        """What an expression of kind SUM adds to the stream; None if that cannot be told from the stream."""
        kind, remade = self.reader.kind, copy.copy(node)
        match remade:
            case ast.BinOp(left, ast.Add(), right):
                if Kind.STREAM in (kind(left), kind(right)):
                    return right if kind(left) is Kind.STREAM else left
                part = "left" if kind(left) is Kind.SUM else "right"
                inner = self._without_stream(getattr(node, part))
                setattr(remade, part, inner)
                return inner and remade
            case ast.Call(ast.Attribute(value, method)) if kind(value) is Kind.SUM:
                inner = self._without_stream(value)
                remade.func = inner and ast.Attribute(inner, method, ast.Load())  # type: ignore[assignment]
                return inner and remade
            case ast.Call(_, args, keywords):
                nothing = ast.Constant(0.0)  # the callee's code was read: it adds to this argument
                remade.args = [nothing if kind(given) is Kind.STREAM else given for given in args]
                remade.keywords = [
                    ast.keyword(given.arg, nothing if kind(given.value) is Kind.STREAM else given.value)
                    for given in keywords
                ]
                return remade
        return None

    def _refuse_shared_names(self) -> None:
        """A piece may use only the arguments and its own variables; then it means the same alone."""
        stored = [set(names(segment.statements, ast.Store)) for segment in self.done]
        for index, segment in enumerate(self.done):
            elsewhere = set().union(*stored[:index], *stored[index + 1 :])
            used = {*names(segment.statements, ast.Load)} - stored[index] - {segment.entering, self.stream}
            if foreign := sorted(used & elsewhere):
                raise Unreadable(f"its sublayers share the variable {foreign[0]!r}")

    def _function(self, segment: _Segment) -> ast.FunctionDef:
        """The segment as a function with the arguments of the whole behind `carried`."""
        arguments = copy.deepcopy(self.tree.args)
        arguments.args.insert(0, ast.arg(CARRIED))
        body = list(segment.statements)
        if segment.entering != self.stream:
            body.insert(0, _statement(f"{segment.entering} = {self.stream}"))
        if segment.changes:
            body.insert(0, _statement(f"{READ} = {self.stream}"))
        elif segment.added is not None:
            body[-1] = segment.added
        carried = set(names(segment.statements, ast.Store))
        if segment is self.done[-1]:
            carried |= set(self.parameters)  # arguments that are handed on
        body += [_statement(f"{CARRIED}[{name!r}] = {name}") for name in self.beside or () if name in carried]
        body.append(_statement(f"return {segment.leaving}" + f" - {READ}" * segment.changes))
        used = set(names(body, ast.Load))
        body = [statement for statement in body if not _is_unused_alias(statement, used)]
        function = ast.FunctionDef(name="sublayer", args=arguments, body=body, decorator_list=[])
        return ast.copy_location(function, self.tree)


def _live_after(statements: Sequence[ast.stmt], returned: str) -> list[set[str]]:
    """The variables that are used after each statement, before they are stored again."""
    live, after = {returned}, []
    for statement in reversed(statements):
        after.append(live)
        live = _live_before(statement, live)
    return after[::-1]


def _live_before(statement: ast.stmt, live: set[str]) -> set[str]:
    if isinstance(statement, ast.If):
        branches = [
            functools.reduce(lambda inside, inner: _live_before(inner, inside), reversed(branch), live)
            for branch in (statement.body, statement.orelse)
        ]
        return set(names(statement.test, ast.Load)).union(*branches)
    always_stored = names(statement.targets, ast.Store) if isinstance(statement, ast.Assign) else ()
    return live.difference(always_stored).union(names(statement, ast.Load))


def _is_unused_alias(statement: ast.stmt, used: set[str]) -> bool:
    """Whether it is `residual = hidden_states` where the sum was: it would keep h in memory."""
    match statement:
        case ast.Assign([ast.Name(target)], ast.Name(value)):
            return target not in used or target == value
    return False


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]
