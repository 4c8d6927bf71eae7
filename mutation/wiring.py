"""Mutators of what joins operators: communication, groups, peers, gradients, contexts."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from shardproof.engine.plan.collectives import COLLECTIVES, COMMUNICATION
from shardproof.engine.plan.ir import Attr, Body, Group, Op, Plan
from shardproof.mutation.edit import Draft, Place, alike, name_op, pick_body, with_body
from shardproof.mutation.table import Changed, Mutation, Mutator, on_operator


def _joins(op: Op, body: Body) -> bool:
    return op.name in COLLECTIVES or op.name == "chunk"


def _messages(op: Op, body: Body) -> bool:
    return op.name in ("send", "recv")


def _any(op: Op, body: Body) -> bool:
    return bool(op.outputs)


def _set(body: Body, number: int, what: str, **fields: object) -> Changed:
    draft = Draft(body)
    draft.change(number, **fields)
    return Changed(draft.built(), what)


# -- collectives ---------------------------------------------------------------------------------


def dropped(body: Body, number: int, rng: Random) -> Changed | None:
    """A collective that hands its input on.

    Example: "all_gather in layers.1.attention (rank 2, body backward, operator 18): becomes copies
    of this rank's own tensor".
    """
    op = body.ops[number]
    if len(op.inputs) != 1 or len(op.outputs) != 1:
        return None
    if body.values[op.inputs[0]].shape == body.values[op.outputs[0]].shape:
        return _set(body, number, "becomes an identity", name="identity", attrs={})
    return _fitted(body, number, op.inputs[0])


def _fitted(body: Body, number: int, value: int) -> Changed | None:
    """The operator replaced by slices or copies of ``value`` that have its result's shape."""
    op = body.ops[number]
    have, want = body.values[value].shape, body.values[op.outputs[0]].shape
    differing = (
        [d for d in range(len(want)) if have[d] != want[d]] if len(have) == len(want) else []
    )
    if len(differing) != 1:
        return None
    d = differing[0]
    draft = Draft(body)
    if have[d] > want[d]:
        attrs: dict[str, Attr] = {"dim": d, "start": 0, "size": want[d]}
        draft.change(number, name="slice", inputs=(value,), attrs=attrs)
        return Changed(draft.built(), "becomes the first part of this rank's own tensor")
    if want[d] % have[d]:
        return None
    draft.change(number, name="concat", inputs=(value,) * (want[d] // have[d]), attrs={"dim": d})
    return Changed(draft.built(), "becomes copies of this rank's own tensor")


def another_collective(body: Body, number: int, rng: Random) -> Changed | None:
    """All-reduce for all-gather and the like; what the next operator reads keeps its shape where
    that is possible.

    Example: "reduce_scatter in wte (rank 0, body backward, operator 77): becomes chunk".
    """
    op = body.ops[number]
    group = op.attrs.get("group")
    others: dict[str, dict[str, Attr]] = {
        "all_reduce": {"group": group, "op": "sum"},
        "all_gather": {"group": group, "dim": 0},
        "reduce_scatter": {"group": group, "dim": 0},
        "chunk": {"group": group, "dim": 0},
        "broadcast": {"group": group},
    }
    others.pop(op.name, None)
    if len(op.inputs) != 1 or len(op.outputs) != 1:
        return None
    if op.name in ("chunk", "reduce_scatter") and rng.random() < 0.7:
        # These two differ in nothing but whether the members' tensors are added up.
        name = "chunk" if op.name == "reduce_scatter" else "reduce_scatter"
        attrs = {key: op.attrs[key] for key in ("group", "dim") if key in op.attrs}
        return _set(body, number, f"becomes {name}", name=name, attrs=attrs)
    name = rng.choice(sorted(others))
    return _set(body, number, f"becomes {name}", name=name, attrs=others[name])


def another_reduction(body: Body, number: int, rng: Random) -> Changed | None:
    """Maximum for sum, sum for maximum.

    Example: "all_reduce in layers.0.attention.wo.weight (rank 0, body reducer, operator 5): reduces
    with max".
    """
    op = body.ops[number]
    if op.name not in ("all_reduce", "reduce", "reduce_scatter"):
        return None
    kind = "max" if op.attrs.get("op", "sum") == "sum" else "sum"
    return _set(body, number, f"reduces with {kind}", attrs={**op.attrs, "op": kind})


def reduced_again(body: Body, number: int, rng: Random) -> Changed | None:
    """One more all-reduce of the result over the same group.

    Example: a gradient that is reduced over ``dp`` twice, and so is twice as large on two replicas.
    """
    op = body.ops[number]
    if not isinstance(op.attrs.get("group"), Group) or len(op.outputs) != 1:
        return None
    draft = Draft(body)
    between = draft.value(op.outputs[0])
    draft.change(number, outputs=(between,))
    attrs: dict[str, Attr] = {"group": op.attrs["group"], "op": "sum"}
    draft.add(number + 1, "all_reduce", [between], op.outputs[0], attrs)
    return Changed(draft.built(), "its result is reduced once more")


def another_group(body: Body, number: int, rng: Random) -> Changed | None:
    """Fewer members, or in another order.

    Example: the group along ``dp`` becomes one of the rank alone; explicit ranks (0, 1) become
    (0,), (1, 0) or (0, 2).
    """
    group = body.ops[number].attrs.get("group")
    if not isinstance(group, Group):
        return None
    choices = []
    if group.axes:
        choices += [replace(group, axes=group.axes[:i] + group.axes[i + 1 :]) for i in range(1)]
    if len(group.ranks) > 1:
        choices.append(replace(group, ranks=group.ranks[:-1]))
        choices.append(replace(group, ranks=group.ranks[::-1]))
        choices.append(replace(group, ranks=(*group.ranks[:-1], group.ranks[-1] + 1)))
    if not choices:
        return None
    new = rng.choice(choices)
    attrs = {**body.ops[number].attrs, "group": new}
    return _set(body, number, f"group {group} becomes {new}", attrs=attrs)


def group_along(plan: Plan, rng: Random) -> Mutation | None:
    """A collective over the other mesh axes of its program, or over one more.

    Example: the all-reduce of ``h.0.attn.k_proj.weight`` along ``dp`` becomes one along ``tp``, or
    along both.
    """
    places = [
        (p, b, o, op)
        for p, program in enumerate(plan.programs)
        for b, body in enumerate(program.bodies)
        for o, op in enumerate(body.ops)
        if _joins(op, body)
        and isinstance(op.attrs.get("group"), Group)
        and any(axis not in op.attrs["group"].axes for axis in program.extents)  # type: ignore[union-attr]
    ]
    if not places:
        return None
    p, b, o, op = rng.choice(places)
    program, group = plan.programs[p], op.attrs["group"]
    assert isinstance(group, Group)
    rest = tuple(axis for axis in program.extents if axis not in group.axes)
    axes = rng.choice([rest, (*group.axes, rest[0])])
    order = tuple(axis for axis in program.extents if axis in axes)
    new = replace(group, axes=order)
    draft = Draft(program.bodies[b])
    draft.change(o, attrs={**op.attrs, "group": new})
    name = name_op(plan, Place(p, b, o))
    return Mutation(with_body(plan, p, b, draft.built()), f"{name}: {group} becomes {new}")


# -- messages ------------------------------------------------------------------------------------


def another_peer(body: Body, number: int, rng: Random) -> Changed | None:
    """A message to or from the rank beside.

    Example: "recv (rank 2, body forward, operator 1): peer 0 becomes 2".
    """
    peer = body.ops[number].attrs.get("peer")
    if not isinstance(peer, int):
        return None
    new = peer + rng.choice([-2, -1, 1, 2])
    attrs = {**body.ops[number].attrs, "peer": new}
    return _set(body, number, f"peer {peer} becomes {new}", attrs=attrs)


def peers_exchanged(plan: Plan, rng: Random) -> Mutation | None:
    """Two ranks that receive from each other's sender: both sends and both receives moved.

    Example: "messages to ranks 0 and 2 exchanged".
    """
    bases = {program.base: p for p, program in enumerate(plan.programs)}
    sends = [
        (p, b, o, op.attrs["peer"])
        for p, program in enumerate(plan.programs)
        for b, body in enumerate(program.bodies)
        for o, op in enumerate(body.ops)
        if op.name == "send" and op.attrs.get("peer") in bases
    ]
    pairs = [
        (x, y)
        for i, x in enumerate(sends)
        for y in sends[:i]
        if x[0] != y[0] and x[3] != y[3] and _sends(plan, x) == _sends(plan, y)
    ]
    if not pairs:
        return None
    x, y = rng.choice(pairs)
    result = plan
    for place, other in ((x, y), (y, x)):
        result = _with_peer(result, place[0], place[1], "send", place[3], other[3])
    for receiver, sender, new in ((x, x, y), (y, y, x)):
        receiving = next(p for base, p in bases.items() if base == receiver[3])
        old, now = plan.programs[sender[0]].base, plan.programs[new[0]].base
        for b, body in enumerate(plan.programs[receiving].bodies):
            if any(op.name == "recv" and op.attrs.get("peer") == old for op in body.ops):
                result = _with_peer(result, receiving, b, "recv", old, now)
                break
    return Mutation(result, f"messages to ranks {x[3]} and {y[3]} exchanged")


def _sends(plan: Plan, place: tuple[int, int, int, Attr]) -> tuple[int, ...]:
    body = plan.programs[place[0]].bodies[place[1]]
    return body.values[body.ops[place[2]].inputs[0]].shape


def _with_peer(plan: Plan, p: int, b: int, name: str, old: Attr, new: Attr) -> Plan:
    body = plan.programs[p].bodies[b]
    ops = tuple(
        replace(op, attrs={**op.attrs, "peer": new})
        if op.name == name and op.attrs.get("peer") == old
        else op
        for op in body.ops
    )
    return with_body(plan, p, b, replace(body, ops=ops))


# -- gradients and contexts of a body ------------------------------------------------------------


def gradient_lost(body: Body, number: int, rng: Random) -> Changed | None:
    """A gradient that is not accumulated, or is accumulated twice.

    Example: "gradient of layers.0.ffn_norm.weight is not accumulated".
    """
    if not body.gradients:
        return None
    i = rng.randrange(len(body.gradients))
    name = body.values[body.gradients[i][0]].name
    if rng.random() < 0.5:
        kept = body.gradients[:i] + body.gradients[i + 1 :]
        return Changed(replace(body, gradients=kept), f"{name} is not accumulated")
    both = (*body.gradients, body.gradients[i])
    return Changed(replace(body, gradients=both), f"{name} is accumulated twice")


def gradient_of_another(body: Body, number: int, rng: Random) -> Changed | None:
    """Another tensor of the same shape is accumulated.

    Example: "gradient of h.0.attn.q_proj.weight (104) accumulated for gradient of
    h.0.attn.k_proj.weight (97)".
    """
    if not body.gradients:
        return None
    i = rng.randrange(len(body.gradients))
    value, shard = body.gradients[i]
    made = [v for op in body.ops for v in op.outputs]
    others = [v for v in made if v != value and alike(body.values[v], body.values[value])]
    if not others:
        return None
    new = rng.choice(others)
    gradients = (*body.gradients[:i], (new, shard), *body.gradients[i + 1 :])
    what = f"{body.values[new].name} ({new}) accumulated for {body.values[value].name} ({value})"
    return Changed(replace(body, gradients=gradients), what)


def another_context(body: Body, number: int, rng: Random) -> Changed | None:
    """A backward body that reads another value of its forward body.

    Example: "the context of h.0.ln_1 is h.0.attn.view".
    """
    pairs = [
        (i, j)
        for i in range(len(body.saved))
        for j in range(len(body.saved))
        if i != j and alike(body.values[body.saved[i][0]], body.values[body.saved[j][0]])
    ]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    saved = list(body.saved)
    saved[i] = (saved[i][0], saved[j][1])
    name = body.values[body.saved[i][0]].name
    what = f"the context of {name} is {body.values[body.saved[j][0]].name}"
    return Changed(replace(body, saved=tuple(saved)), what)


def reducer_changed(plan: Plan, rng: Random) -> Mutation | None:
    """A gradient that the reducer forgets, or puts in another one's place.

    Example: "rank 0: gradient of ln_f.bias is not replaced by what was reduced".
    """
    chosen = pick_body(plan, rng, lambda body: body.reduced)
    if chosen is None:
        return None
    p, b, body = chosen
    i = rng.randrange(len(body.reduced))
    read, _, shard = body.reduced[i]
    like = [
        j
        for j, (v, _, _) in enumerate(body.reduced)
        if j != i and body.values[v].shape == body.values[read].shape
    ]
    reduced = list(body.reduced)
    name = body.values[read].name
    if like and rng.random() < 0.5:
        j = rng.choice(like)
        reduced[i] = (read, reduced[j][1], shard)
        what = f"{name} is replaced by {body.values[reduced[j][0]].name}"
    else:
        reduced[i] = (read, read, shard)
        what = f"{name} is not replaced by what was reduced"
    made = replace(body, reduced=tuple(reduced))
    return Mutation(with_body(plan, p, b, made), f"rank {plan.programs[p].base}: {what}")


def order_in_body(body: Body, number: int, rng: Random) -> Changed | None:
    """A message or collective issued where the next one was, and that one where it was.

    Example: "recv (rank 2, body forward, operator 1): exchanged with all_gather, operator 3".
    """
    later = [o for o in range(number + 1, len(body.ops)) if body.ops[o].name in COMMUNICATION]
    if not later:
        return None
    draft = Draft(body)
    other = body.ops[later[0]]
    draft.ops[number], draft.ops[later[0]] = other, body.ops[number]
    return Changed(draft.built(), f"exchanged with {other.name}, operator {later[0]}")


WIRING: Final = (
    Mutator("collective dropped", "missing", on_operator(_joins, dropped)),
    Mutator("another collective", "operators", on_operator(_joins, another_collective)),
    Mutator("another reduction", "operators", on_operator(_joins, another_reduction)),
    Mutator("reduced again", "extra", on_operator(_joins, reduced_again)),
    Mutator("another group", "groups", on_operator(_joins, another_group)),
    Mutator("group along other axes", "groups", group_along),
    Mutator("another peer", "ranks", on_operator(_messages, another_peer)),
    Mutator("peers exchanged", "ranks", peers_exchanged),
    Mutator("gradient lost or doubled", "missing", on_operator(_any, gradient_lost)),
    Mutator("gradient of another", "inputs", on_operator(_any, gradient_of_another)),
    Mutator("another context", "inputs", on_operator(_any, another_context)),
    Mutator("reducer changed", "missing", reducer_changed),
    Mutator("messages in another order", "order", on_operator(_messages, order_in_body)),
    Mutator("collectives in another order", "order", on_operator(_joins, order_in_body)),
)
