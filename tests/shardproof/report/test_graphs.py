"""Both graphs around a finding: where it is on both sides, which values are the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shardproof import api
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.report.html import graphs
from shardproof.report.html.collect import collect
from shardproof.report.html.page import render
from tests.shardproof.report.test_html import right, unreduced

OP, MODULE, SOURCE, WHO, RESULT, SHAPE, STATUS, PARTNER, INPUTS = range(9)


def run(folder: Path, plan: Plan) -> Path:
    store.save(plan, folder / "plan")
    api.run(folder / "plan", None, api.Options(out=folder / "run", executor="local"))
    return folder / "run"


@pytest.fixture(scope="module")
def refuted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The picture's data, as the page has it."""
    page = render(collect(run(tmp_path_factory.mktemp("refuted"), unreduced())))
    (data,) = re.findall(r'<script type="application/json" id="graph-data">(.*?)</script>', page)
    return json.loads(data)  # type: ignore[no-any-return]


def told(data: dict[str, Any], side: str, number: int, field: int) -> str:
    return str(data[side]["words"][data[side]["nodes"][number][field]])


def test_a_finding_is_at_its_operator_on_both_sides(refuted: dict[str, Any]) -> None:
    first = refuted["findings"][0]
    row, own = first["parallel"], first["single"]
    assert "partial sum" in told(refuted, "parallel", row, RESULT)
    assert refuted["parallel"]["nodes"][row][STATUS] == graphs.FAILING
    assert told(refuted, "parallel", row, OP) == told(refuted, "single", own, OP)
    assert told(refuted, "parallel", row, MODULE) == told(refuted, "single", own, MODULE)


def test_partners_are_the_same_value_and_inputs_come_before(refuted: dict[str, Any]) -> None:
    pairs = 0
    for side, other in (("single", "parallel"), ("parallel", "single")):
        for number, node in enumerate(refuted[side]["nodes"]):
            assert all(0 <= i < number for i in node[INPUTS])
            if node[PARTNER] < 0:
                continue
            assert node[PARTNER] < len(refuted[other]["nodes"])
            if told(refuted, side, number, OP) == "parameter":
                names = [
                    told(refuted, s, n, MODULE) for s, n in ((side, number), (other, node[PARTNER]))
                ]
                assert names[0] == names[1]
                pairs += 1
    assert pairs > 20
    strange = [n for n in refuted["parallel"]["nodes"] if n[STATUS] == graphs.STRANGE]
    assert strange
    assert all(n[PARTNER] == -1 for n in strange)


def test_ranks_of_programs_can_be_searched(refuted: dict[str, Any]) -> None:
    whos = {told(refuted, "parallel", n, WHO) for n in range(len(refuted["parallel"]["nodes"]))}
    assert whos == set(refuted["ranks"])
    assert sorted(rank for ranks in refuted["ranks"].values() for rank in ranks) == [0, 1, 2, 3]


def test_a_proof_has_no_picture_and_too_many_nodes_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "right").mkdir()
    assert collect(run(tmp_path / "right", right()))["plan"]["graphs"] is None
    (tmp_path / "wrong").mkdir()
    wrong = run(tmp_path / "wrong", unreduced())
    assert collect(wrong)["plan"]["graphs"] is not None
    monkeypatch.setattr(graphs, "MOST_NODES", 10)
    assert collect(wrong)["plan"]["graphs"] is None
    assert "graph-data" not in render(collect(wrong))
