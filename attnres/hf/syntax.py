"""The code of a module's forward as syntax, and what of it is decided once the module is made."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
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
    """A function and its syntax tree, which is the reader's own to change."""

    function: Any
    """Below all decorators."""
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


def code_of(function: Callable[..., Any]) -> Code:
    """The function below transformers' decorators, with the file's line numbers.

    Raises Unreadable, as where somebody else wrapped it: what runs in place of the function is made of its code alone.
    """
    outer: Any = inspect.unwrap(function, stop=_is_foreign)
    if _is_foreign(outer):
        name = outer.__code__.co_qualname if isinstance(outer, FunctionType) else type(outer).__name__
        raise Unreadable(f"{inspect.unwrap(outer).__qualname__} is wrapped by {name}, which would be left out")
    return below_decorators(outer)


def below_decorators(function: Callable[..., Any]) -> Code:
    """The function below all decorators, where those run as before. Raises Unreadable."""
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType):
        raise Unreadable("the code of its forward is not at hand")
    return Code(inner, copy.deepcopy(_parse(inner)))


def refuse_own_call(module: nn.Module) -> None:
    """Raise Unreadable where a class has a `__call__` of its own: it would not be called."""
    call: Any = type(module).__call__
    if call is not nn.Module.__call__ and not _is_of_transformers(call):
        raise Unreadable(f"{type(module).__name__} has a __call__ of its own, which would be left out")


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
        if not isinstance(node, _QUESTION):
            return None
        if isinstance(node, ast.Attribute) and (node.attr in _LATER or node.attr.startswith("_")):
            return None
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _ASKS):
            return None
        if isinstance(node, ast.Name) and node.id not in scope and not hasattr(builtins, node.id):
            return None
    try:
        value = value_of(question, scope)
    except Unreadable:
        return None
    return None if isinstance(value, Tensor) else bool(value)


def value_of(expression: ast.expr, scope: Mapping[str, Any]) -> Any:
    """What an expression without effects gives in a scope. Raises Unreadable if it fails there."""
    try:
        return eval(compile(ast.Expression(expression), "<reading>", "eval"), {**scope})
    except Exception:  # whatever a property of somebody's module raises
        raise Unreadable(f"{quoted(expression)} has no value before a forward") from None


def names(node: ast.AST | Sequence[ast.AST], context: type[ast.expr_context]) -> set[str]:
    nodes = [node] if isinstance(node, ast.AST) else node
    return {n.id for top in nodes for n in ast.walk(top) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def quoted(statement: ast.AST) -> str:
    first, *rest = ast.unparse(statement).splitlines()
    return f"`{first}{' ..' if rest else ''}` (line {statement.lineno})"  # type: ignore[attr-defined]
