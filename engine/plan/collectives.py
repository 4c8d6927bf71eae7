"""The table of everything that moves values between ranks, or into them, declared once.

For each name: its attributes, how many operands and results it has, who is the root, what it means,
and what it meets on the wire.  Unrolling, lineages, obligations and the simulation each have one
rule per `Effect` and find it through this table; order and matching go by `Wire`.  For example,
``reduce`` is a `TOTAL` like ``all_reduce``, whose result only the root takes.

What a plan says beyond the table is never skipped: `malformed` names what makes it no plan, and
`refused` what it may well mean but we have no rule for.  The rank-by-rank runtime has an
implementation of its own, on purpose; a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from shardproof.engine.plan.ir import Attr, Group, Op


class Effect(Enum):
    """What the results are, by the operands of all members.

    Example: ``Effect.TOTAL`` of ``all_reduce`` and of ``reduce``, ``Effect.PART`` of ``chunk``.
    """

    TOTAL = "the sum, or the maximum, of all operands"
    GATHER = "the operands, concatenated in group order"
    SCATTER = "the member's equal part of the sum of all operands"
    EXCHANGE = "the member's equal part of every operand, concatenated in group order"
    COPY = "the value that the source gives"
    PART = "the part of the own operand at the member's position, as torch.chunk cuts it"
    INPUT = "the slice of the batch that the call reads"
    NOTHING = "no result"


class Wire(Enum):
    """What has to meet, in the order of issue.

    Example: ``Wire.GROUP`` of ``all_reduce``, ``Wire.LOCAL`` of ``chunk``, which sends nothing.
    """

    GROUP = "the same collective on every rank of the group"
    SEND = "a receive on the peer"
    RECEIVE = "a send on the peer"
    POST = "a later receive of the same rank, from the same peer"
    LOCAL = "nothing"


class Count(NamedTuple):
    """How many, at least and at most (-1: any number).

    Example: ``Count(0, 1)``, "0 or 1", is how many operands a broadcast has: the root gives one.
    """

    least: int
    most: int

    def has(self, number: int) -> bool:
        """Whether so many operands are allowed; ``most`` below 0 means any number from ``least``
        on."""
        return self.least <= number and (self.most < 0 or number <= self.most)

    def __str__(self) -> str:
        if self.most < 0:
            return f"at least {self.least}"
        return f"{self.least}" if self.least == self.most else f"{self.least} or {self.most}"


Kind = Literal["group", "dimension", "rank", "reduction", "position"]


class Attribute(NamedTuple):
    """An attribute of a collective, as its declaration has it.

    Example: ``Attribute("reduction", optional=True, known=("sum", "max"),
    default="sum")``, the ``op`` of ``all_reduce``.

    ``kind``: what its value is; ``own``: ranks that meet may have different ones; ``optional``:
    it need not be given, and is the ``default`` then, if it has one; ``known``: the values that
    there is a rule for (empty: all).
    """

    kind: Kind
    own: bool = False
    optional: bool = False
    known: tuple[str, ...] = ()
    default: str = ""


class Collective(NamedTuple):
    """The declaration of a collective, or of whatever else moves values.

    Example: ``TABLE["all_gather"]`` has the effect ``GATHER``, one operand, one result, and
    ``joins`` the attribute ``dim``.

    ``root``: what the rank that the attribute ``root`` names does in a rooted collective: it
    "gives" (what others have for an operand is overwritten) or "takes" (nobody else has a result);
    ``joint``: whether a group may be of explicit ranks and of mesh axes together; ``adds``: whether
    operands are added up; ``divides``, ``joins``: the attributes that name the dimension which is
    cut, and the one which grows.
    """

    name: str
    effect: Effect
    wire: Wire
    attrs: Mapping[str, Attribute]
    operands: Count
    results: Count
    root: Literal["", "gives", "takes"] = ""
    joint: bool = False
    adds: bool = False
    divides: str = ""
    joins: str = ""


_ONE, _NONE, _MAYBE, _ANY = Count(1, 1), Count(0, 0), Count(0, 1), Count(0, -1)
_GROUP, _DIM, _RANK = Attribute("group"), Attribute("dimension"), Attribute("rank")
_SUM = Attribute("reduction", optional=True, known=("sum",), default="sum")
_SUM_OR_MAX = Attribute("reduction", optional=True, known=("sum", "max"), default="sum")
_PLACE = Attribute("position", own=True, optional=True)
_PEER = {"peer": _RANK, "self": Attribute("rank", optional=True)}


def _table() -> Mapping[str, Collective]:
    declared = (
        Collective(
            "all_reduce",
            Effect.TOTAL,
            Wire.GROUP,
            {"group": _GROUP, "op": _SUM_OR_MAX},
            _ONE,
            _ONE,
            joint=True,
            adds=True,
        ),
        Collective(
            "reduce",
            Effect.TOTAL,
            Wire.GROUP,
            {"group": _GROUP, "root": _RANK, "op": _SUM_OR_MAX},
            _ONE,
            _MAYBE,
            root="takes",
            adds=True,
        ),
        Collective(
            "broadcast",
            Effect.COPY,
            Wire.GROUP,
            {"group": _GROUP, "root": _RANK},
            _MAYBE,
            _MAYBE,
            root="gives",
        ),
        Collective(
            "all_gather",
            Effect.GATHER,
            Wire.GROUP,
            {"group": _GROUP, "dim": _DIM, "position": _PLACE},
            _ONE,
            _ONE,
            joins="dim",
        ),
        Collective(
            "reduce_scatter",
            Effect.SCATTER,
            Wire.GROUP,
            {"group": _GROUP, "dim": _DIM, "op": _SUM},
            _ONE,
            _ONE,
            adds=True,
            divides="dim",
        ),
        Collective(
            "all_to_all",
            Effect.EXCHANGE,
            Wire.GROUP,
            {"group": _GROUP, "split_dim": _DIM, "concat_dim": _DIM},
            _ONE,
            _ONE,
            divides="split_dim",
            joins="concat_dim",
        ),
        Collective("send", Effect.NOTHING, Wire.SEND, _PEER, _ONE, _NONE),
        Collective("recv", Effect.COPY, Wire.RECEIVE, _PEER, _NONE, _ONE),
        Collective("post_recv", Effect.NOTHING, Wire.POST, _PEER, _NONE, _NONE),
        Collective(
            "chunk",
            Effect.PART,
            Wire.LOCAL,
            {"group": _GROUP, "dim": _DIM, "claimed": _PLACE},
            _ONE,
            _ONE,
            divides="dim",
        ),
        Collective("load_batch", Effect.INPUT, Wire.LOCAL, {}, _NONE, _ANY),
    )
    return MappingProxyType({collective.name: collective for collective in declared})


#: Every declaration by its name.
TABLE: Final = _table()
#: Operators that join the ranks of a group.
COLLECTIVES: Final = frozenset(n for n, c in TABLE.items() if c.wire is Wire.GROUP)
#: Operators that wait for other ranks, or that others wait for.
COMMUNICATION: Final = frozenset(n for n, c in TABLE.items() if c.wire is not Wire.LOCAL)
#: What gives a rank its part of its own operand.
PARTS: Final = frozenset(n for n, c in TABLE.items() if c.effect is Effect.PART)
#: What only hands a value on: there is nothing of its own to prove.
COPIES: Final = frozenset(n for n, c in TABLE.items() if c.effect is Effect.COPY)
#: What adds its operands up.
ADDS: Final = frozenset(n for n, c in TABLE.items() if c.adds)


def malformed(op: Op) -> str:
    """Why an operator of this table is none ("" if it is one): how many operands and results it
    has, what its attributes are.  Operators that are not of the table are not looked at.

    Example: ``all_reduce has 2 operands, expected 1``.
    """
    declared = TABLE.get(op.name)
    if declared is None:
        return ""
    if op.backward:
        return f"{op.name} has no derivative: what runs backward is an operator of its own"
    for what, values, due in (
        ("operands", op.inputs, declared.operands),
        ("results", op.outputs, declared.results),
    ):
        if not due.has(len(values)):
            return f"{op.name} has {len(values)} {what}, expected {due}"
    for key, attribute in declared.attrs.items():
        if key in op.attrs:
            value = op.attrs[key]
            if not _is(attribute.kind, value):
                return f"{key} of {op.name} should be a {attribute.kind}, found {value!r}"
        elif not attribute.optional:
            return f"{op.name} does not say its {key}"
    return ""


def _is(kind: Kind, value: Attr) -> bool:
    if kind == "group":
        return isinstance(value, Group) and all(_is("rank", rank) for rank in value.ranks)
    if kind == "reduction":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return value >= 0 or kind != "rank"


def refused(
    name: str, attrs: Mapping[str, Attr], over: Iterable[tuple[str, int]], members: int
) -> str:
    """Why there is no rule for what an operator of this table says ("" if there is one).

    Example: of ``all_reduce`` with ``op="prod"``, "all_reduce with prod: expected sum or max".

    ``over``: the mesh axes that its group spans, with their extents; ``members``: how many programs
    take part.  Along axes all ranks run one program, so that nothing in it can say which of them is
    the root: a rooted collective is of explicit ranks only.
    """
    declared = TABLE[name]
    unknown = sorted(set(attrs) - set(declared.attrs))
    if unknown:
        return f"attribute {unknown[0]} of operator {name} is not declared"
    for key, attribute in declared.attrs.items():
        value = attrs.get(key, attribute.default)
        if attribute.known and value not in attribute.known:
            return f"{name} with {value}: expected {' or '.join(attribute.known)}"
    axes = [axis for axis, extent in over if extent > 1]
    if axes and declared.root:
        return (
            f"a {name} along mesh axes {axes}: only one of these ranks is the root, and all of "
            "them run one program"
        )
    if axes and members > 1 and not declared.joint:
        return f"{name} over explicit ranks and mesh axes together"
    return ""


def signature(op: Op, rank: int) -> str:
    """What ranks that meet in a collective must agree on, in words: its name and attributes, with
    what is not given as it is by default and dimensions counted from the front.  ``rank``: how many
    dimensions its operand has.

    Example: of a matrix, ``all_gather`` with ``dim=-1`` and with ``dim=1`` is ``all_gather dim=1``:
    ranks of which each says one of the two meet.
    """
    declared = TABLE[op.name]
    words = []
    for key, attribute in sorted(declared.attrs.items()):
        if key == "group" or attribute.own:
            continue
        value = op.attrs.get(key, attribute.default)
        if attribute.kind == "dimension" and isinstance(value, int) and -rank <= value < 0:
            value += rank
        if key in op.attrs and value != attribute.default:
            words.append(f" {key}={value}")
    return op.name + "".join(words)


def cuts(name: str) -> tuple[str, ...]:
    """The attributes that name a dimension which is cut or grows.

    Example: ``split_dim`` and ``concat_dim`` of ``all_to_all``, none of ``all_reduce``.
    """
    declared = TABLE.get(name)
    if declared is None:
        return ()
    return tuple(key for key in (declared.divides, declared.joins) if key)


def spans(group: Attr, extents: Mapping[str, int]) -> tuple[list[tuple[str, int]], int]:
    """The mesh axes of a group with their extents, and how many programs it names.

    Example: of the axes ``dp`` 2 and ``tp`` 4, the group along ``tp`` spans (``tp``, 4), and names
    one program.
    """
    if not isinstance(group, Group):
        return [], 1
    return [(axis, extents.get(axis, 1)) for axis in group.axes], max(1, len(group.ranks))


def group_size(over: Sequence[tuple[str, int]], members: int) -> int:
    """How many ranks a group has.

    Example: 4 ranks along ``tp`` of 2 programs each are 8.
    """
    return members * prod(extent for _, extent in over)
