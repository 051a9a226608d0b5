"""What the layers of an attached decoder become, and how they are run by hand.

A decoder's forward passes the hidden states from one layer to the next and then to the final norm, without using them.
So it can pass on the connection's values instead: each layer takes the `Depth` of the layer before it, runs its
sublayers through the connection, and returns the next `Depth`; the last layer reads it out. Everything else (masks,
caches, positions, experts) is the model's own code. No state is on modules between forwards.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from attnres.connections import Connection, Normed, Sublayer, Unrolled, Values
from attnres.connections.base import Pass
from attnres.connections.offload import at_hand, gathered, has_hooks
from attnres.errors import UsageError
from attnres.hf.cut import LayerCode, Piece
from attnres.hf.several import READS, forward_with_reads
from attnres.hf.source import own_forward
from attnres.ops import Norm, plain_norm

_NOTHING = nullcontext()

CONNECTION = "connection"
"""The decoder's attribute that holds the connection; parameters are called `model.connection.query.0` and so on."""


class Stack(NamedTuple):
    """What the layers of a decoder share. A tuple, so that it does not become a child of theirs."""

    decoder: nn.Module
    layers: list[Any]


class DecodeStep(NamedTuple):
    """A forward pass of few tokens: what the first layer looks up and checks, and the others need not.

    A sublayer's weights push all else out of the caches, and a check that takes 2 us at once takes 10 behind it.
    """

    course: Pass
    norms: dict[nn.Module, Norm]
    """The norms that the connection may compute, since nobody has hooked them. One hooked later is one too late."""


class Depth(NamedTuple):
    """What travels between layers in place of the hidden states.

    A named tuple in a named tuple's place: accelerate moves it between devices, torch.compile and FSDP see its tensors,
    and transformers' recorder of hidden states, which takes a tuple's first element, gets all values.
    """

    values: Values
    step: DecodeStep | None = None


class Layer(nn.Module):
    """A decoder layer whose sublayers are joined by the connection of its decoder.

    It uses that connection without holding it: PEFT may put another in its place.
    """

    _code: LayerCode
    _stack: Stack
    _first_site: int
    _is_last: bool
    _gradient_checkpointing_func: Callable[..., tuple[Any, ...]]

    __call__ = nn.Module.__call__  # older versions of transformers recompute there, and would hand on a plain tuple

    @property
    def connection(self) -> Connection:
        return self._stack.decoder.connection  # type: ignore[return-value]

    def forward(self, stream: Tensor | Depth, /, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(stream, Depth) and self._first_site:
            raise UsageError(
                f"the layer of site {self._first_site} was given hidden states where it needs all values of the layer "
                "before: an attached model cannot be split between its layers; attnres.parallel has its own pipeline"
            )
        values, step = stream if isinstance(stream, Depth) else ((stream,), None)
        if getattr(self, "gradient_checkpointing", False) and self.training:
            values, beside = self._recomputed(values, args, kwargs)
        else:
            values, step, beside = self._run(values, step, args, kwargs)
        hidden: Any = values[0] if self._is_last else Depth(values, step)
        return hidden if self._code.beside is None else (hidden, *beside)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile as any module, with graphs of its own: each layer reads another number of sources.

        torch would count them all as recompilations of the forward that the layers share, and stop at the eighth.
        """
        if "isolate_recompiles" in inspect.signature(torch.compile).parameters:  # since torch 2.13
            kwargs.setdefault("isolate_recompiles", True)
        super().compile(*args, **kwargs)

    def _run(
        self, values: Values, step: DecodeStep | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Values, DecodeStep | None, list[Any]]:
        """What the layer passes on, the values or at the end what is read of them, and what it returns beside that."""
        beside: dict[str, Any] = {}
        with _NOTHING if step else at_hand(self.connection):
            if not self._first_site:
                values = self.connection.start(*values)
                step = self._decode_step(values)
            course = self.connection if step is None else step.course
            values = course.run(values, bound_sublayers(self, args, kwargs, beside, step), self._first_site)
            if self._is_last:
                values = (course.readout(values),)
        return values, step, list(map(beside.get, self._code.beside or ()))

    def _decode_step(self, values: Values) -> DecodeStep | None:
        # accelerate's hook of a layer would move what its arguments hold, modules too, to the layer's device.
        if any("_hf_hook" in vars(layer) for layer in self._stack.layers) or has_hooks(self.connection):
            return None
        if (course := self.connection.pass_of(values)) is None:
            return None
        parts = [layer._modules.get(piece.norm) for layer in self._stack.layers for piece in layer._code.pieces]
        known = {part: norm for part in parts if part is not None and (norm := plain_norm(part))}
        return DecodeStep(course, {part: norm for part, norm in known.items() if course.takes(norm)})

    def _recomputed(
        self, passed_on: Values, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Values, tuple[Any, ...]]:
        """Recompute as transformers' GradientCheckpointingLayer does, but with every value an argument, and all else
        that has a gradient, such as gemma4's input per layer. Reentrant checkpointing loses, in silence, the gradient
        of a tensor inside a tuple, and goes twice over the graph behind one that is no argument."""
        arguments = {**dict(zip(self._code.parameters, args, strict=False)), **kwargs}
        # The cache by what it can do: transformers has renamed the argument, and models' own code has other names.
        cached: dict[str, Any] = {name: None for name, value in arguments.items() if hasattr(value, "get_seq_length")}
        if arguments.get("use_cache"):
            cached["use_cache"] = False

        learned = [name for name, value in arguments.items() if isinstance(value, Tensor) and value.requires_grad]

        def flat(*given: Tensor) -> tuple[Any, ...]:
            values, others = given[: len(passed_on)], given[len(passed_on) :]
            behind, _, beside = self._run(
                values, None, (), {**arguments, **cached, **dict(zip(learned, others, strict=True))}
            )
            return *behind, *beside

        returned = self._gradient_checkpointing_func(flat, *passed_on, *map(arguments.__getitem__, learned))
        count = len(returned) - len(self._code.beside or ())
        return returned[:count], returned[count:]


class Wide(nn.Module):
    """A part of the connection, whose parameters stay in float32 when the model is cast, as the connection's maths is.

    `model.to(torch.bfloat16)` and the engines that make a model's parameters anew in its dtype come by here.
    """

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if param is not None and _is_narrow(param.dtype):
            param = nn.Parameter(param.detach().float(), param.requires_grad)
        super().register_parameter(name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def kept(tensor: Tensor) -> Tensor:
            applied = fn(tensor)
            return tensor.to(applied.device) if _is_narrow(applied.dtype) else applied

        return super()._apply(kept, recurse)


class Undecayed(nn.LayerNorm):
    """What a connection is to optimizers: Trainer, PEFT and others keep weight decay off every nn.LayerNorm, which for
    a connection's parameters would pull away from the plain residual. Nothing else of a norm is used."""

    def __init__(self) -> None:
        nn.Module.__init__(self)


class Signed(nn.Module):
    """What a connection adds to a state of tensors alone, as PEFT's adapters have it: whose it is, letter by letter."""

    signature: str
    refuse_signature: Callable[[str], None]

    def get_extra_state(self) -> Tensor:
        return torch.tensor(list(self.signature.encode()), dtype=torch.int32, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        if not state.is_meta:
            self.refuse_signature(bytes(state.to(torch.uint8).tolist()).decode(errors="replace"))

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], *others: Any
    ) -> None:
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, *others)
        if (key := f"{prefix}_extra_state") in missing:  # as in the files of save_pretrained
            missing.remove(key)


def become_layer(layer: Any, stack: Stack, code: LayerCode, first: int, sites: int) -> None:
    """Let a layer run its sublayers, of which `first` is the first one's site, through its decoder's connection."""
    change_class(layer, attached_class(type(layer), Layer))
    layer._stack, layer._first_site, layer._code = stack, first, code
    stack.layers.append(layer)
    layer._is_last = first + len(code.pieces) == sites


def become_plain(layer: Any) -> None:
    """Undo `become_layer`."""
    change_class(layer, type(layer)._made_of[0])
    del layer._stack, layer._first_site, layer._code, layer._is_last


def _is_narrow(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize


def attached_layers(decoder: nn.Module) -> list[Any]:
    return [module for module in decoder.modules() if isinstance(module, Layer)]


def bound_sublayers(
    layer: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    beside: dict[str, Any],
    step: DecodeStep | None = None,
) -> list[Sublayer]:
    """The layer's sublayers as functions of h alone, under the arguments of its forward.

    What the layer returns beside its hidden states they put into `beside`.
    """
    code: LayerCode = layer._code  # type: ignore[assignment]
    for name in code.absent:
        position = code.parameters.index(name)
        if kwargs.get(name) is not None or (len(args) > position and args[position] is not None):
            raise UsageError(f"{name} was given, but an attached layer has no sublayer for it")
    norm_of = plain_norm if step is None else step.norms.get
    return [bind(piece, beside, layer, args, kwargs, norm_of) for piece in code.pieces]


def run_whole(model: Any, inputs: Tensor, **others: Any) -> Any:
    """Call a model of transformers on its main input, be it tokens or pixels, and let it keep no cache."""
    if hasattr(model.config, "use_cache") or hasattr(model.config.get_text_config(), "use_cache"):
        others["use_cache"] = False
    return model(**{model.main_input_name: inputs}, **others)


Call = tuple[tuple[Any, ...], dict[str, Any]]


def calls_of(modules: Iterable[nn.Module], forward: Callable[[], Any]) -> dict[nn.Module, Call]:
    """What modules are called with while `forward` runs."""
    calls: dict[nn.Module, Call] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: calls.update({module: (args, kwargs)}), with_kwargs=True
        )
        for module in modules
    ]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def unroll(decoder: nn.Module, forward: Callable[[], Any]) -> Unrolled:
    """Unroll a decoder over depth: what its layers are called with while `forward` runs binds their sublayers."""
    layers = attached_layers(decoder)
    calls = calls_of(layers, forward)
    if not calls:
        raise UsageError("the model's layers are not those that attach makes; ask attnres.mixing_matrix or trace")

    def within(layer: nn.Module, sublayer: Sublayer, *reads: Tensor) -> Tensor:
        with gathered(layer):
            return sublayer(*reads)

    sublayers = [
        functools.partial(within, layer, sublayer)
        for layer, (args, kwargs) in calls.items()
        for sublayer in bound_sublayers(layer, args[1:], kwargs, {})
    ]
    return cast(Connection, decoder.connection), calls[layers[0]][0][0], sublayers


def bind(
    piece: Piece,
    beside: dict[str, Any],
    layer: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    norm_of: Callable[[nn.Module], Norm | None],
) -> Sublayer:
    function, prefix, behind = piece.function, piece.prefix_function, piece.behind
    if prefix is None:

        def whole(h: Tensor) -> Tensor:
            return function(beside, layer, h, *args, **kwargs)

        if behind and (module := layer._modules.get(piece.norm)) and (norm := norm_of(module)):
            return Normed(whole, norm, lambda n: behind(beside, layer, n, *args, **kwargs))
        return whole

    def with_reads(h: Tensor, *more: Tensor) -> Tensor:
        given = tuple(prefix(beside, layer, read, *args, **kwargs) for read in more)
        return function(beside, layer, h, *args, **kwargs, **{READS: given})

    return with_reads


def change_class(module: nn.Module, cls: type) -> None:
    """Make an instance of cls of a module, under the hook that it may have."""
    hook = getattr(module, "_hf_hook", None)
    if hook is not None:
        from accelerate.hooks import add_hook_to_module, remove_hook_from_module

        remove_hook_from_module(module)
    if own_forward(module) is None:
        vars(module).pop("forward", None)  # accelerate leaves that of the old class, bound to the instance
    module.__class__ = cls
    if hook is not None:
        add_hook_to_module(module, hook)  # pyright: ignore[reportPossiblyUnboundVariable]


@functools.cache
def attached_class(original: type, role: type) -> type:
    """A subclass of `original` with the methods of `role`, under the original's name.

    The name is what transformers' recorders, accelerate's and FSDP's policies look a class up by. Pickled by its two
    parts, because by that name it could not be found.
    """
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__, "__reduce__": _reduce}
    kinds = (Undecayed, Signed) if issubclass(original, Connection) else ()
    attached = type(original.__name__, (role, original, *kinds), {**names, "_made_of": (original, role)})
    if projections := getattr(role, "projections", None):
        attached.forward = forward_with_reads(original, projections)
    if role is Layer:
        # GradientCheckpointingLayer wraps its subclasses' forward; Layer does what that is for.
        attached.forward = role.forward  # pyright: ignore[reportAttributeAccessIssue]
    return attached


def _reduce(module: Any) -> tuple[Any, ...]:
    return _new, type(module)._made_of, module.__getstate__()


def _new(original: type, role: type) -> nn.Module:
    cls = attached_class(original, role)
    return cls.__new__(cls)  # pyright: ignore[reportCallIssue]
