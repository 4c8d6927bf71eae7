"""Two lowered graphs as a plan: inputs paired by position, a row of the table for every output.

What is not stated of inputs and outputs is inferred by shape, and printed as an assumption.  Equal
shapes are equal on all ranks.  An output lies as all inputs of its shape do.  A shape that is
smaller along one dimension, as often as there are ranks, is divided along it in the order of ranks.
Nothing else is inferred; permuted, scaled and partial values never.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Addend, Expectation, Plan, Source
from shardproof.frontends.graphs.graph import Graph, Input, Output, Placement, Shape
from shardproof.frontends.graphs.mesh import Mesh
from shardproof.frontends.graphs.recorder import (
    Constant,
    PlacedInput,
    Recorded,
    Recorder,
    everywhere,
    holds,
    inside,
    mesh_of,
    offsets,
    programs,
    without_dead,
)


@dataclass(frozen=True, slots=True)
class Side:
    """A graph, what it was lowered to, and the values of its outputs there.

    Example: the single side of ``mlp`` in the tests, whose outputs are the values of the loss and
    two gradients.
    """

    graph: Graph
    recorder: Recorder
    outputs: tuple[int, ...]


def placed_inputs(single: Graph, parallel: Graph) -> tuple[Graph, tuple[Assumption, ...]]:
    """``parallel`` with the single side's names and a placement for every input, and what was
    inferred; raises `InvalidInput` where nothing says which part of the single side's it is.

    Example: [4, 4] on each of two ranks where the single side has ``x`` of [8, 4] is "x is divided
    along dimension 0 in the order of ranks"; [2, 2] is refused.
    """
    notes: list[Assumption] = []
    as_many("inputs", len(parallel.inputs), len(single.inputs))
    inputs = tuple(
        replace(
            own,
            name=other.name,
            placement=_place(single, parallel, own, other, notes),
            mark=other.mark,
        )
        for own, other in zip(parallel.inputs, single.inputs, strict=True)
    )
    return replace(parallel, inputs=inputs), tuple(notes)


def placed_outputs(single: Graph, parallel: Graph) -> tuple[Graph, tuple[Assumption, ...]]:
    """As `placed_inputs`, of outputs.

    Example: an output [4, 4] of [8, 4] "lies as the inputs of its shape do".
    """
    notes: list[Assumption] = []
    as_many("outputs", len(parallel.outputs), len(single.outputs))
    outputs = tuple(
        replace(own, name=other.name, placement=_place(single, parallel, own, other, notes))
        for own, other in zip(parallel.outputs, single.outputs, strict=True)
    )
    return replace(parallel, outputs=outputs), tuple(notes)


def as_many(what: str, ours: int, theirs: int) -> None:
    """Raise `InvalidInput` where one side has more inputs, or outputs, than the other.

    Example: a program that never reads ``x``, which JAX drops then, beside one that does: "the
    parallel side has 1 inputs, the single side 2".
    """
    if ours != theirs:
        raise InvalidInput(f"the parallel side has {ours} {what}, the single side {theirs}")


def _place(
    single: Graph,
    parallel: Graph,
    own: Input | Output,
    other: Input | Output,
    notes: list[Assumption],
) -> Placement:
    value, full = parallel.values[own.value], single.values[other.value]
    name, placement = other.name, own.placement
    integers = [v.dtype.startswith(("int", "uint", "bool")) for v in (value, full)]
    if integers[0] != integers[1]:
        raise InvalidInput(f"{value.dtype} on the parallel side, {full.dtype} on the single", name)
    if placement is not None:
        if placement.full != full.shape:
            raise InvalidInput(
                f"its parts make a tensor of {list(placement.full)}, the single side has "
                f"{list(full.shape)}",
                name,
            )
        return placement
    if value.shape == full.shape:
        if parallel.ranks > 1 and isinstance(own, Input):
            notes.append(_inferred(name, f"{name} is all of it on every rank, as its shape is"))
        return everywhere(full.shape, parallel.ranks)
    alike = {
        i.placement
        for i in parallel.inputs
        if i.placement is not None
        and (i.placement.full, parallel.values[i.value].shape) == (full.shape, value.shape)
    }
    if isinstance(own, Output) and len(alike) == 1:
        notes.append(_inferred(name, f"{name} lies as the inputs of its shape do"))
        return alike.pop()
    cut = _divided(value.shape, full.shape, parallel.ranks)
    if cut is None:
        raise InvalidInput(
            f"nothing states which part of {list(full.shape)} the parallel side's "
            f"{list(value.shape)} is",
            name,
        )
    notes.append(_inferred(name, f"{name} is divided along dimension {cut} in the order of ranks"))
    size = value.shape[cut]
    starts = tuple(
        tuple(rank * size if d == cut else 0 for d in range(len(full.shape)))
        for rank in range(parallel.ranks)
    )
    return Placement(full.shape, starts)


def _inferred(name: str, text: str) -> Assumption:
    return Assumption("inferred", name, "", text)


def _divided(part: Shape, full: Shape, ranks: int) -> int | None:
    """The one dimension that is ``ranks`` times as large in full."""
    if len(part) != len(full):
        return None
    other = [d for d in range(len(full)) if part[d] != full[d]]
    if len(other) != 1 or part[other[0]] * ranks != full[other[0]]:
        return None
    return other[0]


def plan(name: str, single: Side, parallel: Side, notes: Sequence[Assumption] = ()) -> Plan:
    """The plan of two lowered graphs; ``parallel.graph`` has a placement for every input and
    output.

    Example: of two ranks on one mesh axis, one program "parallel" with that axis and a row of the
    table for every output.
    """
    for side in (single, parallel):
        without_dead(side.recorder, side.outputs)
    _constants(single.recorder, parallel.recorder)
    of_inputs = [h.placement for h in parallel.recorder.placed]
    results = [o.placement for o in parallel.graph.outputs]
    placements = [p for p in results if p is not None]
    mesh = mesh_of(parallel.recorder, [*of_inputs, *placements], parallel.graph.axes)
    alone = programs(single.recorder, Mesh((), ()), single.outputs, "single")
    ranks = programs(parallel.recorder, mesh, parallel.outputs, "parallel")
    assumed = dict.fromkeys((*notes, *single.recorder.notes, *parallel.recorder.notes))
    return Plan(
        name,
        alone[0],
        ranks,
        microbatches=1,
        assumed=tuple(assumed),
        expectations=tuple(_rows(single, parallel, mesh)),
    )


def _rows(single: Side, parallel: Side, mesh: Mesh) -> Iterator[Expectation]:
    """One row for every output and program."""
    bases = mesh.bases() if mesh.extents else [0]
    for number, output in enumerate(parallel.graph.outputs):
        own = (Addend(0, 0, single.outputs[number]),)
        for index, base in enumerate(bases):
            if output.placement is None:
                raise InvalidInput("nothing states where it lies", f"output {output.name}")
            addends = (Addend(index, 0, parallel.outputs[number]),)
            yield Expectation(
                "output", output.name, own, addends, offsets(output.placement, mesh, base)
            )


# -- constants ---------------------------------------------------------------------------------


def _constants(single: Recorder, parallel: Recorder) -> None:
    """Tensors of unlike numbers become named inputs of both sides: of the parallel side, a box of
    one of the single side's with the very same numbers, or, where there is none, an input that the
    single side does not read.  A proof then holds for any numbers."""
    known: list[tuple[str, Constant]] = []
    for number, constant in enumerate(single.constants):
        name = f"{'random' if constant.drawn else 'constant'} {number}"
        known.append((name, constant))
        (array,) = constant.arrays
        single.placed.append(_constant_input(single, constant, name, everywhere(array.shape, 1)))
    used: set[str] = set()
    numbers = count(len(known))
    parts = [c for c in parallel.constants if c.begins]
    cuts = [_matching_box(constant, known, parallel.ranks) for constant in parts]
    names = {cut[0] for cut in cuts if cut is not None}
    for constant in parallel.constants:
        # Numbers that say nothing of where they begin are rather of a table of which none do.
        first = known if constant.begins else sorted(known, key=lambda one: one[0] in names)
        cut = _matching_box(constant, first, parallel.ranks)
        if cut is None and constant.drawn:
            cut = _one_of_several(parallel, constant, known)
        if cut is None and constant.drawn:
            cut = _side_by_side(single, constant, known, used)
        if cut is None and constant.drawn:
            parallel.refuse(constant.value, "random numbers that the single side does not hold")
            continue
        name, full, placement = cut or _alone(single, constant, next(numbers), parallel.ranks)
        if cut is None:
            known.append((name, full))
        used.add(name)
        # A part of a table may be 0 and 1 where the whole is not: it is a part of the whole.
        value = parallel.values[constant.value]
        parallel.values[constant.value] = replace(value, dtype=single.values[full.value].dtype)
        constant.domain = full.domain
        parallel.placed.append(_constant_input(parallel, constant, name, placement))


def _one_of_several(
    parallel: Recorder, constant: Constant, known: Sequence[tuple[str, Constant]]
) -> tuple[str, Constant, Placement] | None:
    """Numbers that a rank draws as one of several tensors that the single side draws as one: the
    rank's is a view of its box there.  None: it is none of these.

    Example: masks of dropout ``[2, 4, 8]`` that ``vmap`` draws by ``fold_in(key, i)`` for both i,
    where a rank draws ``[4, 8]`` by ``fold_in(key, rank)``.
    """
    shape = constant.arrays[0].shape
    for dim in range(len(shape) + 1):
        wide = (*shape[:dim], 1, *shape[dim:])
        arrays = tuple(array.reshape(wide) for array in constant.arrays)
        cut = _matching_box(replace(constant, arrays=arrays), known, parallel.ranks)
        if cut is not None:
            value = parallel.value(wide, parallel.values[constant.value].dtype, "random")
            own = Recorded("view", (value,), (constant.value,), {"size": shape}, Source())
            parallel.ops.insert(0, own)
            constant.value, constant.arrays = value, arrays
            return cut
    return None


def _side_by_side(
    single: Recorder, constant: Constant, known: list[tuple[str, Constant]], used: Container[str]
) -> tuple[str, Constant, Placement] | None:
    """Numbers that the single side draws one tensor after the other, and every rank one of these:
    the single side's tensors become slices of one input. None: some rank has others.

    Example: masks of dropout for rows 0 to 3 and rows 4 to 7, by ``fold_in(key, 0)`` and
    ``fold_in(key, 1)``, where a rank draws its own by ``fold_in(key, rank)``.
    """
    shape = constant.arrays[0].shape
    chosen = []
    for array in constant.arrays:
        alike = (
            n
            for n, (name, whole) in enumerate(known)
            if whole.drawn
            and name not in used
            and whole.domain == constant.domain
            and np.array_equal(whole.arrays[0], array)
        )
        chosen.append(next(alike, -1))
    places = list(dict.fromkeys(chosen))
    if -1 in places or len(places) < 2 or not shape:
        return None
    parts = [known[n] for n in places]
    name, first = parts[0]
    array = np.concatenate([part.arrays[0] for _, part in parts])
    dtype = single.values[first.value].dtype
    full = replace(first, value=single.value(array.shape, dtype, name), arrays=(array,))
    for place, (_, part) in enumerate(parts):
        attrs = {"dim": 0, "start": place * shape[0], "size": shape[0]}
        own = Recorded("slice", (full.value,), (part.value,), attrs, Source())
        single.ops.insert(0, own)
    gone = {part.value for _, part in parts}
    single.placed = [p for p in single.placed if p.value not in gone]
    single.constants = [c for c in single.constants if c.value not in gone] + [full]
    single.placed.append(_constant_input(single, full, name, everywhere(array.shape, 1)))
    known[:] = [item for item in known if item[1].value not in gone] + [(name, full)]
    starts = [(places.index(n) * shape[0], *(0 for _ in shape[1:])) for n in chosen]
    return name, full, Placement(array.shape, tuple(starts))


def _alone(
    single: Recorder, constant: Constant, number: int, ranks: int
) -> tuple[str, Constant, Placement]:
    """A tensor that the ranks alone hold, as an input of the single side that nothing reads there:
    where each rank has its own, one after the other along the first dimension."""
    array = np.concatenate(constant.arrays)
    own = constant.arrays[0].shape
    name = f"constant {number}"
    value = single.value(array.shape, "int32" if constant.domain else "float32", name)
    full = Constant(value, (array,), constant.domain)
    single.constants.append(full)
    single.placed.append(_constant_input(single, full, name, everywhere(array.shape, 1)))
    step = own[0] if len(constant.arrays) > 1 else 0
    starts = tuple((rank * step, *(0 for _ in own[1:])) for rank in range(ranks))
    return name, full, Placement(array.shape, starts)


def _constant_input(
    recorder: Recorder, constant: Constant, name: str, placement: Placement
) -> PlacedInput:
    dtype = recorder.values[constant.value].dtype
    return PlacedInput(constant.value, name, dtype, placement, "constant", constant.domain)


def _matching_box(
    constant: Constant, known: Sequence[tuple[str, Constant]], ranks: int
) -> tuple[str, Constant, Placement] | None:
    """Which box of which known tensor has these numbers, on every rank; None: none has. The
    smallest such tensor: one with just these numbers before one that has them among others (the
    windows of a smaller picture lie among those of a larger one).  Where it begins in one may be
    known: that counts, unless all ranks have what one tensor is (a block of a causal mask, which
    the single side made as such)."""
    alike = [item for item in known if item[1].drawn == constant.drawn]
    alike.sort(key=lambda item: item[1].arrays[0].size)
    everywhere_alike = len(set(constant.begins)) == 1 and len(constant.arrays) == 1
    for name, whole in alike if everywhere_alike else ():
        if np.array_equal(whole.arrays[0], constant.arrays[0]):
            return name, whole, everywhere(whole.arrays[0].shape, ranks)
    for name, whole in alike if constant.begins else ():
        (full,) = whole.arrays
        if holds(full, constant.begins, constant.arrays):
            rows = constant.begins * (ranks // len(constant.begins))
            return name, whole, Placement(full.shape, rows)
    for name, whole in alike:
        (full,) = whole.arrays
        starts = []
        for array in constant.arrays:
            at = inside(array, full)
            if at is None:
                break
            starts.append(at)
        else:
            every = starts * ranks if len(starts) == 1 else starts
            return name, whole, Placement(full.shape, tuple(every))
    return None
