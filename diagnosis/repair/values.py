"""Candidate repairs of what an operator computes: constants, scale, the tensors it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from shardproof.diagnosis.locate.divergences import Essence, essence, shown, times
from shardproof.diagnosis.repair.edits import Edit, Site, applied, op_at, peer, sites
from shardproof.diagnosis.repair.origins import Candidate, FaultContext, edited, named
from shardproof.engine.plan.ir import Op
from shardproof.partition.evidence.alignment import PLACES


def constants(fault: FaultContext) -> Iterator[Candidate]:
    """The counterpart's constants, in the operator and in its backward.

    Example: "other 1/512 in place of about 0.000976562 in mul in `loss` and its backward on ranks
    [0]".
    """
    if fault.divergence.counterpart < 0:
        return
    instance = fault.instances[0]
    wanted = fault.result.single.unrolled.instances[fault.divergence.counterpart].attrs
    changed = {
        key: wanted[key]
        for key in instance.attrs
        if key in wanted and key not in PLACES and instance.attrs[key] != wanted[key]
    }
    for key, right in changed.items():
        wrong = instance.attrs[key]
        edits = []
        for program in fault.programs:
            for site, op in sites(fault.plan.programs[program], program):
                same = op.name == instance.name and (op.source.module, op.source.location) == (
                    instance.source.module,
                    instance.source.location,
                )
                if same and op.attrs.get(key) == wrong:
                    edits.append(Edit(site, replace(op, attrs={**op.attrs, key: right})))
        if edits:
            ranks = [fault.plan.programs[p].base for p in fault.programs]
            yield edited(
                "wrong constant",
                f"{key} {shown(right)} in place of {shown(wrong)} in "
                f"{named(fault.plan, fault.sites[0])} and its backward on ranks {ranks}",
                fault.plan,
                edits,
            )


def scales(fault: FaultContext) -> Iterator[Candidate]:
    """The result multiplied by what it is short of its counterpart's.

    Example: "the result of mul in `loss` times 2 on ranks [0]".
    """
    for place, ratio in enumerate(_ratios(fault)):
        if ratio in (None, 1):
            continue
        assert ratio is not None
        scale = Op("mul", (), (), {"other": 1 / ratio})
        # A communication of several programs has the outputs of all of them.
        edits = [
            Edit(site, scale, place)
            for site in fault.sites
            if place < len(op_at(fault.plan, site).outputs)
        ]
        if not edits:
            continue
        name = named(fault.plan, fault.sites[0])
        ranks = [fault.plan.programs[p].base for p in fault.programs]
        says = f"the result of {name} times {times(1 / ratio)} on ranks {ranks}"
        yield edited("wrong scale", says, fault.plan, edits)


def scale_of(fault: FaultContext) -> Fraction | None:
    """How many times its counterpart's result the first result that is off is.

    Example: 1/2 for a loss that is divided by two ranks once too often; None where the nodes
    differ.
    """
    return next((ratio for ratio in _ratios(fault) if ratio not in (None, 1)), None)


def _ratios(fault: FaultContext) -> list[Fraction | None]:
    """How many times what they should be the results are (None: that is not all that is wrong)."""
    divergence = fault.divergence
    if divergence.counterpart < 0:
        return [divergence.factor]
    theirs = fault.result.single.unrolled.instances[divergence.counterpart]
    return [
        _ratio(essence(fault.lineage(mine)), essence(fault.result.single.lineages[other]))
        for mine, other in zip(fault.instances[0].outputs, theirs.outputs, strict=False)
    ]


def _ratio(mine: Essence | None, theirs: Essence | None) -> Fraction | None:
    if mine is None or theirs is None or len(mine) != 1 or len(theirs) != 1:
        return None
    (a, m), (b, n) = *mine, *theirs
    return a / b if m == n and a and b else None


def repeated_inputs(fault: FaultContext) -> Iterator[Candidate]:
    """A sum that takes an addend twice takes it once.

    Example: "... added once, not twice, in the sum of gradients after ...", for an ``add_n`` of
    values 7, 9 and 7.
    """
    edits: list[Edit] = []
    names: tuple[str, ...] = ()
    for site in fault.sites:
        op = op_at(fault.plan, site)
        once = tuple(dict.fromkeys(op.inputs))
        if op.name != "add_n" or len(once) == len(op.inputs) or len(once) < 2:
            continue
        body = fault.plan.programs[site.program].bodies[site.body]
        names = tuple(body.values[v].name for v in once if op.inputs.count(v) > 1)
        edits.append(Edit(site, replace(op, inputs=once)))
    if edits:
        yield edited(
            "addend taken twice",
            f"{', '.join(names)} added once, not twice, in the sum of gradients after "
            f"{named(fault.plan, fault.sites[0])}",
            fault.plan,
            edits,
        )


def swapped_inputs(fault: FaultContext) -> Iterator[Candidate]:
    """Two inputs of one shape change places.

    Example: "gradients 0 and 1 of the backward of apply_rotary_emb in `layers.1.attention` in the
    other order".
    """
    op = op_at(fault.plan, fault.sites[0])
    site = fault.sites[0]
    values = fault.plan.programs[site.program].bodies[site.body].values
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
        for here in fault.sites:
            mine = op_at(fault.plan, here)
            if len(mine.inputs) <= j:
                continue
            inputs = list(mine.inputs)
            inputs[i], inputs[j] = inputs[j], inputs[i]
            edits.append(Edit(here, replace(mine, inputs=tuple(inputs))))
        what = "gradients" if op.backward and i >= first else "inputs"
        one, other = (values[op.inputs[n]].name for n in (i, j))
        order = f" ({other} before {one})" if one != other else ""
        yield edited(
            f"{what} in the wrong order",
            f"{what} {i - first if i >= first else i} and {j - first if i >= first else j} of "
            f"{named(fault.plan, site)} in the other order{order}",
            fault.plan,
            edits,
        )


def other_tensors(fault: FaultContext) -> Iterator[Candidate]:
    """An input that is not the counterpart's is taken from a value of the body that is.

    Example: "x in place of y as input 1 of matmul in `attention`", where the counterpart reads what
    ``x`` is.
    """
    if fault.divergence.counterpart < 0 or len(fault.divergence.instances) != len(fault.sites):
        return
    theirs = fault.result.single.unrolled.instances[fault.divergence.counterpart]
    instance, read = fault.instances[0], op_at(fault.plan, fault.sites[0]).inputs
    if len(read) != len(instance.inputs):  # A message, or a collective: others send what it reads.
        return
    for place, (mine, other) in enumerate(zip(instance.inputs, theirs.inputs, strict=False)):
        if mine < 0 or other < 0:
            continue
        wanted = essence(fault.result.single.lineages[other])
        if wanted is None or essence(fault.lineage(mine)) == wanted:
            continue
        site = fault.sites[0]
        body = fault.plan.programs[site.program].bodies[site.body]
        op = op_at(fault.plan, site)
        shape = body.values[op.inputs[place]].shape
        known = _values(fault, site)
        for value, number in known.items():
            if body.values[value].shape != shape or essence(fault.lineage(number)) != wanted:
                continue
            edits, done = [], True
            for here in fault.sites:
                there = peer(fault.plan, site, here.program)
                reader = op_at(fault.plan, here)
                bodies = fault.plan.programs[here.program].bodies
                names = {v.name: n for n, v in enumerate(bodies[here.body].values)}
                source = value if here == site else names.get(body.values[value].name, -1)
                done = done and there == here and source >= 0
                inputs = (*reader.inputs[:place], source, *reader.inputs[place + 1 :])
                edits.append(Edit(here, replace(reader, inputs=inputs)))
            if done:
                yield Candidate(
                    "wrong tensor",
                    f"{body.values[value].name} in place of {body.values[op.inputs[place]].name} "
                    f"as input {place} of {named(fault.plan, site)}",
                    applied(fault.plan, edits),
                )


def _values(fault: FaultContext, site: Site) -> dict[int, int]:
    """Values of a body that are made before an operator of it: their tensors."""
    tensors: dict[int, int] = {}
    for number, places in enumerate(fault.origins):
        for at, here in enumerate(places):
            if here[:2] == site[:2] and here.op < site.op:
                instance, made = fault.instance(number), op_at(fault.plan, here).outputs
                tensors.update(zip(made, instance.outputs[at * len(made) :], strict=False))
    return tensors
