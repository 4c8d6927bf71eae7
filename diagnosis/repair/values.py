"""Candidate repairs of what an operator computes: constants, scale, the tensors it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from shardproof.diagnosis.locate.culprits import Essence, essence, shown, times
from shardproof.diagnosis.repair.edits import Edit, Site, applied, op_at, peer, sites
from shardproof.diagnosis.repair.origins import Candidate, Spot, edited, named
from shardproof.engine.plan.ir import Op
from shardproof.partition.evidence.alignment import PLACES


def constants(spot: Spot) -> Iterator[Candidate]:
    """The counterpart's constants, in the operator and in its backward."""
    if spot.culprit.counterpart < 0:
        return
    row = spot.rows[0]
    wanted = spot.result.single.unrolled.rows[spot.culprit.counterpart].attrs
    changed = {
        key: wanted[key]
        for key in row.attrs
        if key in wanted and key not in PLACES and row.attrs[key] != wanted[key]
    }
    for key, right in changed.items():
        wrong = row.attrs[key]
        edits = []
        for program in spot.programs:
            for site, op in sites(spot.plan.programs[program], program):
                same = op.name == row.name and (op.source.module, op.source.location) == (
                    row.source.module,
                    row.source.location,
                )
                if same and op.attrs.get(key) == wrong:
                    edits.append(Edit(site, replace(op, attrs={**op.attrs, key: right})))
        if edits:
            ranks = [spot.plan.programs[p].base for p in spot.programs]
            yield edited(
                "wrong constant",
                f"{key} {shown(right)} in place of {shown(wrong)} in "
                f"{named(spot.plan, spot.sites[0])} and its backward on ranks {ranks}",
                spot.plan,
                edits,
            )


def scales(spot: Spot) -> Iterator[Candidate]:
    """The result multiplied by what it is short of its counterpart's."""
    if spot.culprit.counterpart < 0:
        return
    theirs = spot.result.single.unrolled.rows[spot.culprit.counterpart]
    for place, (mine, other) in enumerate(zip(spot.rows[0].outputs, theirs.outputs, strict=False)):
        ratio = _ratio(essence(spot.lineage(mine)), essence(spot.result.single.lineages[other]))
        if ratio in (None, 1):
            continue
        assert ratio is not None
        scale = Op("mul", (), (), {"other": 1 / ratio})
        edits = [Edit(site, scale, place) for site in spot.sites]
        name = named(spot.plan, spot.sites[0])
        ranks = [spot.plan.programs[p].base for p in spot.programs]
        says = f"the result of {name} times {times(1 / ratio)} on ranks {ranks}"
        yield edited("wrong scale", says, spot.plan, edits)


def scale_of(spot: Spot) -> Fraction | None:
    """How many times its counterpart's result the first result that is off is."""
    if spot.culprit.counterpart < 0:
        return None
    theirs = spot.result.single.unrolled.rows[spot.culprit.counterpart]
    for mine, other in zip(spot.rows[0].outputs, theirs.outputs, strict=False):
        ratio = _ratio(essence(spot.lineage(mine)), essence(spot.result.single.lineages[other]))
        if ratio not in (None, 1):
            return ratio
    return None


def _ratio(mine: Essence | None, theirs: Essence | None) -> Fraction | None:
    if mine is None or theirs is None or len(mine) != 1 or len(theirs) != 1:
        return None
    (a, m), (b, n) = *mine, *theirs
    return a / b if m == n and a and b else None


def repeated_inputs(spot: Spot) -> Iterator[Candidate]:
    """A sum that takes an addend twice takes it once."""
    edits: list[Edit] = []
    found: tuple[str, ...] = ()
    for site in spot.sites:
        op = op_at(spot.plan, site)
        once = tuple(dict.fromkeys(op.inputs))
        if op.name != "add_n" or len(once) == len(op.inputs) or len(once) < 2:
            continue
        body = spot.plan.programs[site.program].bodies[site.body]
        found = tuple(body.values[v].name for v in once if op.inputs.count(v) > 1)
        edits.append(Edit(site, replace(op, inputs=once)))
    if edits:
        yield edited(
            "addend taken twice",
            f"{', '.join(found)} added once, not twice, in the sum of gradients after "
            f"{named(spot.plan, spot.sites[0])}",
            spot.plan,
            edits,
        )


def swapped_inputs(spot: Spot) -> Iterator[Candidate]:
    """Two inputs of one shape change places."""
    op = op_at(spot.plan, spot.sites[0])
    site = spot.sites[0]
    values = spot.plan.programs[site.program].bodies[site.body].values
    arity = op.attrs.get("arity")
    first = arity if op.backward and isinstance(arity, int) else 0
    pairs = [
        (i, j)
        for low, high in ((first, len(op.inputs)), (0, first))
        for i, j in combinations(range(low, high), 2)
        if op.inputs[i] >= 0 <= op.inputs[j]
        and op.inputs[i] != op.inputs[j]
        and values[op.inputs[i]].shape == values[op.inputs[j]].shape
    ]
    if op.name == "add_n" or (op.name in ("add", "mul") and not op.backward):
        return
    for i, j in pairs:
        edits = []
        for here in spot.sites:
            held = op_at(spot.plan, here)
            if len(held.inputs) <= j:
                continue
            inputs = list(held.inputs)
            inputs[i], inputs[j] = inputs[j], inputs[i]
            edits.append(Edit(here, replace(held, inputs=tuple(inputs))))
        what = "gradients" if op.backward and i >= first else "inputs"
        one, other = (values[op.inputs[n]].name for n in (i, j))
        order = f" ({other} before {one})" if one != other else ""
        yield edited(
            f"{what} in the wrong order",
            f"{what} {i - first if i >= first else i} and {j - first if i >= first else j} of "
            f"{named(spot.plan, site)} in the other order{order}",
            spot.plan,
            edits,
        )


def other_tensors(spot: Spot) -> Iterator[Candidate]:
    """An input that is not the counterpart's is taken from a value of the body that is."""
    if spot.culprit.counterpart < 0 or len(spot.culprit.rows) != len(spot.sites):
        return
    theirs = spot.result.single.unrolled.rows[spot.culprit.counterpart]
    row = spot.rows[0]
    for place, (mine, other) in enumerate(zip(row.inputs, theirs.inputs, strict=False)):
        if mine < 0 or other < 0:
            continue
        wanted = essence(spot.result.single.lineages[other])
        if wanted is None or essence(spot.lineage(mine)) == wanted:
            continue
        site = spot.sites[0]
        body = spot.plan.programs[site.program].bodies[site.body]
        op = op_at(spot.plan, site)
        shape = body.values[op.inputs[place]].shape
        known = _values(spot, site)
        for value, number in known.items():
            if body.values[value].shape != shape or essence(spot.lineage(number)) != wanted:
                continue
            edits, done = [], True
            for here in spot.sites:
                there = peer(spot.plan, site, here.program)
                held = op_at(spot.plan, here)
                bodies = spot.plan.programs[here.program].bodies
                names = {v.name: n for n, v in enumerate(bodies[here.body].values)}
                source = value if here == site else names.get(body.values[value].name, -1)
                done = done and there == here and source >= 0
                inputs = (*held.inputs[:place], source, *held.inputs[place + 1 :])
                edits.append(Edit(here, replace(held, inputs=inputs)))
            if done:
                yield Candidate(
                    "wrong tensor",
                    f"{body.values[value].name} in place of {body.values[op.inputs[place]].name} "
                    f"as input {place} of {named(spot.plan, site)}",
                    applied(spot.plan, edits),
                )


def _values(spot: Spot, site: Site) -> dict[int, int]:
    """Values of a body that are made before an operator of it: their tensors."""
    found: dict[int, int] = {}
    for number, places in enumerate(spot.origins):
        for at, here in enumerate(places):
            if here[:2] == site[:2] and here.op < site.op:
                row, made = spot.row(number), op_at(spot.plan, here).outputs
                found.update(zip(made, row.outputs[at * len(made) :], strict=False))
    return found
