"""The tensors of one side that the instances of a plan's table of expectations are about.

Example: of the addend "value 7 of body 0 of program 0" they are the tensors that its calls made,
each with its microbatch.
"""

from __future__ import annotations

from shardproof.engine.plan.ir import ACCUMULATED, Addend, Plan
from shardproof.engine.schedule.instances import Unrolled


class Given:
    """The tensors of one side that addends are about.  In a plan without a table of its own, a loss
    that is only on its way to another one is none.

    Example: of the loss of a body that is called for two microbatches, which flow alike, ``of``
    gives ``[(8, -1)]``; where they do not, two tensors with the microbatches 0 and 1.
    """

    def __init__(self, plan: Plan, side: Unrolled) -> None:
        before = () if plan.expectations else _passed_on(side)
        self.gradients = {(p, shard): v for p, shard, v in side.gradients}
        self.results: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for r in side.results:
            tensors = self.results.setdefault((r.program, r.body, r.value), [])
            if r.tensor not in before:
                tensors.append((r.tensor, r.microbatch))

    def of(self, addend: Addend) -> list[tuple[int, int]]:
        """Its tensors, each with its microbatch (-1: of all, or of none)."""
        if addend.body == ACCUMULATED:
            value = self.gradients.get((addend.program, addend.value))
            return [] if value is None else [(value, -1)]
        return self.results.get((addend.program, addend.body, addend.value), [])

    def computed(self, addend: Addend) -> bool:
        """Whether a call gave it, be it a loss on its way."""
        return (addend.program, addend.body, addend.value) in self.results


def _passed_on(side: Unrolled) -> set[int]:
    """Losses that communication on the same rank turns into another loss: what was sent on, or an
    addend before its all-reduce."""
    losses = {value: program for program, _, value in side.losses}
    before: set[int] = set()
    for instance in side.instances:
        if instance.kind != "op" or instance.name == "identity":
            programs = {losses[v] for v in instance.outputs if v in losses}
            before.update(v for v in instance.inputs if v in losses and losses[v] in programs)
    return before
