"""The plan of what the user names, as a run and its check read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shardproof.engine.plan.ir import Plan, Program
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import load_plan, tables


def loaded(
    single: Path | Plan,
    parallel: Path | None,
    assumptions: Assumptions,
    ahead: Callable[[Program, str], None] = lambda program, loss: None,
) -> Plan:
    """The plan, with the numbers that its files have (`Plan.tables`); raises `InvalidInput`.

    Example: ``loaded(Path("plans/gpt"), None, Assumptions())``.
    """
    plan = load_plan(single, parallel, assumptions, ahead)
    numbers = tables(single, parallel, plan, assumptions)
    return replace(plan, tables=numbers) if numbers else plan
