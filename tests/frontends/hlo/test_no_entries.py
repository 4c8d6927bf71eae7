"""Tensors without entries: nothing of them is left, and their sum is what it begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof

#: As ``jnp.pad`` by edges, which adds none at one end.
SINGLE = """module @m {
  func.func public @main(%arg0: tensor<4x2xf32>) -> (tensor<4x2xf32>) {
    %c = stablehlo.slice %arg0 [0:4, 0:1] : (tensor<4x2xf32>) -> tensor<4x1xf32>
    %b = stablehlo.broadcast_in_dim %c, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x0xf32>
    %e = stablehlo.exponential %b : tensor<4x0xf32>
    %n = stablehlo.constant dense<> : tensor<4x0xf32>
    %y = stablehlo.concatenate %e, %arg0, %n, dim = 1 : \
(tensor<4x0xf32>, tensor<4x2xf32>, tensor<4x0xf32>) -> tensor<4x2xf32>
    %z = stablehlo.constant dense<2.0> : tensor<f32>
    %s = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1] : \
(tensor<4x0xf32>, tensor<f32>) -> tensor<4xf32>
    %w = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<4xf32>) -> tensor<4x2xf32>
    %r = stablehlo.multiply %y, %w : tensor<4x2xf32>
    return %r : tensor<4x2xf32>
  }
}
"""
PARALLEL = """HloModule m, num_partitions=2

ENTRY main {
  x = f32[2,2] parameter(0), sharding={devices=[2,1]<=[2]}
  ROOT y = f32[2,2] WORD(x, x)
}
"""


@pytest.mark.parametrize(("word", "expected"), [("add", "proved"), ("multiply", "refuted")])
def test_what_has_no_entries_is_left_out(word: str, expected: str, tmp_path: Path) -> None:
    one, many = tmp_path / "one.mlir", tmp_path / "many.hlo"
    one.write_text(SINGLE)
    many.write_text(PARALLEL.replace("WORD", word))
    result = shardproof.verify(one, many, out=tmp_path / "run", cache=False)
    assert result.verdict == expected, result.reason
    assert shardproof.check(tmp_path / "run").ok


#: As the gradient of ``jax.lax.associative_scan``: zeros between entries of which there are none.
SPREAD = """module @m {
  func.func public @main(%arg0: tensor<ROWSx2xf32>) -> (tensor<ROWSx2xf32>) {
    %e = stablehlo.slice %arg0 [0:ROWS, 0:0] : (tensor<ROWSx2xf32>) -> tensor<ROWSx0xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.pad %e, %z, low = [0, 1], high = [0, 1], interior = [0, 1] : \
(tensor<ROWSx0xf32>, tensor<f32>) -> tensor<ROWSx2xf32>
    %y = stablehlo.WORD %arg0, %arg0 : tensor<ROWSx2xf32>
    %r = stablehlo.add %y, %s : tensor<ROWSx2xf32>
    return %r : tensor<ROWSx2xf32>
  }
}
"""


@pytest.mark.parametrize(("word", "expected"), [("add", "proved"), ("multiply", "refuted")])
def test_nothing_is_spread(word: str, expected: str, tmp_path: Path) -> None:
    one, many = tmp_path / "one.mlir", tmp_path / "many.hlo"
    one.write_text(SPREAD.replace("ROWS", "4").replace("WORD", "add"))
    many.write_text(PARALLEL.replace("WORD", word))
    result = shardproof.verify(one, many, out=tmp_path / "run", cache=False)
    assert result.verdict == expected, result.reason
    assert shardproof.check(tmp_path / "run").ok
