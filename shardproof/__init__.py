"""Proves that a parallel training plan computes what the single-device model computes.

The face of the project: the Python API, the command line and the reports. Everything that decides
lives in the floors below: `mutation`, `diagnosis`, `cluster`, `checker`, `frontends`, `partition`,
`solvers`, `engine`.  In a checkout the floors are folders beside this one; installed, they are
folders in it.  Either way their names begin with ``shardproof.``, so that a training repository
with an ``engine/`` of its own is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "engine" / "plan" / "ir.py").is_file():
    __path__.append(str(_CHECKOUT))

# The path first: what is imported here needs the floors.
from shardproof.run.options import AnyPath, Options, with_options  # noqa: E402
from shardproof.run.result import Conclusion, Counts, Result, Seconds  # noqa: E402

if TYPE_CHECKING:
    from shardproof.checker import CheckResult
    from shardproof.run.progress import Progress

__all__ = ["Conclusion", "Counts", "Result", "Seconds", "check", "verify"]


@with_options(Options)
def verify(
    single: AnyPath,
    parallel: AnyPath | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Whether the parallel plan computes what the single-device plan computes, for every input.

    ``single`` and ``parallel`` are two nnScaler plans (.pkl, .pkl.gz); alone, ``single`` is a
    folder with both sides.  The options are those of ``shardproof verify``: ``out`` is the run
    directory, which must be new or empty; ``timeout`` is in seconds per query, ``memory_limit``
    per solver, in bytes or as text ("2GiB"), in place of what the machine has, ``memory_budget``
    for this process and everything below it; ``cache_dir`` is where proofs are kept across runs
    instead of the user's cache folder; ``assume`` a file as in docs/assumptions.md; ``shapes`` is
    how many positions stand for an interval of an axis beyond the fewest; ``proofs`` stores cvc5's
    proof of every template; ``strict`` allows a proof no assumptions but defaults, stated ones and
    the framework's.

    Input that cannot be read is a result too (verdict "invalid input").  Raises ``ValueError``
    for options that cannot be; any other error is a fault of Shardproof's or of the machine.
    """
    from shardproof import sources
    from shardproof.run.progress import Progress

    where = None if parallel is None else Path(parallel)
    return sources.run(Path(single), where, Options(**options), progress or Progress())


def check(
    run_dir: AnyPath,
    inputs: Sequence[AnyPath] = (),
    *,
    proofs: bool = False,
    ethos: AnyPath | None = None,
    cpc: AnyPath | None = None,
) -> CheckResult:
    """The second eye over a finished run: builds and solves it again.

    ``inputs`` are what the run was made from, as given to `verify`; without them they are looked
    for where they were.  ``proofs``: check the stored proofs too, also with the checker ``ethos``
    and the calculus in ``cpc``.  The result has ``ok``, ``problems`` and ``notes``.  Raises
    `engine.errors.InvalidInput` if ``run_dir`` is not the directory of a run.
    """
    from shardproof import api

    return api.check(
        Path(run_dir),
        [Path(path) for path in inputs],
        proofs=proofs,
        ethos=None if ethos is None else Path(ethos),
        cpc=None if cpc is None else Path(cpc),
    )
