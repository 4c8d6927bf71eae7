"""What unrolling gives: operator instances in an order, and the tensors between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shardproof.engine.findings import Finding
from shardproof.engine.plan.ir import Attr, Op, Source
from shardproof.engine.plan.recorded import RecordedSlice
from shardproof.engine.schedule.order import Order


class Instance(NamedTuple):
    """One operator instance (a family over the coordinates of its programs).

    Example: ``Instance("op", "linear", (0,), (2, 0), (3,), {}, source)``, and of the reducer
    ``Instance("all_reduce", "all_reduce", (0,), (17,), (19,), attrs, source, over=(("dp", 2),))``.

    ``kind``: "op" (a declared operator), "slice" (a chunk at its position), "shard", "load",
    "seed" (values that are assumptions), "accumulate" (sum of inputs, and over ``mb`` if
    ``over`` has it; of no inputs: zero), or a collective; ``over``: (axis, extent) pairs that it
    reduces or gathers along.  ``microbatch``: -1 where it stands for all, or for none.
    """

    kind: str
    name: str
    programs: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Attr]
    source: Source
    backward: bool = False
    over: tuple[tuple[str, int], ...] = ()
    microbatch: int = -1


class Tensor(NamedTuple):
    """A value: its program, true local shape, printed name, whether it is one per microbatch, and
    what the plan records about it.

    Example: ``Tensor(0, (16, 8), "w1", False)``, a parameter: the same for all microbatches.
    """

    program: int
    shape: tuple[int, ...]
    name: str
    batched: bool
    claim: RecordedSlice | None = None


class Result(NamedTuple):
    """What a call gave of a value that an expectation may be about: value ``value`` of body
    ``body`` is ``tensor``.  ``microbatch``: -1 where it stands for all, or for none.

    Example: ``Result(0, 0, 8, 8, -1)``: a loss, of all microbatches at once.
    """

    program: int
    body: int
    value: int
    tensor: int
    microbatch: int


@dataclass(slots=True)
class Unrolled:
    """One side of a plan as operator instances, in an order in which data flows.

    Example: two replicas with two microbatches, of 12 operators each and 2 of the reducer, are 52
    operators in ``total``; with ``symbolic`` their instances are listed once.

    ``losses``: (program, which of its losses, value), one value per microbatch unless
    ``symbolic``; ``gradients``: (program, shard, value) after everything ran; ``results``: losses
    and what bodies give out as results, call by call.

    ``symbolic``: microbatches are the coordinate ``mb``.  ``total``: operators over all ranks
    and microbatches.  ``faults``: the programs contradict themselves; ``unsupported``: they say
    something of communication that there is no rule for, so that nothing else is said of them.
    ``waits``: where programs would wait for ever if sends waited (None where that was not asked).
    ``order``: of the programs, for whoever unrolls others of the same order (None: not kept).
    """

    instances: list[Instance] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    losses: list[tuple[int, str, int]] = field(default_factory=list)
    gradients: list[tuple[int, int, int]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    faults: list[Finding] = field(default_factory=list)
    unsupported: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    symbolic: bool = True
    total: int = 0
    waits: tuple[tuple[int, Op], ...] | None = None
    order: Order | None = None


#: The source of instances that no operator of the plan makes.
NOWHERE = Source()
