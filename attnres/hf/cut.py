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
shows the statement. From top to bottom: code as syntax, which variables hold the stream, the cut.
"""

from __future__ import annotations

import ast
import builtins
import copy
import enum
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from attnres.errors import UsageError

CARRIED, READ = "_carried", "_read"
"""Variables of a piece: what the layer returns beside its hidden states, and h where it is needed at the end."""

DEPTH = 4
"""So many calls deep is code read."""

_LATER = frozenset({"training", "gradient_checkpointing"})
"""Attributes that change while a model is used; and those that begin with an underscore."""

_ASKS = frozenset({"bool", "getattr", "hasattr", "isinstance", "len"})
_QUESTION = (
    *(ast.Attribute, ast.BoolOp, ast.boolop, ast.Call, ast.cmpop, ast.Compare, ast.Constant, ast.expr_context),
    *(ast.Name, ast.Slice, ast.Subscript, ast.UnaryOp, ast.unaryop),
)
_SAME_NUMBERS = frozenset({"clone", "contiguous", "flatten", "float", "reshape", "to", "type_as", "unflatten", "view"})
_ABOUT = frozenset({"device", "dim", "dtype", "ndim", "new_zeros", "shape", "size"})


class Unreadable(Exception):
    """Why code cannot be read; a part of a sentence."""


@dataclass(frozen=True)
class Code:
    """A function below all decorators, and its syntax tree, which is the reader's own to change."""

    function: Any
    tree: ast.FunctionDef

    @property
    def arguments(self) -> list[str]:
        return [argument.arg for argument in self.tree.args.args]

    @property
    def stream(self) -> str:
        """The hidden states' name. Raises Unreadable."""
        if len(self.arguments) < 2:
            raise Unreadable("its forward names no hidden states, as that of a wrapper; attach before wrapping layers")
        return self.arguments[1]

    @property
    def body(self) -> list[ast.stmt]:
        return self.tree.body[1:] if ast.get_docstring(self.tree) is not None else self.tree.body

    def scope(self, module: nn.Module) -> dict[str, Any]:
        """The names in a method of a module that have values before it is called."""
        return {**self.function.__globals__, self.arguments[0]: module}


def code_of(function: Callable[..., Any], goes_on_running: bool = False) -> Code:
    """Read a function below transformers' decorators, with the file's line numbers.

    Raises Unreadable where there is no code, and where somebody else wrapped it: what runs in its place is made of its
    code alone, unless it is only looked at and `goes_on_running`.
    """
    inner: Any = inspect.unwrap(function, stop=None if goes_on_running else _is_foreign)
    if hasattr(inner, "__wrapped__"):
        name = inner.__code__.co_qualname if isinstance(inner, FunctionType) else type(inner).__name__
        raise Unreadable(f"{inspect.unwrap(inner).__qualname__} is wrapped by {name}, which would be left out")
    if not isinstance(inner, FunctionType):
        raise Unreadable("the code of its forward is not at hand")
    return Code(inner, copy.deepcopy(_parse(inner)))


def _is_foreign(function: Any) -> bool:
    return hasattr(function, "__wrapped__") and not _is_of_transformers(function)


def _is_of_transformers(function: Any) -> bool:
    """By its globals: functools.wraps copies `__module__`."""
    return getattr(function, "__globals__", {}).get("__name__", "").startswith("transformers.")


@functools.cache
def _parse(function: FunctionType) -> ast.FunctionDef:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        raise Unreadable("the code of its forward is not at hand") from None
    ast.increment_lineno(tree, first - 1)
    if not isinstance(tree.body[0], ast.FunctionDef):
        raise Unreadable("its forward is not a plain function")
    return tree.body[0]


def own_forward(module: nn.Module) -> Any:
    """The forward that was set on the instance in place of its class's, None if none was. accelerate keeps it aside."""
    own = vars(module).get("_old_forward", vars(module).get("forward"))
    is_its_class_s = isinstance(own, MethodType) and (own.__self__, own.__func__) == (module, type(module).forward)
    return None if is_its_class_s else own


def refuse_own_forward(module: nn.Module) -> None:
    """Raise Unreadable where the instance does not run the forward of its class, which is what attach reads."""
    if (own := own_forward(module)) is not None:
        function = own.func if isinstance(own, functools.partial) else own
        name = getattr(function, "__qualname__", type(function).__name__)
        raise Unreadable(f"the forward of a {type(module).__name__} was replaced by {name}; attach first, then replace")


def decided(statements: Sequence[ast.stmt], scope: Mapping[str, Any]) -> list[ast.stmt]:
    """The statements without those that a made module never reaches: `if self.config.parallel:` is one branch of it."""
    reached: list[ast.stmt] = []
    for statement in statements:
        if not isinstance(statement, ast.If):
            reached.append(statement)
        elif (answer := answer_to(statement.test, scope)) is not None:
            reached += decided(statement.body if answer else statement.orelse, scope)
        else:
            statement.body = decided(statement.body, scope) or [ast.copy_location(ast.Pass(), statement)]
            statement.orelse = decided(statement.orelse, scope)
            reached.append(statement)
        if reached and isinstance(reached[-1], ast.Return):
            break
    return reached


def answer_to(question: ast.expr, scope: Mapping[str, Any]) -> bool | None:
    """The answer to a question about what is in the scope and never changes; None if it is about more."""
    if isinstance(question, ast.UnaryOp) and isinstance(question.op, ast.Not):
        answer = answer_to(question.operand, scope)
        return None if answer is None else not answer
    if isinstance(question, ast.BoolOp):
        answers = [answer_to(part, scope) for part in question.values]
        settles = isinstance(question.op, ast.Or)
        return settles if settles in answers else None if None in answers else not settles
    for node in ast.walk(question):
        match node:
            case ast.Attribute(attr=attr) if attr in _LATER or attr.startswith("_"):
                return None
            case ast.Call(func) if not (isinstance(func, ast.Name) and func.id in _ASKS):
                return None
            case ast.Name(name) if name not in scope and not hasattr(builtins, name):
                return None
            case _ if not isinstance(node, _QUESTION):
                return None
    value = value_of(question, scope)
    return None if value is None or isinstance(value[0], Tensor) else bool(value[0])


def value_of(expression: ast.expr, scope: Mapping[str, Any]) -> tuple[Any] | None:
    """What an expression without effects gives in a scope; None if it has no value before a forward."""
    try:
        return (eval(compile(ast.Expression(expression), "<reading>", "eval"), {**scope}),)
    except Exception:  # whatever a property of somebody's module raises
        return None


def names(node: ast.AST | Iterable[ast.AST], context: type[ast.expr_context]) -> list[str]:
    """The names that are loaded or stored there, as often as they are."""
    nodes = [node] if isinstance(node, ast.AST) else node
    return [n.id for top in nodes for n in ast.walk(top) if isinstance(n, ast.Name) and isinstance(n.ctx, context)]


def quoted(statement: ast.AST) -> str:
    first, *rest = ast.unparse(statement).splitlines()
    return f"`{first}{' ..' if rest else ''}` (line {statement.lineno})"  # type: ignore[attr-defined]


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
        everything = set(_flat([*given, *named.values()]))
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


def _flat(kinds: Iterable[Kinds]) -> list[Kind]:
    return [part for kind in kinds for part in (_flat(kind) if isinstance(kind, tuple) else [kind])]


def _made(kinds: Iterable[Kinds]) -> Kind:
    return Kind.NOTHING if set(_flat(kinds)) <= {Kind.NOTHING} else Kind.MADE


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


def compiled(tree: ast.FunctionDef, home: type) -> Callable[..., Any]:
    """A function at home in the module of the class whose forward it was made from, and on the same lines."""
    original: Any = code_of(home.forward).function  # type: ignore[attr-defined]
    if original.__closure__:
        raise Unreadable("its forward uses variables from around its class")
    tree.decorator_list, tree.returns = [], None
    for argument in ast.walk(tree.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None  # it may name what is imported for type checkers only
    module = ast.fix_missing_locations(ast.Module([tree], type_ignores=[]))
    made: dict[str, Any] = {}
    exec(compile(module, original.__code__.co_filename, "exec"), original.__globals__, made)
    return made[tree.name]


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
        if call is not nn.Module.__call__ and not _is_of_transformers(call):
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
            if Kind.SUM in _flat([kind]) and (added := self._without_stream(statement.value)) is not None:
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


def plain(statement: ast.stmt) -> ast.stmt:
    """`x *= y` as `x = x * y`: what a sublayer is given must not be changed in place."""
    match statement:
        case ast.AugAssign(ast.Name(name) as target, op, value):
            total = ast.BinOp(ast.Name(name, ast.Load()), op, value)
            return ast.fix_missing_locations(ast.copy_location(ast.Assign([target], total), statement))
        case ast.AnnAssign(ast.Name() as target, value=ast.expr() as value):
            return ast.copy_location(ast.Assign([target], value), statement)
    return statement


def _is_unused_alias(statement: ast.stmt, used: set[str]) -> bool:
    """Whether it is `residual = hidden_states` where the sum was: it would keep h in memory."""
    match statement:
        case ast.Assign([ast.Name(target)], ast.Name(value)):
            return target not in used or target == value
    return False


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]
