"""A verdict on whatever the user names: plans, or folders of recorded traces.

Which of them it is, the files say by their content.
"""

from __future__ import annotations

from pathlib import Path

from shardproof import api
from shardproof.inputs.traces import is_recorded
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result


def run(single: Path, parallel: Path | None, options: Options, progress: Progress) -> Result:
    """Verify, as `shardproof.api.run` or `shardproof.recorded.run` does."""
    if parallel is not None and is_recorded(single, parallel):
        from shardproof import recorded

        return recorded.run(single, parallel, options, progress)
    return api.run(single, parallel, options, progress)
