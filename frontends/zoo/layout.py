"""How one side of a plan computes: over which ranks a tensor is divided, and what a loss counts.

A `Layout` is all that differs between the single device and a rank of the parallel plan; both
sides of every model are written by the same functions, given another `Layout`.

Rank axes, innermost first: ``tp`` (tensor parallel), ``cp`` (context parallel: the sequence is
divided), the replicas, and outside of all of them the pipeline stages.  The replicas are one axis
``dp``, or with expert parallelism two, ``edp`` (outer) and ``ep`` (inner): an expert is held by
one of ``ep`` neighbouring replicas.  Axes of one rank do not exist in a program.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.plan.ir import Group
from shardproof.frontends.builder.builder import BodyBuilder, along

TP = along("tp")
CP = along("cp")
EP = along("ep")


@dataclass(frozen=True, slots=True)
class Layout:
    """One side of a plan.

    Example: Llama-3 8B with dp 2, tp 2 and four microbatches: ``batch`` 1 on a rank, 8 on the
    single device in 8 ``blocks``, and ``token_factor`` 1/65536 on both.

    ``batch``: sequences in one microbatch (on the single device: in the whole batch).
    ``blocks``: how many (replica, microbatch) blocks are in that batch: 1 on the parallel side;
    the single device's batch is their concatenation, block after block, ``batch // blocks``
    sequences each.  What is computed per microbatch (an auxiliary loss) is computed per block.
    ``sequence``: length of the whole sequence.
    ``token_factor``: what the loss of one token is multiplied by before all are added.
    ``block_factor``: the same for a loss that is one number per block.
    ``dp``: replicas, of which each ``ep`` neighbours share one set of experts.
    ``zero``: 0, or which stage of ZeRO divides gradients and parameters over the replicas.
    """

    batch: int
    sequence: int
    token_factor: Fraction
    block_factor: Fraction
    blocks: int = 1
    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    zero: int = 0

    # -- axes -----------------------------------------------------------------------------------

    @property
    def replica_axes(self) -> tuple[str, ...]:
        """Names of the axes along which replicas lie, outermost first."""
        return ("dp",) if self.ep == 1 else ("edp", "ep")

    def size(self, axis: str) -> int:
        """How many ranks lie along an axis."""
        if axis == "edp" or (axis == "dp" and self.ep > 1):
            return self.dp // self.ep
        return {"dp": self.dp, "tp": self.tp, "cp": self.cp, "ep": self.ep}[axis]

    def axes(self) -> tuple[tuple[str, int, int], ...]:
        """(name, extent, rank stride) of every axis that has ranks, outermost first."""
        axes, stride = [], 1
        for axis in ("tp", "cp", *reversed(self.replica_axes)):
            extent = self.size(axis)
            if extent > 1:
                axes.append((axis, extent, stride))
            stride *= extent
        return tuple(reversed(axes))

    @property
    def ranks(self) -> int:
        """How many ranks a pipeline stage has."""
        return self.dp * self.cp * self.tp

    def along(self, *axes: str) -> Group | None:
        """The group along those of the named axes that have ranks; None if none has."""
        present = tuple(axis for axis in axes if self.size(axis) > 1)
        return Group(axes=present) if present else None

    def gradient_axes(self, divided: Iterable[str] = ()) -> tuple[str, ...]:
        """The axes along which ranks hold the same part of a parameter and see other tokens, so
        that its gradient is their sum: replicas and ``cp``, without axes over which the parameter
        itself is ``divided`` (an expert is on one rank of ``ep``, which sees all its tokens)."""
        without = set(divided)
        axes = (*self.replica_axes, "cp")
        return tuple(a for a in axes if self.size(a) > 1 and a not in without)

    # -- sizes ----------------------------------------------------------------------------------

    @property
    def block_batch(self) -> int:
        """Sequences in one block."""
        return self.batch // self.blocks

    @property
    def tokens(self) -> int:
        """Positions of a sequence that a rank works on inside a tensor-parallel region."""
        return self.sequence // self.cp

    @property
    def outside(self) -> int:
        """Positions of a sequence that a rank holds outside of tensor-parallel regions."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    def first(self, size: int, axis: str = "tp") -> Affine:
        """The first of the ``size`` positions that a rank holds of a dimension divided along
        ``axis``."""
        return affine(0, {axis: size}) if self.size(axis) > 1 else ZERO

    # -- regions --------------------------------------------------------------------------------

    def enter(self, body: BodyBuilder, x: int) -> int:
        """Into a tensor-parallel region, ``[b, outside, h]`` -> ``[b, tokens, h]``: every rank
        needs all of ``x``.  Backward: the ranks' gradients are added."""
        if self.tp == 1:
            return x
        return body.all_gather(x, 1, TP) if self.sequence_parallel else body.copy_to(x, TP)

    def leave(self, body: BodyBuilder, x: int) -> int:
        """Out of it, ``[b, tokens, h]`` -> ``[b, outside, h]``: the ranks hold addends of the
        result."""
        if self.tp == 1:
            return x
        return body.reduce_scatter(x, 1, TP) if self.sequence_parallel else body.reduce_from(x, TP)
