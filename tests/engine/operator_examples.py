"""For every declared operator: random calls of it, and what PyTorch says they mean.

An operator may have several examples.  The generic tests in `test_operators` and
`test_signatures` run over all of them; an operator without one fails there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Attrs: TypeAlias = dict[str, Any]
Call: TypeAlias = tuple[list[Array], Attrs]
#: (attributes, sizes, axis, start): the attributes when only the part of ``axis`` that begins at
#: ``start`` is kept, and the axes then have ``sizes``.
Resize: TypeAlias = Callable[[Attrs, Mapping[str, int], str, int], Attrs]

EPS = Fraction(1, 100000)


@dataclass
class Draw:
    """A source of random shapes and tensors; sizes are 1 to ``limit``."""

    rng: np.random.Generator
    limit: int = 5

    def sizes(self, count: int) -> tuple[int, ...]:
        return tuple(int(n) for n in self.rng.integers(1, self.limit + 1, count))

    def real(self, *shape: int) -> Array:
        return self.rng.normal(size=shape)

    def positive(self, *shape: int) -> Array:
        return self.rng.uniform(0.5, 2, size=shape)

    def ids(self, stop: int, *shape: int, start: int = 0) -> Array:
        return self.rng.integers(start, stop, size=shape).astype(float)

    def below(self, limit: int) -> int:
        return int(self.rng.integers(limit))

    def masked(self, *shape: int) -> Array:
        """Real, but for some minus infinities; every last dimension keeps its first entry."""
        mask = self.rng.random(shape) < 0.4
        mask[..., 0] = False
        return np.where(mask, -np.inf, self.real(*shape))


@dataclass(frozen=True)
class Example:
    """``reference(attributes, *tensors)`` is PyTorch's meaning.

    ``conforms``: the inputs have the ranks of the operator's signature, so that its claims about
    axes can be tested; ``resize`` adapts the attributes then.
    """

    operator: str
    build: Callable[[Draw], Call]
    reference: Callable[..., Any]
    conforms: bool = True
    resize: Resize = field(default=lambda attrs, sizes, axis, start: attrs)
    differentiable: bool = True


EXAMPLES: list[Example] = []


def example(
    operator: str,
    build: Callable[[Draw], Call],
    reference: Callable[..., Any],
    **options: Any,
) -> None:
    EXAMPLES.append(Example(operator, build, reference, **options))


# -- elementwise --------------------------------------------------------------------------------

for _name in ("identity", "contiguous", "float", "to"):
    example(_name, lambda d: ([d.real(*d.sizes(3))], {}), lambda a, x: x)
example(
    "detach",
    lambda d: ([d.real(*d.sizes(3))], {}),
    lambda a, x: x.detach(),
    differentiable=False,
)
example(
    "multiref", lambda d: ([d.real(*d.sizes(2))], {"times": 3}), lambda a, x: (x + 0, x + 0, x + 0)
)


def _functions() -> None:
    def signed(d: Draw) -> Call:
        return [d.real(*d.sizes(3)) * 2], {}

    def positive(d: Draw) -> Call:
        return [d.positive(*d.sizes(3))], {}

    def powers(exponent: int | Fraction) -> Callable[[Draw], Call]:
        return lambda d: ([d.positive(*d.sizes(2))], {"exponent": exponent})

    for function in (torch.exp, torch.sigmoid, torch.tanh):
        example(function.__name__, signed, lambda a, x, f=function: f(x))
    for function in (torch.log, torch.sqrt, torch.rsqrt):
        example(function.__name__, positive, lambda a, x, f=function: f(x))
    example("silu", signed, lambda a, x: torch.nn.functional.silu(x))
    example("gelu", signed, lambda a, x: torch.nn.functional.gelu(x))
    exponents: list[int | Fraction] = [1, 2, 3, 8, 9, 0, -1, -2, Fraction(1, 2), Fraction(-3, 2)]
    for exponent in exponents:
        example("pow", powers(exponent), lambda a, x: x ** float(a["exponent"]))


_functions()


def _arithmetic() -> None:
    def alike(d: Draw) -> Call:
        shape = d.sizes(3)
        return [d.real(*shape), d.positive(*shape)], {}

    def stretched(d: Draw) -> Call:
        a, b, c = d.sizes(3)
        return [d.real(a, 1, c), d.positive(b, 1)], {}

    def constant(d: Draw) -> Call:
        return [d.real(*d.sizes(2))], {"other": Fraction(-7, 3)}

    def other(a: Attrs, *y: Any) -> Any:
        return y[0] if y else float(a["other"])

    references: dict[str, Callable[..., Any]] = {
        "add": lambda a, x, *y: x + float(a.get("alpha", 1)) * other(a, *y),
        "sub": lambda a, x, *y: x - other(a, *y),
        "mul": lambda a, x, *y: x * other(a, *y),
        "div": lambda a, x, *y: x / other(a, *y),
    }
    for name, reference in references.items():
        example(name, alike, reference)
        example(name, stretched, reference, conforms=False)
        example(name, constant, reference, conforms=False)

    def scaled(build: Callable[[Draw], Call]) -> Callable[[Draw], Call]:
        def with_alpha(d: Draw) -> Call:
            inputs, attrs = build(d)
            return inputs, attrs | {"alpha": Fraction(-3, 2)}

        return with_alpha

    for build in (stretched, constant):
        example("add", scaled(build), references["add"], conforms=False)

    def three(d: Draw) -> Call:
        shape = d.sizes(2)
        return [d.real(*shape) for _ in range(3)], {}

    example("add_n", three, lambda a, x, y, z: x + y + z)


_arithmetic()

# -- shape --------------------------------------------------------------------------------------

example(
    "transpose",
    lambda d: ([d.real(*d.sizes(2))], {"dim0": 0, "dim1": 1}),
    lambda a, x: x.transpose(0, 1),
)
example(
    "transpose",
    lambda d: ([d.real(*d.sizes(4))], {"dim0": 1, "dim1": -1}),
    lambda a, x: x.transpose(1, -1),
    conforms=False,
)
example(
    "permute",
    lambda d: ([d.real(*d.sizes(3))], {"dims": (2, 0, 1)}),
    lambda a, x: x.permute(2, 0, 1),
)
example(
    "permute",
    lambda d: ([d.real(*d.sizes(4))], {"dims": (-1, 0, -3, 2)}),
    lambda a, x: x.permute(-1, 0, -3, 2),
    conforms=False,
)


def _expanded(d: Draw) -> Call:
    """Dimensions of size 1 repeated, others kept (by their size or by -1), more in front."""
    lead, kept, repeated, last = d.sizes(4)
    more = d.sizes(d.below(3))
    return [d.real(lead, kept, 1, last)], {"size": (*more, lead, -1, repeated, last)}


example("expand", _expanded, lambda a, x: x.expand(a["size"]), conforms=False)


def _view(d: Draw) -> Call:
    b, h, w = d.sizes(3)
    return [d.real(b, h * w)], {"size": (b, h, w)}


def _flatten(d: Draw) -> Call:
    a, b, c = d.sizes(3)
    return [d.real(a, 2 * b, 3 * c)], {"size": (a * b, -1, 3)}


example(
    "view",
    _view,
    lambda a, x: x.reshape(a["size"]),
    resize=lambda attrs, sizes, axis, start: {"size": (sizes["b"], sizes["h"], sizes["d"])},
)
example("view", _flatten, lambda a, x: x.reshape(a["size"]), conforms=False)


def _slice(d: Draw) -> Call:
    a, k = d.sizes(2)
    start = d.below(k)
    return [d.real(a, k)], {"dim": 1, "start": start, "size": 1 + d.below(k - start)}


example(
    "slice",
    _slice,
    lambda a, x: x[:, a["start"] : a["start"] + a["size"]],
)


def _concat(d: Draw) -> Call:
    a, k, n = d.sizes(3)
    return [d.real(a, k), d.real(a, n)], {"dim": -1}


example("concat", _concat, lambda a, *xs: torch.cat(xs, -1))
example(
    "repeat_interleave",
    lambda d: ([d.real(*d.sizes(2))], {"dim": 1, "repeats": d.sizes(1)[0]}),
    lambda a, x: x.repeat_interleave(a["repeats"], 1),
)

# -- reductions ---------------------------------------------------------------------------------


def _reductions() -> None:
    def matrix(d: Draw) -> Call:
        a, k = d.sizes(2)
        return [d.real(a, k)], {"dim": (1,)}

    def counted(d: Draw) -> Call:
        (x,), attrs = matrix(d)
        return [x], attrs | {"count": x.shape[1]}

    def several(d: Draw) -> Call:
        return [d.real(*d.sizes(3))], {"dim": (0, -1), "keepdim": True}

    def dropped(d: Draw) -> Call:
        return [d.real(*d.sizes(3))], {"dim": (-2, 0)}

    def everything(d: Draw) -> Call:
        return [d.real(*d.sizes(2))], {}

    def reduced(function: Callable[..., Any]) -> Callable[..., Any]:
        def reference(a: Attrs, x: Any) -> Any:
            if "dim" not in a:
                return function(x, dim=tuple(range(x.ndim))).reshape(1)
            return function(x, dim=a["dim"], keepdim=a.get("keepdim", False))

        return reference

    functions: dict[str, Any] = {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax}
    for name, function in functions.items():
        for build in (matrix, several, dropped, everything):
            example(
                name,
                build,
                reduced(function),
                conforms=build is matrix and name != "mean",
            )
    example("mean", counted, reduced(torch.mean))


_reductions()
