"""Gathers and scatters of known boxes that are no rows one after the other, and counts of ids."""

from __future__ import annotations

import pytest

from shardproof.frontends.hlo import inline, text
from tests.frontends.hlo.test_lower import COMPUTATIONS, agree

PROGRAMS = {
    "gather of a diagonal": "  x = f32[4,5] parameter(0)\n  n = s32[4] iota(), "
    "iota_dimension=0\n  a = s32[4,1] reshape(n)\n  v = s32[4,2] concatenate(a, a), "
    "dimensions={1}\n  ROOT y = f32[4] gather(x, v), offset_dims={}, "
    "collapsed_slice_dims={0,1}, start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}",
    "gather of known boxes": "  x = f32[5,2,3] parameter(0)\n  i = s32[2,3] constant({{4, 0, 2}, "
    "{1, 1, 9}})\n  ROOT y = f32[2,2,3,2] gather(x, i), offset_dims={0,3}, "
    "collapsed_slice_dims={1}, start_index_map={0}, index_vector_dim=2, slice_sizes={2,1,2}",
    "gather of known entries in batches": "  x = f32[3,4] parameter(0)\n  i = s32[3,2,1] constant("
    "{{{3}, {0}}, {{1}, {1}}, {{2}, {0}}})\n  ROOT y = f32[3,2] gather(x, i), offset_dims={}, "
    "collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, "
    "start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1}",
    "scatter of known pairs": "  x = f32[2,3,4] parameter(0)\n  u = f32[2,3] parameter(1)\n  "
    "i = s32[3,2] constant({{1, 0}, {2, 0}, {2, 3}})\n  ROOT y = f32[2,3,4] scatter(x, i, u), "
    "update_window_dims={0}, inserted_window_dims={1,2}, scatter_dims_to_operand_dims={1,2}, "
    "index_vector_dim=1, to_apply=add",
    "scatter of one place twice, and of one outside": "  z = f32[] constant(0)\n  x = f32[5,3] "
    "broadcast(z), dimensions={}\n  u = f32[3,2,4] parameter(0)\n  i = s32[2,4] constant({{4, 0, "
    "4, 9}, {1, 2, -1, 1}})\n  ROOT y = f32[5,3] scatter(x, i, u), update_window_dims={0}, "
    "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=add",
    "scatter that writes over rows": "  x = f32[5,3] parameter(0)\n  u = f32[2,3] parameter(1)\n"
    "  i = s32[2] constant({3, 0})\n  ROOT y = f32[5,3] scatter(x, i, u), update_window_dims={1}, "
    "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
    "to_apply=last",
    "scatter of known boxes in batches": "  x = f32[3,4,2] parameter(0)\n  u = f32[3,2,2] "
    "parameter(1)\n  i = s32[3,2,1] constant({{{3}, {0}}, {{1}, {1}}, {{2}, {0}}})\n  ROOT y = "
    "f32[3,4,2] scatter(x, i, u), update_window_dims={2}, inserted_window_dims={1}, "
    "scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, "
    "index_vector_dim=2, to_apply=add",
    "rows that are each there twice": "  x = f32[3,2] parameter(0)\n  i = s32[6,1] constant({{0}, "
    "{0}, {1}, {1}, {2}, {2}})\n  ROOT y = f32[2,6] gather(x, i), offset_dims={0}, "
    "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2}",
    "rows that are each added to twice": "  x = f32[3,2] parameter(0)\n  u = f32[2,6] parameter(1)"
    "\n  i = s32[6,1] constant({{0}, {0}, {1}, {1}, {2}, {2}})\n  ROOT y = f32[3,2] scatter(x, i, "
    "u), update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=add",
    "rows of a picture made larger": "  x = f32[2,3] parameter(0)\n  n = f32[4] iota(), "
    "iota_dimension=0\n  c = f32[] constant(0.5)\n  h = f32[4] broadcast(c), dimensions={}\n  "
    "a = f32[4] add(n, h)\n  m = f32[4] multiply(a, h)\n  g = f32[4] floor(m)\n  k = s32[4] "
    "convert(g)\n  i = s32[4,1] reshape(k)\n  ROOT y = f32[4,3] gather(x, i), offset_dims={1}, "
    "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}",
    "a running product of constants": "  x = f32[3] parameter(0)\n  n = f32[3] iota(), "
    "iota_dimension=0\n  c = f32[] constant(0.1)\n  b = f32[3] broadcast(c), dimensions={}\n  "
    "a = f32[3] multiply(n, b)\n  o = f32[] constant(1)\n  w = f32[3] reduce-window(a, o), "
    "window={size=3 pad=2_0}, to_apply=product\n  ROOT y = f32[3] multiply(x, w)",
    "how many ids are": "  i = s32[2,4] parameter(0)\n  c = s32[] constant(3)\n  b = s32[2,4] "
    "broadcast(c), dimensions={}\n  p = pred[2,4] compare(i, b), direction=LT\n  k = s32[2,4] "
    "convert(p)\n  z = s32[] constant(0)\n  ROOT y = s32[2] reduce(k, z), dimensions={1}, "
    "to_apply=count",
}
COUNT = (
    "count {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n  ROOT r = s32[] add(a, b)\n}\n"
)
PRODUCT = "product {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] multiply(a, b)\n}\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_known_boxes_are_lowered_to_what_they_compute(name: str) -> None:
    body = f"{COMPUTATIONS}{COUNT}{PRODUCT}ENTRY e {{\n{PROGRAMS[name]}\n}}\n"
    agree(inline.graph(text.parse("HloModule m\n" + body)))
