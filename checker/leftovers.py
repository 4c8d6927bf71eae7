"""Other files that a run leaves: its result and the record of its solvers' verdicts.

Nothing rests on them, but they must not say anything else than the certificate.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from checker.result import Problems
from engine.errors import InvalidInput
from engine.records import Run, text_digest
from engine.tables import read_file

RESULT = "result.json"
VERDICTS = "verdicts.arrows"


def check_leftovers(run: Run, problems: Problems) -> None:
    """Hold the files that are there against the certificate."""
    try:
        if (run.folder / RESULT).exists():
            _result(run, problems)
        if (run.folder / VERDICTS).exists() and run.certificate.verdict == "proved":
            _verdicts(run, problems)
    except InvalidInput as error:
        problems.add("file", str(error))


def _result(run: Run, problems: Problems) -> None:
    data = read_file(run.folder / RESULT)
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"is no result: {error}", RESULT) from error
    verdict = found.get("verdict") if isinstance(found, dict) else None
    if verdict != run.certificate.verdict:
        problems.add(
            "verdict", f"{RESULT} says {verdict}, the certificate {run.certificate.verdict}"
        )


def _verdicts(run: Run, problems: Problems) -> None:
    """What the record says last of a template of a proof is "unsat"."""
    last: dict[str, str] = {}
    try:
        with pa.ipc.open_stream(pa.py_buffer(read_file(run.folder / VERDICTS))) as reader:
            for batch in reader:
                batch.validate(full=True)
                columns = (batch.column("key").to_pylist(), batch.column("verdict").to_pylist())
                last.update(zip(*columns, strict=True))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise InvalidInput(f"is no record of verdicts: {error}", VERDICTS) from error
    used = {stage.template for stage in run.stages if stage.live}
    for number in sorted(used - {-1}):
        template = run.templates[number]
        verdict = last.get(text_digest(template.linear, template.nonlinear), "unsat")
        if verdict != "unsat":
            problems.add("verdict", f"{VERDICTS} says that template {number} is {verdict}")
