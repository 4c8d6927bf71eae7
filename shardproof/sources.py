"""A verdict on whatever the user names: plans, or folders of recorded traces.

Which of them it is, the files say by their content.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from shardproof import api
from shardproof.engine.errors import InvalidInput
from shardproof.frontends.frontend import Replays, of_pair
from shardproof.frontends.graphs.replayed import NOT_REPLAYED, Validation
from shardproof.inputs.traces import is_recorded
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result


def run(
    single: Path,
    parallel: Path | None,
    options: Options,
    progress: Progress,
    *,
    combine: Literal["mean", "sum"] | None = None,
    validated: bool = False,
) -> Result:
    """Verify, as `shardproof.api.run` or `shardproof.recorded.run` does.

    Example: a folder of traces beside another one is decided by `shardproof.recorded.run`, with the
    option ``combine``.

    ``combine`` is about traces, ``validated`` about these and graphs; raises `InvalidInput` where
    they are given for others.
    """
    if parallel is not None and is_recorded(single, parallel):
        from shardproof import recorded

        return recorded.run(single, parallel, options, progress, combine, validated)
    if combine is not None:
        raise InvalidInput("--combine is about two folders of traces (shardproof capture)")
    if validated:
        _replayer(single, parallel)
    result = api.run(single, parallel, options, progress)
    if not validated or result.verdict == "invalid input":
        return result
    return replayed(result, replay(single, parallel, options))


def replay(single: Path, parallel: Path | None, options: Options) -> Validation:
    """What the files say, evaluated by other means than the plan that they are read as; raises
    `InvalidInput` for files of which nobody can.

    Example: two HLO modules, interpreted operator by operator in NumPy.
    """
    reader, other = _replayer(single, parallel)
    options_of_reader = {} if options.relations is None else {"relations": str(options.relations)}
    return reader.replay(single, other, options_of_reader)


def _replayer(single: Path, parallel: Path | None) -> tuple[Replays, Path]:
    """What can evaluate the files by other means, and the parallel one of them."""
    reader = None if parallel is None else of_pair(single, parallel)
    if parallel is None or not isinstance(reader, Replays):
        raise InvalidInput("--validate is about graphs and folders of traces, these are plans")
    return reader, parallel


def replayed(result: Result, checked: Validation) -> Result:
    """The result with what a replay says; none where the translation is a wrong one.

    Example: "the translation is not what PyTorch computes: ..." makes a proof inconclusive.
    """
    if not checked.agrees:
        reason = f"the translation is not what {checked.judge} computes: {checked.message}"
        return Result("inconclusive", reason=reason, assumptions=result.assumptions)
    assumptions = tuple(checked.text() if t == NOT_REPLAYED else t for t in result.assumptions)
    return replace(result, assumptions=assumptions)
