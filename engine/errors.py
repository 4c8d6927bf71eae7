"""What can go wrong, by what it means to the caller.

`Unsupported` and `ShapeMismatch` are about operators; `InvalidInput` is about what the user gave.
"""

from __future__ import annotations

from typing import Self


class Unsupported(Exception):
    """A construct whose meaning is not declared: the verdict is inconclusive, by name."""


class ShapeMismatch(Exception):
    """Tensors whose true sizes or attributes do not fit the operator: a structural finding."""


class InvalidInput(Exception):
    """The input cannot be read, or is not what it claims to be.

    ``message`` says on one line what was expected and what was found; ``where`` is the place,
    from the outermost inwards (file, device, cell, tensor or byte), and may be empty.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message, where)
        self.message = message
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def within(self, place: str) -> Self:
        """The same error, seen from ``place`` around it."""
        return type(self)(self.message, f"{place}, {self.where}" if self.where else place)
