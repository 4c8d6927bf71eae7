"""Which ranks are in the groups that collectives name, and which collectives all of them need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.engine.plan.ir import Group, Op
from shardproof.frontends.fx.lower import RankBody
from shardproof.frontends.fx.records import Graph, Node

#: Namespaces of operators whose last name is a group's.
_NAMING = (
    *("_c10d_functional.", "_c10d_functional_autograd."),
    *("vllm.all_reduce", "vllm.all_gather", "vllm.reduce_scatter"),
)
#: Halves of a message, by whether the rank that has it sends.
_MESSAGES = {"send": True, "recv": False, "post_recv": False}
#: A collective: its name, its ranks, and how many of this kind are before it on the rank; of a
#: message the ranks that send and receive it.
Key = tuple[str, tuple[int, ...], int]


def named(nodes: Iterable[Node]) -> set[str]:
    """The groups that the collectives among some nodes name.

    Example: ``_c10d_functional.all_reduce(x, "sum", "7")`` names {"7"}.
    """
    names_of_groups = set()
    for node in nodes:
        if node.target.startswith(_NAMING):
            names = [x for x in (*node.args, *node.kwargs.values()) if isinstance(x, str)]
            names_of_groups.update(names[-1:])
    return names_of_groups


def groups(
    graphs: Sequence[Graph], recorded: Mapping[str, list[list[int]]], rank: int = 0
) -> dict[str, tuple[int, ...]]:
    """Ranks of every group that a rank's graph names: as stated, or all ranks that name it.

    Example: with two ranks whose graphs name group "7", and nothing stated, {"7": (0, 1)}; ``"7" =
    [[0], [1]]`` in ``[groups]`` gives rank 0 the group (0,).
    """
    every = list(range(len(graphs)))
    names = [named(graph.nodes) for graph in graphs]
    members = {
        name: tuple(r for r in every if name in names[r])
        for name in sorted(names[rank] - recorded.keys())
    }
    for name, listed in recorded.items():
        own = [tuple(g) for g in listed if rank in g]
        if len(own) != 1 or sorted(r for g in listed for r in g) != every:
            raise InvalidInput(
                f"expected groups in which each of {len(every)} ranks is once", f"groups.{name}"
            )
        members[name] = own[0]
    return members


def assumed(graphs: Sequence[Graph], recorded: Mapping[str, list[list[int]]]) -> list[Assumption]:
    """What is inferred of groups: who is in them is said by nobody.

    Example: "group '7' is of all ranks, which name it (inferred: state it in [groups])".
    """
    names = [named(graph.nodes) for graph in graphs]
    assumptions = []
    for name in sorted(set().union(*names) - recorded.keys()) if len(graphs) > 1 else ():
        ranks = [rank for rank, own in enumerate(names) if name in own]
        who = "all ranks" if len(ranks) == len(graphs) else f"ranks {ranks}"
        text = f"group {name!r} is of {who}, which name it (inferred: state it in [groups])"
        assumptions.append(Assumption("inferred", f"group {name}", "", text))
    return assumptions


def agree(bodies: Sequence[RankBody]) -> bool:
    """Whether all ranks of every group gather the same constants at the same places of its
    collectives, so that what they gather is that constant.

    Example: of two ranks that gather zeros first of all it is True; if one of them gathers ones, or
    something else before, False.
    """
    gathered: dict[tuple[int, tuple[int, ...]], list[object]] = {}
    for rank, body in enumerate(bodies):
        for ranks, place, constant in body.agreed:
            gathered.setdefault((rank, ranks), []).append((place, constant))
    return all(
        gathered.get((member, ranks)) == constants
        for (_, ranks), constants in gathered.items()
        for member in ranks
    )


# -- what all ranks of a group need ------------------------------------------------------------


def needed(bodies: Sequence[RankBody]) -> list[RankBody]:
    """The bodies with the operators that outputs depend on, and with every collective that a rank
    of its group needs: the others take part in it.

    Example: an all-reduce whose result rank 1 reads and rank 0 does not stays in the bodies of
    both; a ``relu`` that nobody reads is in neither.
    """
    keys = [_keys(body.ops, rank) for rank, body in enumerate(bodies)]
    wanted: set[Key] = set()
    while True:
        kept = [_needed(b, own, wanted) for b, own in zip(bodies, keys, strict=True)]
        reached = {
            own[i]
            for own, indices in zip(keys, kept, strict=True)
            for i in indices
            if own[i] is not None
        }
        if reached == wanted:
            return [
                replace(body, ops=tuple(body.ops[i] for i in indices))
                for body, indices in zip(bodies, kept, strict=True)
            ]
        wanted = {key for key in reached if key is not None}


def _keys(ops: Iterable[Op], rank: int) -> list[Key | None]:
    """The collectives and messages among a rank's operators, counted."""
    count: Counter[tuple[str, tuple[int, ...]]] = Counter()
    keys: list[Key | None] = []
    for op in ops:
        group, peer = op.attrs.get("group"), op.attrs.get("peer")
        if isinstance(group, Group):
            kind = op.name, tuple(sorted(group.ranks))
        elif op.name in _MESSAGES and isinstance(peer, int):
            kind = op.name, (rank, peer) if _MESSAGES[op.name] else (peer, rank)
        else:
            keys.append(None)
            continue
        number = count[kind]
        count[kind] += 1
        keys.append(("message" if op.name in _MESSAGES else op.name, kind[1], number))
    return keys


def _needed(body: RankBody, keys: Sequence[Key | None], also: set[Key]) -> list[int]:
    """Places of the operators that outputs and the collectives ``also`` depend on."""
    wanted = set(body.outputs)
    kept = []
    for i in reversed(range(len(body.ops))):
        op = body.ops[i]
        if wanted.intersection(op.outputs) or keys[i] in also:
            kept.append(i)
            wanted.update(op.inputs)
    return kept[::-1]
