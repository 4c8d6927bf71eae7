"""Plans whose programs meet alike, whatever else they compute.

Of a plan that is tried with its groups as its records have them neither messages nor calls are
other ones: only what a rank does with its part of a group is.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardproof.engine.plan.collectives import COMMUNICATION, PARTS
from shardproof.engine.plan.ir import Body, Op, Program


def meet_alike(programs: Sequence[Program], others: Sequence[Program]) -> bool:
    """Whether the order of ``others` (`engine.schedule.order`) is that of ``programs``, which is
    known: calls, slots and communication are the same.

    Example: where chunks are slices instead they are, where an all-reduce was inserted they are
    not.
    """
    return len(programs) == len(others) and all(map(_alike, programs, others))


def _alike(program: Program, other: Program) -> bool:
    placed = (program.base, program.axes, program.calls, program.seeds)
    return (
        placed == (other.base, other.axes, other.calls, other.seeds)
        and len(program.bodies) == len(other.bodies)
        and all(map(_bodies_alike, program.bodies, other.bodies))
    )


def _bodies_alike(body: Body, other: Body) -> bool:
    if body is other:
        return True
    interface = (body.inputs, body.outputs, body.gradients, body.reduced, body.forward_body)
    return (
        interface
        == (other.inputs, other.outputs, other.gradients, other.reduced, other.forward_body)
        and body.values == other.values
        and len(body.ops) == len(other.ops)
        and all(map(_ops_alike, body.ops, other.ops))
    )


def _ops_alike(op: Op, other: Op) -> bool:
    """Whether ranks meet in both alike: an operator of no group may be any other one, and where
    the part of an all-gather comes from is nothing that others wait for."""
    if op is other:
        return True
    if other.name not in COMMUNICATION and other.name not in PARTS:
        return op.name not in COMMUNICATION
    return _meeting(op) == _meeting(other)


def _meeting(op: Op) -> tuple[object, ...]:
    attrs = {key: value for key, value in op.attrs.items() if key != "position"}
    return op.name, op.inputs, op.outputs, attrs
