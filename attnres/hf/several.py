"""Sublayers of a Hugging Face model that read several mixtures, made from its own code.

An attention whose code begins with

    query = self.q_proj(hidden_states) ..; key = self.k_proj(hidden_states) ..; value = self.v_proj(hidden_states) ..

and does nothing else with its input can be given another for each of them; so can an MLP of gate_proj and up_proj. Its
forward gets an argument more, and the layer's piece around it hands that on, after the norms that stand before it in
the piece have been applied to each mixture.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from attnres.errors import UsageError
from attnres.hf.cut import LayerCode, Piece
from attnres.hf.source import Unreadable, code_of, compiled, names, refuse_own_forward

READS = "reads_of_their_own"


class Attention(nn.Module):
    """An attention that takes mixtures of their own for its keys and values."""

    projections = ("q_proj", "k_proj", "v_proj")


class MLP(nn.Module):
    """An MLP that takes a mixture of its own for what its gate multiplies."""

    projections = ("gate_proj", "up_proj")


def give_reads(layer: nn.Module, code: LayerCode, asked: Sequence[bool]) -> tuple[LayerCode, dict[str, type]]:
    """A layer's code whose sublayers take several mixtures where asked; and what becomes of its parts, by name.

    Raises UsageError where the code of the layer or of its parts does not allow that.
    """
    pieces, roles = list(code.pieces), {}
    for which in (which for which, several in enumerate(asked) if several):
        role = (Attention, MLP)[which % 2]
        wanted = role.projections
        found = [name for name, part in layer.named_children() if all(hasattr(part, each) for each in wanted)]
        try:
            if len(pieces) != 2:
                raise Unreadable("they have not two sublayers, attention and MLP")
            if len(found) != 1:
                raise Unreadable("it has no such projections")
            pieces[which] = _handing_on(pieces[which], found[0])
            refuse_own_forward(part := getattr(layer, found[0]))
            forward_with_reads(type(part), wanted)
        except Unreadable as error:
            raise UsageError(
                f"layers of class {type(layer).__name__} cannot give {' and '.join(wanted)} mixtures of their own: "
                f"{error}; leave reads='one'"
            ) from None
        roles[found[0]] = role
    return dataclasses.replace(code, pieces=tuple(pieces)), roles


def _handing_on(piece: Piece, module: str) -> Piece:
    """The piece that hands further reads to the module of that name. Raises Unreadable."""
    tree = copy.deepcopy(piece.tree)
    stream = tree.args.args[2].arg
    for place, statement in enumerate(tree.body):
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Attribute(ast.Name("self"), attribute)) if attribute == module:
                    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                    given = [argument for argument in arguments if stream in names(argument, ast.Load)]
                    if len(given) == 1 and isinstance(statement, ast.Assign | ast.Return):
                        prefix = copy.deepcopy(piece.tree)
                        prefix.body[place:] = [ast.Return(copy.deepcopy(given[0]))]
                        _refuse_more_than_norms(prefix, module)
                        node.keywords.append(ast.keyword(READS, ast.Name(READS, ast.Load())))
                        _add_argument(tree)
                        return Piece(tree, piece.home, prefix)
    raise Unreadable(f"its {module} is not given the hidden states")


def _refuse_more_than_norms(prefix: ast.FunctionDef, module: str) -> None:
    """The prefix runs once for every mixture, so nothing in it may be given more than one tensor, a cache perhaps."""
    for node in ast.walk(prefix):
        match node:
            case ast.Call(func=ast.Attribute(ast.Name("self"), other)) if len(node.args + node.keywords) > 1:
                raise Unreadable(f"it calls {other} before {module}")


@functools.cache
def forward_with_reads(module: type, projections: tuple[str, ...]) -> Callable[..., Any]:
    """The forward of an attention or MLP in which all projections but the first can be given an input of their own."""
    code = code_of(module.forward)  # type: ignore[attr-defined]
    tree, stream, given = code.tree, code.stream, []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(ast.Name("self"), name), args=[ast.Name(read)], keywords=[]):
                if name in projections and read == stream:
                    given.append(name)
                    place = projections.index(name)
                    source = f"{READS}[{place - 1}]" if place else f"({stream})"
                    node.args = [ast.parse(source, mode="eval").body]
    if sorted(given) != sorted(projections):
        raise Unreadable(f"{module.__name__} does not apply each of them once to its input")
    about = [
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.attr in ("shape", "device", "dtype")
    ]
    if stream in names(tree, ast.Store) or names(tree, ast.Load).count(stream) > about.count(stream) + 1:
        raise Unreadable(f"{module.__name__} does more with its input than that")
    _add_argument(tree)
    default = ast.parse(f"{READS} = ({stream},) * {len(projections) - 1} if {READS} is None else {READS}").body
    tree.body = [*default, *tree.body]
    return compiled(tree, module)


def _add_argument(tree: ast.FunctionDef) -> None:
    tree.args.kwonlyargs.append(ast.arg(READS))
    tree.args.kw_defaults.append(ast.Constant(None))
