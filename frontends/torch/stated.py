"""What a user states of parameters and of the batch: plain data, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardproof.engine.errors import InvalidInput

#: Names of element types that ids may have.
INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8", "bool"})


@dataclass(frozen=True, slots=True)
class Piece:
    """This parameter is positions [start, start + size) along ``dim`` of parameter ``name``;
    ``said``: who says so.

    Example: ``Piece("up.weight", 0, 8, 8)``: rows 8 to 15.
    """

    name: str
    dim: int
    start: int
    size: int
    said: str = "stated"


@dataclass(frozen=True, slots=True)
class Same:
    """This parameter is all of parameter ``name``; ``said``: who says so.

    Example: ``Same("down.bias")``.
    """

    name: str
    said: str = "stated"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A batch tensor: its shape and element type; ids lie in [low, high) where that is given.

    Example: ``TensorSpec((4, 128), "int64", 0, 32000)``; a domain for float32, and one without
    ``high``, are refused.
    """

    shape: tuple[int, ...]
    dtype: str
    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in self.shape):
            raise InvalidInput(f"a batch tensor of shape {list(self.shape)}")
        if (self.low is None) != (self.high is None):
            raise InvalidInput("a domain of ids needs both low and high")
        if self.low is not None and self.high is not None:
            if self.dtype not in INTEGERS:
                raise InvalidInput(f"a domain of ids for a tensor of {self.dtype}")
            if self.low >= self.high:
                raise InvalidInput(f"ids from {self.low} to below {self.high}: there are none")


def piece(name: str, *, dim: int, start: int, size: int) -> Piece:
    """State that a parameter is ``size`` positions along ``dim``, from ``start`` on, of the full
    ``name``.

    Example: ``sp.piece("up.weight", dim=0, start=job.rank * 8, size=8)``.
    """
    return Piece(name, dim, int(start), int(size))


def same(name: str) -> Same:
    """State that a parameter is all of the full parameter ``name``.

    Example: ``job.start(model, parameters={"norm.weight": sp.same("layers.0.norm.weight")})``.
    """
    return Same(name)


Statement = Piece | Same | Sequence[Piece]
