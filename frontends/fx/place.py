"""Which part of which single-device tensor every rank holds: as stated, or inferred.

Inferred is only: all of it on every rank, where the shapes are equal; a contiguous shard along the
one dimension that is smaller, in the order of the ranks.  Ranks, heads and tensors of equal shape
are never permuted.  What is inferred is an assumption of kind ``inferred``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import Assumption
from shardproof.frontends.fx.records import Node
from shardproof.frontends.graphs.relations import InputRelation, Place

Shape = tuple[int, ...]
#: Names that exporters make of a number: a position, which says nothing of what the tensor is.
NUMBERED: Final = re.compile(
    r"^(?:primals|tangents|arg|args|p|l|_param_constant)_?\d+(?:[._]\d+)*$"
)


class Box(NamedTuple):
    """A rank's part: of which tensor, its full shape, and where the part of every rank begins;
    ``names``: those of every rank's tensor, where ranks have different ones.

    Example: ``Box("w", (4, 8), ((0, 0), (0, 4)))``: two ranks with the left and the right half of
    ``w``.
    """

    name: str
    full: Shape
    starts: tuple[Shape, ...]
    names: tuple[str, ...] = ()

    def of(self, rank: int) -> str:
        """The name of the tensor of which a rank has a part.

        Example: with the ``names`` "experts_0" and "experts_2", "experts_2" on rank 1.
        """
        return self.names[rank] if self.names else self.name


class Piece(NamedTuple):
    """A piece of a fused tensor: where it begins, its size, and how many ranks one after the other
    have the same share of it.

    Example: ``Piece(2048, 512, 2)``: columns 2048 to 2559, keys of heads that two ranks share.
    """

    start: int
    size: int
    copies: int = 1


class Slice(NamedTuple):
    """``size`` positions of a dimension, from ``start`` on.

    Example: keys in the gradient of a fused weight are ``Slice(0, 16, 16)``.
    """

    dim: int
    start: int
    size: int


class Part(NamedTuple):
    """A box of a named input and the shape of a rank's tensor.

    Example: ``Part(Box("w", (4, 8), ((0, 0), (0, 4))), (4, 4))``.
    """

    box: Box
    shape: Shape


def pieces(
    shares: Sequence[Piece],
    dim: int,
    name: str,
    full: Shape,
    part: Shape,
    places: Sequence[int],
) -> list[Part]:
    """The shares that ranks have of pieces of a tensor, as boxes of named inputs; ``places``: of
    every rank, which of so many shares it has.

    Example: over two ranks the pieces (0, 2048), (2048, 512, 2), (2560, 512, 2) of ``w`` along 1
    are 1024 columns from 0 and from 1024 of ``w[:, 0:2048]``, and for both ranks all of ``w[:,
    2048:2560]`` and of ``w[:, 2560:3072]``.
    """
    parts, ranks = [], max(places) + 1
    for one, (start, size, copies) in zip(whole(shares, dim, name, full), shares, strict=True):
        if not copies or ranks % copies or size * copies % ranks:
            raise InvalidInput(
                f"a piece of {size} from {start}, of which every {copies} ranks have the same, "
                f"over {ranks} ranks",
                name,
            )
        share = size * copies // ranks
        starts = tuple(
            tuple(at // copies * share if d == dim else 0 for d in range(len(full)))
            for at in places
        )
        shape = tuple(share if d == dim else n for d, n in enumerate(full))
        parts.append(Part(Box(one.box.name, one.shape, starts), shape))
    total = sum(p.shape[dim] for p in parts)
    if part != tuple(total if d == dim else n for d, n in enumerate(full)):
        raise InvalidInput(f"pieces of {total} positions in {list(part)}", name)
    return parts


def whole(shares: Sequence[Piece], dim: int, name: str, full: Shape) -> list[Part]:
    """The pieces of a tensor, as named inputs; raises `InvalidInput` unless they are all of it, one
    after the other.

    Example: the pieces (0, 2048) and (2048, 512) of ``w`` [64, 2560] along 1 are ``w[:, 0:2048]``
    and ``w[:, 2048:2560]``.
    """
    parts, end = [], 0
    for start, size, _ in shares:
        if dim >= len(full) or not size or start != end:
            raise InvalidInput(
                f"a piece of {size} from {start} of {list(full)} along dimension {dim}, expected "
                f"one from {end}",
                name,
            )
        end = start + size
        shape = tuple(size if d == dim else n for d, n in enumerate(full))
        at = ", ".join([*[":"] * dim, f"{start}:{end}"])
        parts.append(Part(everywhere(f"{name}[{at}]", shape, 1), shape))
    if end != full[dim]:
        raise InvalidInput(f"pieces of {end} positions of {list(full)} along {dim}", name)
    return parts


class Placed(NamedTuple):
    """Where an input lies on the ranks, and what is assumed to know that.

    Example: ``w`` [4, 8] in two halves, with "input w is divided along dimension 1 in the order of
    ranks (inferred by shape)".
    """

    box: Box
    assumed: tuple[Assumption, ...]


def everywhere(name: str, shape: Shape, ranks: int) -> Box:
    """The box of an input that every rank holds as a whole.

    Example: ``w`` [4, 8] on two ranks begins at (0, 0) on both.
    """
    return Box(name, shape, ((0,) * len(shape),) * ranks)


def along(name: str, full: Shape, part: Shape, dim: int, ranks: int) -> Box:
    """Contiguous parts along a dimension, in the order of ranks.

    Example: parts [4, 4] of ``w`` [4, 8] along 1 on two ranks begin at (0, 0) and at (0, 4); parts
    [4, 3] are refused.
    """
    if dim >= len(full) or len(part) != len(full):
        raise InvalidInput(f"has no dimension {dim} of {list(full)}", name)
    expected = tuple(n // ranks if d == dim else n for d, n in enumerate(full))
    if full[dim] % ranks or part != expected:
        raise InvalidInput(
            f"a shard of {list(full)} along dimension {dim} over {ranks} ranks, "
            f"found a part of {list(part)}",
            name,
        )
    starts = (
        tuple(rank * part[dim] if d == dim else 0 for d in range(len(full)))
        for rank in range(ranks)
    )
    return Box(name, full, tuple(starts))


def stated_box(place: Place, name: str, full: Shape, part: Shape, ranks: int) -> Box:
    """The box that the relations file says; raises `InvalidInput` where the shapes are others.

    Example: ``starts = [[0, 0], [0, 4]]`` places parts [4, 4] of ``w`` [4, 8]; ``replicated =
    true`` does not.
    """
    if place.shard is not None:
        return along(name, full, part, place.shard, ranks)
    if place.starts is None:
        if part != full:
            raise InvalidInput(f"is all of {list(full)}, found {list(part)}", name)
        return everywhere(name, full, ranks)
    starts = tuple(tuple(start) for start in place.starts)
    if len(starts) != ranks or any(
        len(start) != len(full)
        or len(part) != len(full)
        or any(s + n > f for s, n, f in zip(start, part, full, strict=True))
        for start in starts
    ):
        raise InvalidInput(
            f"expected where a part of {list(part)} begins in {list(full)} on each of "
            f"{ranks} ranks, found {[list(s) for s in starts]}",
            name,
        )
    return Box(name, full, starts)


def inferred(what: str, name: str, full: Shape, part: Shape, ranks: int) -> Placed:
    """The one placement that the shapes allow; raises `InvalidInput` where there is none.

    Example: parts [4, 4] of [4, 8] on two ranks are divided along dimension 1; parts [4, 4] of [8,
    8] are refused.
    """

    def inference(text: str) -> tuple[Assumption, ...]:
        return (Assumption("inferred", name, "", f"{what} {name} is {text} (inferred by shape)"),)

    if part == full:
        if ranks == 1:
            return Placed(everywhere(name, full, 1), ())
        return Placed(everywhere(name, full, ranks), inference("the same on every rank"))
    other = [d for d in range(len(full)) if len(part) == len(full) and part[d] != full[d]]
    if len(other) != 1 or part[other[0]] * ranks != full[other[0]]:
        raise InvalidInput(
            f"nothing says which part of {list(full)} the ranks' {list(part)} are"
            f"{_beyond(full, part, other, ranks)}: state it in a relations file (--relations)",
            name,
        )
    box = along(name, full, part, other[0], ranks)
    return Placed(box, inference(f"divided along dimension {other[0]} in the order of ranks"))


def _beyond(full: Shape, part: Shape, other: Sequence[int], ranks: int) -> str:
    """That the ranks hold more than there is, in words; empty where they do not."""
    if len(other) != 1 or part[other[0]] * ranks <= full[other[0]]:
        return ""
    (dim,) = other
    return (
        f" ({ranks} ranks have {part[dim] * ranks} positions of dimension {dim}, the single device "
        f"has {full[dim]}: what is added there, or held twice, is on no single device)"
    )


def paired(
    single: Sequence[Node], parallel: Sequence[Node], relations: Mapping[str, InputRelation]
) -> tuple[dict[str, str], tuple[Assumption, ...]]:
    """The single side's input that each of the parallel side's is, by name.

    Example: ``[inputs.arg5_1] of = "arg2_1"`` gives {"arg5_1": "arg2_1"}; ``primals_1`` and
    ``primals_2`` of both sides are each other, with "2 inputs are paired by names that are only
    numbers".
    """
    known = {node.name for node in single}
    unknown = sorted(relations.keys() - {node.name for node in parallel})
    if unknown:
        raise InvalidInput("the parallel side has no such input", f"inputs.{unknown[0]}")
    pairs: dict[str, str] = {}
    numbered: list[str] = []
    positions = _positions(single, parallel)
    for node in parallel:
        input_relation = relations.get(node.name)
        own = positions.get(node.name, node.name)
        if input_relation is not None and input_relation.of is not None:
            own = input_relation.of
        if own not in known:
            raise InvalidInput(
                "the single side has no such input: say which one it is ([inputs] of = ...)", own
            )
        if (input_relation is None or input_relation.of is None) and NUMBERED.match(own):
            numbered.append(own)
        pairs[node.name] = own
    text = (
        f"{len(numbered)} inputs are paired by names that are only numbers ({numbered[0]} to "
        f"{numbered[-1]}): by position"
        if numbered
        else ""
    )
    return pairs, ((Assumption("inferred", "inputs", "", text),) if numbered else ())


def _positions(single: Sequence[Node], parallel: Sequence[Node]) -> dict[str, str]:
    """Of inputs whose names are only numbers, the single side's at their position, where both sides
    have as many and not the same ones: a graph may count what is no tensor, too.

    Example: of ``primals_1`` and ``primals_3``, beside ``primals_1`` and ``primals_2``, the second
    ones are each other.
    """
    own, theirs = ([n.name for n in side if NUMBERED.match(n.name)] for side in (single, parallel))
    if len(own) != len(theirs) or set(own) == set(theirs):
        return {}
    return dict(zip(theirs, own, strict=True))


def words(box: Box, part: Shape) -> str:
    """A placement in words that follow a name.

    Example: "is the same on every rank", "is divided along dimension 1 in the order of ranks", "is
    [2, 4] of [4, 8] from [[0, 0], [2, 4]] on".
    """
    if box.full == part:
        return "is the same on every rank" if len(box.starts) > 1 else "is all of it"
    moving = [d for d in range(len(box.full)) if len({s[d] for s in box.starts}) > 1]
    if len(moving) == 1:
        starts = [s[moving[0]] for s in box.starts]
        if starts == sorted(starts):
            return f"is divided along dimension {moving[0]} in the order of ranks"
    return f"is {list(part)} of {list(box.full)} from {[list(s) for s in box.starts]} on"


def kind_of(dtype: str | None) -> str:
    """Whether a tensor is of numbers, of integers or of truth values.

    Example: "bfloat16" is real, "uint8" is integer.
    """
    name = dtype or "float32"
    return "bool" if name == "bool" else "integer" if name.startswith(("int", "uint")) else "real"


def may_choose(dtype: str | None) -> bool:
    """Whether integers of this type may choose rows: PyTorch takes no others than those of 32 and
    64 bits.  Shorter ones are numbers, as quantized weights are.

    Example: "int64" is such a type; "int8" and "bfloat16" are not.
    """
    return kind_of(dtype) == "integer" and (dtype or "").endswith(("32", "64"))
