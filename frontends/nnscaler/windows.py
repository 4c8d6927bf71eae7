"""Convolutions of the registry: slices of the operand, one for each tap, and one contraction.

With tap k of dilation d and stride s, position a of the result reads position s a + d k of the
padded operand:

    y[n, o, a, b] = sum over c, k, l of x[n, c, s a + d k, s b + d l] w[o, c, k, l]

Where taps reach beyond the operand or over each other, what a tap reads is the product with a table
of ones and zeros, which has a one where position a reads: all entries of the result are made of the
same terms then, so that it is one value, also for the convolution behind it.

A transposed convolution is one of the operand with zeros between its positions, by the taps in
reverse order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Final, NamedTuple

from shardproof.frontends.nnscaler.calls import Arguments, Composed, Refused, operand
from shardproof.frontends.nnscaler.chain import Chain
from shardproof.frontends.nnscaler.lowerings import whole, wholes
from shardproof.frontends.nnscaler.records import Tensor

_LETTERS: Final = "ijklmn"
#: Slices that one call may be made of, and products with tables.
_MOST_TAPS: Final = 1024
_MOST_TABLES: Final = 81


def convolution(arguments: Arguments) -> Composed:
    """A convolution along one, two or three dimensions, with zeros around the operand.

    Example: x [2, 3, 8] by a weight [4, 3, 3] with ``padding=1`` is ``concat`` with zeros, three
    ``slice``, ``stack`` [2, 3, 8, 3] and ``einsum`` to [2, 4, 8].
    """
    x, weight = operand(arguments, "input"), operand(arguments, "weight")
    rank = _rank(x, weight)
    return _convolved(arguments, x, weight, _around(arguments, weight, rank))


def _around(arguments: Arguments, weight: Tensor, rank: int) -> list[tuple[int, int]]:
    """Zeros before and behind each dimension; "same" puts as many as keep its size, of an odd
    number one more behind."""
    padding = arguments.get("padding", 0)
    if padding == "valid":
        return [(0, 0)] * rank
    if padding == "same":
        if set(_each(arguments, "stride", 1, rank)) != {1}:
            raise Refused("padding 'same' with a stride")
        gaps = _each(arguments, "dilation", 1, rank)
        counts = [gap * (n - 1) for gap, n in zip(gaps, weight.shape[2:], strict=True)]
        return [(n // 2, n - n // 2) for n in counts]
    if isinstance(padding, str):
        raise Refused(f"padding {padding[:20]!r}")
    return [(n, n) for n in _each(arguments, "padding", 0, rank)]


def padded_convolution(arguments: Arguments) -> Composed:
    """nnScaler's own ``conv2d``, whose padding lists both ends of each dimension, and ``conv3d``,
    whose padding lists one number for both.

    Example: ``padding=[1, 1, 0, 2]`` puts one row above and below, and two columns behind.
    """
    x, weight = operand(arguments, "input"), operand(arguments, "weight")
    rank = _rank(x, weight)
    given = wholes(arguments.get("padding"), "padding")
    # Of other lists the functions make something else than their documentation says.
    if rank not in (2, 3) or len(given) != {2: 4, 3: 3}[rank]:
        raise Refused(f"padding {list(given)}")
    ends = given if rank == 2 else [n for side in given for n in (side, side)]
    return _convolved(arguments, x, weight, list(zip(ends[::2], ends[1::2], strict=True)))


def transposed_convolution(arguments: Arguments) -> Composed:
    """The transpose of a convolution along one or two dimensions.

    Example: x [2, 3, 4] by a weight [3, 5, 2] with ``stride=2`` is [2, 5, 8].
    """
    x, weight = operand(arguments, "input"), operand(arguments, "weight")
    rank = _rank(x, weight)
    strides, padding, more, dilations = (
        _each(arguments, name, default, rank)
        for name, default in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1))
    )
    chain, bias = _started(arguments, x, weight)
    taps = weight.shape[2:]
    current = 0
    for dim, stride in enumerate(strides, 2):
        current = _spread(chain, current, dim, stride)
    around = []
    for size, apart, cut, end in zip(taps, dilations, padding, more, strict=True):
        reach = apart * (size - 1) - cut
        if reach < 0 or end < 0:
            raise Refused("padding beyond the taps")
        around.append((reach, reach + end))
    current = _surrounded(chain, current, around)
    windows = _windows(chain, current, taps, (1,) * rank, dilations, back=True)
    groups = _groups(arguments, x.shape[1], weight.shape[0])
    inner, outer = x.shape[1] // groups, weight.shape[1]
    kernel = chain("view", 1, size=(groups, inner, outer, *taps))
    _contracted(chain, windows, kernel, "gco", groups, outer, bias)
    return chain.done()


def unfold(arguments: Arguments) -> Composed:
    """The windows of an image, one column each: [n, c, h, w] to [n, c k l, positions].

    Example: x [1, 2, 3, 3] with ``kernel_size=2`` is [1, 8, 4].
    """
    x = operand(arguments, "input")
    if len(x.shape) != 4:
        raise Refused(f"input of {len(x.shape)} dimensions")
    taps, dilations, padding, strides = (
        _each(arguments, name, default, 2)
        for name, default in (("kernel_size", None), ("dilation", 1), ("padding", 0), ("stride", 1))
    )
    chain = Chain(x)
    current = _surrounded(chain, 0, [(n, n) for n in padding])
    windows = _windows(chain, current, taps, strides, dilations)
    n, c, *steps = chain.shapes[windows][:4]
    ordered = chain("permute", windows, dims=(0, 1, 4, 5, 2, 3))
    chain("view", ordered, size=(n, c * prod(taps), prod(steps)))
    return chain.done()


def _rank(x: Tensor, weight: Tensor) -> int:
    rank = len(weight.shape) - 2
    if not 1 <= rank <= 3 or len(x.shape) != rank + 2:
        raise Refused(f"input {list(x.shape)} and weight {list(weight.shape)}")
    return rank


def _each(arguments: Arguments, name: str, default: int | None, rank: int) -> tuple[int, ...]:
    """One number for every dimension, given once or for each."""
    given = wholes(arguments.get(name, default), name)
    given = given * rank if len(given) == 1 else given
    least = 1 if name in ("stride", "dilation", "kernel_size") else 0
    if len(given) != rank or min(given) < least:
        raise Refused(f"{name} {list(given)}")
    return given


def _groups(arguments: Arguments, *channels: int) -> int:
    groups = whole(arguments, "groups", 1)
    if groups < 1 or any(n % groups for n in channels):
        raise Refused(f"groups {groups}")
    return groups


def _started(arguments: Arguments, x: Tensor, weight: Tensor) -> tuple[Chain, int]:
    """The chain with its operands, and the number of the bias (-1: there is none)."""
    bias = arguments.get("bias")
    if bias is None:
        return Chain(x, weight), -1
    return Chain(x, weight, operand(arguments, "bias")), 2


def _convolved(
    arguments: Arguments, x: Tensor, weight: Tensor, around: Sequence[tuple[int, int]]
) -> Composed:
    rank, taps = len(around), weight.shape[2:]
    chain, bias = _started(arguments, x, weight)
    strides, dilations = (_each(arguments, name, 1, rank) for name in ("stride", "dilation"))
    groups = _groups(arguments, x.shape[1], weight.shape[0])
    if x.shape[1] != groups * weight.shape[1]:
        raise Refused(f"{x.shape[1]} channels in {groups} groups of {weight.shape[1]}")
    outer = weight.shape[0] // groups
    kernel = chain("view", 1, size=(groups, outer, weight.shape[1], *taps))
    reach = [gap * (count - 1) + 1 for count, gap in zip(taps, dilations, strict=True)]
    apart = all(n <= stride for n, stride in zip(reach, strides, strict=True))
    if prod(taps) <= _MOST_TABLES and not (apart and not any(map(any, around))):
        rows = zip(x.shape[2:], taps, strides, dilations, around, strict=True)
        lines = [_line(chain, *row) for row in rows]
        if all(line is not None for line in lines):
            _summed(chain, [x for x in lines if x], kernel, (groups, outer), bias)
            return chain.done()
    current = _surrounded(chain, 0, around)
    windows = _windows(chain, current, taps, strides, dilations)
    _contracted(chain, windows, kernel, "goc", groups, outer, bias)
    return chain.done()


class _Line(NamedTuple):
    """How taps read one dimension, which is of ``phases`` times ``size`` positions: for each tap
    which phase, and the number of its table [results, size], 1 where a result reads a position."""

    size: int
    phases: int
    taps: Sequence[tuple[int, int]]


def _line(
    chain: Chain, size: int, count: int, stride: int, gap: int, around: tuple[int, int]
) -> _Line | None:
    """The tables of a dimension (None: its positions are no whole number of strides)."""
    length = size + sum(around)
    steps = (length - gap * (count - 1) - 1) // stride + 1
    if steps < 1:
        raise Refused(f"{count} taps over {length} positions")
    if size % stride:
        return None
    own = size // stride
    reads = [divmod(gap * tap - around[0], stride) for tap in range(count)]
    before = max(0, -reads[0][0])
    every = max(before + own, reads[-1][0] + before + steps)
    low = chain("tril", chain("full", size=(every, every), value=1))
    same = chain("mul", low, chain("transpose", low, dim0=0, dim1=1))
    columns = chain("slice", same, dim=1, start=before, size=own)
    tables = [
        (phase, chain("slice", columns, dim=0, start=before + first, size=steps))
        for first, phase in reads
    ]
    return _Line(own, stride, tables)


def _summed(
    chain: Chain, lines: Sequence[_Line], kernel: int, outputs: tuple[int, int], bias: int
) -> None:
    """The sum over taps of the positions that a tap reads times what the kernel has for it;
    ``outputs``: groups, and channels of each."""
    groups, outer = outputs
    n, channels = chain.shapes[0][:2]
    rank = len(lines)
    sizes = [x for line in lines for x in (line.size, line.phases)]
    split = chain("view", 0, size=(n, groups, channels // groups, *sizes))
    before, after = _LETTERS[:rank], _LETTERS[rank : 2 * rank]
    tables = ",".join(f"{y}{x}" for x, y in zip(before, after, strict=True))
    moving = f"agc{before},{tables}->agc{after}"
    terms = []
    phased: dict[tuple[int, ...], int] = {}
    for taps in product(*(range(len(line.taps)) for line in lines)):
        own = [line.taps[tap] for line, tap in zip(lines, taps, strict=True)]
        phases = tuple(phase for phase, _ in own)
        if phases not in phased:
            read = split
            for dim, phase in enumerate(phases, 3):
                read = _at(chain, read, dim + 1, phase)
            phased[phases] = read
        read, weights = phased[phases], kernel
        for tap in taps:
            weights = _at(chain, weights, 3, tap)
        moved = chain("einsum", read, *(table for _, table in own), equation=moving)
        equation = f"agc{after},goc->ago{after}"
        terms.append(chain("einsum", moved, weights, equation=equation))
    made = chain("add_n", *terms) if len(terms) > 1 else terms[0]
    total = chain("view", made, size=(n, groups * outer, *chain.shapes[made][3:]))
    if bias >= 0:
        chain("add", total, chain("view", bias, size=(groups * outer, *(1,) * rank)))


def _at(chain: Chain, x: int, dim: int, position: int) -> int:
    """One position of a dimension, which is gone then."""
    part = chain("slice", x, dim=dim, start=position, size=1)
    sizes = chain.shapes[part]
    return chain("view", part, size=(*sizes[:dim], *sizes[dim + 1 :]))


def _surrounded(chain: Chain, x: int, around: Sequence[tuple[int, int]]) -> int:
    """Zeros at both ends of each dimension after the second."""
    for dim, ends in enumerate(around, 2):
        parts = [x]
        for place, n in enumerate(ends):
            if n:
                sizes = list(chain.shapes[x])
                sizes[dim] = n
                parts.insert(place * len(parts), chain("full", size=tuple(sizes), value=0))
        x = chain("concat", *parts, dim=dim) if len(parts) > 1 else x
    return x


def _spread(chain: Chain, x: int, dim: int, stride: int) -> int:
    """Zeros between the positions of a dimension, so that they are ``stride`` apart."""
    if stride == 1:
        return x
    sizes = chain.shapes[x]
    apart = chain("view", x, size=(*sizes[: dim + 1], 1, *sizes[dim + 1 :]))
    zeros = chain("full", size=(*sizes[: dim + 1], stride - 1, *sizes[dim + 1 :]), value=0)
    both = chain("concat", apart, zeros, dim=dim + 1)
    length = sizes[dim] * stride
    joined = chain("view", both, size=(*sizes[:dim], length, *sizes[dim + 1 :]))
    return chain("slice", joined, dim=dim, start=0, size=length - stride + 1)


def _windows(
    chain: Chain,
    x: int,
    taps: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    back: bool = False,
) -> int:
    """[n, c, *sizes] as [n, c, *results, *taps]; ``back``: the taps in reverse order."""
    if sum(taps) > _MOST_TAPS:
        raise Refused(f"{prod(taps)} taps")
    for dim, (count, stride, apart) in enumerate(zip(taps, strides, dilations, strict=True), 2):
        steps = (chain.shapes[x][dim] - apart * (count - 1) - 1) // stride + 1
        if steps < 1:
            raise Refused(f"{count} taps over {chain.shapes[x][dim]} positions")
        numbers = range(count - 1, -1, -1) if back else range(count)
        read = [_strided(chain, x, dim, apart * tap, steps, stride) for tap in numbers]
        x = chain("stack", *read, dim=len(chain.shapes[x]))
    return x


def _strided(chain: Chain, x: int, dim: int, start: int, steps: int, stride: int) -> int:
    """``steps`` positions of a dimension, ``stride`` apart, from ``start`` on."""
    sizes = list(chain.shapes[x])
    if stride == 1:
        return chain("slice", x, dim=dim, start=start, size=steps)
    length = min(steps * stride, sizes[dim] - start)
    part = chain("slice", x, dim=dim, start=start, size=length)
    if length < steps * stride:
        sizes[dim] = steps * stride - length
        zeros = chain("full", size=tuple(sizes), value=0)
        part = chain("concat", part, zeros, dim=dim)
    split = chain("view", part, size=(*sizes[:dim], steps, stride, *sizes[dim + 1 :]))
    first = chain("slice", split, dim=dim + 1, start=0, size=1)
    return chain("view", first, size=(*sizes[:dim], steps, *sizes[dim + 1 :]))


def _contracted(
    chain: Chain, windows: int, kernel: int, order: str, groups: int, outer: int, bias: int
) -> None:
    """The products of windows [n, channels, *results, *taps] with a kernel of the dimensions
    ``order`` and the taps: [n, outputs, *results]."""
    n, channels, *rest = chain.shapes[windows]
    rank = len(rest) // 2
    results, taps = _LETTERS[:rank], _LETTERS[rank : 2 * rank]
    grouped = chain("view", windows, size=(n, groups, channels // groups, *rest))
    equation = f"agc{results}{taps},{order}{taps}->ago{results}"
    made = chain("einsum", grouped, kernel, equation=equation)
    total = chain("view", made, size=(n, groups * outer, *rest[:rank]))
    if bias >= 0:
        chain("add", total, chain("view", bias, size=(groups * outer, *(1,) * rank)))
