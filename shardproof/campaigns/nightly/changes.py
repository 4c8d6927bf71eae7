"""What a night has to report: against what was expected, against the night before, over its seeds.

Pure functions of two records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from shardproof.campaigns.nightly.night import INTERNAL, Night, Point
from shardproof.campaigns.nightly.suite import Limits

Kind: TypeAlias = Literal[
    "internal error",
    "not expected",
    "verdict changed",
    "new inconclusive",
    "slower",
    "more memory",
    "unstable",
    "templates",
    "new plan",
    "plan gone",
]

#: What each kind does to the exit code; 0 is only told.
CODES: Final[dict[Kind, int]] = {
    "internal error": 4,
    "not expected": 1,
    "verdict changed": 1,
    "new inconclusive": 2,
    "slower": 2,
    "more memory": 2,
    "unstable": 2,
    "templates": 0,
    "new plan": 0,
    "plan gone": 0,
}

#: Which exit code counts when there are several: the first of these that occurs.
_ORDER: Final = (4, 1, 2, 0)

DECIDED: Final = ("unsat", "sat")


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to report of a night; ``kind`` decides the exit code.

    Example: ``Change("slower", "llama3-8b dp=2", "seed 1: 9.8 s before, 21.4")``.
    """

    kind: Kind
    plan: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        """The change as plain data."""
        return asdict(self) | {"exit_code": CODES[self.kind]}


def changes(night: Night, before: Night | None, limits: Limits) -> list[Change]:
    """Everything to report, the worst first; without a night before, of this night alone.

    Example: a plan that was proved and is refuted comes before one that is slower; a new plan is
    told last.
    """
    result = [*_alone(night), *_unstable(night, limits)]
    if before is not None:
        result += _against(night, before, limits)
    return sorted(result, key=lambda c: (_ORDER.index(CODES[c.kind]), list(CODES).index(c.kind)))


def exit_code(changes: list[Change]) -> int:
    """4 if we failed, else 1 for a verdict that is wrong or another, 2 for what is worse, 0.

    Example: 2 for one that is slower and one with other templates, 0 for the latter alone.
    """
    codes = {CODES[change.kind] for change in changes}
    return next((code for code in _ORDER if code in codes), 0)


def _alone(night: Night) -> Iterator[Change]:
    for point in night.points:
        if point.verdict == INTERNAL:
            yield Change("internal error", point.plan, f"seed {point.seed}: {point.reason}")
        elif point.expect and point.verdict != point.expect:
            why = f" ({point.reason})" if point.reason else ""
            yield Change(
                "not expected",
                point.plan,
                f"seed {point.seed}: expected {point.expect}, found {point.verdict}{why}",
            )


def _unstable(night: Night, limits: Limits) -> Iterator[Change]:
    """Plans, and templates, on which seeds differ."""
    for plan, points in _by_plan(night).items():
        verdicts = {point.verdict for point in points}
        if len(verdicts) > 1:
            by_seed = ", ".join(f"seed {p.seed}: {p.verdict}" for p in points)
            yield Change("unstable", plan, f"the verdict depends on the seed: {by_seed}")
        keys = sorted({key for point in points for key in point.templates})
        for key in keys:
            templates = [(p.seed, p.templates[key]) for p in points if key in p.templates]
            decided = {t.verdict for _, t in templates}
            if len(decided) > 1:
                by_seed = ", ".join(f"seed {seed}: {t.verdict}" for seed, t in templates)
                yield Change("unstable", plan, f"template {key}: {by_seed}")
                continue
            least, most = (f(t.seconds for _, t in templates) for f in (min, max))
            if most - least > limits.seconds and most > limits.unstable * max(least, 1e-3):
                yield Change(
                    "unstable", plan, f"template {key} takes {least:.3g} to {most:.3g} s by seed"
                )


def _against(night: Night, before: Night, limits: Limits) -> Iterator[Change]:
    now = {(p.plan, p.seed): p for p in night.points}
    then = {(p.plan, p.seed): p for p in before.points}
    for place, point in now.items():
        if place in then:
            yield from _point(point, then[place], limits)
    plans, earlier = _by_plan(night), _by_plan(before)
    for plan in plans.keys() - earlier.keys():
        yield Change("new plan", plan, "was not in the suite the night before")
    for plan in earlier.keys() - plans.keys():
        yield Change("plan gone", plan, "was in the suite the night before")
    for plan in sorted(plans.keys() & earlier.keys()):
        here = {key for p in plans[plan] for key in p.templates}
        there = {key for p in earlier[plan] for key in p.templates}
        if here != there:
            yield Change(
                "templates",
                plan,
                f"{len(here - there)} new, {len(there - here)} gone, {len(here & there)} the same",
            )


def _point(point: Point, old: Point, limits: Limits) -> Iterator[Change]:
    seed = f"seed {point.seed}: "
    if point.verdict != old.verdict:
        why = f" ({point.reason})" if point.reason else ""
        kind: Kind = "new inconclusive" if point.verdict == "inconclusive" else "verdict changed"
        yield Change(kind, point.plan, f"{seed}was {old.verdict}, is {point.verdict}{why}")
        return
    undecided = sorted(
        key
        for key, template in point.templates.items()
        if template.verdict not in DECIDED
        and key in old.templates
        and old.templates[key].verdict in DECIDED
    )
    if undecided:
        listed = ", ".join(f"{key} {point.templates[key].verdict}" for key in undecided[:5])
        many = f"{len(undecided)} templates are" if len(undecided) > 1 else "1 template is"
        yield Change("new inconclusive", point.plan, f"{seed}{many} no longer decided: {listed}")
    if _worse(point.seconds, old.seconds, limits.time, limits.seconds):
        yield Change("slower", point.plan, f"{seed}{old.seconds:.1f} s before, {point.seconds:.1f}")
    if _worse(point.peak_rss_mib, old.peak_rss_mib, limits.memory, limits.mib):
        memory = f"{seed}{old.peak_rss_mib:.0f} MiB before, {point.peak_rss_mib:.0f}"
        yield Change("more memory", point.plan, memory)


def _worse(now: float, then: float, factor: float, least: float) -> bool:
    return now > factor * then and now - then > least


def _by_plan(night: Night) -> dict[str, list[Point]]:
    points: dict[str, list[Point]] = {}
    for point in night.points:
        points.setdefault(point.plan, []).append(point)
    return points
