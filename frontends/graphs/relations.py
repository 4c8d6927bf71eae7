"""What the user says about two graphs: where inputs lie, which outputs are compared, groups.

A relations file is TOML, read strictly; `docs/graphs.md` describes it::

    [inputs."p9.10"]          # of the parallel side
    of = "p9.10"              # the single side's input; without it, the one of this name
    shard = 1                 # or: replicated = true; or: starts = [[0, 0], [0, 1536]]
    # or, of a fused weight (q, k, v): dim = 1, pieces = [[0, 2048], [2048, 512], [2560, 512]]

    [[outputs]]
    single = "add_1"
    parallel = "add_3"        # and, if it is not all of it: shard = 0, starts = ..., sum = true

    partial = ["add_7", "add_9"]      # outputs of which the single device's is the sum over ranks
    zeros = ["tangents_3"]            # inputs of both sides that are zero

    [groups]
    "12" = [[0, 1]]

    [domains]
    tokens = [0, 98304]

    [constants]
    _tensor_constant0 = 0
    "constant.22" = "any"             # any numbers, the same on both sides
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.settings import read_toml

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the ranks' boxes of a tensor lie: one of the three (an output: or none, all of it).

    Example: ``shard = 1``; or ``starts = [[0, 0], [0, 1536]]`` for two ranks.
    """

    replicated: bool = False
    shard: Count | None = None
    starts: list[list[Count]] | None = None

    def count_ways(self) -> int:
        """How many ways of placing it are given; at most one may be."""
        return int(self.replicated) + (self.shard is not None) + (self.starts is not None)


class InputRelation(Place, frozen=True, forbid_unknown_fields=True):
    """What the user states of an input of the parallel side. ``pieces``: (start, size) of parts of
    the single side's tensor along dimension ``dim``, each divided along it in the order of ranks; a
    rank has its share of each, side by side. A third number: so many ranks, one after the other,
    have the same share (heads that are copied).

    Example: ``of = "p9.10"``, ``dim = 1``, ``pieces = [[0, 2048], [2048, 512], [2560, 512]]`` for a
    fused projection of q, k and v.
    """

    of: str | None = None
    pieces: list[Annotated[list[Count], msgspec.Meta(min_length=2, max_length=3)]] | None = None
    dim: Count = 0

    def count_ways(self) -> int:
        """As `Place.count_ways`, with pieces as one more way."""
        return super().count_ways() + (self.pieces is not None)


class OutputRelation(Place, frozen=True, forbid_unknown_fields=True):
    """What the user states of an output that is compared. ``sum``: the single device's value is the
    sum over all ranks, and somebody must still take it; the user expects that.

    Example: ``single = "add_1"``, ``parallel = "add_3"``, ``sum = true``.
    """

    single: str = ""
    parallel: str = ""
    sum: bool = False


class Relations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of relations: what the user states of inputs, outputs, groups, domains and
    constants.

    Example: ``partial = ["add_7"]`` above the tables ``[inputs.w]`` and ``[groups]``.
    """

    inputs: dict[str, InputRelation] = {}
    outputs: list[OutputRelation] = []
    groups: dict[str, list[list[Count]]] = {}
    domains: dict[str, tuple[int, int]] = {}
    constants: dict[str, int | float | Literal["any"]] = {}
    partial: list[str] = []
    zeros: list[str] = []
    accepted: list[str] = []


def read(path: Path) -> Relations:
    """The relations in a file; raises `InvalidInput` naming the file and the key.

    Example: ``inputs.w = {shard = 0, replicated = true}`` is refused: expected one placement.
    """
    try:
        relations = msgspec.convert(read_toml(path), Relations, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), str(path)) from error
    try:
        _check(relations)
    except InvalidInput as error:
        raise error.within(str(path)) from None
    return relations


def _check(relations: Relations) -> None:
    for name, place in relations.inputs.items():
        where = f"inputs.{name}"
        if place.count_ways() != 1:
            raise InvalidInput(
                "expected one placement (replicated = true, shard = DIMENSION, starts or pieces), "
                f"found {place.count_ways()}",
                where,
            )
        if place.dim and place.pieces is None:
            raise InvalidInput("dim is that of pieces, and there are none", where)
    for number, output in enumerate(relations.outputs):
        where = f"outputs {number}"
        if not output.single or not output.parallel:
            raise InvalidInput("expected names of a single and a parallel output", where)
        if output.count_ways() > 1 or (output.sum and output.count_ways()):
            raise InvalidInput("expected at most one placement", where)
    _check_numbers(relations)


def _check_numbers(relations: Relations) -> None:
    """Domains, constants and groups of which there is none such."""
    for name, (low, high) in relations.domains.items():
        if low >= high:
            raise InvalidInput(f"an empty domain {[low, high]}", f"domains.{name}")
    for name, number in relations.constants.items():
        if isinstance(number, float) and not isfinite(number):
            raise InvalidInput(f"expected a real number, found {number}", f"constants.{name}")
    for name, groups in relations.groups.items():
        if not all(groups):
            raise InvalidInput("a group of no rank", f"groups.{name}")
