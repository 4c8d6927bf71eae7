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
    from shardproof.engine.plan.ir import Plan
    from shardproof.run.progress import Progress

__all__ = [
    "Conclusion",
    "Counts",
    "Plan",
    "Result",
    "Seconds",
    "check",
    "load",
    "save",
    "verify",
]


def __getattr__(name: str) -> Any:
    """`Plan`, when somebody asks for it: a child that reads a file does without."""
    if name == "Plan":
        from shardproof.engine.plan.ir import Plan

        return Plan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@with_options(Options)
def verify(
    single: AnyPath | Plan,
    parallel: AnyPath | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Whether the parallel plan computes what the single-device plan computes, for every input.

    Example: ``verify("single.pkl", "parallel.pkl", timeout=60.0).verdict`` is "proved", "refuted",
    "inconclusive" or "invalid input".

    ``single`` and ``parallel`` are two plans of one format that a frontend reads; alone, ``single``
    is a folder or a text with both sides, or a `Plan` in memory, as
    ``shardproof.frontends.builder`` makes it, which is held to what a stored one is.

    The options are those of ``shardproof verify``: ``out`` is the run directory, which must be new
    or empty; ``timeout`` is in seconds per query, ``memory_limit``
    per solver, in bytes or as text ("2GiB"), in place of what the machine has, ``memory_budget``
    for this process and everything below it; ``cache_dir`` is where proofs are kept across runs
    instead of the user's cache folder; ``assume`` a file as in docs/assumptions.md; ``shapes`` is
    how many positions stand for an interval of an axis beyond the fewest; ``proofs`` stores cvc5's
    proof of every template; ``strict`` allows a proof no assumptions but defaults, stated ones and
    the framework's.

    Input that cannot be read is a result too (verdict "invalid input").  Raises ``ValueError``
    for options that cannot be; any other error is a fault of Shardproof's or of the machine.
    """
    from shardproof import api, sources
    from shardproof.engine.plan.ir import Plan, Program
    from shardproof.run.progress import Progress

    if isinstance(single, Plan):
        if isinstance(single.programs, Program):
            raise ValueError("the parallel side of a plan is a tuple of programs, as in (program,)")
        if parallel is not None:
            raise ValueError("a plan in memory holds both sides and is given alone")
        return api.run(single, None, Options(**options), progress)
    where = None if parallel is None else Path(parallel)
    return sources.run(Path(single), where, Options(**options), progress or Progress())


def save(plan: Plan, folder: AnyPath) -> None:
    """Store a plan in a folder that ``shardproof verify`` takes; one that holds a plan is replaced.

    Example: ``save(gpt_plan(), "plans/gpt")``, and then ``shardproof verify plans/gpt``.

    Raises `engine.errors.InvalidInput` if the plan is not well formed, or if the folder holds
    something else.
    """
    from shardproof.engine.plan_files import store

    store.save(store.copied(plan), Path(folder))


def load(folder: AnyPath) -> Plan:
    """The plan that `save` (or ``shardproof plan``) stored; raises
    `engine.errors.InvalidInput`.

    Example: ``load("plans/gpt").name`` is "gpt dp2 tp2" for the plan of examples/gpt.py.
    """
    from shardproof.engine.plan_files import store

    return store.load(Path(folder))


def check(
    run_dir: AnyPath,
    inputs: Sequence[AnyPath] = (),
    *,
    proofs: bool = False,
    ethos: AnyPath | None = None,
    cpc: AnyPath | None = None,
) -> CheckResult:
    """The second eye over a finished run: builds and solves it again.

    Example: ``check("shardproof-runs/20260314-150926-gpt").ok``, with ``problems`` that name what a
    changed file says.

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
