"""The verdict on a plan in memory, as the command line comes to it: what mutants are put to."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path
from typing import Final

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan import same_model as pairing
from shardproof.engine.plan.ir import Plan
from shardproof.engine.plan_files import wellformed
from shardproof.inputs.assume import Assumptions
from shardproof.partition.templates.memo import Memo
from shardproof.run import pipeline
from shardproof.run.options import Options
from shardproof.run.progress import Progress

#: Seconds for one query of a mutant.
TIMEOUT: Final = 10.0


def verify(plan: Plan, cache: Path | None = None, memo: Memo | None = None) -> tuple[str, str]:
    """The verdict on a plan in memory, and its reason, as the command line comes to them.

    Example: ``("refuted", "add in h.1.mlp ...")`` of a GPT without an all-reduce;
    ``("rejected", ...)`` of one whose operator reads a value that the body has not.
    """
    try:
        wellformed.check(plan)
        pairing.check(plan)
        with tempfile.TemporaryDirectory(prefix="shardproof-mutant-") as folder:
            options = Options(executor="local", workers=1, timeout=TIMEOUT, cache_dir=cache)
            result = pipeline.run(
                plan,
                options=options,
                settings=options.settings(),
                out=Path(folder),
                memo=memo,
                assumptions=Assumptions(),
                load_seconds=0.0,
                progress=Progress(),
            )
    except InvalidInput as error:
        return "rejected", str(error)
    except Exception:  # noqa: BLE001 - a mutant that ends the prover is what is looked for
        return "internal error", traceback.format_exc()
    first = result.findings[0].message if result.findings else ""
    return result.verdict, result.reason or first
