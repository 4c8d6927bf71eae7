"""Both programs as graphs around a finding: data of a picture that the page draws by itself.

A node is an operator instance; its inputs are the instances that give what it reads.  Nodes of the
two sides are *partners* where their results are views of the same single-device value; where an
operator fails, its partner is the operator of the same name, module and source.  Only what is near
a chosen operator is drawn; all nodes can be searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shardproof.engine.lineage.lineage import Lineage
from shardproof.engine.plan.collectives import COMMUNICATION
from shardproof.engine.plan.ir import MICROBATCH, Program
from shardproof.engine.plan.mesh import ranks_at
from shardproof.engine.records.run import Run
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.specification.gradients import derive
from shardproof.report.html.lineages import describe
from shardproof.report.words import numbers

#: Operators of both sides that a page can hold.
MOST_NODES: Final = 50_000
#: Findings that have a button.
MOST_FINDINGS: Final = 12
#: Ranks of a program that are listed for the search.
MOST_RANKS: Final = 4096
#: What instances are called that compute nothing.
GIVEN_AS: Final = {"shard": "parameter", "load": "batch", "seed": "incoming gradient"}
#: How a node is drawn.
PLAIN, FAILING, STRANGE, MEETING, GIVEN = range(5)


class Sides(NamedTuple):
    """Both sides, unrolled.

    Example: of the GPT of examples/gpt.py, ``single`` with the gradients that were derived, and
    ``parallel`` with one program.
    """

    single: Unrolled
    parallel: Unrolled


def graphs(
    run: Run, parallel: Unrolled, findings: Sequence[Mapping[str, Any]], failing: set[int]
) -> dict[str, Any] | None:
    """The data of the picture; None where nothing is found or the plan is too large.

    Example: ``"findings": [{"text": "add in h.1.mlp ...", "parallel": 101, "single": 93}]``.

    ``failing``: parallel instances that findings name.
    """
    if not findings:
        return None
    single = derive(run.plan, unroll([run.plan.single], 1)).unrolled
    count = len(single.instances) + len(parallel.instances)
    if count > MOST_NODES or len(single.tensors) != len(run.single):
        return None
    sides = Sides(single, parallel)
    partners = _partners(run, sides)
    places = [_place(one, sides, run.plan.programs, partners, failing) for one in findings]
    known = 1 + max((t.node for x in run.single if x is not None for t in x.addends), default=-1)
    batch = frozenset([*run.plan.replica_axes, MICROBATCH])
    ranks = [run.plan.programs[i.programs[0]] for i in parallel.instances]
    marked = {row for place in places for row in (place["parallel"],) if row >= 0}
    back = {mine: theirs for theirs, mine in reversed(list(enumerate(partners))) if mine >= 0}
    wrong = run.certificate.verdict != "proved"
    trained = {s.name for s in run.plan.single.shards if s.trainable}
    return {
        "single": _side(
            single,
            run.single,
            [back.get(n, -1) for n in range(len(single.instances))],
            lambda n: "one device",
            lambda lineage: describe(lineage, batch, known),
            set(),
            trained,
        ),
        "parallel": _side(
            parallel,
            run.parallel,
            partners,
            lambda n: f"ranks {numbers(_ranks(ranks[n]))}",
            lambda lineage: describe(lineage, batch, known if wrong else len(run.nodes)),
            marked | failing,
            trained,
        ),
        "ranks": {f"ranks {numbers(_ranks(p))}": _ranks(p) for p in run.plan.programs},
        "findings": [p for p in places if p["parallel"] >= 0][:MOST_FINDINGS],
        "count": count,
    }


def _ranks(program: Program) -> list[int]:
    return sorted(ranks_at(program, {}))[:MOST_RANKS]


# -- nodes -----------------------------------------------------------------------------------------


class _Words:
    """Words by number, each kept once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, word: str) -> int:
        return self.numbers.setdefault(word, len(self.numbers))

    def __iter__(self) -> Any:
        return iter(self.numbers)


def _side(
    unrolled: Unrolled,
    lineages: Sequence[Lineage | None],
    partners: Sequence[int],
    who: Any,
    what: Any,
    failing: set[int],
    trained: set[str],
) -> dict[str, Any]:
    """Nodes as lists of numbers: operator, module, source, ranks, result, shape, status, partner,
    inputs; the words that the first six stand for."""
    words = _Words()
    makers = {v: n for n, i in enumerate(unrolled.instances) for v in i.outputs}
    nodes = []
    for number, instance in enumerate(unrolled.instances):
        kind, result = "unknown", ""
        shape: tuple[int, ...] = ()
        if instance.outputs:
            kind, result = what(lineages[instance.outputs[0]])
            shape = unrolled.tensors[instance.outputs[0]].shape
        module, name = instance.source.module, label(instance)
        if instance.outputs and instance.kind in GIVEN_AS:
            module = unrolled.tensors[instance.outputs[0]].name
            name = "input" if instance.kind == "shard" and module not in trained else name
        inputs = dict.fromkeys(makers[v] for v in instance.inputs if v in makers)
        nodes.append(
            [
                words(name),
                words(module),
                words(instance.source.location or instance.source.cell),
                words(who(number)),
                words(result),
                words(" × ".join(map(str, shape)) or "a number"),
                _status(instance, kind, number in failing),
                partners[number],
                list(inputs),
            ]
        )
    return {"words": list(words), "nodes": nodes}


def label(instance: Instance) -> str:
    """What a node is called: the operator, or what is given.

    Example: "embedding", "backward of gelu", "parameter".
    """
    if instance.kind in GIVEN_AS:
        return GIVEN_AS[instance.kind]
    return f"backward of {instance.name}" if instance.backward else instance.name or instance.kind


def _status(instance: Instance, kind: str, failing: bool) -> int:
    if failing:
        return FAILING
    if instance.kind in GIVEN_AS:
        return GIVEN
    if kind == "other":
        return STRANGE
    return MEETING if instance.kind in COMMUNICATION else PLAIN


# -- partners --------------------------------------------------------------------------------------


def _partners(run: Run, sides: Sides) -> list[int]:
    """For every parallel instance the single side's of whose result its own is a view (or -1)."""
    made: dict[Any, int] = {}
    for number, instance in enumerate(sides.single.instances):
        for value in instance.outputs:
            made.setdefault(_essence(run.single[value]), number)
    made.pop(None, None)
    partners = []
    for instance in sides.parallel.instances:
        keys = (_essence(run.parallel[v]) for v in instance.outputs)
        partners.append(next((made[key] for key in keys if key in made), -1))
    return partners


def _essence(lineage: Lineage | None) -> Any:
    if lineage is None or not lineage.addends:
        return None
    return frozenset(t.node for t in lineage.addends)


def _key(instance: Instance) -> tuple[str, str, str, bool]:
    source = instance.source
    return instance.name, source.module, source.location, instance.backward


def _place(
    one: Mapping[str, Any],
    sides: Sides,
    programs: Sequence[Program],
    partners: Sequence[int],
    failing: Iterable[int],
) -> dict[str, Any]:
    """Where a finding is in both graphs: instances (-1: nowhere)."""

    def runs(number: int) -> bool:
        own = sides.parallel.instances[number].programs
        return not one["ranks"] or any(programs[p].base in one["ranks"] for p in own)

    instances = sides.parallel.instances
    rows = [
        n
        for n in sorted(failing)
        if label(instances[n]) == one["operator"] and runs(n) and _at(one, instances[n])
    ]
    if not rows and one["source"]:
        # A finding about a result: the last operator of its source line makes it.
        rows = [n for n, i in enumerate(instances) if _at(one, i) and runs(n)][-1:]
    if not rows:
        return {"text": one["message"], "parallel": -1, "single": -1}
    row = rows[0]
    return {
        "text": one["message"],
        "parallel": row,
        "single": _counterpart(instances[row], row, sides, partners),
    }


def _at(one: Mapping[str, Any], instance: Instance) -> bool:
    return one["source"] in ("", instance.source.location, instance.source.cell)


def _counterpart(instance: Instance, row: int, sides: Sides, partners: Sequence[int]) -> int:
    """The single side's operator in the place of one that fails."""
    own = sides.single.instances
    if partners[row] >= 0:
        return partners[row]
    alike = [n for n, i in enumerate(own) if _key(i) == _key(instance)]
    if alike:
        return alike[0]
    # What reads there what this one reads here.
    makers = {v: n for n, i in enumerate(sides.parallel.instances) for v in i.outputs}
    read = {partners[makers[v]] for v in instance.inputs if v in makers} - {-1}
    values = {v for n in read for v in own[n].outputs}
    readers = [n for n, i in enumerate(own) if not values.isdisjoint(i.inputs)]
    named = [n for n in readers if own[n].name == instance.name]
    return (named or readers or sorted(read) or [-1])[0]
