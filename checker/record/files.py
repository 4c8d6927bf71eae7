"""Other files that a run leaves: its result and the record of its solvers' verdicts.

Nothing rests on them, but they must not say anything else than the certificate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec
import pyarrow as pa

from shardproof.checker.result import Problems
from shardproof.engine.errors import InvalidInput
from shardproof.engine.findings import UNDECIDED
from shardproof.engine.plan.assumptions import EXPECTED
from shardproof.engine.records.run import Run, text_digest
from shardproof.engine.small_model.kept_whole import kept_whole
from shardproof.engine.specification.conclusions import Conclusion
from shardproof.engine.storage.tables import read_file

RESULT = "result.json"
VERDICTS = "verdicts.arrows"
#: Kinds of findings that no verdict rests on: what is wrong with a cache is of one run on one
#: machine; what was found of a row that is not required (a backward that is no derivative) is
#: decided by a run of its own, or read off the run's lineages.
APART = frozenset({"cache", "not required"})


def check_leftovers(run: Run, problems: Problems) -> None:
    """Hold the files that are there against the certificate.

    Example: a ``result.json`` with the verdict "proved" beside a certificate that says
    "inconclusive" is a problem.
    """
    try:
        if (run.folder / RESULT).exists():
            _result(run, problems)
        if (run.folder / VERDICTS).exists() and run.certificate.verdict == "proved":
            _verdicts(run, problems)
    except InvalidInput as error:
        problems.add("file", str(error))


def check_claims(run: Run, problems: Problems) -> None:
    """What a run that says "proved" has to say of its conclusions and stages, too; whether these
    are right is not looked at here.

    Example: a run that says "proved" and has no file of verdicts: "there is nothing that was
    concluded, or no record of verdicts".
    """
    if not run.conclusions or not (run.folder / VERDICTS).exists():
        problems.add("verdict", "there is nothing that was concluded, or no record of verdicts")
    for conclusion in run.conclusions:
        if not conclusion.holds:
            problems.add("unproved", conclusion.message)
    for stage in run.stages:
        if stage.live and stage.problem:
            problems.add("unproved", stage.problem)


def _result(run: Run, problems: Problems) -> None:
    data = read_file(run.folder / RESULT)
    try:
        decoded = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"is no result: {error}", RESULT) from error
    document = decoded if isinstance(decoded, dict) else {}
    stored, verdict = run.certificate, document.get("verdict")
    # A proof that lacks what the user expected is none for him; nothing else may be told apart.
    expects = any(line.startswith(EXPECTED) for line in stored.assumptions)
    if verdict != stored.verdict and not (verdict == "inconclusive" and expects):
        problems.add("verdict", f"{RESULT} says {verdict}, the certificate {stored.verdict}")
    known: dict[str, object] = {
        "assumptions": list(stored.assumptions),
        "assumption_details": [asdict(a) for a in stored.assumption_details],
        "counts": stored.counts,
        "kept_whole": list(kept_whole(run.nodes)),
        "conclusions": [_listed(conclusion) for conclusion in run.conclusions],
    }
    if verdict in ("refuted", "inconclusive") and "conclusions" in document:
        document = {**document, "conclusions": _but_for_agreeing(document.get("conclusions"))}
    for name, expected in known.items():
        if name in document and document[name] != expected:
            problems.add("verdict", f"{RESULT} has other {name} than the run")
    if verdict == stored.verdict and _reasons(document) not in (None, stored.reasons):
        problems.add("verdict", f"{RESULT} has other findings than the certificate")


def _but_for_agreeing(conclusions: object) -> object:
    """The conclusions of what is no proof without what they add of rows that agreed where they were
    run: nothing rests on that, and a run does not keep it."""
    if not isinstance(conclusions, list):
        return conclusions
    return [
        {**c, "message": c["message"].removesuffix(UNDECIDED)}
        if isinstance(c, dict) and isinstance(c.get("message"), str) and c.get("holds") is False
        else c
        for c in conclusions
    ]


def _listed(conclusion: Conclusion) -> dict[str, object]:
    """A conclusion as the document has it."""
    return {
        "kind": conclusion.kind,
        "name": conclusion.name,
        "ranks": list(conclusion.ranks),
        "holds": conclusion.holds,
        "message": conclusion.message,
    }


def _reasons(document: Mapping[str, Any]) -> tuple[object, ...] | None:
    """What the document says for a certificate's reasons (None: nothing); what `APART` names is no
    part of a certificate."""
    findings = document.get("findings")
    if document.get("reason"):
        return (document["reason"],)
    if not isinstance(findings, list) or not all(isinstance(f, dict) for f in findings):
        return None
    return tuple(f.get("message") for f in findings if f.get("kind") not in APART)


def _verdicts(run: Run, problems: Problems) -> None:
    """The record has a verdict on every template of a proof, and the last one is "unsat"."""
    last: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    try:
        with pa.ipc.open_stream(pa.py_buffer(read_file(run.folder / VERDICTS))) as reader:
            for batch in reader:
                batch.validate(full=True)
                keys, verdicts, options = (
                    batch.column(name).to_pylist() for name in ("key", "verdict", "options")
                )
                last.update(zip(keys, verdicts, strict=True))
                for entry in zip(keys, map(repr, options), strict=True):
                    if entry in seen:
                        raise ValueError(f"two verdicts on {entry[0]} with the same options")
                    seen.add(entry)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise InvalidInput(f"is no record of verdicts: {error}", VERDICTS) from error
    used = {stage.template for stage in run.stages if stage.live}
    for number in sorted(used - {-1}):
        template = run.templates[number]
        verdict = last.get(text_digest(template.linear, template.nonlinear))
        if verdict is None:
            problems.add("verdict", f"{VERDICTS} has no verdict on template {number}")
        elif verdict != "unsat":
            problems.add("verdict", f"{VERDICTS} says that template {number} is {verdict}")
