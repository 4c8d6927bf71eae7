"""The result object and its document: the contract, to the letter."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest

from shardproof.run.result import EXIT_CODES, Conclusion, Result
from tests.shardproof.faces import assert_golden, proved, refuted


def test_the_document_is_this_text() -> None:
    result = refuted()
    assert_golden("result.json", result.to_json() + "\n")


def test_the_document_has_the_fields_of_the_contract_in_order() -> None:
    data = json.loads(refuted().to_json())
    assert list(data) == [
        "verdict",
        "reason",
        "counts",
        "seconds",
        "peak_rss_mib",
        "assumptions",
        "assumption_details",
        "kept_whole",
        "conclusions",
        "findings",
        "run_dir",
        "mesh",
    ]
    assert list(data["counts"]) == [
        "single_operators",
        "parallel_operators",
        "ranks",
        "stages",
        "obligations",
        "templates",
        "cached",
    ]
    assert list(data["seconds"]) == ["load", "partition", "solve", "compose", "total"]
    assert list(data["conclusions"][0]) == ["kind", "name", "ranks", "holds", "message"]
    assert list(data["findings"][0]) == [
        "kind",
        "operator",
        "layer",
        "ranks",
        "microbatches",
        "source",
        "expected",
        "actual",
        "message",
        "repair",
        "cause",
        "group",
        "reference",
        "layers",
        "agreeing_ranks",
        "agreeing_microbatches",
        "counterexample",
    ]


def test_exit_codes() -> None:
    assert dict(EXIT_CODES) == {"proved": 0, "refuted": 1, "inconclusive": 2, "invalid input": 3}
    assert [Result(verdict).exit_code for verdict in EXIT_CODES] == [0, 1, 2, 3]


@pytest.mark.parametrize("result", [proved(), refuted(), Result("inconclusive", reason="\ud800 é")])
def test_the_document_comes_back_as_the_same_result(result: Result) -> None:
    text = result.to_json()
    assert text.isascii()
    assert Result.from_json(text) == result


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", "[" * 100_000, proved().to_json().replace("proved", "maybe")]
)
def test_another_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is no result|Expecting value)"):
        Result.from_json(text)


def test_a_result_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        proved().verdict = "refuted"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        Conclusion("loss", "loss").holds = False  # type: ignore[misc]


def test_a_result_is_told_in_a_few_lines() -> None:
    result = refuted()
    assert repr(result) == "<Result: refuted, 8 ranks, /tmp/run>"
    lines = str(result).splitlines()
    assert lines[0] == (
        "refuted: the parallel plan does not compute what the single-device plan computes"
    )
    assert "mismatch: rank 0" not in lines
    assert lines[1].startswith("value: rank 0 adds the products")
    assert lines[-4:] == [
        "more: 3 more in `findings`",
        "conclusions: 1 of 6 hold",
        "run: /tmp/run",
        "page: shardproof report /tmp/run",
    ]
    assert str(proved()).splitlines()[1] == "conclusions: 4 of 4 hold"


def test_in_a_notebook_names_are_text() -> None:
    result = Result("inconclusive", reason="no declaration of <script>alert(1)</script> & more")
    html = result._repr_html_()
    assert "<script>" not in html
    assert "no declaration of &lt;script&gt;" in html
    assert html.startswith("<div><b style='color:#b26a00'>inconclusive</b>")


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("verdict",), ["proved"]),
        (("counts", "ranks"), "4"),
        (("seconds", "total"), None),
        (("conclusions", 0, "ranks"), 3),
        (("findings", 0, "message"), {}),
        (("run_dir",), ["run"]),
    ],
)
def test_a_field_of_another_kind_is_no_result(keys: tuple[str | int, ...], value: object) -> None:
    data = json.loads(refuted().to_json())
    assert Result.from_json(json.dumps(data)) == refuted()
    part = data
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    with pytest.raises(ValueError, match="is no result"):
        Result.from_json(json.dumps(data))
