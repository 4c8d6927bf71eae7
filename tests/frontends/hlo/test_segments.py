"""The largest of what goes to each row (``x.at[ids].max(y)``, ``jax.ops.segment_max``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import read
from tests.frontends.hlo.test_lower import MAX, MIN, agree
from tests.frontends.hlo.verdicts import verified

WRITTEN = """  x = f32[3,5] parameter(0)
  d = s32[8] parameter(1)
  y = f32[8,5] parameter(2)
  ROOT r = f32[3,5] scatter(x, d, y), update_window_dims={1}, inserted_window_dims={0}, \
scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=HOW
"""


@pytest.mark.parametrize("how", ["max", "min"])
def test_the_largest_of_rows_is_what_is_computed(how: str) -> None:
    graph = read.parsed(
        f"HloModule m\n\n{MAX}{MIN}ENTRY main {{\n{WRITTEN.replace('HOW', how)}}}\n"
    )
    for seed in range(3):
        agree(graph, {1: (-1, 3)}, seed)


#: Weights of edges, ``exp(e - m[d])`` with the largest score ``m`` of each of three nodes.
EDGES = """  e = f32[COUNT] parameter(0)SHARDED
  d = s32[COUNT] parameter(1)SHARDED
  low = f32[] constant(-inf)
  z = f32[3] broadcast(low), dimensions={}
  m = f32[3] scatter(z, d, e), update_window_dims={}, inserted_window_dims={0}, \
scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=max
  n = f32[3] all-reduce(m), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, \
to_apply=max
  g = f32[COUNT] gather(OF, d), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, \
index_vector_dim=1, slice_sizes={1}
  s = f32[COUNT] subtract(e, g)
  w = f32[COUNT] exponential(s)
"""


def _edges(count: int, of: str, sharded: str = "") -> str:
    text = EDGES.replace("COUNT", str(count)).replace("OF", of).replace("SHARDED", sharded)
    return text if sharded else "".join(x for x in text.splitlines(True) if "all-reduce" not in x)


@pytest.mark.parametrize(("of", "expected"), [("n", "proved"), ("m", "refuted")])
def test_weights_of_edges_by_the_largest_score_of_their_node(
    of: str, expected: str, tmp_path: Path
) -> None:
    single = f"HloModule m\n\n{MAX}ENTRY main {{\n{_edges(8, 'm')}  ROOT y = f32[8] copy(w)\n}}\n"
    parallel = (
        f"HloModule m, num_partitions=2\n\n{MAX}ENTRY main {{\n"
        + _edges(4, of, ", sharding={devices=[2]<=[2]}")
        + "  ROOT y = f32[8] all-gather(w), channel_id=2, replica_groups={{0,1}}, "
        + "use_global_device_ids=true, dimensions={0}\n}\n"
    )
    verified(single, parallel, tmp_path, expected)


#: The largest entry of all ranks, or the number below it (a scale of integers of 8 bits).
SCALE = """  x = f32[COUNT] parameter(0)SHARDED
  a = f32[COUNT] abs(x)
  low = f32[] constant(-inf)
  m = f32[] reduce(a, low), dimensions={0}, to_apply=max
  c = f32[] constant(BOUND)
  b = f32[] maximum(m, c)
"""
JOINED = """  n = f32[] all-reduce(b), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, \
to_apply=max
  ROOT y = f32[] copy(n)
"""


@pytest.mark.parametrize(("bound", "expected"), [("0.5", "proved"), ("0.25", "refuted")])
def test_a_largest_entry_that_a_number_bounds(bound: str, expected: str, tmp_path: Path) -> None:
    head, own = f"{MAX}ENTRY main {{\n", SCALE.replace("COUNT", "4").replace("BOUND", bound)
    whole = SCALE.replace("COUNT", "8").replace("SHARDED", "").replace("BOUND", "0.5")
    single = f"HloModule m\n\n{head}{whole}  ROOT y = f32[] copy(b)\n}}\n"
    own = own.replace("SHARDED", ", sharding={devices=[2]<=[2]}")
    parallel = f"HloModule m, num_partitions=2\n\n{head}{own}{JOINED}}}\n"
    verified(single, parallel, tmp_path, expected)
