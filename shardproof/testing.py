"""Is a declared operator what its PyTorch function is?  For whoever declares operators.

    from shardproof.testing import conforms

    def test_squared_relu():
        conforms("squared_relu", lambda x: torch.relu(x) ** 2, "b s h")

compares both on random tensors of random shapes, forward and backward, in float64.  PyTorch is not
installed with Shardproof: it is what the caller's function is written in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.interpreters.dims import exact
from shardproof.engine.interpreters.numeric import FloatInterpreter
from shardproof.engine.ops import apply_backward, apply_forward, lookup
from shardproof.engine.plan.ir import Attr

__all__ = ["Nonconforming", "conforms"]

Array = NDArray[np.float64]
#: Draws the inputs of one round: (random source, the size of each named axis) -> arrays.
Draw = Callable[[np.random.Generator, Mapping[str, int]], Sequence[Array]]

#: The largest relative error of a tensor that counts as rounding.
TOLERANCE = 1e-9


class Nonconforming(AssertionError):
    """An operator that is not its function: which output or gradient, and by how much."""


def conforms(
    operator: str,
    function: Callable[..., Any],
    shapes: str,
    *,
    attrs: Mapping[str, Attr] | Callable[[Mapping[str, int]], Mapping[str, Attr]] | None = None,
    draw: Draw | None = None,
    backward: bool = True,
    rounds: int = 8,
    largest: int = 5,
    seed: int = 0,
) -> None:
    """Compare a declared operator with a PyTorch function; raises `Nonconforming` where they
    differ.

    Example: ``conforms("silu", torch.nn.functional.silu, "b s h")`` passes; with ``torch.sigmoid``
    it raises `Nonconforming` with the shapes and the two values.

    ``shapes`` names the axes of each input, ``"b s h, h"``; each round draws the size of every
    name from 1 to ``largest`` (a number is itself).  Inputs are normal random numbers unless
    ``draw`` makes others (positive ones, ids).  ``attrs``: the operator's attributes, or what gives
    them from the sizes; the function gets those of ``attrs`` as keyword arguments.  Inputs that the
    declaration calls data have no gradient; ``backward=False``: none is compared.

    Raises `engine.errors.InvalidInput` for an operator that is not declared, and for arguments
    that no call fits.
    """
    torch = import_module("torch")
    if rounds < 1 or largest < 1:
        raise InvalidInput(f"expected rounds and sizes of at least 1, found {rounds}, {largest}")
    try:
        data = lookup(operator).data
    except Unsupported as error:
        raise InvalidInput(str(error)) from error
    rng = np.random.default_rng([crc32(operator.encode()), seed])
    for _ in range(rounds):
        sizes = _sizes(shapes, rng, largest)
        inputs = draw(rng, sizes) if draw is not None else _normal(shapes, sizes, rng)
        chosen = dict(attrs(sizes) if callable(attrs) else attrs or {})
        tensors = [
            torch.tensor(x, dtype=torch.float64, requires_grad=backward and n not in data)
            for n, x in enumerate(inputs)
        ]
        given = {key: _number(value) for key, value in chosen.items()}
        expected = function(*tensors, **given)
        outputs = list(expected) if isinstance(expected, tuple | list) else [expected]
        where = f"{operator} of shapes {[list(np.shape(x)) for x in inputs]} with {chosen}"
        computed = _applied(operator, inputs, chosen, where)
        if len(computed) != len(outputs):
            raise Nonconforming(
                f"{where}: {len(computed)} outputs, the function has {len(outputs)}"
            )
        for number, (mine, theirs) in enumerate(zip(computed, outputs, strict=True)):
            _close(mine, theirs.detach().numpy(), f"output {number} of {where}")
        if backward:
            _gradients(torch, rng, operator, inputs, tensors, outputs, chosen, where)


def _sizes(shapes: str, rng: np.random.Generator, largest: int) -> dict[str, int]:
    names = dict.fromkeys(shapes.replace(",", " ").split())
    return {
        name: int(name) if name.isdecimal() else int(rng.integers(1, largest + 1)) for name in names
    }


def _normal(shapes: str, sizes: Mapping[str, int], rng: np.random.Generator) -> list[Array]:
    return [
        rng.normal(size=tuple(sizes[name] for name in one.split())) for one in shapes.split(",")
    ]


def _number(value: Attr) -> Any:
    """An exact attribute as PyTorch takes it."""
    return value if isinstance(value, bool | int | str | tuple) or value is None else float(value)  # type: ignore[arg-type]


def _applied(
    operator: str, inputs: Sequence[Array], attrs: Mapping[str, Attr], where: str
) -> list[Array]:
    try:
        outputs = apply_forward(FloatInterpreter(), operator, [exact(x) for x in inputs], attrs)
    except (ShapeMismatch, Unsupported) as error:
        raise Nonconforming(f"{where}: {error}") from error
    return [np.asarray(x.data) for x in outputs]


def _gradients(
    torch: Any,
    rng: np.random.Generator,
    operator: str,
    inputs: Sequence[Array],
    tensors: Sequence[Any],
    outputs: Sequence[Any],
    attrs: Mapping[str, Attr],
    where: str,
) -> None:
    """Compare the gradients of all inputs that the function gives one to, for random gradients of
    its outputs."""
    arriving = [rng.normal(size=tuple(y.shape)) if y.requires_grad else None for y in outputs]
    differentiable = [y for y in outputs if y.requires_grad]
    if not differentiable:
        raise Nonconforming(f"{where}: no output of the function has a gradient (backward=False?)")
    torch.autograd.backward(differentiable, [torch.tensor(g) for g in arriving if g is not None])
    wrt = [n for n, x in enumerate(tensors) if x.grad is not None]
    try:
        derived = apply_backward(
            FloatInterpreter(),
            operator,
            [exact(x) for x in inputs],
            [None if g is None else exact(g) for g in arriving],
            attrs,
            wrt,
        )
    except (ShapeMismatch, Unsupported) as error:
        raise Nonconforming(f"backward of {where}: {error}") from error
    for number, gradient in zip(wrt, derived, strict=True):
        _close(
            np.asarray(gradient.data),
            tensors[number].grad.numpy(),
            f"gradient of input {number} of {where}",
        )


def _close(computed: Array, expected: Array, what: str) -> None:
    """Raise unless two tensors are equal up to a relative error of the whole."""
    if computed.shape != expected.shape:
        raise Nonconforming(
            f"{what}: shape {list(computed.shape)}, expected {list(expected.shape)}"
        )
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max(initial=0.0)))
    if np.allclose(computed, expected, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
        return
    with np.errstate(invalid="ignore"):
        off = np.abs(computed - expected)
    at = np.unravel_index(int(np.argmax(np.nan_to_num(off, nan=np.inf))), off.shape)
    place = [int(n) for n in at]
    raise Nonconforming(f"{what}: at {place} {computed[at]:.9g}, expected {expected[at]:.9g}")
