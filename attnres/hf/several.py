"""Sublayers of a transformers model that read several mixtures, made from its own code.

An attention whose code begins with

    query = self.q_proj(hidden_states) ..; key = self.k_proj(hidden_states) ..; value = self.v_proj(hidden_states) ..

and does nothing else with its input can be given another for each of them; so can an MLP of gate_proj and up_proj. Its
forward gets an argument more, and the layer's piece around it (attnres/hf/code.py) hands that on, after the norms that
stand before it in the piece have been applied to each mixture.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attnres.errors import UsageError
from attnres.hf.code import LayerCode, Piece, compiled
from attnres.hf.syntax import Unreadable, code_of, names, refuse_own_forward

PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""What attention and an MLP apply to their input, in the order of a site's reads."""

_READS = "reads_of_their_own"


@dataclass(frozen=True)
class Several:
    """A piece that takes all mixtures of its site: f(carried, layer, (h, *more), *args, **kwargs) -> y."""

    prefix: Piece
    """What the layer makes of h before it gives it to the module."""
    piece: Piece

    def function(self, carried: Any, layer: nn.Module, reads: Sequence[Tensor], *args: Any, **kwargs: Any) -> Tensor:
        h, *more = reads
        given = tuple(self.prefix.function(carried, layer, read, *args, **kwargs) for read in more)
        return self.piece.function(carried, layer, h, *args, **kwargs, **{_READS: given})


def called_module(layer: nn.Module, code: LayerCode, which: int) -> str:
    """Name the layer's attention (0) or MLP (1), which is to read several mixtures.

    Raises UsageError where its code or the layer's does not allow that.
    """
    wanted = PROJECTIONS[which % len(PROJECTIONS)]
    found = [name for name, part in layer.named_children() if all(hasattr(part, projection) for projection in wanted)]
    try:
        if len(code.pieces) != len(PROJECTIONS):
            raise Unreadable("they have not two sublayers, attention and MLP")
        if len(found) != 1:
            raise Unreadable("it has no such projections")
        several(code.pieces[which], found[0])
        refuse_own_forward(getattr(layer, found[0]))
        forward_with_reads(type(getattr(layer, found[0])), wanted)
    except Unreadable as error:
        kind = f"layers of class {type(layer).__name__}"
        raise UsageError(
            f"{kind} cannot give {' and '.join(wanted)} mixtures of their own: {error}; leave reads='one'"
        ) from None
    return found[0]


def with_reads(code: LayerCode, modules: Sequence[str | None]) -> LayerCode:
    """A layer's code in which the pieces with a module named for them hand all their mixtures to it."""
    pieces = [
        piece if module is None else several(piece, module) for piece, module in zip(code.pieces, modules, strict=True)
    ]
    return dataclasses.replace(code, pieces=tuple(pieces))


def several(piece: Any, module: str) -> Several:
    """Make the piece that hands further reads to the module of that name. Raises Unreadable."""
    tree = copy.deepcopy(piece.tree)
    stream = tree.args.args[2].arg
    for place, statement in enumerate(tree.body):
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("self"), attr=attribute)) if attribute == module:
                    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                    given = [argument for argument in arguments if stream in names(argument, ast.Load)]
                    if len(given) == 1 and isinstance(statement, ast.Assign | ast.Return):
                        prefix = copy.deepcopy(piece.tree)
                        prefix.body[place:] = [ast.Return(copy.deepcopy(given[0]))]
                        _refuse_more_than_norms(prefix, module)
                        node.keywords.append(ast.keyword(_READS, ast.Name(_READS, ast.Load())))
                        _add_argument(tree)
                        return Several(Piece.compiled(prefix, piece.home), Piece.compiled(tree, piece.home))
    raise Unreadable(f"its {module} is not given the hidden states")


def _refuse_more_than_norms(prefix: ast.FunctionDef, module: str) -> None:
    """Raise Unreadable where a part of the layer is called with more than one tensor, a cache perhaps.

    The prefix runs once for every mixture.
    """
    for node in ast.walk(prefix):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("self"), attr=other)) if len(node.args + node.keywords) > 1:
                raise Unreadable(f"it calls {other} before {module}")


@functools.cache
def forward_with_reads(module: type, projections: tuple[str, ...]) -> Callable[..., Any]:
    """The forward of an attention or MLP whose projections but the first take an input of their own where given."""
    code = code_of(module.forward)  # type: ignore[attr-defined]
    tree, stream = code.tree, code.stream
    _add_argument(tree)
    found = _GiveReads(stream, projections)
    body = [found.visit(statement) for statement in tree.body]
    if sorted(found.given) != sorted(projections):
        raise Unreadable(f"{module.__name__} does not apply each of them once to its input")
    if stream in names(body, ast.Store) or found.others:
        raise Unreadable(f"{module.__name__} does more with its input than that")
    default = ast.parse(f"{_READS} = ({stream},) * {len(projections) - 1} if {_READS} is None else {_READS}").body
    tree.body = [*default, *body]
    return compiled(tree, module)


class _GiveReads(ast.NodeTransformer):
    """Replace the input of each projection but the first."""

    def __init__(self, stream: str, projections: tuple[str, ...]) -> None:
        self.stream, self.projections = stream, projections
        self.given: list[str] = []
        self.others = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("self"), attr=name), args=[ast.Name(given)], keywords=[]):
                if name in self.projections and given == self.stream:
                    self.given.append(name)
                    if place := self.projections.index(name):
                        node.args = [ast.parse(f"{_READS}[{place - 1}]", mode="eval").body]
                    return node
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr in ("shape", "device", "dtype") and isinstance(node.value, ast.Name):
            return node
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        self.others += node.id == self.stream
        return node


def _add_argument(tree: ast.FunctionDef) -> None:
    tree.args.kwonlyargs.append(ast.arg(_READS))
    tree.args.kw_defaults.append(ast.Constant(None))
