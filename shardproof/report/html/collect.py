"""Everything that the page shows, as plain data, from the run directory alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.assumption import texts
from shardproof.engine.records.run import Run, read_run
from shardproof.engine.schedule.instances import Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.storage import files
from shardproof.inputs import rundir
from shardproof.report.html import graphs, lineages, mesh, schedule, values
from shardproof.report.html.advice import advice
from shardproof.report.tries import about_order, about_steps, to_try
from shardproof.report.words import numbers
from shardproof.run.document import read_result
from shardproof.run.request import NAME as REQUEST

Data = dict[str, Any]

#: Findings that are shown in full; the rest is counted.
MOST_FINDINGS: Final = 25
#: Conclusions that are listed one by one where they fail.
MOST_FAILED: Final = 40

SAYS: Final = {
    "proved": "The parallel plan computes what the single-device plan computes, for every input.",
    "refuted": "The parallel plan does not compute what the single-device plan computes.",
    "inconclusive": "Neither proved nor refuted.",
    "invalid input": "Nothing was verified: the input is not what it should be.",
}

#: Conclusions in words, by kind.
MEANS: Final = {
    "coverage": "the parts of a parameter that ranks hold are all of it",
    "gradient": "a rank ends with its part of the single-device gradient",
    "loss": "the losses combine to the single-device loss",
    "single-device gradient": "the single-device plan's own backward is its loss's derivative",
    "output": "a rank ends with its part of the single-device output",
    "output coverage": "the parts of an output that ranks hold are all of it",
    "updated parameter": "a rank ends with its part of the single-device updated parameter",
    "updated parameter coverage": "the updated parts that ranks hold are all of the parameter",
    "state": "a rank ends with its part of the single-device state",
    "state coverage": "the parts of a state that ranks hold are all of it",
    "buffer": "a rank ends with its part of the single-device buffer",
    "buffer coverage": "the parts of a buffer that ranks hold are all of it",
}


def collect(folder: Path) -> Data:
    """Everything that the page of the run in ``folder`` shows; raises `InvalidInput` where this is
    no run that has ended.

    Example: ``"verdict": "refuted"``, ``"mesh": "dp 2 x tp 2"``, ``"findings"``, and ``"plan"``
    with the pictures.
    """
    result = _result(folder)
    data: Data = {
        "verdict": result["verdict"],
        "says": SAYS.get(result["verdict"], ""),
        "reason": result["reason"],
        "run_dir": result["run_dir"] or str(folder),
        "assumptions": result["assumptions"],
        "kept_whole": result.get("kept_whole", []),
        "counts": result["counts"],
        "mesh": str(result.get("mesh", "")),
        "seconds": result["seconds"],
        "phases": phases(result["seconds"]),
        "memory": result["peak_rss_mib"],
        "conclusions": conclusions(result["conclusions"]),
        **findings(result["findings"], result["verdict"]),
        "first": None,
        "to_try": to_try(result["reason"], _timeout(folder)),
        "order": about_order(result["verdict"], (one["kind"] for one in result["findings"])),
        "about_steps": about_steps(result["verdict"], result["assumptions"]),
        "plan": None,
        "certificate": None,
        "verdicts": ledger(folder),
    }
    if data["findings"]:
        data["first"] = data["findings"][0]
    if (folder / "certificate.json").is_file():
        _add_plan(data, read_run(folder), result)
    data["dedup"] = dedup(data)
    return data


def _timeout(folder: Path) -> float | None:
    """The time limit of a query in a run, where that is on record."""
    try:
        request = json.loads(files.contents(folder / REQUEST))
        limit = request["settings"]["timeout"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(limit) if isinstance(limit, int | float) else None


def _result(folder: Path) -> Data:
    if not folder.is_dir() or not rundir.is_run(folder):
        raise InvalidInput("expected the directory of a run", str(folder))
    result = read_result(folder)
    if result is None:
        path = folder / rundir.RESULT
        raise InvalidInput("the run has not ended: there is no result yet", str(path))
    return result.to_dict()


# -- from the result -----------------------------------------------------------------------------


def phases(seconds: Mapping[str, float]) -> list[Data]:
    """Time by phase, with its share of the whole.

    Example: ``{"name": "partition", "seconds": 0.64, "percent": 18.0}``; what no phase has is
    "other".
    """
    total = max(seconds.get("total", 0.0), 1e-9)
    named = [(name, value) for name, value in seconds.items() if name != "total"]
    rest = max(0.0, total - sum(value for _, value in named))
    named.append(("other", rest))
    return [{"name": n, "seconds": s, "percent": 100 * s / total} for n, s in named]


def conclusions(entries: Sequence[Mapping[str, Any]]) -> Data:
    """By kind: how many hold of how many; those that do not, one by one.

    Example: of a GPT without its last all-reduce,
    ``{"kind": "gradient", "held": 0, "all": 36, ...}`` and
    ``{"kind": "coverage", "held": 36, "all": 36, ...}``.
    """
    kinds: dict[str, Counter[bool]] = {}
    for one in entries:
        kinds.setdefault(one["kind"], Counter())[bool(one["holds"])] += 1
    failed = [one for one in entries if not one["holds"]]
    return {
        "kinds": [
            {"kind": kind, "says": MEANS.get(kind, ""), "held": n[True], "all": n.total()}
            for kind, n in sorted(kinds.items(), key=lambda one: _rank_of_kind(one[0]))
        ],
        "failed": [{**one, "ranks": numbers(one["ranks"])} for one in failed[:MOST_FAILED]],
        "more": max(0, len(failed) - MOST_FAILED),
    }


def _rank_of_kind(kind: str) -> tuple[bool, bool, bool, str]:
    """The order of kinds: the loss, what ranks end with, the single device's own, coverage."""
    return kind.endswith("coverage"), kind.startswith("single-device"), kind != "loss", kind


def findings(entries: Sequence[Mapping[str, Any]], verdict: str) -> Data:
    """``findings``: one for each cause, with what follows from it, or all where there are no
    causes; ``beside``: those that belong to no cause; both with what to do.

    Example: of findings of groups 1, 1 and 0 one cause with one follower, and one ``beside``.
    """
    causes: dict[object, list[Mapping[str, Any]]] = {}
    beside: list[Mapping[str, Any]] = []
    grouped = any(one.get("group") for one in entries)
    for number, one in enumerate(entries):
        if grouped and not one.get("group"):
            beside.append(one)
        else:
            causes.setdefault(one.get("group") or f"finding {number}", []).append(one)
    listed = [_cause(alike, verdict) for alike in causes.values()]
    return {
        "findings": listed[:MOST_FINDINGS],
        "more_findings": max(0, len(listed) - MOST_FINDINGS),
        "beside": _kinds(beside),
    }


def _cause(alike: Sequence[Mapping[str, Any]], verdict: str) -> Data:
    """The first finding of a cause, and by kind what follows from it."""
    first = alike[0]
    return {
        "cause": "",
        "reference": "",
        "layers": [],
        **first,
        "rank_numbers": list(first["ranks"]),
        "ranks": numbers(first["ranks"]),
        "agreeing_ranks": numbers(first.get("agreeing_ranks", ())),
        "microbatches": numbers(first["microbatches"]),
        "agreeing_microbatches": numbers(first.get("agreeing_microbatches", ())),
        "advice": advice(first, verdict),
        "tensors": values.drawn(first.get("counterexample", ())),
        "followers": _kinds(alike[1:]),
    }


def _kinds(entries: Sequence[Mapping[str, Any]]) -> list[Data]:
    """Findings by kind: how many, and the messages of the first ones."""
    kinds: dict[str, list[str]] = {}
    for one in entries:
        kinds.setdefault(one["kind"], []).append(one["message"])
    return [
        {"kind": kind, "count": len(messages), "said": messages[:MOST_FINDINGS]}
        for kind, messages in kinds.items()
    ]


def ledger(folder: Path) -> Data:
    """Verdicts on record: how many of each, by whom, how many from earlier runs.

    Example: ``{"verdicts": {"unsat": 114}, "solvers": {"z3": 114}, "cached": 114, ...}``.
    """
    path = folder / rundir.VERDICTS
    if not path.is_file():
        return {}
    from shardproof.cluster.verdicts.ledger import LedgerError
    from shardproof.cluster.verdicts.ledger import read as read_ledger

    try:
        rows = read_ledger(path).select(["key", "verdict", "solver", "cached", "seconds"])
    except (OSError, LedgerError) as error:
        raise InvalidInput(f"cannot be read: {error}", str(path)) from error
    listed = rows.to_pylist()
    return {
        "unsat": {row["key"] for row in listed if row["verdict"] == "unsat"},
        "verdicts": Counter(row["verdict"] for row in listed),
        "solvers": Counter(row["solver"] for row in listed),
        "cached": sum(row["cached"] for row in listed),
        "seconds": sum(row["seconds"] for row in listed),
    }


def dedup(data: Data) -> list[Data]:
    """From operators of all ranks to texts that a solver reads.

    Example: 1392 operators, 539 stages, 462 obligations and 114 templates of the GPT of
    examples/gpt.py.
    """
    counts = data["counts"]
    steps = [
        ("operators on all ranks and microbatches", counts.get("parallel_operators", 0)),
        ("stages: one for all that are alike", counts.get("stages", 0)),
        ("obligations", counts.get("obligations", 0)),
        ("templates: distinct obligations", counts.get("templates", 0)),
    ]
    top = max(1, *(count for _, count in steps))
    from math import log10

    return [
        {"name": n, "count": c, "percent": 100 * log10(c + 1) / log10(top + 1)} for n, c in steps
    ]


# -- from the tables -----------------------------------------------------------------------------


def _add_plan(data: Data, run: Run, result: Data) -> None:
    parallel = unroll(run.plan.programs, run.plan.microbatches)
    marked = _marked(result)
    failing = _failing_rows(run, parallel, marked)
    unsat = data["verdicts"].get("unsat", set())
    proved = {number for number, template in enumerate(run.templates) if _digest(template) in unsat}
    layers = lineages.by_layer(run, parallel, proved, failing)
    data["plan"] = {
        "name": run.plan.name,
        "ranks": run.plan.ranks,
        "microbatches": run.plan.microbatches,
        "notes": [*run.plan.notes, *texts(run.plan.assumed)],
        "loss": run.plan.loss,
        "mesh": mesh.mesh(run.plan, {rank for one in marked for rank in one["ranks"]}),
        "schedule": schedule.schedule(run.plan, _failing_bodies(run, marked)),
        "strip": lineages.strip(layers),
        "strip_more": max(0, len(layers) - 200),
        "groups": lineages.groups(layers),
        "graphs": graphs.graphs(run, parallel, _pictured(result), failing),
    }
    certificate = run.certificate
    data["certificate"] = {
        "plan": certificate.plan,
        "inputs": dict(certificate.inputs),
        "solvers": dict(certificate.solvers),
        "settings": dict(certificate.settings),
        "trusted": list(certificate.trusted),
    }


def _pictured(result: Data) -> list[Data]:
    """The findings that graphs are drawn around: those that pictures mark, else all there are."""
    return _marked(result) or (result["findings"] if result["verdict"] != "proved" else [])


def _digest(template: Any) -> str:
    from shardproof.engine.records.run import text_digest

    return text_digest(template.linear, template.nonlinear)


def _marked(result: Data) -> list[Data]:
    """The findings that a refutation rests on, one for each cause: what pictures mark."""
    shown = result["findings"] if result["verdict"] == "refuted" else []
    causes: dict[object, Data] = {}
    for one in shown:
        if one.get("group"):
            causes.setdefault(one["group"], one)
    return list(causes.values()) or [one for one in shown if one["kind"] == shown[0]["kind"]]


def _matches(one: Mapping[str, Any], name: str, backward: bool, module: str, base: int) -> bool:
    operator = f"backward of {name}" if backward else name
    if one["operator"] != operator or (one["ranks"] and base not in one["ranks"]):
        return False
    if one.get("layers"):
        return module in one["layers"]
    # Communication belongs to no module: its finding says between which it is.
    return module in ("", one["layer"])


def _failing_rows(run: Run, parallel: Unrolled, entries: Sequence[Mapping[str, Any]]) -> set[int]:
    """The parallel rows that findings name."""
    return {
        number
        for number, instance in enumerate(parallel.instances)
        for one in entries
        if instance.kind != "shard"
        and _matches(
            one,
            instance.name,
            instance.backward,
            instance.source.module,
            run.plan.programs[instance.programs[0]].base,
        )
        and one["source"] in ("", instance.source.location, instance.source.cell)
    }


def _failing_bodies(run: Run, entries: Sequence[Mapping[str, Any]]) -> set[tuple[int, int]]:
    return {
        (p, b)
        for p, program in enumerate(run.plan.programs)
        for b, body in enumerate(program.bodies)
        for op in body.ops
        for one in entries
        if _matches(one, op.name, op.backward, op.source.module, program.base)
        and one["source"] in ("", op.source.location, op.source.cell)
    }
