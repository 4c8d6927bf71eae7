"""A verdict on whatever the user names: plans, or folders of recorded traces.

Which of them it is, the files say by their content.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from shardproof import api
from shardproof.engine.errors import InvalidInput
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

    ``combine`` and ``validated`` are about traces; raises `InvalidInput` where they are given for
    plans.
    """
    if parallel is not None and is_recorded(single, parallel):
        from shardproof import recorded

        return recorded.run(single, parallel, options, progress, combine, validated)
    if combine is not None or validated:
        option = "--validate" if combine is None else "--combine"
        raise InvalidInput(f"{option} is about two folders of traces (shardproof capture)")
    return api.run(single, parallel, options, progress)
