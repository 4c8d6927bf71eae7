"""Parameters of a rank as boxes of full ones, and what a rank has of their gradients and states.

Where replicas divide gradients and the optimizer's states among them (ZeRO-1 and ZeRO-2, Megatron's
distributed optimizer), a rank has all of a parameter, but its gradient is complete in some of its
entries only: those that the rank owns.  Such a parameter is boxes that it owns, and others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch
from msgspec import structs
from torch.distributed.tensor import DTensor

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.boxes import described, local
from shardproof.frontends.torch.geometry import boxes
from shardproof.frontends.torch.trace import OWN_SHAPE, Box, unlike


class Run(NamedTuple):
    """Entries of a parameter in a row, which are a box of it: ``shape``, from entry ``at`` on; of a
    state that has owned entries alone, from its entry ``of_owned`` on (-1: they are not owned).

    Example: of a parameter [4, 3] of which the entries 3 to 7 are owned, ``Run(3, 0, (1, 3))`` is
    row 1, and ``Run(0, -1, (1, 3))`` row 0.
    """

    at: int
    of_owned: int
    shape: tuple[int, ...]


class Part(NamedTuple):
    """A parameter, or a piece of one: positions [start, start + size) along a dimension, or of the
    entries ``run`` of it, where some are owned.

    Example: the upper half of a fused ``gate_up.weight`` [8, 4], which is rows of ``gate.weight``,
    has the cut (0, 0, 4).
    """

    name: str
    parameter: torch.nn.Parameter
    box: Box
    cut: tuple[int, int, int] | None = None
    run: Run | None = None

    @property
    def owned(self) -> bool:
        """Whether this rank has its gradient, and what an optimizer keeps of it."""
        return self.run is None or self.run.of_owned >= 0

    def fits(self, x: torch.Tensor) -> bool:
        """Whether a state is shaped as the parameter, or, where some entries are owned, has one
        number for each of them."""
        return x.shape == self.parameter.shape or (self.run is not None and x.dim() == 1)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The same piece of a tensor that is shaped as the parameter, or has its owned entries
        alone, in the shape of its box."""
        tensor = local(x.detach())
        if self.run is not None:
            start = self.run.at if tensor.shape == self.parameter.shape else self.run.of_owned
            flat = tensor.view(-1).narrow(0, start, prod(self.run.shape))
            tensor = flat.view(self.run.shape)
        return tensor if self.cut is None else tensor.narrow(*self.cut).view(self.box.shape)


def local_box(part: Part, x: torch.Tensor) -> tuple[Box, torch.Tensor]:
    """What a rank has of a tensor that belongs to a parameter, such as its gradient, as a box and
    the values there: as the metadata of a DTensor says, else where the parameter's part is.

    Example: of a gradient with ``[Replicate()]`` all of it, also where the parameter is divided.
    """
    if not isinstance(x, DTensor):
        return part.box, part.of(x)
    boxes = described(part.box.name, x)
    if len(boxes) == 1:
        return boxes[0].box, local(x.detach())
    for box, cut in boxes:
        if cut == part.cut and (box.offset, box.shape) == (part.box.offset, part.box.shape):
            return box, part.of(x)
    raise InvalidInput(
        f"{part.name} is {list(part.box.shape)} from {list(part.box.offset)} of {part.box.name}, "
        f"and what belongs to it has {x._spec.placements}: it lies in other pieces"
    )


def state_box(part: Part, key: str, x: torch.Tensor) -> tuple[Box, torch.Tensor]:
    """The same of a state that an optimizer keeps of a parameter.  One that is shaped otherwise
    than the parameter is a tensor of its own, and whole, where this rank has all of the parameter.

    Example: Adafactor's means over the columns of a parameter [4, 3] are [4], all of [4].
    """
    if isinstance(x, DTensor) or part.fits(x):
        return local_box(part, x)
    shape, box = tuple(x.shape), part.box
    if part.cut is not None or part.run is not None or box.shape != box.full_shape:
        raise InvalidInput(unlike(key, part.name))
    own = Box(box.name, shape, (0,) * len(shape), shape, box.said, text=OWN_SHAPE)
    return own, local(x.detach())


def divided(part: Part, owned: range) -> Iterator[Part]:
    """A part of a parameter of which this rank owns some entries, as boxes that it owns all or
    nothing of.

    Example: of a parameter [4, 3] with the owned entries ``range(6, 12)`` the first two rows, and
    the last two.
    """
    shape = tuple(part.parameter.shape)
    number = 0
    for start, stop in pairwise((0, owned.start, owned.stop, prod(shape))):
        at = start
        for offset, own in boxes(shape, start, stop):
            run = Run(at, at - owned.start if at in owned else -1, own)
            at += prod(own)
            piece = _met(part, offset, run)
            if piece is not None:
                yield piece._replace(name=f"{part.name}[{number}]")
                number += 1


def _met(part: Part, offset: tuple[int, ...], run: Run) -> Part | None:
    """What a part has of a box of its parameter, from ``offset`` on; None where it has nothing."""
    shape, cut = run.shape, None
    if part.cut is not None:
        dim, low, size = part.cut
        first = max(low, offset[dim])
        length = min(low + size, offset[dim] + shape[dim]) - first
        if length <= 0:
            return None
        cut = dim, first - offset[dim], length
        offset = (*offset[:dim], first - low, *offset[dim + 1 :])
        shape = (*shape[:dim], length, *shape[dim + 1 :])
    begin = tuple(a + b for a, b in zip(part.box.offset, offset, strict=True))
    box = structs.replace(part.box, offset=begin, shape=shape)
    return Part(part.name, part.parameter, box, cut, run)


def owns(parameter: torch.nn.Parameter, name: str, owned: range | None, cut: bool) -> range | None:
    """Refuse entries that a parameter does not have; gives those that it has.  ``cut``: a
    framework has divided the parameter, and its gradient with it.

    Example: of a parameter [4, 3] ``range(6, 12)`` are the last two rows; ``range(6, 13)`` is
    refused.
    """
    if owned is None:
        return None
    if cut or isinstance(parameter, DTensor) or not parameter.is_contiguous():
        raise InvalidInput(f"{name} is divided by a framework, or is not contiguous: owned")
    if (
        not isinstance(owned, range)
        or owned.step != 1
        or not 0 <= owned.start <= owned.stop <= parameter.numel()
    ):
        raise InvalidInput(f"{name} has {parameter.numel()} entries, of which {owned} are owned")
    return owned


def unknown(names: Mapping[str, object]) -> None:
    """Refuse statements that are left over.

    Example: ``{"w": sp.same("w")}`` of a model without ``w`` is refused.
    """
    if names:
        raise InvalidInput(f"job.start states {sorted(names)[0]!r}, which is no parameter")
