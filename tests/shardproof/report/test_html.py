"""The report of a run as one file: what it holds, how large it is, and that names stay names."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardproof import api
from shardproof.commands.report import report
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import store
from shardproof.report.html import advice, lineages, mesh
from shardproof.report.html.collect import collect
from shardproof.report.html.page import render
from tests.faults.plans import attrs, edit_op, llama, named

HOSTILE = "<script>alert(1)</script>\"'&"
#: Elements that have no end tag.
VOID = {"meta", "br", "input", "rect"}


class Page(HTMLParser):
    """The elements of a page: balanced, with their text and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID - {"rect"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def ids(self) -> set[str | None]:
        return {held["id"] for _, held in self.tags if "id" in held}


Runs = Callable[[str, Plan], Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Verifies a plan once; its run directory."""
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str, plan: Plan) -> Path:
        out = folder / name
        if not out.exists():
            store.save(plan, folder / f"{name}-plan")
            api.run(folder / f"{name}-plan", None, api.Options(out=out, executor="local"))
        return out

    return run


def right() -> Plan:
    return llama(tp=2, pp=2, microbatches=2, layers=2, sequence=4, ffn=8)


def unreduced() -> Plan:
    """The first layer's feed-forward is not added up."""
    plan = right()
    layer = "layers.0.feed_forward"
    plan = edit_op(plan, "all_reduce", named("identity"), layer=layer)
    return edit_op(plan, "identity", lambda op: replace(op, attrs={}), nth=1, layer=layer)


def hostile(plan: Plan) -> Plan:
    """A plan whose name and modules would be markup."""

    def moved(op: object) -> object:
        source = op.source  # type: ignore[attr-defined]
        return replace(op, source=replace(source, module=HOSTILE + source.module))  # type: ignore[type-var]

    programs = tuple(
        replace(
            program,
            bodies=tuple(replace(b, ops=tuple(map(moved, b.ops))) for b in program.bodies),
        )
        for program in plan.programs
    )
    return replace(plan, name=HOSTILE, programs=programs)


def page_of(folder: Path) -> tuple[str, Page]:
    text = render(collect(folder))
    return text, Page(text)


def test_a_refutation_says_what_where_and_what_to_do_first(runs: Runs) -> None:
    text, page = page_of(runs("refuted", unreduced()))
    assert {"answer", "mesh", "schedule", "strip", "findings", "layers", "search"} <= page.ids()
    answer = page.text[: page.text.index("Ranks")]
    for said in ("refuted", "What is wrong", "partial sum", "Where", "layers.0", "What to do"):
        assert said in answer
    assert "all-reduce over ranks [0, 1]" in answer
    assert "Verified" in answer
    assert any(tag == "span" and "failing" in (held.get("class") or "") for tag, held in page.tags)
    assert any(tag == "rect" and "failing" in (held.get("class") or "") for tag, held in page.tags)
    assert "A counterexample" in page.text
    assert 'class="shard off"' in text


def test_a_proof_says_what_was_shown_and_assumed(runs: Runs) -> None:
    _, page = page_of(runs("proved", right()))
    for said in ("proved", "What was shown", "Nothing has to be changed", "What was assumed"):
        assert said in page.text
    assert not any("failing" in (held.get("class") or "") for _, held in page.tags)
    assert "layers.0, layers.1" in page.text
    assert "partial sum" in page.text
    assert "1/2 of dimension" in page.text
    assert "counterexample" not in page.text


def test_axes_that_were_kept_whole_are_named_with_their_reason(runs: Runs, tmp_path: Path) -> None:
    run = runs("proved", right())
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    _, page = page_of(run)
    assert "whole" in page.ids()
    assert len(result["kept_whole"]) > 1
    for line in result["kept_whole"]:
        what, _, why = line.partition(":")
        assert f"{what} :{why}" in page.text
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "result.json").write_text(json.dumps({**result, "kept_whole": []}), encoding="utf-8")
    assert "whole" not in page_of(copy)[1].ids()


@pytest.mark.parametrize("name", ["refuted", "proved"])
def test_the_file_needs_nothing_else(runs: Runs, name: str) -> None:
    text, page = page_of(runs(name, unreduced() if name == "refuted" else right()))
    assert not re.search(r"https?://|@import|url\(", text)
    assert not any(key in held for _, held in page.tags for key in ("src", "srcset"))
    assert all((held.get("href") or "#").startswith("#") for _, held in page.tags)
    assert "link" not in {tag for tag, _ in page.tags}
    assert len(text) < 200_000


@pytest.mark.parametrize("name", ["refuted", "proved"])
def test_names_are_text(runs: Runs, name: str) -> None:
    plan = unreduced() if name == "refuted" else right()
    text, page = page_of(runs(f"{name}-hostile", hostile(plan)))
    scripts = [held for tag, held in page.tags if tag == "script"]
    assert scripts in ([{}], [{"type": "application/json", "id": "graph-data"}, {}])
    assert text.count("<script>") == 1
    assert "<script>alert" not in text
    assert HOSTILE in page.text


def test_long_plans_are_aggregated(runs: Runs) -> None:
    """Layers that are alike are one entry, whatever their number."""
    folder = runs("deep", llama(tp=2, pp=2, layers=6, sequence=4, ffn=8))
    data = collect(folder)
    titles = [group["title"] for group in data["plan"]["groups"]]
    assert "layers.0 … layers.5 (6 layers)" in titles
    few = collect(runs("proved", right()))
    assert len(render(data)) < 1.5 * len(render(few))


def test_the_command_writes_beside_the_run(runs: Runs, tmp_path: Path) -> None:
    folder = runs("proved", right())
    made = CliRunner().invoke(report, [str(folder)], standalone_mode=False)
    assert made.return_value == 0
    assert made.output == f"{folder / 'report.html'}\n"
    out = tmp_path / "other.html"
    CliRunner().invoke(report, [str(folder), "-o", str(out)], standalone_mode=False)
    assert out.read_bytes() == (folder / "report.html").read_bytes()
    assert api.check(folder).ok


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="directory of a run"):
        collect(tmp_path)
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(InvalidInput, match="is no result"):
        collect(tmp_path)


def test_a_run_without_tables_is_shown_by_its_result(runs: Runs, tmp_path: Path) -> None:
    result = json.loads((runs("proved", right()) / "result.json").read_text())
    result |= {"verdict": "invalid input", "reason": "parameter w is missing", "conclusions": []}
    (tmp_path / "result.json").write_text(json.dumps(result))
    _, page = page_of(tmp_path)
    assert "parameter w is missing" in page.text
    assert "mesh" not in page.ids()


def test_repairs_that_were_verified_are_shown_as_such(runs: Runs, tmp_path: Path) -> None:
    result = json.loads((runs("refuted", unreduced()) / "result.json").read_text())
    assert result["findings"]
    result["findings"][0]["repair"] = "holds with an all-reduce over ranks [0, 1]"
    (tmp_path / "result.json").write_text(json.dumps(result))
    _, page = page_of(tmp_path)
    assert "An all-reduce over ranks [0, 1]" in page.text
    assert "Verified: with this change every conclusion holds." in page.text
    assert "not tried" not in page.text


def test_values_are_those_on_record(runs: Runs, tmp_path: Path) -> None:
    """The page draws the finding's counterexample and computes none."""
    folder = runs("refuted", unreduced())
    _, page = page_of(folder)
    result = json.loads((folder / "result.json").read_text())
    (finding,) = [f for f in result["findings"] if f["group"] == 1 and f["repair"]]
    inside = [d for d in finding["counterexample"] if "input of add" in d["tensor"]]
    assert [d["ranks"] for d in inside] == [[0], [1]]
    assert {d["expected"] for d in inside} == {inside[0]["expected"]}
    assert sum(d["actual"] for d in inside) == pytest.approx(inside[0]["expected"])
    for one in inside:
        assert f"{one['actual']:.4g} instead of {one['expected']:.4g}" in page.text
    assert f"It begins with {inside[0]['tensor']}" in page.text
    assert "It ends in the" in page.text
    for one in finding["counterexample"]:
        one |= {"expected": 1234.5, "actual": "nan", "near": [[[1234.5, "nan"]]]}
    (tmp_path / "result.json").write_text(json.dumps(result))
    _, other = page_of(tmp_path)
    assert "NaN instead of 1234" in other.text
    for one in finding["counterexample"]:
        del one["tensor"], one["near"]
    (tmp_path / "result.json").write_text(json.dumps(result))
    _, older = page_of(tmp_path)
    assert "counterexample" not in older.text


def test_what_follows_from_a_cause_is_under_it(runs: Runs, tmp_path: Path) -> None:
    result = json.loads((runs("refuted", unreduced()) / "result.json").read_text())
    first = result["findings"][0]
    more = {**first, "kind": "metadata", "message": "a record", "repair": "", "counterexample": []}
    beside = {**more, "kind": "precision", "message": "a cast", "group": 0}
    result["findings"] = [first, more, {**more, "message": "another record"}, beside]
    (tmp_path / "result.json").write_text(json.dumps(result))
    data = collect(tmp_path)
    assert len(data["findings"]) == 1
    assert [(k["kind"], k["count"]) for k in data["findings"][0]["followers"]] == [("metadata", 2)]
    assert [(k["kind"], k["count"]) for k in data["beside"]] == [("precision", 1)]
    page = Page(render(data))
    assert "metadata : 2 findings, gone with the same repair" in page.text
    assert "precision : 1 finding, beside the verdict" in page.text


def test_advice_by_kind() -> None:
    assert "wait for each other" in advice.advice({"kind": "deadlock"}, "refuted")["text"]
    assert advice.advice({"kind": "cache"}, "proved") == {"text": "", "verified": False}


def test_layers_and_spans() -> None:
    assert lineages.layer_of("layers.3.attention.wq") == "layers.3"
    assert lineages.layer_of("norm.weight") == "norm"
    assert mesh.spans(["embed", "layers.0", "layers.1", "layers.3", "norm"]) == (
        "embed, layers.0–1, layers.3, norm"
    )


def test_values_that_differ_in_nothing_are_not_drawn(runs: Runs) -> None:
    wrong = edit_op(right(), "rms_norm", attrs(flavour="none"))
    data = collect(runs("unsupported", wrong))
    assert data["verdict"] == "inconclusive"
    assert "counterexample" not in render(data)
