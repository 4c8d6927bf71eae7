"""Fourier transforms of HLO and StableHLO, held against NumPy's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.frontends.hlo import evaluate, read
from tests.frontends.hlo.verdicts import verified

SIZES = [(2, 5), (3, 4), (1, 1), (4, 2)]


def shaped(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def parts(kind: str, shape: tuple[int, ...], axes: int) -> str:
    """Real and imaginary part of a transform of the last axes; its result has ``shape``, or is of
    the half of that (RFFT), or made of it (IRFFT)."""
    half = (*shape[:-1], shape[-1] // 2 + 1)
    given, made = (half if kind == "IRFFT" else shape), (half if kind == "RFFT" else shape)
    lengths = ",".join(map(str, shape[len(shape) - axes :]))
    lines = [f"x = {shaped('f32', given)} parameter(0)", f"y = {shaped('f32', given)} parameter(1)"]
    operand, element = "x", "f32" if kind == "IRFFT" else "c64"
    if kind != "RFFT":
        lines.append(f"z = {shaped('c64', given)} complex(x, y)")
        operand = "z"
    attributes = f"fft_type={kind}, fft_length={{{lengths}}}"
    lines.append(f"f = {shaped(element, made)} fft({operand}), {attributes}")
    if kind == "IRFFT":
        lines.append(f"ROOT r = ({shaped('f32', made)}) tuple(f)")
    else:
        own = shaped("f32", made)
        lines += [
            f"re = {own} real(f)",
            f"im = {own} imag(f)",
            f"ROOT r = ({own}, {own}) tuple(re, im)",
        ]
    body = "\n  ".join(lines)
    return f"HloModule m\n\nENTRY main {{\n  {body}\n}}\n"


def expected(kind: str, x: np.ndarray, y: np.ndarray, shape: tuple[int, ...], axes: int) -> object:
    last = tuple(range(len(shape) - axes, len(shape)))
    sizes = [shape[a] for a in last]
    z = x + 1j * y
    if kind == "IRFFT":
        return [np.fft.irfftn(z, sizes, last)]
    made = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn}.get(kind)
    whole = np.fft.rfftn(x, axes=last) if made is None else made(z, axes=last)
    return [whole.real, whole.imag]


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
def test_a_transform_is_numpys(kind: str, size: tuple[int, ...], axes: int) -> None:
    shape = (2, *size)
    own = (*shape[:-1], shape[-1] // 2 + 1) if kind == "IRFFT" else shape
    x, y = np.random.default_rng(1).normal(size=(2, *own))
    made = evaluate.run(read.parsed(parts(kind, shape, axes)), [[x, y]])[0]
    for mine, other in zip(made, expected(kind, x, y, shape, axes), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


def convolution(rows: int, sharding: str, by: str = "multiply") -> str:
    """A row [6] convolved with a kernel by the product of their spectra, once for each row."""
    header = "HloModule m, num_partitions=2" if sharding else "HloModule m"
    place = (", sharding={devices=[2,1]<=[2]}", ", sharding={replicated}") if sharding else ("", "")
    return f"""{header}

ENTRY main {{
  x = f32[{rows},6] parameter(0){place[0]}
  k = f32[6] parameter(1){place[1]}
  a = c64[{rows},4] fft(x), fft_type=RFFT, fft_length={{6}}
  b = c64[4] fft(k), fft_type=RFFT, fft_length={{6}}
  c = c64[{rows},4] broadcast(b), dimensions={{1}}
  d = c64[{rows},4] {by}(a, c)
  ROOT y = f32[{rows},6] fft(d), fft_type=IRFFT, fft_length={{6}}
}}
"""


@pytest.mark.parametrize("by", ["multiply", "add"])
def test_a_convolution_of_divided_rows(by: str, tmp_path: Path) -> None:
    verdict = "proved" if by == "multiply" else "refuted"
    verified(convolution(4, ""), convolution(2, "rows", by), tmp_path, verdict)


def test_lengths_that_are_not_the_axes_are_refused(tmp_path: Path) -> None:
    wrong = convolution(4, "").replace("fft(x), fft_type=RFFT, fft_length={6}",
                                       "fft(x), fft_type=RFFT, fft_length={8}")  # fmt: skip
    verified(wrong, convolution(2, "rows"), tmp_path, "invalid input")
