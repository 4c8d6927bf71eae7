"""One allocation while a trace is replayed: what was written to which part of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.trace import StridedTensor


class Piece(NamedTuple):
    """``value`` fills [start, stop) of a storage, its elements in order.

    Example: the second gradient of a bucket of two with 4 elements each is ``Piece(4, 8, value)``.
    """

    start: int
    stop: int
    value: int


class Cut(NamedTuple):
    """Where a piece lies in a tensor: ``size`` positions of dimension ``dim`` from ``start`` on;
    with ``box``, entries in a row (``dim`` is 0), in that shape.

    Example: ``Cut(0, 8, 4, (2, 2))`` is a matrix of the entries 8 to 11.
    """

    dim: int
    start: int
    size: int
    box: tuple[int, ...] | None = None


class Copied(NamedTuple):
    """Memory that begins with a parameter's numbers, though it is another one's; both in a row.

    Example: the weights of ``copy.deepcopy(model)`` before `job.start`.
    """

    parameter: StridedTensor
    copy: StridedTensor


@dataclass(slots=True)
class Storage:
    """The pieces, such as a bucket's gradients, that were written to one allocation, and views of
    it that were read; ``dtype``: of the elements by which positions in it are counted."""

    pieces: list[Piece] = field(default_factory=list)
    views: dict[StridedTensor, int] = field(default_factory=dict)
    dtype: str = ""

    def measured(self, tensor: StridedTensor) -> None:
        """Raise `InvalidInput` where a tensor counts positions by elements of another size than
        what lies here: the same position is another place in memory then.

        Example: of 8 float32 numbers, position 4 of ``x.view(torch.bfloat16)`` is in the third.
        """
        if not self.pieces:
            self.dtype = tensor.dtype
        elif self.dtype != tensor.dtype and bits(self.dtype) != bits(tensor.dtype):
            raise InvalidInput(
                f"memory that is used as {self.dtype} is used as {tensor.dtype}, too "
                "(a view of another type)",
            )


def bits(dtype: str) -> int:
    """How many bits an element has, by the name of its type.

    Example: ``bits("bfloat16")`` is 16, ``bits("bool")`` is 8.
    """
    number = re.search(r"\d+", dtype)
    return 8 if number is None else int(number[0])
