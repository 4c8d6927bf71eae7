"""What alters a generated plan in one place: another operator, number, primitive, order or rate.

`tests.frontends.lockstep` says whether the plan is wrong then.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.frontends.pickles import Obj
from tests.frontends.plan_generator import Plans
from tests.frontends.plan_models import DROPOUT


def changed(made: Plans, draw: random.Random) -> str:
    """Alter the parallel plan in one place; says how.  It may still be right."""
    kinds: list[Callable[[Plans, random.Random], str]] = [_other_operator, _other_number]
    kinds += [_other_primitive, _other_dims, _other_order, _other_place] * bool(made.communications)
    kinds += [_no_reducer, _alone] * bool(made.reducers)
    kinds += [_other_microbatch, _lost_microbatch] * (made.microbatches > 1)
    kinds += [_other_scale] * any("reduction" in x[0].state["_kwargs"] for x in made.operators)
    kinds += [_other_rate] * any(x[0].state["signature"] == DROPOUT for x in made.operators)
    return draw.choice(kinds)(made, draw)


def _some(draw: random.Random, records: list[Obj]) -> list[Obj]:
    """All of some records, or one."""
    return records if draw.random() < 0.7 else [draw.choice(records)]


def _other_operator(made: Plans, draw: random.Random) -> str:
    other = {
        "torch.sigmoid": "torch.nn.functional.silu",
        "torch.nn.functional.silu": "torch.sigmoid",
        "torch.add": "torch.mul",
        "torch.mul": "torch.add",
        "torch.rsqrt": "torch.sqrt",
    }
    found = [x for x in made.operators if x[0].state["signature"] in other]
    if not found:
        return _other_number(made, draw)
    for op in _some(draw, draw.choice(found)):
        op.state["signature"] = other[op.state["signature"]]
        op.state["_kwargs"] = {}
    return "another operator"


def _other_number(made: Plans, draw: random.Random) -> str:
    found = [
        x
        for x in made.operators
        if any(isinstance(v, (int, float)) for v in x[0].state["_inputs"])
        and not any(isinstance(v, slice) for v in x[0].state["_inputs"])
    ]
    if not found:
        return "nothing"
    for op in _some(draw, draw.choice(found)):
        op.state["_inputs"] = [
            v + 1 if isinstance(v, (int, float)) else v for v in op.state["_inputs"]
        ]
    return "another number"


_TWINS = (
    ("IdentityAllreducePrim", "AllReduceAllReducePrim"),
    ("AllReduceIdentityPrim", "AllReduceAllReducePrim"),
    ("AllGatherSplitPrim", "AllGatherReduceScatterPrim"),
    ("AllReduceIdentityPrim", "IdentityAllreducePrim"),
    ("AllReducePrim", "IdentityPrim"),
)


def _other_primitive(made: Plans, draw: random.Random) -> str:
    prims = draw.choice([x for x in made.communications if x] or [[]])
    for one, two in draw.sample(_TWINS, len(_TWINS)):
        for before, after in ((one, two), (two, one)):
            found = [p for p in prims if p.name == before]
            if found and not (before == "IdentityPrim" and "ranks" not in found[0].state["kwargs"]):
                for prim in _some(draw, found):
                    prim.name = after
                    if after == "IdentityPrim":
                        prim.state["kwargs"] = {}
                return f"{after} for {before}"
    return _other_number(made, draw)


def _other_dims(made: Plans, draw: random.Random) -> str:
    prims = draw.choice([x for x in made.communications if x] or [[]])
    found = [p for p in prims if "dim" in p.state["kwargs"] or "idim" in p.state["kwargs"]]
    if not found:
        return _other_number(made, draw)
    kind = draw.choice(found).name
    step = draw.choice((1, 2))
    for prim in _some(draw, [p for p in found if p.name == kind]):
        kwargs = dict(prim.state["kwargs"])
        if "idim" in kwargs:
            kwargs["idim"], kwargs["odim"] = kwargs["odim"], kwargs["idim"]
        else:
            tensor = (prim.state["_inputs"] + prim.state["_outputs"])[0]
            kwargs["dim"] = (kwargs["dim"] + step) % len(tensor.state["_shape"])
        prim.state["kwargs"] = kwargs
    return f"other dimensions of {kind}"


def _other_order(made: Plans, draw: random.Random) -> str:
    prims = draw.choice([x for x in made.communications if x] or [[]])
    keys = ("ranks", "srcs", "dsts")
    found = [p for p in prims if any(len(p.state["kwargs"].get(k, ())) > 1 for k in keys)]
    if not found:
        return _other_number(made, draw)
    kind = draw.choice(found).name
    for prim in _some(draw, [p for p in found if p.name == kind]):
        kwargs = dict(prim.state["kwargs"])
        for key in keys:
            if key in kwargs:
                kwargs[key] = type(kwargs[key])(reversed(kwargs[key]))
        prim.state["kwargs"] = kwargs
    return f"another order of {kind}"


def _other_place(made: Plans, draw: random.Random) -> str:
    prims = draw.choice([x for x in made.communications if x] or [[]])
    found = [p for p in prims if p.name in ("MovePrim", "SelectPrim", "VChunkPrim")]
    if not found:
        return _other_dims(made, draw)
    kind = draw.choice(found).name
    for prim in _some(draw, [p for p in found if p.name == kind]):
        if kind == "VChunkPrim":
            prim.name, prim.state["kwargs"] = "IdentityPrim", {}
        elif kind == "SelectPrim":
            kwargs = prim.state["kwargs"]
            prim.state["kwargs"] = {**kwargs, "valmap": kwargs["valmap"] + 1}
        else:
            other = draw.choice(found).state["kwargs"]["dst"]
            prim.state["kwargs"] = {**prim.state["kwargs"], "dst": other}
    return f"elsewhere: {kind}"


def _other_rate(made: Plans, draw: random.Random) -> str:
    found = [x for x in made.operators if x[0].state["signature"] == DROPOUT]
    for op in _some(draw, draw.choice(found)):
        op.state["_kwargs"] = {**op.state["_kwargs"], "p": draw.choice((0.5, 0.25, 0.1, 0.0))}
    return "another rate"


def _alone(made: Plans, draw: random.Random) -> str:
    """Each device reduces a weight over its own replicas alone."""
    weights = draw.choice(made.reducers).state["_inputs"]
    for device, sequence in _sequences(made).items():
        for cell in sequence:
            if cell.name == "IRWeightReducer" and cell.state["_inputs"] == weights:
                cell.state["_device"] = (device,)
    return "reducers over other devices"


def _sequences(made: Plans) -> dict[int, list[Obj]]:
    found: dict[int, list[Obj]] = made.parallel.state["execplan"].state["_seq"]
    return found


def _uses(made: Plans, draw: random.Random, backward: bool) -> tuple[list[Obj], list[Obj]]:
    """The sequence of a device, and the uses of its segment in it."""
    sequence = draw.choice(list(_sequences(made).values()))
    uses = [x for x in sequence if x.name == "ExeReuseCell"]
    own = [x for x in uses if x.state["_cell"].name == "IRSegment"]
    differentiates = [
        any(n.name == "IRBpOperation" for n in x.state["_cell"].state["_nodes"]) for x in own
    ]
    return sequence, [x for x, back in zip(own, differentiates, strict=True) if back == backward]


def _other_microbatch(made: Plans, draw: random.Random) -> str:
    """A device exchanges what it reads in two microbatches."""
    _, uses = _uses(made, draw, backward=draw.random() < 0.5)
    if len(uses) < 2:
        return _other_number(made, draw)
    one, two = uses[:2]
    one.state["_inputs"], two.state["_inputs"] = two.state["_inputs"], one.state["_inputs"]
    return "another microbatch"


def _lost_microbatch(made: Plans, draw: random.Random) -> str:
    """A device leaves out the backward segment of its last microbatch."""
    sequence, uses = _uses(made, draw, backward=True)
    if not uses:
        return _other_number(made, draw)
    sequence[:] = [x for x in sequence if x is not uses[-1]]
    return "a microbatch less"


def _other_scale(made: Plans, draw: random.Random) -> str:
    """A loss that is a mean becomes a sum, or the reverse."""
    found = [x for x in made.operators if "reduction" in x[0].state["_kwargs"]]
    for op in _some(draw, draw.choice(found)):
        kwargs = op.state["_kwargs"]
        other = {"mean": "sum", "sum": "mean"}[kwargs["reduction"]]
        op.state["_kwargs"] = {**kwargs, "reduction": other}
    return "another scale of the loss"


def _no_reducer(made: Plans, draw: random.Random) -> str:
    execution = made.parallel.state["execplan"].state["_seq"]
    gone = draw.choice(made.reducers)
    weights = gone.state["_inputs"]
    for sequence in execution.values():
        sequence[:] = [
            x
            for x in sequence
            if not (x is gone or (x.name == gone.name and x.state["_inputs"] == weights))
        ]
    return "no reducer"
