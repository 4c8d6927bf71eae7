"""The result of a finished run, as its directory has it, beside what its certificate says."""

from __future__ import annotations

from pathlib import Path

from shardproof.engine.errors import InvalidInput
from shardproof.engine.records import certificate
from shardproof.engine.storage import files
from shardproof.inputs import rundir
from shardproof.run.result import Result


def read_result(folder: Path) -> Result | None:
    """The result of a run (None: it has not ended); raises `InvalidInput` for what is no result,
    and where the certificate has another verdict.

    Example: where ``result.json`` was changed to "proved", "says proved, the certificate of the run
    refuted".
    """
    path = folder / rundir.RESULT
    if not path.exists():
        return None
    try:
        result = Result.from_json(files.contents(path))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot be read: {error}", str(path)) from error
    if (folder / certificate.NAME).exists():
        verdict = certificate.read_certificate(folder).verdict
        if verdict != result.verdict:
            message = f"says {result.verdict}, the certificate of the run {verdict}"
            raise InvalidInput(message, str(path))
    return result
