"""All-to-alls of one position for each member, as the partitioner writes them for FSDP."""

from __future__ import annotations

import pytest

from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import agree

HEAD = "HloModule m, num_partitions=4\n\nENTRY e {\n"
TO_FEATURES = """  x = f32[4,2,3,5] parameter(0)
  a = f32[4,2,3,5] all-to-all(x), channel_id=1, replica_groups=GROUPS, dimensions={0}
  t = f32[2,3,4,5] transpose(a), dimensions={1,2,0,3}
  ROOT y = f32[2,3,20] reshape(t)
}
"""
TO_ROWS = """  x = f32[2,3,4,5] parameter(0)
  a = f32[2,3,4,5] all-to-all(x), channel_id=1, replica_groups=GROUPS, dimensions={2}
  t = f32[4,2,3,5] transpose(a), dimensions={2,0,1,3}
  ROOT y = f32[8,3,5] reshape(t)
}
"""
WITHOUT = """  x = f32[4,2,3] parameter(0)
  a = f32[4,2,3] all-to-all(x), channel_id=1, replica_groups=GROUPS, dimensions={0}
  ROOT y = f32[8,3] reshape(a)
}
"""
TURNED = """  x = f32[4,2,3] parameter(0)
  a = f32[4,2,3] all-to-all(x), channel_id=1, replica_groups=GROUPS, dimensions={0}
  t = f32[2,3,4] transpose(a), dimensions={1,2,0}
  ROOT y = f32[2,3,4] negate(t)
}
"""
PAIRS = "{{0,1},{2,3}}"


@pytest.mark.parametrize(
    ("body", "dims"), [(TO_FEATURES, (0, 3)), (TO_ROWS, (2, 0)), (WITHOUT, (0, 1)), (TURNED, None)]
)
def test_one_position_for_each_member(body: str, dims: tuple[int, int] | None) -> None:
    graph = inline.graph(text.parse(HEAD + body.replace("GROUPS", "{{0,1,2,3}}")))
    agree(graph)
    (made,) = (op for op in lower(graph)[0].recorder.ops if op.name == "all_to_all")
    if dims is not None:
        assert (made.attrs["split_dim"], made.attrs["concat_dim"]) == dims


def test_several_positions_for_each_member() -> None:
    graph = inline.graph(text.parse(HEAD + TO_FEATURES.replace("GROUPS", PAIRS)))
    agree(graph)
