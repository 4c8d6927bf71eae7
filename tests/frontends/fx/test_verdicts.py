"""Graphs of ranks: right ones are proved, wrong ones are not, what is not understood is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import shardproof
from tests.frontends.fx.graphs import (
    HALVES,
    Change,
    Graph,
    argument,
    labelled,
    model,
    ref,
    steps,
    target,
    write,
)


def verdict(
    tmp_path: Path, ranks: int, *changes: Change, which: Sequence[int] | None = None, more: str = ""
) -> shardproof.Result:
    single = write(tmp_path / "single", [model()])
    graphs = [model(rank, ranks) for rank in range(ranks)]
    for change in changes:
        for rank in range(ranks) if which is None else which:
            change(graphs[rank])
    parallel = write(tmp_path / "parallel", graphs)
    relations = None
    if more:
        relations = tmp_path / "relations.toml"
        relations.write_text(more)
    return shardproof.verify(
        single, parallel, relations=relations, out=tmp_path / "run", cache=False
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_right_graph_is_proved_without_relations(tmp_path: Path, ranks: int) -> None:
    result = verdict(tmp_path, ranks)
    assert result.verdict == "proved", result.reason
    assert {c.name for c in result.conclusions if c.kind == "output"} == {"loss", "kept"}
    said = result.assumptions
    assert (
        "input down is divided along dimension 1 in the order of ranks (inferred by shape)" in said
    )
    assert "ids ids choose rows that exist: they are from 0 to 7" in said
    assert any("random operator 0 drops the same elements" in text for text in said)
    assert shardproof.check(tmp_path / "run").ok


WRONG: dict[str, Change] = {
    "lower bound of the mask": argument("lt", 1, 1),
    "upper bound of the mask": argument("ge", 1, 7),
    "what is subtracted from ids": argument("sub", 1, 1),
    "scale": argument("scaled", 1, 0.25),
    "dropped bias": argument("add", 1, ref("mm")),
    "dropout": argument("dropout", 1, 0.5),
    "activation": target("gelu", "aten.silu.default"),
    "no all-reduce": argument("y_wait", 0, ref("mm_1")),
    "no mask": argument("x_sum", 0, ref("rows")),
    "second output": argument("output", 0, [ref("loss"), ref("gelu")]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_graph_is_not_proved(tmp_path: Path, what: str) -> None:
    result = verdict(tmp_path, 2, WRONG[what])
    assert result.verdict in ("refuted", "inconclusive"), result.reason
    if what in ("scale", "dropped bias", "no all-reduce", "activation", "second output", "dropout"):
        assert result.verdict == "refuted", result.reason


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_is_wrong_is_found(tmp_path: Path, rank: int) -> None:
    assert verdict(tmp_path, 2, WRONG["scale"], which=[rank]).verdict == "refuted"


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_meet_in_a_collective_of_what_is_not_understood(tmp_path: Path, rank: int) -> None:
    """Twice the ids choose rows, on one rank: nobody waits for anybody."""
    twice = target("sub", "aten.mul.Tensor"), argument("sub", 1, 2)
    result = verdict(tmp_path, 2, *twice, which=[rank])
    assert result.verdict == "inconclusive"
    assert "_c10d_functional.all_reduce.default" in result.reason


def _empty(factor: float) -> Change:
    """The activations plus memory that nothing has written, times a number."""

    def change(graph: Graph) -> None:
        at = next(i for i, n in enumerate(graph["nodes"]) if n["name"] == "gelu")
        h = graph["nodes"][at - 1]
        made = {**h, "name": "memory", "target": "aten.empty.memory_format", "args": [h["shape"]]}
        scaled = {**h, "name": "some", "target": "aten.mul.Scalar", "args": [ref("memory"), factor]}
        own = {**h, "name": "dirty", "args": [ref("add"), ref("some")]}
        graph["nodes"][at:at] = [made, scaled, own]
        graph["nodes"][at + 3]["args"] = [ref("dirty")]

    return change


def test_rows_that_are_none_may_hold_anything(tmp_path: Path) -> None:
    result = verdict(tmp_path, 2, WRONG["what is subtracted from ids"])
    assert result.verdict == "refuted", result.reason
    assert any("reads memory that nothing has written" in text for text in result.assumptions)


def test_memory_that_nothing_has_written_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "unseen").mkdir()
    seen = verdict(tmp_path / "seen", 2, _empty(1.0))
    assert seen.verdict == "refuted", seen.reason
    (tmp_path / "dead").mkdir()
    aside = verdict(tmp_path / "dead", 2, _empty(1.0), argument("gelu", 0, ref("add")))
    assert aside.verdict == "proved", aside.reason
    unseen = verdict(tmp_path / "unseen", 2, _empty(0.0))
    assert unseen.verdict == "inconclusive"
    assert "some reads memory that nothing has written" in unseen.reason


def test_a_partial_output_is_proved_only_where_it_is_expected(tmp_path: Path) -> None:
    row = '[[outputs]]\nsingle = "mm_1"\nparallel = "mm_1"\n'
    (tmp_path / "said").mkdir()
    (tmp_path / "unsaid").mkdir()
    assert verdict(tmp_path / "unsaid", 2, more=row).verdict == "refuted"
    assert verdict(tmp_path / "said", 2, more=row + "sum = true\n").verdict == "proved"


def test_outputs_that_are_not_compared_are_named_and_nothing_is_proved(tmp_path: Path) -> None:
    (tmp_path / "unsaid").mkdir()
    (tmp_path / "said").mkdir()
    (tmp_path / "wrong").mkdir()
    more = argument("output", 0, [ref("loss"), ref("kept"), ref("mm")])
    result = verdict(tmp_path / "unsaid", 2, more)
    assert result.verdict == "inconclusive"
    assert "1 of the parallel one are not compared" in result.reason
    assert "parallel: mm" in result.reason
    rows = [f'[[outputs]]\nsingle = "{n}"\nparallel = "{n}"\n' for n in ("loss", "kept")]
    rows[1] += "shard = 1\n"
    said = verdict(tmp_path / "said", 2, more, more="".join(rows))
    assert said.verdict == "proved", said.reason
    scaled = WRONG["scale"]
    assert verdict(tmp_path / "wrong", 2, more, scaled).verdict == "refuted"


def test_a_proof_of_a_part_is_not_believed(tmp_path: Path) -> None:
    """A certificate that says proved of a plan of which outputs are left out is rejected."""
    more = argument("output", 0, [ref("loss"), ref("kept"), ref("mm")])
    verdict(tmp_path, 2, more)
    path = tmp_path / "run" / "certificate.json"
    path.write_text(path.read_text().replace('"inconclusive"', '"proved"'))
    found = shardproof.check(tmp_path / "run")
    assert not found.ok
    assert any("of which something is left out" in problem for problem in map(str, found.problems))


def test_an_operator_without_a_rule_is_inconclusive_by_name(tmp_path: Path) -> None:
    result = verdict(tmp_path, 2, target("gelu", "my.own.default"))
    assert result.verdict == "inconclusive"
    assert "my.own.default" in result.reason


@pytest.mark.parametrize(("mean", "expected"), [(0.5, "proved"), (1.0, "refuted")])
def test_steps_that_are_added_up(tmp_path: Path, mean: float, expected: str) -> None:
    """The mean of two steps is half of their sum; two inputs are halves of one."""
    relations = tmp_path / "relations.toml"
    relations.write_text(HALVES)
    single = write(tmp_path / "single", [steps(1)])
    parallel = write(tmp_path / "parallel", [steps(2, mean)])
    result = shardproof.verify(single, parallel, relations=relations, out=tmp_path / "run")
    assert result.verdict == expected, result.reason
    assert shardproof.check(tmp_path / "run").ok


def test_inputs_without_a_counterpart_are_refused_by_name(tmp_path: Path) -> None:
    single = write(tmp_path / "single", [steps(1)])
    parallel = write(tmp_path / "parallel", [steps(2)])
    result = shardproof.verify(single, parallel, out=tmp_path / "run")
    assert result.verdict == "invalid input"
    assert "arg1_1: the single side has no such input" in result.reason


def test_what_is_a_partial_sum_is_found_as_such(tmp_path: Path) -> None:
    """Outputs that somebody must still reduce are told apart from others, and may be expected."""
    outputs = argument("output", 0, [ref("loss"), ref("mm_1")])
    single = model()
    outputs(single)
    ranks = [model(rank, 2) for rank in range(2)]
    for graph in ranks:
        outputs(graph)
    paths = write(tmp_path / "single", [single]), write(tmp_path / "parallel", ranks)
    found = shardproof.verify(*paths, out=tmp_path / "run")
    assert found.verdict == "refuted", found.reason
    assert [(f.kind, f.layer) for f in found.findings] == [("partial", "mm_1")]
    said = tmp_path / "said.toml"
    said.write_text('partial = ["mm_1"]\n')
    again = shardproof.verify(*paths, relations=said, out=tmp_path / "again")
    assert again.verdict == "proved", again.reason
    assert shardproof.check(tmp_path / "again").ok
    said.write_text('partial = ["nothing"]\n')
    refused = shardproof.verify(*paths, relations=said, out=tmp_path / "refused")
    assert refused.verdict == "invalid input"
    assert "no such output" in refused.reason


def test_inputs_that_are_stated_to_be_zero(tmp_path: Path) -> None:
    """A bias that is dropped is missed only by who says that there is none."""
    dropped = argument("gelu", 0, ref("mm"))
    (tmp_path / "one").mkdir()
    assert verdict(tmp_path / "one", 2, dropped).verdict == "refuted"
    result = verdict(tmp_path, 2, dropped, more='zeros = ["bias"]\n')
    assert result.verdict == "proved", result.reason
    assert "inputs bias are zero" in result.assumptions


@pytest.mark.parametrize(
    ("own_mean", "more", "expected"),
    [
        (True, "", "refuted"),
        (False, "", "proved"),
        (True, "[domains]\ny = [0, 6]\n", "proved"),
        (False, "[domains]\ny = [0, 6]\n", "proved"),
    ],
)
def test_labels_that_may_not_count(
    tmp_path: Path, own_mean: bool, more: str, expected: str
) -> None:
    """Labels may be -100 where the program asks if they are: the mean of the means of ranks is the
    mean only where all labels count, which has to be stated."""
    single = write(tmp_path / "single", [labelled(0, 1)])
    parallel = write(tmp_path / "parallel", [labelled(r, 2, own_mean) for r in range(2)])
    relations = tmp_path / "relations.toml"
    relations.write_text(more)
    result = shardproof.verify(
        single, parallel, relations=relations, out=tmp_path / "run", cache=False
    )
    assert result.verdict == expected
    text = (tmp_path / "run" / "result.json").read_text()
    assert ("y are from 0 to 5, or -100" in text) == (not more)
