"""Where outputs lie that nothing states: found by numbers, proved by the solvers.

Both graphs are run on the same random numbers, and a rank's part is looked for in the single side's
tensor, at multiples of its own extent.  What is found is an assumption that is printed; where
nothing is found, or several places are, nothing is inferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from shardproof.engine.errors import Unsupported
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.graphs.graph import Graph, Placement, Shape
from shardproof.frontends.hlo import evaluate
from shardproof.frontends.hlo.marks import decoded
from shardproof.frontends.hlo.module import Array

#: Graphs with more numbers in all than this are not run.
MOST_NUMBERS = 1 << 25


def with_output_places(
    single: Graph, parallel: Graph, domains: Mapping[int, tuple[int, int]]
) -> tuple[Graph, tuple[Assumption, ...]]:
    """``parallel``, whose inputs are all placed, with places for outputs that lacked them.

    Example: the gradient of ``w`` has [8, 4] on each of eight ranks and [8, 16] on the single side:
    each rank's numbers are sought at columns 0, 4, 8 and 12, and the assumption is that "the parts
    of result[1] lie where their numbers are those of the single side".
    """
    if len(parallel.outputs) != len(single.outputs):
        return parallel, ()
    open_ = [
        n
        for n, (own, full) in enumerate(zip(parallel.outputs, single.outputs, strict=True))
        if own.placement is None
        and parallel.values[own.value].shape != single.values[full.value].shape
    ]
    sizes = [prod(v.shape) * g.ranks for g in (single, parallel) for v in g.values]
    if not open_ or sum(sizes) > MOST_NUMBERS:
        return parallel, ()
    inputs = [_numbers(single, n, domains) for n in range(len(single.inputs))]
    own_inputs = [
        [
            _part(x, i.placement, parallel.values[i.value].shape, rank)
            for i, x in zip(parallel.inputs, inputs, strict=True)
        ]
        for rank in range(parallel.ranks)
    ]
    try:
        full = evaluate.run(single, [inputs])[0]
        parts = evaluate.run(parallel, own_inputs)
    except Unsupported:
        return parallel, ()
    outputs = list(parallel.outputs)
    assumptions = []
    for n in open_:
        starts = [_place(own[n], full[n]) for own in parts]
        if all(s is not None for s in starts):
            placement = Placement(full[n].shape, tuple(s for s in starts if s is not None))
            outputs[n] = replace(outputs[n], placement=placement)
            name = single.outputs[n].name
            text = f"the parts of {name} lie where their numbers are those of the single side"
            assumptions.append(Assumption("inferred", name, "", text))
    return replace(parallel, outputs=tuple(outputs)), tuple(assumptions)


def _numbers(graph: Graph, position: int, domains: Mapping[int, tuple[int, int]]) -> Array:
    """Random numbers of an input; integers lie in their domain."""
    rng = np.random.default_rng(position)
    value = graph.values[graph.inputs[position].value]
    if value.dtype.startswith(("int", "uint")):
        low, high = domains.get(position, (0, 100))
        made = rng.integers(low, min(high, 1 << 20), value.shape)
        return decoded(graph.inputs[position], made).astype(value.dtype)
    return rng.uniform(0.05, 0.45, value.shape)


def _part(x: Array, placement: Placement | None, shape: Shape, rank: int) -> Array:
    if placement is None:
        return x
    at = placement.starts[rank]
    return x[tuple(slice(s, s + n) for s, n in zip(at, shape, strict=True))]


def _place(part: Array, full: Array) -> Shape | None:
    """The one place in ``full`` whose numbers ``part`` has."""
    if part.ndim != full.ndim or any(f % p for p, f in zip(part.shape, full.shape, strict=True)):
        return None
    scale = max(1e-30, float(np.max(np.abs(full.astype(float)))))
    places = []
    for index in np.ndindex(*(f // p for p, f in zip(part.shape, full.shape, strict=True))):
        at = tuple(i * n for i, n in zip(index, part.shape, strict=True))
        box = full[tuple(slice(a, a + n) for a, n in zip(at, part.shape, strict=True))]
        if np.allclose(box.astype(float), part.astype(float), rtol=0, atol=1e-6 * scale):
            places.append(at)
    return places[0] if len(places) == 1 else None
