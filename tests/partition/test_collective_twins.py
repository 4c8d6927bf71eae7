"""The table of collectives and the rank-by-rank runtime say the same, each in its own words.

Random groups of explicit ranks and mesh axes, with random roots, dimensions, shapes and reductions:
where the engine runs a collective, every rank has what the runtime gives it, its lineage is true
and its obligation holds; where the engine finds a contradiction, ranks are stuck; what is stuck,
the engine does not run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.obligations import obligation
from shardproof.engine.obligations.spot_check import holds
from shardproof.engine.plan import collectives
from shardproof.engine.plan.collectives import TABLE, Effect, Wire
from shardproof.engine.plan.ir import (
    Attr,
    Body,
    Call,
    Group,
    Op,
    Plan,
    Program,
    Shard,
    Value,
    whole,
)
from shardproof.engine.plan_files import wellformed
from shardproof.engine.reference_runtime import exchange, runtime, values
from shardproof.engine.reference_runtime.lots import exact
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation import replay, trace_axes
from shardproof.engine.simulation.inputs import Inputs
from shardproof.mutation.evaluate import TrueSizes
from shardproof.partition.inference import trace
from shardproof.partition.stages.lowering import obligations
from shardproof.partition.stages.partition import partition
from tests.partition.truth import truth

#: Value numbers of every body: the batch, the loss, the operand, the result.
BATCH, LOSS, OWN, OUT = range(4)
COLUMNS = 2
#: Kinds of rows whose results are compared; a chunk is a slice by then.
JOINED = collectives.COLLECTIVES | {"slice"}


# -- each declaration has each rule
# -----------------------------------------------------------------


def test_every_collective_has_every_rule() -> None:
    """The table is what prover, obligations and simulation go by: none of them lacks an effect."""
    joined = {TABLE[name].effect for name in collectives.COLLECTIVES}
    assert joined == {
        Effect.TOTAL,
        Effect.GATHER,
        Effect.SCATTER,
        Effect.EXCHANGE,
        Effect.COPY,
    }
    assert set(trace.RULES) == set(trace_axes.RULES) == joined
    # What only hands a value on claims nothing, and the simulation moves it.
    assert set(obligation.RULES) == set(replay.RULES) == joined - {Effect.COPY}
    for name, declared in TABLE.items():
        assert name == declared.name
        assert ("root" in declared.attrs) == bool(declared.root)
        assert ("group" in declared.attrs) == (
            declared.wire is Wire.GROUP or declared.effect is Effect.PART
        )
        assert ("peer" in declared.attrs) == (declared.wire in (Wire.SEND, Wire.RECEIVE, Wire.POST))
        assert bool(declared.divides) == (
            declared.effect in (Effect.SCATTER, Effect.EXCHANGE, Effect.PART)
        )
        assert bool(declared.joins) == (declared.effect in (Effect.GATHER, Effect.EXCHANGE))
    assert set(obligation.SCATTERS) == {"reduce_scatter", "all_to_all"}


def test_the_runtime_declares_the_same_by_itself() -> None:
    said = {**exchange.COLLECTIVES, **exchange.OTHERS}
    assert {name: set(attrs) for name, attrs in said.items()} == {
        name: set(declared.attrs) for name, declared in TABLE.items()
    }


# -- random cases
# -----------------------------------------------------------------------------------


@dataclass
class Case:
    """A collective over some ranks: the plan, and which programs issue it."""

    plan: Plan
    what: str


def laid_out(rng: Random) -> list[Program]:
    """Programs on a mesh, as yet without bodies."""
    axes = rng.choice([(), (), (2,), (3,), (2, 2), (1, 2)])
    count = rng.choice([1, 2, 3, 4]) if not axes else rng.choice([1, 1, 2])
    outside = rng.random() < 0.5  # programs beside each other, or each in a block of its own
    step, named = (count if outside else 1), []
    for name, extent in zip("ab", axes, strict=False):
        named.append((name, extent, step))
        step *= extent
    bases = [i if outside else i * step for i in range(count)]
    return [Program("", (), (), base=base, axes=tuple(named)) for base in bases]


def case(rng: Random) -> Case:
    programs = laid_out(rng)
    name = rng.choice(sorted(collectives.COLLECTIVES | {"chunk"}))
    bases = [program.base for program in programs]
    ranks = tuple(rng.sample(bases, rng.randint(1, len(bases))))
    axes = tuple(a for a, _, _ in programs[0].axes if rng.random() < 0.7)
    if rng.random() < 0.05:
        ranks += ranks[:1]
    rows = rng.choice([1, 2, 3, 4, 6])
    root = rng.choice(ranks) if rng.random() < 0.9 else rng.choice([*bases, 99])
    dims = [rng.choice([0, 1, 0, 1, 2]) for _ in range(2)]
    kind = rng.choice(["sum", "max", ""])
    placed = rng.sample(range(9), len(programs)) if rng.random() < 0.3 and not axes else []
    made = []
    for number, program in enumerate(programs):
        joins = program.base in ranks
        attrs: dict[str, Attr] = {
            "group": Group(ranks if rng.random() < 0.9 else ranks[::-1], axes)
        }
        here = [d - 2 if rng.random() < 0.3 else d for d in dims]
        declared = TABLE[name].attrs
        attrs |= {k: d for k, d in zip(("dim", "concat_dim"), here, strict=True) if k in declared}
        if "split_dim" in declared:
            attrs["split_dim"] = here[0]
        if "root" in declared:
            attrs["root"] = root
        if "position" in declared and placed:
            attrs["position"] = placed[number]
        if "op" in declared and kind and not (kind == "sum" and rng.random() < 0.5):
            attrs["op"] = kind
        height = rows + (rng.random() < 0.1)
        members = len(set(ranks))
        for _, extent, _ in (a for a in program.axes if a[0] in axes):
            members *= extent
        made.append(_program(program, name, attrs, height, members, joins))
    return Case(_plan(made), f"{name} {made[0].axes} {ranks} {axes} root {root} {dims} {kind}")


def _program(
    laid: Program, name: str, attrs: dict[str, Attr], rows: int, members: int, joins: bool
) -> Program:
    gives = TABLE[name].root != "gives" or laid.axes or attrs["root"] == laid.base
    takes = TABLE[name].root != "takes" or laid.axes or attrs["root"] == laid.base
    local = (rows, COLUMNS)
    values = (Value((1,)), Value((1,)), Value(local), Value(_result(name, attrs, local, members)))
    ops = [Op("load_batch", (), (BATCH,)), Op("identity", (BATCH,), (LOSS,))]
    if joins:
        ops.append(Op(name, (OWN,) if gives else (), (OUT,) if takes else (), attrs))
    start, count = affine(0), 1
    for axis, extent, _ in laid.axes:
        start = start * extent + affine(0, {axis: 1})
        count *= extent
    shard = Shard(
        f"p{laid.base}", (rows * count, COLUMNS), local, (start * rows, ZERO), trainable=False
    )
    body = Body("body", values, tuple(ops), (), (LOSS,), shards=((OWN, 0),), losses=(LOSS,))
    return Program(
        f"rank {laid.base}", (body,), (Call(0, (), (0,), 0),), (shard,), laid.base, laid.axes
    )


def _result(name: str, attrs: dict[str, Attr], local: tuple[int, ...], members: int) -> Any:
    """The shape that the result should have, where there is one."""
    shape = list(local)
    for key, grows in (("dim", name == "all_gather"), ("split_dim", False), ("concat_dim", True)):
        dim = attrs.get(key)
        if isinstance(dim, int) and -2 <= dim < 2:
            shape[dim] = shape[dim] * members if grows else -(-shape[dim] // members)
    return tuple(shape)


def _plan(programs: list[Program]) -> Plan:
    shards = tuple(
        whole(s.name, s.full_shape, trainable=False) for program in programs for s in program.shards
    )
    values = (Value((1,)), Value((1,)))
    ops = (Op("load_batch", (), (BATCH,)), Op("identity", (BATCH,), (LOSS,)))
    body = Body("body", values, ops, (), (LOSS,), losses=(LOSS,))
    single = Program("single", (body,), (Call(0, (), (0,), 0),), shards)
    return Plan("case", single, tuple(programs), 1)


Results = dict[tuple[int, tuple[tuple[str, int], ...]], Any]


def _engine(plan: Plan) -> tuple[str, Results, Inputs | None]:
    """What the engine says: "runs" with every rank's result, or why not."""
    try:
        wellformed.check(plan)
    except InvalidInput:
        return "malformed", {}, None
    found = partition(plan)
    if found.unsupported:
        return "no rule", {}, None
    if found.faults:
        return "contradiction", {}, None
    single, parallel = unroll([plan.single], 1), unroll(plan.programs, 1)
    reads = trace_axes.Recorder(plan, single, parallel)
    first, second = reads.run([plan.single], single), reads.run(plan.programs, parallel)
    every = frozenset(a for p in plan.programs for a, _, _ in p.axes)
    sizes = TrueSizes(plan, reads, first, second, every, 0)
    inputs = Inputs(sizes, rotary=frozenset(), tables=frozenset(), random=np.random.default_rng(7))
    many = replay.Replay(plan.programs, parallel, sizes, second, inputs)
    many.run()
    results: Results = {}
    for instance in parallel.instances:
        for value in instance.outputs if instance.kind in JOINED else ():
            program = parallel.tensors[value].program
            for at, weighted in many.values[value].items():
                results[program, tuple(sorted(at))] = weighted.data
    assert not truth(plan).wrong
    goals = obligations(found)
    for (side, instance), stated in zip(found.examples, goals, strict=True):
        weighted = found.side(side)
        terms = [
            t
            for v in weighted.unrolled.instances[instance].outputs
            for t in weighted.lineages[v].addends
        ]
        # A value that only the parallel side has is a name: its obligation says nothing.
        assert holds(stated) or any(t.node >= found.reference_size for t in terms)
    return "runs", results, inputs


def _runtime(plan: Plan, inputs: Inputs | None) -> tuple[str, Results]:
    given = values.Values(plan, np.random.default_rng(0))
    for shard in plan.single.shards if inputs else ():
        data = inputs.parameter(shard.name).data  # type: ignore[union-attr]
        given.lots[shard.name] = exact(data)
    ranks = {}
    for crew in runtime.crews(plan, given, together=False):
        crew.kept[0] = {OUT}
        ranks[crew.number, tuple(sorted(crew.places[0].items()))] = crew
    try:
        runtime.execute(list(ranks.values()))
    except Unsupported:
        return "no rule", {}
    except (exchange.Stuck, ShapeMismatch):
        return "stuck", {}
    held = {key: crew.contexts[0][0].get(OUT) for key, crew in ranks.items() if crew.contexts}
    return "runs", {key: value.data[0] for key, value in held.items() if value is not None}


@pytest.mark.parametrize("seed", range(4))
def test_the_two_agree_on_random_collectives(seed: int) -> None:
    rng = Random(seed)
    seen: Counter[tuple[str, str]] = Counter()
    for _ in range(150):
        made = case(rng)
        said, expected, inputs = _engine(made.plan)
        ran, found = _runtime(made.plan, inputs)
        seen[said, made.what.split()[0]] += 1
        if said == "runs":
            assert ran == "runs", made.what
            assert found.keys() <= expected.keys(), made.what
            for key, value in found.items():
                np.testing.assert_allclose(expected[key], value, err_msg=made.what)
        elif said == "contradiction":
            undefined = any(np.isnan(value).any() for value in found.values())
            assert ran == "stuck" or undefined, made.what
        if ran != "runs" or any(np.isnan(value).any() for value in found.values()):
            assert said != "runs", made.what
    for name in (*collectives.COLLECTIVES, "chunk"):
        assert seen["runs", name] >= 2, (name, seen)
    assert sum(n for (said, _), n in seen.items() if said == "contradiction") >= 5, seen
    assert seen["no rule", "reduce"], seen
