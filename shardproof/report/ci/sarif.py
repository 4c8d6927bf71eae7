"""A result as SARIF 2.1.0, which code scanning shows beside the code."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

from shardproof.report.ci.subject import Problem, place, problems, relative
from shardproof.run.plain import plain
from shardproof.run.result import Result

SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def sarif(result: Result, subject: str, file: str) -> str:
    """The document.  ``file``, the plan, is where a problem is shown that names no line of code.

    Example: ``"ruleId": "mismatch"`` at ``examples/gpt.py``, line 98, and ``"exitCode": 1``.
    """
    listed = problems(result)
    kinds = list(dict.fromkeys(problem.kind for problem in listed))
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "shardproof",
                **_version(),
                "rules": [
                    {"id": kind, "shortDescription": {"text": f"Shardproof: {kind}"}}
                    for kind in kinds
                ],
            }
        },
        "automationDetails": {"id": f"shardproof/{plain(subject)}"},
        "columnKind": "unicodeCodePoints",
        "results": [_result(problem, kinds.index(problem.kind), file) for problem in listed],
        "properties": {"verdict": result.verdict},
        "invocations": [
            {
                "executionSuccessful": result.verdict != "invalid input",
                "exitCode": result.exit_code,
            }
        ],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _version() -> dict[str, str]:
    """Our version, where it is known: sources on a path alone have none."""
    try:
        return {"version": metadata.version("shardproof")}
    except metadata.PackageNotFoundError:
        return {}


def _result(problem: Problem, rule: int, file: str) -> dict[str, Any]:
    at = place(problem.source)
    name, line = at if at is not None else (relative(file), 1)
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(name)},
            "region": {"startLine": line},
        }
    }
    if problem.where:
        location["logicalLocations"] = [{"fullyQualifiedName": problem.where}]
    same = "\n".join((problem.kind, problem.where, problem.message))
    return {
        "ruleId": problem.kind,
        "ruleIndex": rule,
        "level": problem.level,
        "message": {"text": problem.message},
        "locations": [location],
        "partialFingerprints": {"shardproof/v1": hashlib.sha256(same.encode()).hexdigest()},
    }


def _uri(name: str) -> str:
    """A file as SARIF names it: from the root with its scheme, else as it is from this folder."""
    path = PurePosixPath(name)
    return path.as_uri() if path.is_absolute() else quote(name)
