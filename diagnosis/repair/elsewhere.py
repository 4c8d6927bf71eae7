"""The same in other layers: faults and edits that are one but for the layer they are in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from shardproof.diagnosis.repair.edits import Edit, Site, groups, op_at, sites
from shardproof.diagnosis.repair.origins import module_of, named
from shardproof.engine.plan.ir import Attr, Group, Op, Plan

_NUMBER: Final = re.compile(r"(?<=\.)\d+\b")
_DIGITS: Final = re.compile(r"\d+")
#: Attributes that differ from rank to rank.
_OF_RANKS: Final = frozenset({"group", "peer", "claimed", "position"})
#: Modules that are listed one by one.
_FEW: Final = 3


def pattern(text: str) -> str:
    """Where in a layer something is: a module path without the number of the layer.

    Example: ``h.3.attn`` is ``h.#.attn``.
    """
    return _NUMBER.sub("#", text)


def spoken_layers(modules: Sequence[str]) -> str:
    """Modules in a few words, in the order of the model.

    Example: "h.0 ... h.3 (4 places)", and up to three modules one by one.
    """
    if len(modules) <= _FEW:
        return ", ".join(modules)
    return f"{modules[0]} ... {modules[-1]} ({len(modules)} places)"


def places_of(plan: Plan, edits: Sequence[Edit]) -> list[str]:
    """The modules of edited operators, each once; of a move of data, that of what it moves.

    Example: ``["h.1.mlp"]`` for an all-reduce after its ``linear``.
    """
    return list(dict.fromkeys(module_of(plan, edit.site) for edit in edits))


def numbered(modules: Sequence[str], others: Sequence[str]) -> list[str]:
    """``modules`` (at least one), then the first of them in the layers that ``others`` are in.

    Example: ``["h.0.attn"]`` with ``["h.1.mlp", "h.2"]`` is
    ``["h.0.attn", "h.1.attn", "h.2.attn"]``.
    """
    names = dict.fromkeys(modules)
    for other in others if modules else ():
        number = _NUMBER.search(other)
        if number is not None:
            names[_NUMBER.sub(number[0], modules[0], count=1)] = None
    return list(names)


def elsewhere(plan: Plan, edits: Sequence[Edit]) -> list[Edit]:
    """The same edits of the same operators in other layers: those that have the same attributes
    there, come after the same operator and make what is called the same but for numbers, in layers
    that have as many of them.  None at all where one of them has no counterpart.

    Example: for an all-reduce after ``linear`` in ``h.0.mlp``, the same in ``h.1.mlp``.
    """
    edits_there: dict[Site, Edit] = {}
    for edit in edits:
        old = op_at(plan, edit.site)
        if edit.after < 0 and not set(edit.op.inputs) <= set(old.inputs):
            return []
        where = _called(plan, edit.site)
        for number, program in enumerate(plan.programs):
            for site, op in sites(program, number):
                if not _same(op, old) or _called(plan, site) != where:
                    continue
                new = _edit_at(plan, edit, site)
                if new is None:
                    return []
                edits_there[site] = new
    for edit in edits:
        edits_there.pop(edit.site, None)
    layers: dict[str, list[Edit]] = {}
    for site, edit in edits_there.items():
        layer = _NUMBER.search(module_of(plan, site))
        layers.setdefault(layer[0] if layer else "", []).append(edit)
    # On more or fewer ranks it is another fault.
    return [edit for alike in layers.values() if len(alike) == len(edits) for edit in alike]


def _called(plan: Plan, site: Site) -> tuple[str, ...]:
    """An operator by where it is and what it makes, in any layer: a tensor that is copied is not
    one that was to be reduced, though both are moves after a product."""
    values = plan.programs[site.program].bodies[site.body].values
    made = (values[v].name for v in op_at(plan, site).outputs)
    return pattern(named(plan, site)), *(_DIGITS.sub("#", name) for name in made)


def _same(one: Op, other: Op) -> bool:
    return _identity(one) == _identity(other) and _constants(one.attrs) == _constants(other.attrs)


def _identity(op: Op) -> tuple[object, ...]:
    return (op.name, op.backward, len(op.inputs), len(op.outputs), op.source.location)


def _constants(attrs: Mapping[str, Attr]) -> dict[str, Attr]:
    return {key: value for key, value in attrs.items() if key not in _OF_RANKS}


def _edit_at(plan: Plan, edit: Edit, site: Site) -> Edit | None:
    """An edit as it would be at ``site``; None if the ranks there have no such group."""
    op, old, here = edit.op, op_at(plan, edit.site), op_at(plan, site)
    attrs = dict(op.attrs)
    group = attrs.get("group")
    if isinstance(group, Group):
        known = groups(plan, edit.site.program)
        other = groups(plan, site.program)
        if group not in known or len(known) != len(other):
            return None
        attrs["group"] = other[known.index(group)]
    inputs = tuple(here.inputs[old.inputs.index(v)] for v in op.inputs) if edit.after < 0 else ()
    outputs = here.outputs if edit.after < 0 else ()
    new = replace(op, inputs=inputs, outputs=outputs, attrs=attrs, source=here.source)
    return Edit(site, new, edit.after)
