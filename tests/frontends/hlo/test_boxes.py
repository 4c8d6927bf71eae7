"""Gathers of known boxes that are no rows one after the other, and counts of ids."""

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
    "how many ids are": "  i = s32[2,4] parameter(0)\n  c = s32[] constant(3)\n  b = s32[2,4] "
    "broadcast(c), dimensions={}\n  p = pred[2,4] compare(i, b), direction=LT\n  k = s32[2,4] "
    "convert(p)\n  z = s32[] constant(0)\n  ROOT y = s32[2] reduce(k, z), dimensions={1}, "
    "to_apply=count",
}
COUNT = (
    "count {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n  ROOT r = s32[] add(a, b)\n}\n"
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_known_boxes_are_lowered_to_what_they_compute(name: str) -> None:
    body = f"{COMPUTATIONS}{COUNT}ENTRY e {{\n{PROGRAMS[name]}\n}}\n"
    agree(inline.graph(text.parse("HloModule m\n" + body)))
