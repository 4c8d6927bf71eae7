"""One nnScaler plan as bytes: what a bounded child does for `frontends.nnscaler.frontend`.

The records of a large plan take more memory than anything after them.  So they are read before
what else it takes is imported, which then finds room where they left some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.read import read_records
from shardproof.frontends.untrusted.inert import Record, printable

if TYPE_CHECKING:
    from shardproof.engine.plan.ir import Plan


def convert_side(path: str, single: int, as_recorded: int) -> tuple[bytes, ...]:
    """What is different in one nnScaler plan as recorded, and the plan, as the parallel side of one
    with an empty single-device one: parts of what the child hands over.

    Example: ``convert_side("plan.pkl", 0, 0)``, for ``shardproof inspect plan.pkl``.

    Made to be called by `frontends.nnscaler.read.reading`, in the child.
    """
    records = read_records(path)

    from shardproof.engine.plan_files import store

    # The plan is handed on and not held here: it is let go of where it has been written.
    before: list[bytes] = []
    plan = store.to_bytes(
        _converted(path, records, before.append, single=bool(single), as_recorded=bool(as_recorded))
    )
    return before[0], plan


def _converted(
    path: str, records: Record, first: Callable[[bytes], None], *, single: bool, as_recorded: bool
) -> Plan:
    """The plan that `convert_side` writes; ``first`` is given what comes before it."""
    from shardproof.engine.plan.ir import Plan, Program
    from shardproof.frontends.nnscaler import cells, convert
    from shardproof.frontends.nnscaler.otherwise import packed

    try:
        plan = cells.plan(records)
        made = convert.convert(plan, single=single, as_recorded=as_recorded, once=True)
    except UnreadablePlan as error:
        name = printable(path, 400)
        raise (error if error.where.startswith(name) else error.within(name)) from None
    first(packed(made.otherwise, made.microbatches))
    return Plan(
        name="plan",
        single=Program("none", (), ()),
        programs=made.programs,
        microbatches=made.microbatches,
        replica_axes=(convert.REPLICA,),
        loss=made.loss,
        assumed=made.assumed,
        recorded=made.recorded,
    )
