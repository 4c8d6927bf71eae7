"""Labels behind a first word, as a decoder reads them: joined, padded, or written into a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardproof.frontends.hlo import inline, text
from shardproof.frontends.hlo.lower import lower
from tests.frontends.hlo.test_lower import agree
from tests.frontends.hlo.verdicts import verified

GATHER = (
    "offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, "
    "slice_sizes={1,2}"
)
WRITE = (
    "last {\n  a = s32[] parameter(0)\n  ROOT b = s32[] parameter(1)\n}\n\n",
    "update_window_dims={0,1}, inserted_window_dims={}, scatter_dims_to_operand_dims={1}, "
    "index_vector_dim=0, to_apply=last",
)
#: Labels y, of which all but the last follow word c.
FORMS = {
    "joined": "  f = s32[4,1] broadcast(c), dimensions={}\n"
    "  j = s32[4,3] concatenate(f, s), dimensions={1}\n",
    "padded": "  j = s32[4,3] pad(s, c), padding=0_0x1_0\n",
    "written": "  f = s32[4,3] broadcast(c), dimensions={}\n  o = s32[] constant(1)\n"
    "  q = s32[1] broadcast(o), dimensions={}\n"
    f"  j = s32[4,3] scatter(f, q, s), {WRITE[1]}\n",
}


def written(form: str, word: int = 0) -> str:
    return (
        f"HloModule m\n\n{WRITE[0]}ENTRY main {{\n  e = f32[5,2] parameter(0)\n"
        f"  y = s32[4,3] parameter(1)\n  c = s32[] constant({word})\n"
        f"  s = s32[4,2] slice(y), slice={{[0:4], [0:2]}}\n{FORMS[form]}"
        f"  i = s32[4,3,1] reshape(j)\n  g = f32[4,3,2] gather(e, i), {GATHER}\n"
        "  ROOT r = f32[4,3,2] multiply(g, g)\n}\n"
    )


def of_ranks(module: str) -> str:
    return (
        module.replace("HloModule m", "HloModule m, num_partitions=2")
        .replace("[4,", "[2,")
        .replace("[0:4]", "[0:2]")
        .replace("e = f32[5,2] parameter(0)", "e = f32[5,2] parameter(0), sharding={replicated}")
        .replace("(1)\n  c", "(1), sharding={devices=[2,1]<=[2]}\n  c")
    )


@pytest.mark.parametrize(
    ("form", "word", "expected"), [("written", 0, "proved"), ("joined", 1, "refuted")]
)
def test_labels_behind_a_first_word(form: str, word: int, expected: str, tmp_path: Path) -> None:
    """The single side joins them."""
    verified(written("joined"), of_ranks(written(form, word)), tmp_path, expected)


@pytest.mark.parametrize("form", FORMS)
def test_labels_behind_a_first_word_are_ids_in_every_form(form: str) -> None:
    graph = inline.graph(text.parse(written(form)))
    low, _, domains = lower(graph)
    assert [op.name for op in low.recorder.ops] == [
        "slice",
        "full",
        "concat",
        "onehot",
        "einsum",
        "mul",
    ]
    assert domains == {1: (0, 5)}
    agree(graph, domains)
