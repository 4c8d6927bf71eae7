"""Random calls of Fourier transforms, and of products of complex tensors, as pairs of real
numbers."""

from __future__ import annotations

from typing import Any

import torch

from shardproof.frontends.torch.complexes import called
from tests.frontends.aten.calls import Call, Draw, call
from tests.frontends.aten.calls_of_norms import REFERENCES


def _reference(name: str) -> Any:
    """PyTorch on complex numbers, from pairs and to pairs; numbers of a call by their names."""

    def reference(*args: Any, pairs: list[bool], **named: Any) -> Any:
        return called(name, args, pairs, named)

    return reference


def _complex(*names: str) -> Any:
    for name in names:
        REFERENCES[name] = _reference(name)
    return call(*names)


def _places(d: Draw, rank: int) -> list[int]:
    """Some dimensions in some order, from the front: as transforms name them below `torch.fft`."""
    return [n % rank for n in _dims(d, rank)]


def _dims(d: Draw, rank: int) -> list[int]:
    """Some dimensions in some order, some of them from the end."""
    order = [int(n) for n in d.rng.permutation(rank)][: 1 + d.below(rank)]
    return [n - rank * d.below(2) for n in order]


@_complex("complex._fft_c2c.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    given = (d.real(*shape, 2), _places(d, len(shape)), d.below(3), bool(d.below(2)))
    return given, {"pairs": [True, False, False, False, True]}


@_complex("complex._fft_r2c.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    given = (d.real(*shape), _places(d, len(shape)), d.below(3), bool(d.below(2)))
    return given, {"pairs": [False, False, False, False, True]}


@_complex("complex._fft_c2r.default")
def _(d: Draw) -> Call:
    """PyTorch's own transform wants what a real tensor has as its spectrum."""
    shape = d.any_shape(1)
    dims, size = _places(d, len(shape)), 1 + d.below(5)
    wide = list(shape)
    wide[dims[-1]] = size
    x = torch.fft.rfftn(d.real(*wide), dim=dims)
    return (torch.view_as_real(x), dims, d.below(3), size), {
        "pairs": [True, False, False, False, False]
    }


NORMS = (None, "backward", "ortho", "forward")
OF_REALS = ("rfft", "rfft2", "rfftn")
TO_REALS = ("irfft", "irfft2", "irfftn")


def _transforms(kind: str) -> None:
    @_complex(f"complex.fft_{kind}.default")
    def made(d: Draw) -> Call:
        real = kind in OF_REALS or (kind not in TO_REALS and d.below(3) == 0)
        several = kind[-1] if kind[-1] in "2n" else ""
        shape = d.any_shape(2 if several == "2" else 1)
        named: dict[str, Any] = {"norm": NORMS[d.below(4)]}
        if several:
            dims = _dims(d, len(shape))
            if d.below(2):
                named["dim"] = dims
            elif several == "2":
                dims = [-2, -1]
            else:
                dims = list(range(-len(shape), 0))
            if d.below(2):
                named["s"] = [1 + d.below(5) for _ in dims]
        else:
            dims = _dims(d, len(shape))[:1]
            named["dim"] = dims[0]
            if d.below(2):
                named["n"] = 1 + d.below(5)
        key = "s" if several else "n"
        if kind in TO_REALS and key not in named:
            shape = (*shape, 3)  # one entry alone is half of no spectrum
            named |= {"dim": [-1] if several else -1}
        x = d.real(*shape) if real else d.real(*shape, 2)
        if kind in TO_REALS:
            x = _symmetric(x, named, key, several)
        return (x,), {**named, "pairs": [not real, kind not in TO_REALS]}


def _symmetric(x: torch.Tensor, named: dict[str, Any], key: str, several: str) -> torch.Tensor:
    """A half of a spectrum of one dimension as it is; of more, one that some real tensor has."""
    if not several:
        return x
    z = torch.view_as_complex(x)
    dims = named.get("dim", [-2, -1] if several == "2" else list(range(-z.dim(), 0)))
    last = named[key][-1] if key in named else 2 * (z.shape[dims[-1]] - 1)
    wide = list(z.shape)
    wide[dims[-1]] = last
    for dim, size in zip(dims[:-1], named.get(key, [])[:-1], strict=False):
        wide[dim] = size
    whole = torch.fft.rfftn(torch.randn(wide, generator=torch.Generator().manual_seed(1),
                                        dtype=torch.float64), dim=dims)  # fmt: skip
    return torch.view_as_real(whole)


for _kind in ("fft", "ifft", *OF_REALS, *TO_REALS, "fft2", "ifft2", "fftn", "ifftn"):
    _transforms(_kind)


@call("aten.fft_fftshift.default", "aten.fft_ifftshift.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    return (d.real(*shape), _dims(d, len(shape)) if d.below(2) else None), {}


@_complex("complex.fft_fftshift.default", "complex.fft_ifftshift.default")
def _(d: Draw) -> Call:
    shape = d.any_shape(1)
    given = (d.real(*shape, 2), _dims(d, len(shape)) if d.below(2) else None)
    return given, {"pairs": [True, False, True]}


@_complex("complex.stft.default")
def _(d: Draw) -> Call:
    size = 2 + d.below(4)
    window = [None, d.real(size), d.real(1 + d.below(size))][d.below(3)]
    width = size if window is None else window.shape[0]
    onesided = bool(d.below(2))
    x = d.real(*d.sizes(d.below(2)), size + d.below(6))
    named = {"normalized": bool(d.below(2)), "onesided": onesided, "return_complex": True}
    given = (x, size, 1 + d.below(3), width, window)
    return given, {**named, "pairs": [False] * 8 + [True]}


def _factors(d: Draw, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[Any, list[bool]]:
    kinds = [(True, True), (True, False), (False, True)][d.below(3)]
    made = [d.real(*n, 2) if p else d.real(*n) for n, p in zip((first, second), kinds, strict=True)]
    return tuple(made), list(kinds)


def _product(*names: str, batch: int) -> None:
    for name in names:
        REFERENCES[name] = _mixed(name)

    @call(*names)
    def made(d: Draw) -> Call:
        lead, (a, b, c) = d.sizes(batch), d.sizes(3)
        given, kinds = _factors(d, (*lead, a, b), (*lead, b, c))
        return given, {"pairs": [*kinds, True]}


def _mixed(name: str) -> Any:
    """PyTorch multiplies no real matrices with complex ones: a real one as a complex one."""

    def reference(x: torch.Tensor, y: torch.Tensor, pairs: list[bool]) -> Any:
        wide = [
            z if p else torch.view_as_real(z.to(torch.complex128))
            for z, p in zip((x, y), pairs, strict=False)
        ]
        return called(name, wide, [True, True])

    return reference


_product("complex.mm.default", batch=0)
_product("complex.bmm.default", batch=1)
_product("complex.matmul.default", batch=0)
_product("complex.matmul.default", batch=2)


@call("complex.einsum.default")
def _(d: Draw) -> Call:
    """As Fourier layers multiply their modes."""
    b, i, o, k = d.sizes(4)
    first, second, equation = [
        ((b, i, k), (i, o, k), "bik,iok->bok"),
        ((b, i, k), (k,), "bik,k->bik"),
        ((b, i), (i, o), "bi,io"),
    ][d.below(3)]
    given, _ = _factors(d, first, second)
    return (equation, list(given)), {"pairs": [False, False, True]}


def _summed(equation: str, xs: list[torch.Tensor], pairs: list[bool]) -> torch.Tensor:
    letters = equation.partition("->")[0].split(",")
    wide = [
        torch.view_as_complex(x) if x.dim() > len(n) else x.to(torch.complex128)
        for x, n in zip(xs, letters, strict=True)
    ]
    return torch.view_as_real(torch.einsum(equation, wide))


REFERENCES["complex.einsum.default"] = _summed
