"""Which operator of the single-device program each operator of the parallel side stands for.

Operators are aligned by what they are and where they come from in the model's source, never by
their numbers in the plan.
"""

from __future__ import annotations

from typing import Final

from shardproof.engine.schedule.instances import Instance
from shardproof.partition.stages.partition import Partition

Place = tuple[str, bool, str, str, int, int]
#: Programs and microbatch; name, direction and module.
_Who = tuple[tuple[int, ...], int]
_What = tuple[str, bool, str]

#: Attributes that name ranks or places and are no constants of the model.
PLACES: Final = frozenset({"group", "peer", "claimed", "position", "arity", "wrt"})


def places(instances: list[Instance]) -> list[Place | None]:
    """What each instance is aligned by: name, direction, module, source, which of its program's and
    microbatch's operators of that kind it is, and how many of them there are (where the sides have
    different numbers of a kind, none of that kind is aligned).

    Example: ``("linear", False, "h.0.attn", "examples/gpt.py:85", 1, 3)``, the second of the three
    projections that this line of the model makes.
    """
    counts: dict[tuple[object, ...], int] = {}
    result: list[tuple[tuple[str, bool, str, str], tuple[object, ...], int] | None] = []
    for instance in instances:
        if instance.kind != "op" or not (instance.source.module or instance.source.location):
            result.append(None)
            continue
        key = (instance.name, instance.backward, instance.source.module, instance.source.location)
        who = (*key, instance.programs, instance.microbatch)
        result.append((key, who, counts.get(who, 0)))
        counts[who] = counts.get(who, 0) + 1
    return [None if x is None else (*x[0], x[2], counts[x[1]]) for x in result]


def counterparts(result: Partition, loosely: bool = False) -> list[int]:
    """For each parallel instance the aligned instance of the single-device side (-1: none).

    Example: in a GPT at tp 2 the ``linear`` of the query is operator 40 of the single-device
    program; the ``identity`` of its copy to the tensor-parallel region has none.

    ``loosely``: what is left is aligned by name, direction and module alone, where both sides have
    as many left; two branches of a plan written by hand are on two lines.
    """
    single = result.single.unrolled.instances[: result.derived.given]
    given = places(single)
    numbers = {place: number for number, place in enumerate(given) if place is not None}
    instances = result.parallel.unrolled.instances
    aligned = [numbers.get(place, -1) if place is not None else -1 for place in places(instances)]
    return _loosely(single, given, instances, aligned) if loosely else aligned


def _loosely(
    single: list[Instance], given: list[Place | None], instances: list[Instance], aligned: list[int]
) -> list[int]:
    """The alignment with what is left on both sides aligned by name, direction and module."""
    known = [n for n, place in enumerate(given) if place is not None]
    groups: dict[tuple[_Who, _What], list[int]] = {}
    used: dict[_Who, set[int]] = {}
    for number, instance in enumerate(instances):
        who = (instance.programs, instance.microbatch)
        if aligned[number] >= 0:
            used.setdefault(who, set()).add(aligned[number])
        elif instance.kind == "op" and instance.source.module:
            key = (instance.name, instance.backward, instance.source.module)
            groups.setdefault((who, key), []).append(number)
    by_key: dict[_What, list[int]] = {}
    for n in known:
        instance = single[n]
        by_key.setdefault((instance.name, instance.backward, instance.source.module), []).append(n)
    result = list(aligned)
    for (who, key), members in groups.items():
        left = [n for n in by_key.get(key, ()) if n not in used.get(who, ())]
        if len(left) == len(members):
            for number, n in zip(members, left, strict=True):
                result[number] = n
    return result
