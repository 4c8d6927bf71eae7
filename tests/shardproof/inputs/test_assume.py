"""The file of assumptions: read strictly, and everything in force said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import texts
from shardproof.frontends.nnscaler.frontend import FRONTEND
from shardproof.inputs.assume import Assumptions, read
from tests.shardproof.faces import tiny


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "assume.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_all_keys(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [nnscaler]
        groups = "as recorded"
        [loss]
        combine = "mean"
        [expect]
        parameters = ["norm.weight", "output.weight"]
        """,
    )
    assert read(path) == Assumptions("as recorded", "mean", ("norm.weight", "output.weight"))


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read(written(tmp_path, "# nothing\n[loss]\n")) == Assumptions()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[nnscaler]\ngroup = 1",
            ", nnscaler.group: not a key here, near is groups; known are groups",
        ),
        (
            "[nnscaler]\ngroups = 'sorted'",
            ", nnscaler.groups: expected one of as recorded, by rank, found 'sorted'",
        ),
        ("[loss]\ncombine = true", ", loss.combine: expected one of mean, sum, found True"),
        (
            "[losses]",
            ", losses: not a key here, near is loss; known are nnscaler, loss, expect",
        ),
        ("loss = 'sum'", ", loss: expected keys and values, found 'sum'"),
        (
            "[expect]\nparameters = 'w'",
            ", expect.parameters: expected a list of parameter names, found 'w'",
        ),
        (
            "[expect]\nparameters = ['w', 1]",
            ", expect.parameters[1]: expected a text that is not empty, found 1",
        ),
        ("[expect]\nparameters = ['w', 'w']", ", expect: parameters names 'w' twice"),
        (
            "groups",
            ": is no TOML: Expected '=' after a key in a key/value pair (at end of document)",
        ),
        (
            b"\xff",
            ": is no TOML: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidInput) as caught:
        read(path)
    assert str(caught.value) == f"{path}{message}"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path / "none")
    assert str(caught.value) == f"{tmp_path / 'none'}: cannot be read: No such file or directory"


def test_deep_nesting_is_no_crash(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no TOML"):
        read(written(tmp_path, "x = " + "[" * 100_000))


def test_everything_in_force_is_said() -> None:
    plan = replace(tiny(), notes=("a note of the plan",))
    assert texts(Assumptions(expected=("norm.weight",)).describe(plan)) == (
        "numbers are real: rounding and casts change nothing",
        "the 12 parameters are equal on both sides by full name and shape; "
        "every rank holds the part that its shard says",
        "buffers and tables are equal on both sides by name: freqs_cis",
        "the batch is cut into 4 slices of equal size; microbatch m of replica r reads slice 2r + m",
        "the single-device loss is the sum of the losses of all replicas and microbatches; "
        "the incoming gradient of each is the single-device one",
        "a note of the plan",
        "expected among the conclusions (--assume): norm.weight",
    )


def test_a_mean_divides_the_incoming_gradient() -> None:
    said = texts(Assumptions(loss="mean").describe(replace(tiny(), loss="mean")))
    assert (
        "the single-device loss is the mean of the losses of all replicas and microbatches "
        "(--assume); the incoming gradient of each is 1/4 of the single-device one"
    ) in said


@pytest.mark.parametrize(
    ("dp", "microbatches", "said"),
    [
        (1, 1, "both sides read the same batch"),
        (1, 2, "the batch is cut into 2 slices of equal size; microbatch m reads slice m"),
        (2, 1, "the batch is cut into 2 slices of equal size; replica r reads slice r"),
    ],
)
def test_which_slice_is_read_where(dp: int, microbatches: int, said: str) -> None:
    assert said in texts(Assumptions().describe(tiny(dp=dp, microbatches=microbatches)))


def test_a_flag_says_the_order_of_groups_before_the_file() -> None:
    stated = Assumptions(groups="as recorded", loss="mean")
    assert stated.with_groups(None) == stated
    assert stated.with_groups("by-rank") == Assumptions(loss="mean")
    assert Assumptions().with_groups("as-recorded") == Assumptions(groups="as recorded")
    assert stated.of_frontends() == {"groups": "as recorded"}
    assert Assumptions().of_frontends() == {}
    (told,) = FRONTEND.assumed(stated.of_frontends())
    assert (told.kind, "--nnscaler-groups as-recorded" in told.text) == ("stated", True)
    (default,) = FRONTEND.assumed({})
    assert (default.kind, "by rank" in default.text) == ("framework", True)
