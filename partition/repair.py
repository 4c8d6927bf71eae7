"""Candidate repairs of a plan: what an engineer would try where a fault begins.

Each candidate is a plan with one edit and a sentence about it.  Nothing here says that a candidate
helps: `shardproof.diagnosis` tries them, and shows those with which the conclusions hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from typing import Final

from engine.conclusions import Conclusion
from engine.ir import Attr, Group, Op, Plan, Value
from engine.rendezvous import COLLECTIVES
from partition.diagnose import Culprit, Essence, essence, times
from partition.edits import (
    Site,
    groups,
    inserted,
    members,
    op_at,
    peer,
    sites,
    size,
    spoken,
    with_body,
    with_op,
)
from partition.partition import Partition
from partition.spot import MOVES, Candidate, Spot, named

#: Attributes that name ranks or places and are no constants of the model.
_PLACES: Final = frozenset({"group", "peer", "claimed", "position", "arity", "wrt"})

_WORDS: Final[Mapping[str, str]] = {
    "all_reduce": "an all-reduce",
    "all_gather": "an all-gather",
    "reduce_scatter": "a reduce-scatter",
    "identity": "no communication",
}


# -- reductions and other collectives --------------------------------------------------------------


def missing_reductions(spot: Spot) -> Iterator[Candidate]:
    """A value that is still a partial sum is reduced, where it is moved or where it is made."""
    values = {v: None for row in spot.rows[:1] for v in (*row.inputs, *row.outputs)}
    for value in values:
        if not spot.is_partial(value):
            continue
        chain = spot.before(value, lambda row: any(map(spot.is_partial, row.inputs)))
        moved = [n for n in chain if spot.row(n).name in MOVES and spot.row(n).kind != "slice"]
        for number in dict.fromkeys([*moved, *chain[-1:], *chain[:1]]):
            yield from collectives(spot, number, ("all_reduce",))


def other_collectives(spot: Spot) -> Iterator[Candidate]:
    """A collective, or a move where one should be, of another kind, dimension or group."""
    chain = list(spot.culprit.rows[:1])
    for value in spot.rows[0].inputs:
        chain += spot.before(value, lambda row: row.kind != "op" or not row.source.module)
    for number in dict.fromkeys(chain):
        row = spot.row(number)
        if row.name in COLLECTIVES or row.name == "identity":
            yield from collectives(
                spot, number, ("identity", "all_reduce", "all_gather", "reduce_scatter")
            )


def collectives(spot: Spot, number: int, kinds: Sequence[str]) -> Iterator[Candidate]:
    """The operators of a row replaced (if they are moves) or followed by collectives."""
    if not spot.origins[number]:
        return
    yield from collectives_at(spot.plan, spot.origins[number][0], kinds, spot.programs)


def collectives_at(
    plan: Plan, site: Site, kinds: Sequence[str], programs: Sequence[int]
) -> Iterator[Candidate]:
    """See `collectives`; for groups without named ranks, of all ``programs``."""
    op = op_at(plan, site)
    body = plan.programs[site.program].bodies[site.body]
    replaces = op.name in COLLECTIVES or op.name == "identity"
    if not op.outputs or (replaces and len(op.inputs) != 1):
        return
    after = body.values[op.outputs[0]].shape
    before = body.values[op.inputs[0]].shape if replaces else after
    for group in groups(plan, site.program):
        for kind, attrs in _kinds(plan, site, group, before, after, kinds):
            if replaces and kind == op.name and _is_same(op.attrs, attrs):
                continue
            if kind == "identity" and not replaces:
                continue
            who = members(plan, group, programs)
            if replaces and kind == "identity":
                who = sorted({*who, *programs})
            there = [peer(plan, site, p) for p in who]
            if any(s is None for s in there) or not who:
                continue
            edited = plan
            for s in there:
                assert s is not None
                old = op_at(plan, s)
                new = Op(kind, old.inputs, old.outputs, attrs, False, old.source)
                edited = with_op(edited, s, new) if replaces else inserted(edited, s, 0, new)
            what = _WORDS[kind]
            if kind != "identity":
                dim = f" of dimension {attrs['dim']}" if "dim" in attrs else ""
                what += f"{dim} over {spoken(plan, group, who)}"
            place = f"after {named(plan, site)}"
            if replaces:
                cell = f" ({op.source.cell})" if op.source.cell else ""
                place = f"in place of {op.name.replace('_', '-')}{cell} {place}"
            yield Candidate("collective", f"{what} {place}", edited)


def _kinds(
    plan: Plan,
    site: Site,
    group: Group,
    before: tuple[int, ...],
    after: tuple[int, ...],
    kinds: Sequence[str],
) -> Iterator[tuple[str, dict[str, Attr]]]:
    """Collectives over a group that make one shape of the other."""
    count = size(plan, group, site.program)
    for kind in kinds:
        if kind == "identity" and before == after:
            yield kind, {}
        elif kind == "all_reduce" and before == after:
            yield kind, {"group": group, "op": "sum"}
        elif kind in ("all_gather", "reduce_scatter") and len(before) == len(after):
            small, large = (before, after) if kind == "all_gather" else (after, before)
            for dim, n in enumerate(small):
                if (*small[:dim], n * count, *small[dim + 1 :]) == large:
                    yield kind, {"group": group, "dim": dim}


def _is_same(mine: Mapping[str, Attr], other: Mapping[str, Attr]) -> bool:
    def held(attrs: Mapping[str, Attr]) -> dict[str, Attr]:
        return {k: v for k, v in attrs.items() if k in ("group", "dim")}

    return held(mine) == held(other)


# -- constants, scales, tensors --------------------------------------------------------------------


def constants(spot: Spot) -> Iterator[Candidate]:
    """The counterpart's constants, in the operator and in its backward."""
    if spot.culprit.counterpart < 0:
        return
    row = spot.rows[0]
    wanted = spot.result.single.unrolled.rows[spot.culprit.counterpart].attrs
    changed = {
        key: wanted[key]
        for key in row.attrs
        if key in wanted and key not in _PLACES and row.attrs[key] != wanted[key]
    }
    for key, right in changed.items():
        wrong = row.attrs[key]
        edited, plan = 0, spot.plan
        for program in spot.programs:
            for site, op in sites(spot.plan.programs[program], program):
                same = op.name == row.name and (op.source.module, op.source.location) == (
                    row.source.module,
                    row.source.location,
                )
                if same and op.attrs.get(key) == wrong:
                    plan = with_op(plan, site, replace(op, attrs={**op.attrs, key: right}))
                    edited += 1
        if edited:
            ranks = [spot.plan.programs[p].base for p in spot.programs]
            yield Candidate(
                "constant",
                f"{key} {_shown(right)} in place of {_shown(wrong)} in "
                f"{named(spot.plan, spot.sites[0])} and its backward on ranks {ranks}",
                plan,
            )


def _shown(value: object) -> str:
    return times(value) if isinstance(value, Fraction) else str(value)


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
        plan = spot.plan
        # Later operators of a body first: inserting moves those behind.
        for site in sorted(spot.sites, reverse=True):
            scale = Op("mul", (), (), {"other": 1 / ratio})
            plan = inserted(plan, site, place, scale)
        name = named(spot.plan, spot.sites[0])
        ranks = [spot.plan.programs[p].base for p in spot.programs]
        yield Candidate(
            "scale", f"the result of {name} times {times(1 / ratio)} on ranks {ranks}", plan
        )


def _ratio(mine: Essence | None, theirs: Essence | None) -> Fraction | None:
    if mine is None or theirs is None or len(mine) != 1 or len(theirs) != 1:
        return None
    (a, m), (b, n) = *mine, *theirs
    return a / b if m == n and a and b else None


def repeated_inputs(spot: Spot) -> Iterator[Candidate]:
    """A sum that takes an addend twice takes it once."""
    plan = spot.plan
    found: tuple[str, ...] = ()
    for site in spot.sites:
        op = op_at(plan, site)
        once = tuple(dict.fromkeys(op.inputs))
        if op.name != "add_n" or len(once) == len(op.inputs) or len(once) < 2:
            continue
        body = plan.programs[site.program].bodies[site.body]
        found = tuple(body.values[v].name for v in once if op.inputs.count(v) > 1)
        plan = with_op(plan, site, replace(op, inputs=once))
    if found:
        yield Candidate(
            "tensor",
            f"{', '.join(found)} added once, not twice, in the sum of gradients after "
            f"{named(spot.plan, spot.sites[0])}",
            plan,
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
        plan = spot.plan
        for here in spot.sites:
            held = op_at(plan, here)
            if len(held.inputs) <= j:
                continue
            inputs = list(held.inputs)
            inputs[i], inputs[j] = inputs[j], inputs[i]
            plan = with_op(plan, here, replace(held, inputs=tuple(inputs)))
        what = "gradients" if op.backward and i >= first else "inputs"
        one, other = (values[op.inputs[n]].name for n in (i, j))
        order = f" ({other} before {one})" if one != other else ""
        yield Candidate(
            "tensor",
            f"{what} {i - first if i >= first else i} and {j - first if i >= first else j} of "
            f"{named(spot.plan, site)} in the other order{order}",
            plan,
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
            plan, done = spot.plan, True
            for here in spot.sites:
                there = peer(spot.plan, site, here.program)
                held = op_at(plan, here)
                bodies = plan.programs[here.program].bodies
                names = {v.name: n for n, v in enumerate(bodies[here.body].values)}
                source = value if here == site else names.get(body.values[value].name, -1)
                done = done and there == here and source >= 0
                inputs = (*held.inputs[:place], source, *held.inputs[place + 1 :])
                plan = with_op(plan, here, replace(held, inputs=inputs))
            if done:
                yield Candidate(
                    "tensor",
                    f"{body.values[value].name} in place of {body.values[op.inputs[place]].name} "
                    f"as input {place} of {named(spot.plan, site)}",
                    plan,
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


# -- peers -----------------------------------------------------------------------------------------


def exchanged_peers(spot: Spot) -> Iterator[Candidate]:
    """Two ranks receive, of one move, what the other one received."""
    received: dict[int, tuple[int, Site]] = {}
    for row in spot.rows:
        for value in row.inputs:
            for number in spot.before(value, lambda r: r.kind != "op"):
                if spot.row(number).kind == "recv":
                    sender, receiver = spot.row(number).programs
                    received[receiver] = (sender, spot.origins[number][0])
    for (p, (a, x)), (q, (b, y)) in combinations(sorted(received.items()), 2):
        if a == b or op_at(spot.plan, x).source.cell != op_at(spot.plan, y).source.cell:
            continue
        plan = _exchanged(spot.plan, (p, a, x), (q, b, y))
        if plan is not None:
            one, other = (spot.plan.programs[n].base for n in (a, b))
            to, too = (spot.plan.programs[n].base for n in (p, q))
            cell = op_at(spot.plan, x).source.cell
            yield Candidate(
                "peers",
                f"the peers of the moves exchanged{f' in {cell}' if cell else ''}: "
                f"{one} to {too} and {other} to {to}",
                plan,
            )


def _exchanged(plan: Plan, one: tuple[int, int, Site], other: tuple[int, int, Site]) -> Plan | None:
    """The plan with two receivers' senders exchanged; None where their sends are not found."""
    edited = plan
    for (_, sender, _), (receiver, new, site) in ((one, other), (other, one)):
        # ``sender`` now sends to ``receiver``, which received from ``new``.
        old = one[0] if receiver == other[0] else other[0]
        cell = op_at(plan, site).source
        sends = [
            (s, op)
            for s, op in sites(plan.programs[sender], sender)
            if op.name == "send"
            and op.source == cell
            and op.attrs.get("peer") == plan.programs[old].base
        ]
        if not sends or new == sender:
            return None
        for s, op in sends:
            attrs = {**op.attrs, "peer": plan.programs[receiver].base}
            edited = with_op(edited, s, replace(op, attrs=attrs))
        held = op_at(plan, site)
        attrs = {**held.attrs, "peer": plan.programs[sender].base}
        edited = with_op(edited, site, replace(held, attrs=attrs))
    return edited


#: The table, in the order in which candidates are tried.
CANDIDATES: Final[tuple[Callable[[Spot], Iterator[Candidate]], ...]] = (
    constants,
    repeated_inputs,
    missing_reductions,
    exchanged_peers,
    other_collectives,
    swapped_inputs,
    other_tensors,
    scales,
)


def candidates(
    result: Partition, culprit: Culprit, made: Sequence[tuple[Site, ...]]
) -> Iterator[Candidate]:
    """All candidates for a culprit; ``made``: the `origins` of the rows of ``result``."""
    spot = Spot(result, culprit, made)
    if spot.sites:
        for propose in CANDIDATES:
            yield from propose(spot)


def missing_reducers(result: Partition, conclusion: Conclusion) -> Iterator[Candidate]:
    """A gradient that a reducer leaves out is reduced like the others."""
    plan = result.plan
    if conclusion.kind != "gradient" or conclusion.program < 0:
        return
    program = plan.programs[conclusion.program]
    numbers = [n for n, s in enumerate(program.shards) if s.name == conclusion.name]
    for b, body in enumerate(program.bodies):
        known = {shard for _, _, shard in body.reduced}
        if not known or any(n in known for n in numbers):
            continue
        alike = list(
            dict.fromkeys(
                (op.name, tuple(op.attrs.items()))
                for op in body.ops
                if op.name == "all_reduce" and len(op.inputs) == 1
            )
        )
        for (name, attrs), n in product(alike, numbers):
            group = dict(attrs).get("group")
            if not isinstance(group, Group) or (group.ranks and len(group.ranks) > 1):
                continue
            count = len(body.values)
            value = Value(
                program.shards[n].shape,
                program.shards[n].dtype,
                f"{program.shards[n].name} gradient",
            )
            op = Op(name, (count,), (count + 1,), dict(attrs))
            edited = replace(
                body,
                values=(*body.values, value, value),
                claims=(*body.claims, None, None) if body.claims else (),
                ops=(*body.ops, op),
                reduced=(*body.reduced, (count, count + 1, n)),
            )
            where = spoken(plan, group, [conclusion.program])
            yield Candidate(
                "collective",
                f"an all-reduce of the gradient of {conclusion.name} over {where} in {body.name}",
                with_body(plan, conclusion.program, b, edited),
            )
