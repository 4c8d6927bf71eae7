"""The two sides of a plan as the checker itself unrolls them, joined with what a run says of them:
lineages by tensor, stages by instance, and which instances a conclusion depends on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardproof.checker.result import Problems
from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.obligations.obligation import Claim
from shardproof.engine.plan.ir import MICROBATCH, Group, Plan, Program
from shardproof.engine.records.run import StageRecord
from shardproof.engine.reference_runtime.exchange import COLLECTIVES
from shardproof.engine.schedule.instances import Instance, Unrolled

#: Rows that claim nothing of their own: assumptions, and what only hands a value on.
UNCLAIMED = frozenset({"shard", "load", "seed", "recv", "broadcast"})


@dataclass(frozen=True)
class Side:
    """One side of a plan as the checker unrolls it: ``name`` is "single" or "parallel"; ``live``:
    numbers of the instances that some conclusion depends on; ``stages``: of the run, by instance.

    Example: ``where(18)`` of the parallel side is "rank 0: linear in layers.0.attention (row 18)".
    """

    name: str
    plan: Plan
    programs: Sequence[Program]
    unrolled: Unrolled
    lineages: Sequence[Lineage | None]
    microbatches: int
    live: frozenset[int]
    stages: dict[int, StageRecord]

    def where(self, number: int) -> str:
        """An instance in words, for messages."""
        instance = self.unrolled.instances[number]
        ranks = ", ".join(str(self.programs[p].base) for p in instance.programs[:8])
        who = (
            "single device"
            if self.name == "single"
            else (f"rank {ranks}" if len(instance.programs) == 1 else f"ranks {ranks}")
        )
        name = (
            instance.name
            if instance.kind in ("op", "slice")
            else f"{instance.kind} {instance.name}"
        )
        if instance.kind == instance.name:
            name = instance.name
        layer = f" in {instance.source.module}" if instance.source.module else ""
        microbatch = f", microbatch {instance.microbatch}" if instance.microbatch >= 0 else ""
        backward = "backward of " if instance.backward else ""
        return f"{who}: {backward}{name}{layer}{microbatch} (row {number})"

    def tensor(self, value: int) -> str:
        """A tensor in words."""
        tensor = self.unrolled.tensors[value]
        who = (
            "single device"
            if self.name == "single"
            else (f"rank {self.programs[tensor.program].base}")
        )
        return f"{who}: {tensor.name or 'tensor'} (tensor {value})"

    def claim(self, instance: Instance) -> Claim | None:
        """What an instance claims by the stored lineages; None if one of them is missing."""
        outputs = [self.lineages[v] for v in instance.outputs]
        present = tuple(x for x in outputs if x is not None)
        if len(present) < len(outputs) or any(
            v >= 0 and self.lineages[v] is None for v in instance.inputs
        ):
            return None
        return Claim(
            instance.kind,
            instance.name,
            instance.attrs,
            instance.backward,
            instance.over,
            len(instance.programs),
            tuple(self.lineages[v] if v >= 0 else None for v in instance.inputs),
            present,
            {**self.programs[instance.programs[0]].extents, MICROBATCH: self.microbatches},
            tuple(self.unrolled.tensors[v].batched for v in instance.inputs if v >= 0),
        )


def live_instances(unrolled: Unrolled, roots: Iterable[int]) -> frozenset[int]:
    """Numbers of the instances that the values ``roots`` depend on.

    Example: all 134 of the parallel side of a Llama with one layer; an operator whose result
    nothing reads is not among them.
    """
    values = set(roots)
    live = set()
    for number in range(len(unrolled.instances) - 1, -1, -1):
        instance = unrolled.instances[number]
        if any(v in values for v in instance.outputs):
            live.add(number)
            values.update(v for v in instance.inputs if v >= 0)
    return frozenset(live)


def check_structure(side: Side, problems: Problems) -> None:
    """Every tensor is written once, before it is read; programs of one instance have the same ranks
    along the same axes, so that what joins their first instances joins all.

    Example: a ``linear`` that reads a tensor before it is received: "... reads what no row before
    it writes".
    """
    written: set[int] = set()
    for number, instance in enumerate(side.unrolled.instances):
        if any(v >= 0 and v not in written for v in instance.inputs):
            problems.add("plan", f"{side.where(number)} reads what no row before it writes")
        for v in instance.outputs:
            if v in written:
                problems.add("plan", f"{side.where(number)} writes {side.tensor(v)} again")
            written.add(v)
        check_members(side, number, problems)
        first = side.programs[instance.programs[0]].axes
        if any(sorted(side.programs[p].axes) != sorted(first) for p in instance.programs):
            problems.add("plan", f"{side.where(number)} joins programs over different mesh axes")
    for value in range(len(side.unrolled.tensors)):
        if value not in written:
            problems.add("plan", f"{side.tensor(value)} is written by no row")


def check_members(side: Side, number: int, problems: Problems) -> None:
    """The members of a collective are the ranks that its group names, along the group's axes.

    Example: an all-reduce of the group along ``tp`` that was matched with a rank of another
    replica: "... joins ranks [0, 2] along {}, its group is of [0] along {'tp': 2}".
    """
    instance = side.unrolled.instances[number]
    if instance.kind not in COLLECTIVES:
        return
    group = instance.attrs.get("group")
    group = group if isinstance(group, Group) else Group()
    ranks = [side.programs[p].base for p in instance.programs]
    named = [*group.ranks] or ranks[:1]
    extents = side.programs[instance.programs[0]].extents
    # An axis of one position joins nobody.
    axes = {axis: extents.get(axis, 0) for axis in group.axes if extents.get(axis) != 1}
    over = {axis: n for axis, n in instance.over if n != 1}
    if sorted(ranks) != sorted(named) or over != axes:
        problems.add(
            "plan",
            f"{side.where(number)} joins ranks {ranks} along {over}, its group is of "
            f"{named} along {axes}",
        )


def check_stages(side: Side, stages: Sequence[StageRecord], problems: Problems) -> None:
    """Every instance is one stage, every live instance is claimed, and what is live is as the run
    says.

    Example: "rank 0: linear in layers.0.attention (row 18) is called dead, but a conclusion depends
    on it".
    """
    seen: set[int] = set()
    instances = side.unrolled.instances
    for stage in stages:
        if not 0 <= stage.row < len(instances):
            problems.add(
                "stage",
                f"a stage for row {stage.row} of the {side.name} side, "
                f"which has {len(instances)} rows",
            )
            continue
        where = side.where(stage.row)
        if stage.row in seen:
            problems.add("stage", f"{where} is in two stages")
        seen.add(stage.row)
        live = stage.row in side.live
        if stage.live != live:
            problems.add(
                "stage",
                f"{where} is called {'live' if stage.live else 'dead'}, but "
                f"{'a' if live else 'no'} conclusion depends on it",
            )
        unclaimed = instances[stage.row].kind in UNCLAIMED
        if unclaimed and stage.template >= 0:
            problems.add("stage", f"{where} has a template, but it claims nothing of its own")
        if stage.problem and (live or stage.template >= 0):
            problems.add("unproved", f"{where} has no obligation: {stage.problem}")
        elif live and not unclaimed and stage.template < 0:
            problems.add("unproved", f"{where} has no obligation, but a conclusion depends on it")
    for number in range(len(instances)):
        if number not in seen:
            problems.add("stage", f"{side.where(number)} is in no stage")
