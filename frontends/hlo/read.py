"""From text of HLO to a graph, and from two of them to a plan: what the bounded child does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.plan_files import store
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.graphs import constants
from shardproof.frontends.graphs.graph import Graph, Placement
from shardproof.frontends.graphs.recorder import Array, Recorder, mesh_of, programs
from shardproof.frontends.graphs.replayed import NOT_REPLAYED
from shardproof.frontends.graphs.sides import Side, as_many, placed_inputs, placed_outputs, plan
from shardproof.frontends.hlo import borders, inline, orders, places, stablehlo, text, turned
from shardproof.frontends.hlo.divided import divided
from shardproof.frontends.hlo.expressions import Expressions
from shardproof.frontends.hlo.flattened import unflattened
from shardproof.frontends.hlo.folded import unfolded
from shardproof.frontends.hlo.frontend import STABLE
from shardproof.frontends.hlo.hides import endless
from shardproof.frontends.hlo.late import divided_late
from shardproof.frontends.hlo.lower import lower
from shardproof.frontends.hlo.marks import marked
from shardproof.frontends.hlo.related import with_relations
from shardproof.frontends.hlo.residues import narrowed
from shardproof.frontends.hlo.stacks import stacks
from shardproof.frontends.hlo.state import REFUSED, Lowering, Other
from shardproof.frontends.untrusted.inert import printable

#: Numbers that are longer are refused; the digits of an array in hexadecimal are no number.
MOST_DIGITS = 4000
LONG = re.compile(rf"(?<![0-9A-Fa-fx])\d{{{MOST_DIGITS + 1}}}")


def read(path: str, *, partitioned: bool = False) -> Graph:
    """The graph in a file, which must be ``partitioned`` if it stands for ranks; raises
    `UnreadablePlan` naming the file and the line.

    Example: ``ring.parallel.hlo`` of the tests is a graph on four ranks, of dots, dynamic slices
    and collective permutes.
    """
    name = printable(path, 400)
    try:
        with Path(path).open("rb") as file:
            data = file.read(text.MOST_BYTES + 1)
    except OSError as error:
        raise UnreadablePlan(f"expected a readable file, found: {error.strerror}", name) from None
    try:
        return parsed(data.decode(), partitioned=partitioned)
    except UnicodeDecodeError as error:
        raise UnreadablePlan("expected text in UTF-8", f"{name}, byte {error.start}") from None
    except InvalidInput as error:
        raise error.within(name) from None
    except Unsupported as error:
        raise UnreadablePlan(f"not supported: {error}", name) from None


def parsed(data: str, *, partitioned: bool = False) -> Graph:
    """The graph of HLO or StableHLO text.

    Example: text that begins with ``HloModule m, num_partitions=8`` is a graph on eight ranks; a
    module before XLA's partitioner is refused as the ``partitioned`` side.
    """
    if LONG.search(data):
        raise UnreadablePlan(f"a number of more than {MOST_DIGITS} digits")
    stable = STABLE.match(data[: 1 << 12].encode())
    module = borders.within(stablehlo.parse(data) if stable else text.parse(data))
    if partitioned and module.partitions == 1 and borders.unpartitioned(module):
        raise UnreadablePlan(
            "expected what one rank runs, found a program before XLA's partitioner; have XLA write "
            "it: --xla_dump_to=FOLDER --xla_dump_hlo_pass_re=spmd-partition.*"
        )
    return inline.graph(module)


def pair(single: str, parallel: str, relations: str) -> bytes:
    """The plan of two files, as bytes; ``relations``: a file that states more (or empty).  Made to
    be called in a bounded child.

    Example: ``mlp.single.hlo`` and ``mlp.parallel.hlo`` of the tests: one program along axes of 2
    and 4, and rows of the table for the loss and two gradients.
    """
    alone, ranks = both(single, parallel, relations)
    try:
        made = joined(alone, ranks, "plan")
    except InvalidInput as error:
        raise error.within(printable(parallel, 400)) from None
    return store.to_bytes(made)


def both(single: str, parallel: str, relations: str) -> tuple[Graph, Graph]:
    """The graphs of two files, with what a relations file states (or without one, if empty).

    Example: ``mlp.single.hlo`` and ``mlp.parallel.hlo`` of the tests: graphs on one rank and eight.
    """
    return with_relations(read(single), read(parallel, partitioned=True), relations)


def tables(single: str, parallel: str, relations: str) -> bytes:
    """The numbers of constants that both files have, by the name that the plan has for each, as
    bytes.  Made to be called in a bounded child.

    Example: of the causal attention ``block`` in the tests, "constant 0", its mask of 6 by 6.
    """
    _, alone, _ = paired(*both(single, parallel, relations), "plan")
    return constants.to_bytes(contents(alone.recorder))


def contents(recorder: Recorder) -> dict[str, Array]:
    """The constants of unlike numbers of the single side, by the name that the plan has for each.
    Example: a causal mask of six positions is "constant 0"."""
    constants = enumerate(recorder.constants)
    return {f"constant {n}": c.arrays[0] for n, c in constants if not c.drawn}


def joined(
    single: Graph,
    parallel: Graph,
    name: str,
    inputs: Sequence[Placement | None] = (),
    outputs: Sequence[Placement | None] = (),
) -> Plan:
    """The plan of two graphs; ``inputs``, ``outputs``: placements that somebody states beside the
    files, by position (None: as the file says).

    Example: placements from ``jax``, which knows where its arguments lie, instead of those in the
    text.
    """
    return paired(single, parallel, name, inputs, outputs)[0]


def paired(
    single: Graph,
    parallel: Graph,
    name: str,
    inputs: Sequence[Placement | None] = (),
    outputs: Sequence[Placement | None] = (),
) -> tuple[Plan, Side, Side]:
    """As `joined`, with what each side was lowered to.

    Example: of ``mlp`` in the tests, the plan, the side of one device and the side of eight.
    """
    if single.ranks != 1:
        raise InvalidInput(f"the single side is of {single.ranks} devices, expected 1")
    as_many("inputs", len(parallel.inputs), len(single.inputs))
    if inputs:
        parallel = replace(
            parallel,
            inputs=tuple(
                replace(i, placement=p or i.placement)
                for i, p in zip(parallel.inputs, inputs, strict=True)
            ),
        )
    if outputs:
        parallel = replace(
            parallel,
            outputs=tuple(
                replace(o, placement=p or o.placement)
                for o, p in zip(parallel.outputs, outputs, strict=True)
            ),
        )
    try:
        single, parallel = unflattened(marked(single)), unflattened(parallel)
        single, remainders = narrowed(single, parallel)
        given, single = single, divided_late(single, parallel)
        stacked = stacks(single, parallel)
        parallel, rounded = unfolded(single, parallel)
        rounded = (*rounded, *remainders)
        made, lowered = _lowered(single, parallel, name, stacked, rounded)
        if orders.is_divided(lowered[0].recorder, lowered[1].recorder):
            made, lowered = _lowered(single, parallel, name, stacked, rounded, by_order=True)
        for read in endless(*lowered):
            sides, notes = (read.single, read.parallel), (*rounded, *read.assumed)
            other, again = _lowered(*sides, name, stacked, notes, by_order=True)
            if not any(REFUSED in op.name for low in again for op in low.recorder.ops):
                alone = replace(other[1], graph=given)
                return other[0], alone, _as_given(other[2], parallel)
        return made[0], replace(made[1], graph=given), made[2]
    except Unsupported as error:
        raise InvalidInput(f"not supported: {error}") from None


def _lowered(
    single: Graph,
    parallel: Graph,
    name: str,
    stacked: frozenset[int],
    notes: Sequence[Assumption],
    by_order: bool = False,
) -> tuple[tuple[Plan, Side, Side], tuple[Lowering, Lowering]]:
    """The plan of two graphs with its sides, and how each was lowered; ``notes``: what is assumed
    already; ``by_order``: causal masks are no constants."""
    expressions = Expressions()
    windows = divided(single, parallel)
    turns = turned.shifts(single) & turned.shifts(parallel)
    beside = Other(windows=windows, by_order=by_order, turns=turns)
    alone, results, domains = lower(single, None, stacked, expressions, beside)
    parallel, inferred = placed_inputs(single, parallel)
    parallel, assumptions = places.with_output_places(single, parallel, domains)
    parallel, others_inferred = placed_outputs(single, parallel)
    notes = (*notes, *inferred, *assumptions, *others_inferred)
    tables = list(contents(alone.recorder).values())
    masks = {op.outputs[0] for op in alone.recorder.ops if op.name == "create_mask"}
    causal = tuple(sorted({alone.recorder.shape(mask)[-1] for mask in masks}))
    beside = Other(tables, windows, by_order, causal, turns)
    other, others, _ = lower(parallel, domains, stacked, expressions, beside)
    one = Side(single, alone.recorder, tuple(results))
    many = Side(parallel, other.recorder, tuple(others))
    made = plan(name, one, many, notes)
    made = replace(made, notes=(NOT_REPLAYED, *made.notes))
    return (made, one, many), (alone, other)


def _as_given(side: Side, graph: Graph) -> Side:
    """A side with the operators of another graph: replayed is what the file says."""
    return replace(side, graph=replace(side.graph, nodes=graph.nodes))


def side(path: str) -> bytes:
    """One file as the parallel side of a plan without a single one, as bytes.

    Example: ``shardproof inspect mlp.parallel.hlo``: eight ranks along axes of 2 and 4, 39
    operators.
    """
    graph = read(path, partitioned=True)
    lowering, _, _ = lower(graph)
    placements = [h.placement for h in lowering.recorder.placed]
    made = programs(lowering.recorder, mesh_of(lowering.recorder, placements), (), "ranks")
    empty = Program("none", (), ())
    return store.to_bytes(Plan("plan", empty, made, microbatches=1))
