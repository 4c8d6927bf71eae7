"""What is said of a step that cannot be lowered, and of a call of which nobody knows a rule."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardproof
import shardproof.jax
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.jax.capture import message

CALL = """HloModule m, replica_count=RANKS, num_partitions=1

ENTRY main {
  x = f32[ROWS,4,4] parameter(0)
  c = (f32[ROWS,4,4], s32[ROWS]) custom-call(x), custom_call_target="lapack_spotrf_ffi"
  ROOT r = f32[ROWS,4,4] get-tuple-element(c), index=0
}
"""


def test_a_call_with_several_results_is_named_by_its_target(tmp_path: Path) -> None:
    files = tmp_path / "single.hlo", tmp_path / "parallel.hlo"
    for file, rows, ranks in zip(files, (8, 4), (1, 2), strict=True):
        file.write_text(CALL.replace("ROWS", str(rows)).replace("RANKS", str(ranks)))
    result = shardproof.verify(*files, out=tmp_path / "run", cache=False)
    assert result.verdict == "inconclusive"
    assert "custom-call to lapack_spotrf_ffi with several results" in result.reason


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("axes differ, but:\n\n  in_specs[1] has 'd'\n\nMore"), "axes differ, but: in_specs[1] has 'd'"),
        (ValueError("one\nsentence.\n\nAnd more."), "one sentence."),
        (ValueError("more:\n\n"), "more:"),
        (ZeroDivisionError(), ""),
    ],
)  # fmt: skip
def test_an_error_is_told_to_its_end(error: Exception, expected: str) -> None:
    assert message(error) == f"{type(error).__name__}: {expected}"


def test_an_error_of_our_own_is_told_without_its_name() -> None:
    assert message(InvalidInput("shapes [()] and []")) == "shapes [()] and []"


def test_arguments_are_several() -> None:
    result = shardproof.jax.verify(abs, args=3.0, mesh={"d": 2})  # type: ignore[arg-type]
    assert result.verdict == "invalid input"
    assert result.reason == "args=3.0, expected a tuple of arguments"
