"""Complex tensors, as pairs (real, imaginary) in one more dimension: views, products and sums.

What reads a complex tensor and is not here has another meaning for pairs than for numbers, and is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from shardproof.engine.plan.ir import Attr
from shardproof.frontends.nnscaler.calls import Arguments, Composed, Refused, operand, unless
from shardproof.frontends.nnscaler.chain import Chain
from shardproof.frontends.nnscaler.records import Tensor

#: Operators, as they are declared, that do to pairs what they do to complex numbers.
ALIKE: Final = frozenset(
    {"identity", "contiguous", "multiref", "detach", "apply_rotary_emb", "add_n"}
)


def is_complex(x: object) -> bool:
    """Whether a tensor is complex: for example one of complex64, not one of float32."""
    return isinstance(x, Tensor) and x.dtype.startswith("complex")


def read_alike(name: str, attrs: Mapping[str, Attr], tensors: Sequence[Tensor]) -> dict[str, Attr]:
    """The attributes of a declared operator of complex tensors, where it does to pairs what it does
    to numbers; raises `Refused` where it does not.

    Example: ``view`` to the size (1, 4, 3) is one to (1, 4, 3, 2); ``pow`` is refused.
    """
    if name in ALIKE:
        return dict(attrs)
    if tensors and all(map(is_complex, tensors)):
        size = attrs.get("size")
        if name == "view" and isinstance(size, tuple):
            return {**attrs, "size": (*size, 2)}
        if name == "transpose":
            rank = len(tensors[0].shape)
            dims = {k: v for k, v in attrs.items() if isinstance(v, int)}
            return {k: v % rank for k, v in dims.items()}
    raise Refused("complex operands")


def view_as_complex(arguments: Arguments) -> Composed:
    """Pairs in the last dimension as numbers, for example [2, 3, 2] as [2, 3]."""
    x = operand(arguments, "input")
    if x.shape[-1:] != (2,) or is_complex(x):
        raise Refused(f"input {x.dtype} {list(x.shape)}")
    chain = Chain(x)
    chain("identity", 0)
    return chain.done()


def view_as_real(arguments: Arguments) -> Composed:
    """Numbers as pairs in a new last dimension, for example [2, 3] as [2, 3, 2]."""
    x = operand(arguments, "input")
    if not is_complex(x):
        raise Refused(f"input {x.dtype}")
    chain = Chain(x)
    chain("identity", 0)
    return chain.done()


def product(arguments: Arguments) -> Composed:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc)i, where either may be real, and of fewer sizes.

    Example: of [2, 4, 3] and [4, 3]; a number as the second operand is refused.
    """
    unless(arguments, "out", None)
    x, y = operand(arguments, "input"), operand(arguments, "other")
    chain = Chain(x, y)
    left, right = _halves(chain, 0, x), _halves(chain, 1, y)
    real = chain("mul", left[0], right[0])
    if len(left) == len(right) == 2:
        crossed = chain("mul", left[1], right[1])
        real = chain("sub", real, crossed)
        imaginary = chain("add", chain("mul", left[0], right[1]), chain("mul", left[1], right[0]))
    else:
        imaginary = chain("mul", left[-1], right[-1])
    pairs = [chain("view", z, size=(*chain.shapes[z], 1)) for z in (real, imaginary)]
    chain("concat", *pairs, dim=len(chain.shapes[real]))
    return chain.done()


def _halves(chain: Chain, number: int, x: Tensor) -> Sequence[int]:
    """The real part of an operand, and its imaginary one if it has one."""
    if not is_complex(x):
        return [number]
    rank = len(x.shape)
    lead = (0,) * rank
    return [
        chain("index", number, starts=(*lead, i), sizes=(*(-1,) * rank, 1), kept=tuple(range(rank)))
        for i in range(2)
    ]


def total(arguments: Arguments) -> Composed:
    """The sum of two complex tensors of one shape; a real operand, for example, is refused."""
    unless(arguments, "out", None)
    unless(arguments, "alpha", 1)
    x, y = operand(arguments, "input"), operand(arguments, "other")
    if not (is_complex(x) and is_complex(y) and x.shape == y.shape):
        raise Refused(f"operands {list(x.shape)} of {x.dtype}, {list(y.shape)} of {y.dtype}")
    chain = Chain(x, y)
    chain("add", 0, 1)
    return chain.done()
