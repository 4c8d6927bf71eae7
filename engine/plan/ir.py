"""The plan: what a single-device and a parallel training program are, before any proof.

A `Plan` holds two sides, each a set of programs.  A `Program` is what a *class* of ranks runs: its
free axes (``dp``, sometimes ``tp``, ...) say which ranks those are, and everything in it may be
affine in the coordinates along them.  The single-device side is one program without axes.

A program owns straight-line bodies (`Body`) in SSA form and a list of calls (`Call`) in the order
in which a rank issues them.  Calls bind the inputs and outputs of a body to *slots*: names in the
rank's memory.  A slot is a name, not a value: a later call may write it again, and a reader sees
the last write before it in issue order.

What is kept symbolic: replicas and ranks of a class (the axes), and microbatches (one body, many
calls).  No object exists per rank or per microbatch and operator.

None of these is ever changed.  Those of which a large plan has a hundred thousand are not frozen:
to make a frozen one takes five times as long, in every process that reads the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

from shardproof.engine.algebra.affine import ZERO, Affine
from shardproof.engine.findings import Finding
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.recorded import RecordedSlice

#: The name of the microbatch coordinate, beside the rank axes of a program.
MICROBATCH = "mb"

Attr: TypeAlias = "int | bool | str | Fraction | Affine | Group | tuple[Attr, ...] | None"


@dataclass(frozen=True, slots=True)
class Source:
    """Where an operator comes from, for reports: the plan's cell, the module path, the code.

    Example: ``Source(module="h.1.mlp", location="examples/gpt.py:98")``.
    """

    cell: str = ""
    module: str = ""
    location: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: explicit ranks, whole mesh axes of the program, or both.

    Example: ``Group(ranks=(0, 1))``, a pipeline stage and the next one; ``Group(axes=("tp",))``,
    the ranks along ``tp``.

    ``ranks`` are ranks of the first instance of the programs that take part (all free coordinates
    0); a member at other coordinates has its group shifted alike.  Empty means: this program alone.
    ``axes`` are free axes of the program whose every coordinate takes part.  Members are ordered by
    rank, however they are listed.
    """

    ranks: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class Value:
    """A tensor of a body: true local shape (elements), element type, printed name.

    Example: ``Value((8, 16), "float32", "h.1.mlp.linear")``.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    name: str = ""


@dataclass(slots=True, unsafe_hash=True)
class Op:
    """One operator.  ``inputs`` and ``outputs`` are value numbers of the body.

    Example: ``Op("linear", (0, 1), (2,))``, written ``%2 = linear(%0, %1)``; its reverse derivative
    by both operands is ``Op("linear", (0, 1, 3), (4, 5), {"arity": 2, "wrt": (0, 1)},
    backward=True)``.

    With ``backward`` the operator is the reverse derivative of the forward operator ``name``:
    its inputs are the forward inputs, then one gradient for each forward output (-1: that output
    has no gradient); ``attrs["wrt"]`` names the positions of the forward inputs whose gradients are
    the outputs.  ``attrs`` hold exact numbers only (`Fraction`, int), never floats.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    backward: bool = False
    source: Source = Source()


@dataclass(frozen=True, slots=True)
class Body:
    """Straight-line operators in SSA form, shared by all calls of it.

    Example: a ``forward`` that loads the batch, reads shard 0 as ``%1`` (``shards=((1, 0),)``) and
    gives its loss ``%3`` (``outputs=(3,)``, ``losses=(3,)``).

    ``inputs``, ``outputs``: values bound to slots by each call.
    ``shards``: (value, shard number of the program): parameters and buffers that are read.
    ``saved``: (value, value of body ``forward_body``): contexts that a backward body reads from the
    forward call it is paired with; the k-th call of this body is paired with the k-th call of
    ``forward_body`` (autograd's contexts are first in, first out).
    ``gradients``: (value, shard number): produced here, added to the gradient of that shard, which
    starts at zero.
    ``reduced``: (value read, value written, shard number): the reducer reads the gradient of the
    shard as it is when the body begins (zero, if nothing was added so far), and what it writes is
    the gradient when the body ends.  One body does so at most once for a shard, and does not add to
    the gradient of that shard: whether what it adds is reduced would not be said.
    ``losses``: values that are terms of the training loss, unless the plan's expectations say
    otherwise.
    ``claims``: what the plan records about each value (empty: about none); it means nothing.
    ``results``: values that rows of `Plan.expectations` are about.
    """

    name: str
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    shards: tuple[tuple[int, int], ...] = ()
    saved: tuple[tuple[int, int], ...] = ()
    forward_body: int = -1
    gradients: tuple[tuple[int, int], ...] = ()
    reduced: tuple[tuple[int, int, int], ...] = ()
    losses: tuple[int, ...] = ()
    claims: tuple[RecordedSlice | None, ...] = ()
    results: tuple[int, ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class Call:
    """One issue of a body: its inputs and outputs bound to slots.

    Example: ``Call(0, (3,), (4,))``, written ``call 0(3) -> 4``: body 0 reads slot 3 and writes
    slot 4.

    ``microbatch`` is given for calls that load the batch (which microbatch is read) and is -1
    elsewhere: there it follows from the data flow.
    """

    body: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    microbatch: int = -1


#: What a named input is, beside a parameter or a buffer (empty: one of these).
INPUT_KINDS = ("", "batch", "state", "constant")


@dataclass(frozen=True, slots=True)
class Shard:
    """A named input as held by a rank: a box of the full tensor ``name``, which both sides share.

    Example: ``Shard("w", (16, 8), (8, 8), (affine(0, {"tp": 8}), ZERO))``: rank ``tp`` has 8 of 16
    rows, from ``8*tp`` on.

    ``offset`` (elements per dimension) may be affine in the coordinates of the program.
    ``updated_as``: the number of the shard of this program as which the optimizer updates this one
    here, a box of this one (-1: the whole of it).  Where gradients are divided over replicas
    (ZeRO), a rank reads all of this shard, but needs the gradient of that box only; the rest comes
    from its owners after the update.
    ``kind``: one of `INPUT_KINDS`; empty means a parameter (``trainable``) or a buffer.
    ``domain``: of integers, [low, high): every entry is one of these; None: any of ``dtype``.
    """

    name: str
    full_shape: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[Affine, ...]
    dtype: str = "float32"
    trainable: bool = True
    updated_as: int = -1
    kind: str = ""
    domain: tuple[int, int] | None = None

    @property
    def integer(self) -> bool:
        """Whether entries are integers: ids, positions, labels, flags."""
        return self.dtype.startswith(("int", "uint", "bool"))


def whole(
    name: str, shape: tuple[int, ...], *, trainable: bool = True, dtype: str = "float32"
) -> Shard:
    """A parameter or buffer that a rank holds in full.

    Example: ``whole("norm.weight", (4096,))``.
    """
    return Shard(name, shape, shape, tuple(ZERO for _ in shape), dtype, trainable)


@dataclass(frozen=True, slots=True)
class Program:
    """What a class of ranks runs.

    Example: on dp 2 x tp 2 ranks of the first of two pipeline stages,
    ``axes=(("dp", 2, 4), ("tp", 2, 1))`` and ``base=0``: ranks 0, 1, 4 and 5.

    ``axes``: (name, extent, rank stride) of the free coordinates; the global rank at coordinates c
    is ``base + sum(stride * c)``.  ``seeds``: (slot, loss slot): a slot that holds the incoming
    gradient of a loss, which no operator produces.
    """

    name: str
    bodies: tuple[Body, ...]
    calls: tuple[Call, ...]
    shards: tuple[Shard, ...] = ()
    base: int = 0
    axes: tuple[tuple[str, int, int], ...] = ()
    seeds: tuple[tuple[int, int], ...] = ()

    @property
    def extents(self) -> dict[str, int]:
        """How many ranks there are along each of the program's axes, by name: {"dp": 2, "tp":
        4}."""
        return {name: extent for name, extent, _ in self.axes}

    @property
    def domains(self) -> dict[str, tuple[int, int]]:
        """What the integers of inputs are among, where that is said: {"labels": (0, 24)}."""
        return {s.name: s.domain for s in self.shards if s.domain is not None}

    @property
    def ranks(self) -> int:
        """How many ranks run this program."""
        count = 1
        for _, extent, _ in self.axes:
            count *= extent
        return count


class Rounded(NamedTuple):
    """Where a constant of the parallel side was replaced by that of the single-device side.

    Example: ``Rounded(0, 0, 5, "other", Fraction(13421773, 134217728))``: a factor that was read as
    0.1 in single precision and is 1/10 now.

    Attribute ``key`` of operator ``op`` of body ``body`` of parallel program ``program`` was
    ``value`` where the plan was read; it is the single-device program's constant now.
    """

    program: int
    body: int
    op: int
    key: str
    value: Fraction


#: The body of an addend that is the accumulated gradient of a shard, not a value of a body.
ACCUMULATED = -1

#: How a value combines along an axis; along every axis that is not named it is equal, or moves as
#: the row's box does.  A partial value combines as a sum does, which nothing in the plan takes.
COMBINATIONS = ("sum", "mean", "partial")


@dataclass(frozen=True, slots=True)
class Addend:
    """A value of one program, as it counts in an expectation.

    Example: ``Addend(0, 0, 8, over=(("mb", "sum"), ("dp", "mean")))``: value 8 of body 0 of program
    0, added up over microbatches and averaged over replicas.

    ``value``: of body ``body``, in every call of it; where ``body`` is `ACCUMULATED`, the gradient
    of shard number ``value`` after everything ran.  It counts ``weight`` times, and is added up
    along the axes of ``over``, (axis, one of `COMBINATIONS`); the axis ``mb`` is the microbatches:
    there all calls of the body add up.
    """

    program: int
    body: int
    value: int
    weight: Fraction = Fraction(1)
    over: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that must hold: a value of the parallel side is a box of a single-device value.

    ``kind``: "loss", "gradient", "updated parameter", "state", "buffer", "output", or the user's
    own word; rows of one kind and name are about the same single-device value and must cover it.
    ``single``: the addends of that value, of program 0, the single-device one; none, for a
    gradient: the derivative of the loss with respect to parameter ``name``.
    ``parallel``: the addends of the parallel value; none: it has no counterpart, and the row fails.
    ``offset``: where the box begins in the single-device value, affine in the coordinates of the
    parallel program and ``mb``; none: the value is all of it.  Its extent is the value's.
    ``required``: whether a proof needs it; of others it is printed whether they hold.

    For example, a row of ``y`` of which every rank along ``tp`` holds four columns, and one that is
    partial along ``tp``::

        columns = (ZERO, affine(0, {"tp": 4}))
        Expectation("output", "y", (Addend(0, 0, 7),), (Addend(0, 0, 9),), columns)
        over = (("tp", "partial"),)
        Expectation("output", "z", (Addend(0, 0, 8),), (Addend(0, 0, 5, over=over),))
    """

    kind: str
    name: str
    single: tuple[Addend, ...]
    parallel: tuple[Addend, ...]
    offset: tuple[Affine, ...] = ()
    required: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """A single-device program and the parallel programs that claim to compute the same.

    Example: ``Plan("two replicas", one, (ranks,), 2, ("dp",), "mean")``: a program ``one`` of one
    device, a program ``ranks`` with the axis ``dp``, and two microbatches on each replica.

    ``microbatches``: per data-parallel replica.  ``replica_axes``: the rank axes (outermost first)
    along which the batch is divided; microbatch m of replica r reads slice r * microbatches + m of
    every batch dimension that the single-device program has in full.
    ``loss``: how the losses of microbatches and replicas combine to the single-device loss
    ("sum" or "mean"); ``notes``: specification to be printed; ``recorded``: where the records that
    it was read from contradict each other; ``rounded``: where constants of the parallel side were
    replaced by the single-device side's, from which they differ by rounding alone; ``assumed``:
    what its reader assumed beside the defaults.
    ``expectations``: all that must hold; none: what the bodies' losses and gradients say
    (`engine.plan.expectations`).
    ``otherwise``: gives the parallel programs as the records have them, where the reader went by
    another account; it is no part of the plan, and not stored with it.
    ``tables``: the numbers that the programs' constants have, by name, where a proof takes them for
    any; ``numbers``: those with which both sides were seen to differ; no part of the plan either.
    """

    name: str
    single: Program
    programs: tuple[Program, ...]
    microbatches: int
    replica_axes: tuple[str, ...] = ()
    loss: str = "sum"
    notes: tuple[str, ...] = ()
    recorded: tuple[Finding, ...] = ()
    rounded: tuple[Rounded, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    otherwise: Callable[[], tuple[Program, ...]] | None = field(
        default=None, compare=False, repr=False
    )
    tables: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    numbers: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ranks(self) -> int:
        """The number of ranks of all parallel programs together."""
        return sum(program.ranks for program in self.programs)
