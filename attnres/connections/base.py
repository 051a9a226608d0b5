"""The base class of all residual connections: linear once a token's weights are fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from attnres.connections.options import options_given
from attnres.errors import UsageError, check_count
from attnres.ops import Norm, plain_norm
from attnres.ops import inverse_rms as inverse_rms
from attnres.ops import widen as widen
from attnres.ops.reference import DTYPES
from attnres.torch_private import times_changed

Values = tuple[Tensor, ...]
"""What depth carries between two sites. Tensors only, never mutated: it is the wire format of a pipeline."""

Weights = Any
"""A token's weights at one site: a tensor or a tuple of tensors, broadcast against extra leading axes of values."""

Mixture = Any
"""What a site reads: a tensor h or, where it reads several mixtures of its sources (`Connection.reads`), a tuple."""

Sublayer = Callable[..., Tensor]
"""f(h) -> y or, at a site with several reads, f(h_1, h_2, ..) -> y."""


def reads_in(h: Mixture) -> tuple[Tensor, ...]:
    """What a site reads, also where it is one mixture, as a tuple."""
    return h if isinstance(h, tuple) else (h,)


class Normed(NamedTuple):
    """A sublayer that says how its input is normalised: f(h) = behind(norm(h)). A read of depth can then do both."""

    whole: Sublayer
    """f itself."""
    norm: Norm
    behind: Sublayer

    @staticmethod
    def after(norm: nn.Module, behind: Sublayer) -> Sublayer:
        """The sublayer behind(norm(h)), which says so where the module's norm is known."""

        def whole(h: Tensor) -> Tensor:
            return behind(norm(h))

        known = plain_norm(norm)
        return whole if known is None else Normed(whole, known, behind)

    def __call__(self, *reads: Tensor) -> Tensor:
        return self.whole(*reads)


class Pass(Protocol):
    """One forward pass: `Connection.run` and `readout` without their checks (`Connection.pass_of`)."""

    def takes(self, norm: Norm) -> bool:
        """Whether it makes this norm a part of its read: only such a one may `run` be given in a Normed."""
        ...

    def run(self, values: Values, sublayers: Sequence[Sublayer], first: int) -> Values: ...

    def readout(self, values: Values) -> Tensor: ...


class Connection(nn.Module):
    """The rule that makes each sublayer's input h_l from the sources v_0 .. v_l.

    A subclass defines `start`, `weigh`, `gather` and `scatter`. Only `weigh` and `weigh_output` may be non-linear;
    `start`, `gather` and `scatter` are linear in (values, h, y), so `mixing_matrix` needs no code per connection.

    All arithmetic of a connection runs outside autocast and in at least float32. Values have the stream's dtype, or the
    wider one of a sublayer's output that is summed or kept unchanged.

    Args:
        dim: the stream's width.
        sublayers: their number L. Sites 0 .. L-1 feed them; site L is the readout before the final norm.

    Raises:
        UsageError: either is not an integer of at least 1.
    """

    pre_norm: ClassVar[bool] = True
    """Whether the sublayers normalise their own input. PostNorm and ReZero are defined on sublayers that do not."""

    channel_maps: ClassVar[tuple[str, ...]] = ()
    """Names of parameter lists of matrices [dim, dim] that make a query from a token's channels.

    They want a learning rate dim times smaller than a query: AdamW moves every entry by about the rate, and dim of them
    add up in each entry of the query. A gate, which no sum over channels follows, does better without (Highway).
    """

    shared_options: ClassVar[type | None] = None
    """The frozen dataclass of the options that `__init__` takes as **options, which a family of connections shares."""

    per_layer: ClassVar[bool] = False
    """Whether the rule tells the two sublayers of a transformer layer apart: even sites are a layer's first."""

    mixes_channels: ClassVar[bool] = False
    """Whether `gather` or `scatter` mixes the channels of a value, as a matrix over them does, or parts them into
    pieces. Of other rules values of one channel are enough to see the weights."""

    names: tuple[str, ...] | None = None
    """What its sublayers are called, where they are not attention and MLP in turn."""

    rate: float = 10.0
    """How many times the weights' learning rate `param_groups` gives to its parameters. `attnres.hf.attach` sets it to
    one: beside weights that are trained already, ten times as much disturbs them."""

    _options: dict[str, Any]
    """The options that it was made with, defaults included; the base class sees to it (`__new__`)."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        connection = super().__new__(cls)
        connection.__dict__["_options"] = options_given(cls, args, kwargs)  # a module takes none before its __init__
        return connection

    def __init__(self, dim: int, sublayers: int) -> None:
        super().__init__()
        check_count("dim", dim)
        check_count("sublayers", sublayers)
        self.dim = dim
        self.sublayers = sublayers
        self._watched: set[tuple[int, bool]] = set()
        """Sites whose sublayer was seen to change nothing in place, in their first call, and whether for inference."""
        self.register_state_dict_post_hook(Connection._sign)
        self.register_load_state_dict_pre_hook(Connection.refuse_other)

    @property
    def signature(self) -> str:
        """Its class and options, as a state says whose it is."""
        return f"{type(self).__name__}({self.extra_repr()})"

    def _sign(self, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
        metadata["connection"] = self.signature

    def refuse_other(self, state: Any, prefix: str, metadata: dict[str, Any], *_: Any) -> None:
        """Raise UsageError where strict loading would take another one's state: the parameters of a Full are those of
        a Block. Plain tensors, as safetensors keeps them, do not say whose they are.
        """
        own = {prefix + name for name in self.state_dict(keep_vars=True)}
        if own == {key for key in state if key.startswith(prefix)}:
            self.refuse_signature(metadata.get("connection", self.signature))

    def refuse_signature(self, theirs: str) -> None:
        """Raise UsageError if that is the signature of another connection."""
        if theirs != self.signature:
            raise UsageError(f"the state is that of {theirs}, and this is {self.signature}; use the same options")

    @classmethod
    def saved_options(cls, options: dict[str, Any], sublayers: int) -> dict[str, Any]:
        """The options as they are saved: one whose default follows from the number of sublayers is written out."""
        return options

    def anew(self) -> Connection:
        """Make another one with the same options, as at its start."""
        return type(self)(self.dim, self.sublayers, **self._options)

    def start(self, x: Tensor) -> Values:
        """Make the values before the first site, of the embedding v_0 [..., dim], whose dtype becomes the stream's."""
        refuse_no_stream(x)
        return (x,)

    def reads(self, site: int) -> int:
        """How many mixtures the site reads, 1 or more: its sublayer is called with so many. The readout reads one."""
        return 1

    def value_count(self, site: int) -> int | None:
        """How many values there are before the site, by which `run` and `readout` know those of another one.

        None, as here, where the number does not follow from the site.
        """
        return None

    def weigh(self, values: Values, site: int) -> Weights:
        """Compute every token's weights at a site, 0 .. L, where L is the readout: the step that may be non-linear.

        values: what `start` or the `scatter` of the site before returned. The weights are tensors of at least float32,
        of any shapes that broadcast where values have further leading axes, as under `mixing_matrix`.
        """
        raise NotImplementedError

    def gather(self, values: Values, weights: Weights, site: int) -> Mixture:
        """Mix h, the sublayer's input, linear in `values`, which may have further leading axes.

        weights: what `weigh` returned. h is [..., dim], of the stream's dtype: a tuple of them if the site reads
        several.
        """
        raise NotImplementedError

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        """Take up y = f(h), [..., dim], linear in (`values`, `h`, `y`).

        weights: what `weigh_output` returned. The next values are new tensors: those given are not changed.
        """
        raise NotImplementedError

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        """Add the weights that only the output decides: the one step besides `weigh` that may be non-linear.

        A rule that normalises what a sublayer returns (N(y) = y / rms(y)) makes 1/rms(y) here; others need nothing.
        What it returns is what `scatter` gets as its weights.
        """
        return weights

    def mix(self, values: Values, site: int) -> tuple[Weights, Mixture]:
        """Return the weights of `weigh` and the h of `gather`. A subclass with a fused operator overrides this."""
        with outside_autocast(values):
            weights = self.weigh(values, site)
            return weights, self.gather(values, weights, site)

    def absorb(self, values: Values, weights: Weights, site: int, h: Mixture, y: Tensor) -> Values:
        """Do what `weigh_output` and then `scatter` do. A subclass with a fused operator overrides this, as `mix`."""
        if not is_autocast_on(values):  # to enter and leave an empty context takes 2 us: decoding feels it
            return self.scatter(values, self.weigh_output(values, weights, site, y), site, h, y)
        with outside_autocast(values):
            return self.scatter(values, self.weigh_output(values, weights, site, y), site, h, y)

    def run(self, values: Values, sublayers: Iterable[Sublayer], first: int = 0) -> Values:
        """Pass the values through consecutive sublayers.

        Args:
            values: what `start` or an earlier `run` returned.
            sublayers: functions of h that return what they add, [..., dim] each; they must not add h themselves.
            first: the site of the first of them.

        Returns:
            The values behind the last one, for the next `run` or for `readout`.

        Raises:
            UsageError: values of another width, of whole numbers or, where `value_count` tells, of another site; more
                sublayers than it has, or one that cannot be called, works in place, writes all its outputs into one
                buffer or does not return one tensor of the shape it reads.
        """
        for site, sublayer in enumerate(self._fitting(values, sublayers, first), first):
            weights, h = self.mix(values, site)
            values = self.absorb(values, weights, site, h, self._output_of(sublayer, h, values, site))
        return values

    def _output_of(self, sublayer: Sublayer, h: Mixture, values: Values, site: int) -> Tensor:
        """Call `output_of`; whether the sublayer works in place is looked at in the site's first call."""
        if is_compiling():
            return output_of(sublayer, h, values, watch=False)
        # Inference mode has a first call of its own: it counts no changes of the tensors that it makes.
        call = site, torch.is_inference_mode_enabled()
        if call in self._watched:
            return output_of(sublayer, h, watch=False)
        y = output_of(sublayer, h, values)
        self._watched.add(call)
        return y

    def _fitting(self, values: Values, sublayers: Iterable[Sublayer], first: int) -> list[Sublayer]:
        """List the sublayers.

        Raises:
            UsageError: they or the values are not for this connection.
        """
        x = values[0]
        if not isinstance(values, tuple) or not isinstance(x, Tensor) or x.ndim == 0 or x.dtype not in DTYPES:
            _refuse_tensor(values)
            refuse_no_stream(x)
        if x.shape[-1] != self.dim:
            raise UsageError(f"the connection has width {self.dim}; what it was given has {x.shape[-1]}")
        listed = list(sublayers)
        if first + len(listed) > self.sublayers:
            raise UsageError(f"the connection has {self.sublayers} sublayers; {len(listed)} from {first} on do not fit")
        self._refuse_another_site(values, first)
        return listed

    def _refuse_another_site(self, values: Values, site: int) -> None:
        expected = self.value_count(site)
        if expected is None or len(values) == expected:
            return
        raise UsageError(
            f"before site {site} of {self.sublayers} there are {expected} values, not the {len(values)} given; run "
            "all sublayers, each part from where the one before it ended (first)"
        )

    def pass_of(self, values: Values) -> Pass | None:
        """What runs the values that `start` made through all sites, piece by piece, with less work than `run` at each.

        It is of this forward pass alone: parameters, modes and values were looked up and checked, once for all pieces.
        None, as here, where nothing is gained by that.
        """
        return None

    def readout(self, values: Values) -> Tensor:
        """Mix the input of the final norm and the head, [..., dim], of the values behind the last sublayer.

        Raises:
            UsageError: a tensor in place of them, or, where `value_count` tells, the values before an earlier site.
        """
        _refuse_tensor(values)
        self._refuse_another_site(values, self.sublayers)
        return self.mix(values, self.sublayers)[1]

    def forward(self, x: Tensor, sublayers: Iterable[Sublayer]) -> Tensor:
        """Run the embedding through all sublayers: readout(run(start(x), sublayers)).

        A model that is cut into stages, checkpointed or decoded calls the three itself.

        Raises:
            UsageError: what `start` and `run` raise, or another number of sublayers.
        """
        listed = list(sublayers)
        if len(listed) != self.sublayers:
            raise UsageError(f"the connection has {self.sublayers} sublayers, but {len(listed)} were given")
        return self.readout(self.run(self.start(x), listed))

    def extra_repr(self) -> str:
        said = {"dim": self.dim, "sublayers": self.sublayers, **self._options}
        return ", ".join(f"{name}={value}" for name, value in said.items())


def refuse_no_stream(x: Tensor) -> None:
    """Raise UsageError for what cannot be the stream's embedding: no tensor, a number, or of a dtype without sums."""
    if not isinstance(x, Tensor) or x.ndim == 0:
        given = f"a {type(x).__name__}" if not isinstance(x, Tensor) else "a number"
        raise UsageError(f"the stream starts with the embedding, a tensor [..., dim], not with {given}")
    if x.dtype not in DTYPES:
        raise UsageError(f"the stream must be of a floating dtype, not {x.dtype}; start with an embedding")


def _refuse_tensor(values: Values) -> None:
    """A tensor can be indexed, too, and its first row would pass for a stream."""
    if isinstance(values, Tensor):
        raise UsageError("values are what start(x) returns, not x: connection.run(connection.start(x), sublayers)")


def output_of(sublayer: Sublayer, h: Mixture, values: Values = (), watch: bool = True) -> Tensor:
    """Call the sublayer with what its site reads.

    Args:
        sublayer: a function of one tensor [..., dim], or of as many as `h` holds.
        h: what `mix` or `gather` returned.
        values: what depth carries meanwhile.
        watch: look whether the sublayer changes h or the values in place.

    Returns:
        Its output, [..., dim].

    Raises:
        UsageError: it returns no tensor, or one of another shape, which most sums would broadcast silently, of
            another device or of no floating dtype; or it changes what it was given, which may be the stream itself or
            saved for the backward pass, or the values, which may hold what an earlier call returned as it is.
    """
    reads = reads_in(h)
    before, values_before = (times_changed(reads), times_changed(values)) if watch else (0, 0)
    y = sublayer(*reads)
    refuse_output(y, reads[0])
    if not watch:
        return y
    if times_changed(reads) != before:
        raise UsageError("a sublayer changed its input in place, as nn.ReLU(inplace=True) does; let it work on a copy")
    if times_changed(values) != values_before:
        raise UsageError(
            "a sublayer wrote into what an earlier one returned, as with one buffer for the outputs of all calls; "
            "let it return a tensor of its own at every call"
        )
    return y


def refuse_output(y: Tensor, h: Tensor) -> None:
    """Raise UsageError for what no sublayer may return that reads h."""
    if not isinstance(y, Tensor):
        raise UsageError(f"a sublayer must return its output tensor alone, not {type(y).__name__}; wrap it")
    if y.shape != h.shape:
        read, returned = list(h.shape), list(y.shape)
        raise UsageError(f"a sublayer must return the shape that it reads, {read}, and returned {returned}")
    if y.dtype not in DTYPES or y.device != h.device:
        read, returned = f"{h.dtype} on {h.device}", f"{y.dtype} on {y.device}"
        raise UsageError(f"a sublayer must return a floating dtype on the device that it reads, {read}, not {returned}")


def check_sublayers(sublayers: Iterable[Sublayer], x: Tensor) -> None:
    """Raise UsageError for the first sublayer, of one read, that adds its input x [..., dim] to its output.

    One that begins with a norm gives the same for 1000 x as for x, so what differs by 999 x is x itself.
    """
    x = x / x.abs().amax().clamp(min=1)  # float16 ends at 65504
    with torch.no_grad():
        for index, sublayer in enumerate(sublayers):
            added = widen(output_of(sublayer, 1000 * x)) - widen(output_of(sublayer, x))
            if (added - 999 * widen(x)).norm() < 0.1 * (999 * widen(x)).norm():
                raise UsageError(
                    f"sublayer {index} adds its input to its output; the connection does that: leave it out"
                )


def is_autocast_on(values: Values) -> bool:
    device = values[0].device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def outside_autocast(values: Values) -> AbstractContextManager[Any]:
    """A context in which matrix products keep their dtype: bf16 keys or queries break depth attention."""
    return torch.autocast(values[0].device.type, enabled=False) if is_autocast_on(values) else nullcontext()


def stream_dtype(stream: Tensor, y: Tensor) -> torch.dtype:
    """What a sum of the stream and a sublayer's output is kept in: the wider of the two."""
    return torch.promote_types(stream.dtype, y.dtype)


def apart(numbers: Tensor) -> tuple[Tensor, ...]:
    """Split a vector of weights into tensors [1]: one without axes would not widen what it is multiplied by."""
    return widen(numbers).unsqueeze(-1).unbind()


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
