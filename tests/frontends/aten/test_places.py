"""Places that movements read are those that PyTorch's own strides say."""

from __future__ import annotations

import math
import random

import torch

from shardproof.frontends.aten.places import Move, Places, places


def random_move(x: torch.Tensor, rng: random.Random) -> tuple[torch.Tensor, Move]:
    """A tensor after one movement, and the movement."""
    name = rng.choice(["permute", "slice", "expand", "reshape"])
    if name == "permute":
        order = rng.sample(range(x.dim()), x.dim())
        return x.permute(order), (name, tuple(order))
    if name == "slice":
        dim = rng.randrange(x.dim())
        start = rng.randrange(x.size(dim))
        size = rng.randint(1, x.size(dim) - start)
        return x.narrow(dim, start, size), (name, (dim, start, size))
    if name == "expand":
        shape = [n if n > 1 else rng.choice([1, 2]) for n in x.shape]
        shape = [2] * rng.randint(0, 1) + shape
        return x.expand(shape), (name, tuple(shape))
    left, shape = x.numel(), []
    while left > 1:
        shape.append(rng.choice([d for d in range(1, left + 1) if left % d == 0]))
        left //= shape[-1]
    shape = shape or [1]
    return x.reshape(shape), (name, tuple(shape))


def test_they_are_those_of_strides() -> None:
    rng = random.Random(7)
    decided = 0
    for _ in range(600):
        shape = tuple(rng.choice([1, 2, 3, 4]) for _ in range(rng.randint(1, 4)))
        whole = torch.arange(math.prod(shape)).reshape(shape)
        x, moves = whole, []
        for _ in range(rng.randint(0, 5)):
            x, move = random_move(x, rng)
            moves.append(move)
        result = places(shape, moves)
        if result is not None:
            decided += 1
            same = torch.as_strided(whole, result.shape, result.strides, result.offset)
            assert torch.equal(same, x), (shape, moves)
    assert decided > 400


def test_one_place_written_in_two_ways() -> None:
    behind = places((2, 3), [("permute", (1, 0)), ("reshape", (3, 2, 1))])
    before = places((2, 3), [("reshape", (2, 3, 1)), ("permute", (1, 0, 2))])
    assert behind == before == Places(0, (1, 3, 0), (3, 2, 1))
    assert places((2, 3), [("reshape", (3, 2, 1))]) != behind


def test_a_reshape_that_no_strides_say_is_none() -> None:
    assert places((2, 3), [("permute", (1, 0)), ("reshape", (6,))]) is None
