"""The single-device side of a plan by itself, read over lineages before the other one is there.

What a plan is held against is the same for every parallel side, but for the sum of a loss that is
several addends.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from typing import NamedTuple

from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.gradients import Derived, derive
from shardproof.partition.inference.forms import Forms
from shardproof.partition.inference.interpreter import LineageInterpreter
from shardproof.partition.inference.references import Reference, reference
from shardproof.partition.inference.trace import Trace, Tracer


class SingleSide(NamedTuple):
    """A single-device side that is read: ``given`` are its own rows, ``rows`` all that a plan is
    held against.

    Example: of the GPT of examples/gpt.py, whatever its parallel side is.
    """

    program: Program
    loss: str
    given: Unrolled
    rows: Unrolled
    known: Reference
    nodes: NodeTable
    forms: Forms
    trace: Trace


def read_single(program: Program, loss: str) -> SingleSide:
    """The single-device side of a plan whose parallel side is not there yet, and whose loss is
    reduced so; raises `Unsupported`, and what reading it raises.

    Example: ``read_single(plan.single, plan.loss)``, for
    ``partition(plan, ahead=read_single(plan.single, plan.loss))``.
    """
    plan = Plan("", program, (program,), 1, loss=loss)
    given = unroll([program], 1)
    for finding in (*given.unsupported, *given.faults):
        raise Unsupported(finding.message)
    return read_rows(plan, given, derive(plan, given), lambda done: None)


def read_rows(
    plan: Plan,
    given: Unrolled,
    derived: Derived,
    tell: Callable[[int], None],
    demanded: Set[int] = frozenset(),
    reading: type[LineageInterpreter] = LineageInterpreter,
) -> SingleSide:
    """The single-device side of a plan, given its rows; ``tell`` is told how many are read;
    ``demanded``: values that are held against another one as they are; ``reading``: see
    `partition.inference.trace.Tracer`.

    Example: what `read_single` gives, of rows that are ``derived`` from those ``given``.
    """
    nodes = NodeTable()
    nodes.domains = plan.single.domains
    forms = Forms(nodes)
    known = reference(plan.single, given)
    alone = replace(plan, microbatches=1, replica_axes=())
    tracer = Tracer(alone, [plan.single], nodes, known, forms=forms, reading=reading)
    trace = tracer.run(derived.unrolled, tell, demanded=demanded)
    return SingleSide(plan.single, plan.loss, given, derived.unrolled, known, nodes, forms, trace)


def is_alike(one: Unrolled, other: Unrolled) -> bool:
    """Whether two sides have the same rows over the same tensors.

    Example: not where a loss is a sum of several, which is named as the parallel side names it.
    """
    return one.instances == other.instances and one.tensors == other.tensors
