"""Code of Transformers as syntax: what a forward says, what of it a made module reaches, and functions made of it."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

_LATER = frozenset({"training", "gradient_checkpointing"})
"""Attributes that change while a model is used; and those that begin with an underscore."""

_ASKS = frozenset({"bool", "getattr", "hasattr", "isinstance", "len"})
_QUESTION = (
    *(ast.Attribute, ast.BoolOp, ast.boolop, ast.Call, ast.cmpop, ast.Compare, ast.Constant, ast.expr_context),
    *(ast.Name, ast.Slice, ast.Subscript, ast.UnaryOp, ast.unaryop),
)


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
    return hasattr(function, "__wrapped__") and not is_of_transformers(function)


def is_of_transformers(function: Any) -> bool:
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


def plain(statement: ast.stmt) -> ast.stmt:
    """`x *= y` as `x = x * y`: what a sublayer is given must not be changed in place."""
    match statement:
        case ast.AugAssign(ast.Name(name) as target, op, value):
            total = ast.BinOp(ast.Name(name, ast.Load()), op, value)
            return ast.fix_missing_locations(ast.copy_location(ast.Assign([target], total), statement))
        case ast.AnnAssign(ast.Name() as target, value=ast.expr() as value):
            return ast.copy_location(ast.Assign([target], value), statement)
    return statement
