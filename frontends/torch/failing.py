"""Steps whose checks fail: what is taken to pass must do nothing else than raise.

``try: check(h)`` and ``except OverflowError: h = h.clamp(-3, 3)`` is no check: the step goes on,
and computes something else.  What catches an error is not seen at the check (a caller, a ``with``,
a ``for`` that ends by StopIteration), so the step is recorded once more for each check, by the
calls that lead there, with a check that fails: either the error ends the step, or the step is the
same all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch import checks, refusals, trace

#: So many checks of a step are looked at.
MOST: Final = 64
_GOES_ON: Final = (
    "Python reads the value of a tensor that depends on the inputs of the step, and does what "
    "depends on it: what is checked at {} raises an error there, and the step goes on"
)


def keep(folder: Path, rank: int) -> None:
    """Keep which checks a rank came to, for `rounds`.

    Example: the file "0.checks" of a step with one ``assert (x > 0).all()``.
    """
    (folder / f"{rank}.checks").write_text("\0".join(checks.ways()), encoding="utf-8")


def rounds(folder: Path, ranks: Sequence[int]) -> Sequence[Mapping[int, str]]:
    """Which check fails on which rank, one for each rank at a time; each way to one once.

    Example: of two ranks with the same two checks one round, in which one fails on each.
    """
    ways: dict[str, list[int]] = {}
    for rank in ranks:
        path = folder / f"{rank}.checks"
        for way in path.read_text(encoding="utf-8").split("\0") if path.exists() else ():
            ways.setdefault(way, []).append(rank)
    ways.pop("", None)
    if len(ways) > MOST:
        raise InvalidInput(
            f"a step that asks in {len(ways)} places whether to raise (up to {MOST})"
        )
    result: list[dict[int, str]] = []
    for way, theirs in ways.items():
        rank = min(theirs, key=lambda rank: sum(rank in used for used in result))
        if all(rank in used for used in result):
            result.append({})
        next(used for used in result if rank not in used)[rank] = way
    return result


def look(record: Callable[[], trace.Trace], folder: Path, rank: int, way: str) -> None:
    """In a forked child: record a rank with a check that fails; it is an error of the step (in the
    file "0.error") if the step goes on then, and is another one.

    Example: a step with ``try: assert x.sum() > 0`` and ``except AssertionError: x = -x``.
    """
    error = folder / f"{rank}.error"
    error.write_text(_GOES_ON.format(way.split("\n")[0].split(":(")[0]), encoding="utf-8")
    try:
        recorded = trace.to_bytes(record())
        same = checks.failed() and recorded == (folder / f"{rank}.trace").read_bytes()
    except (Exception, SystemExit) as raised:  # noqa: BLE001 - the user's code: any error ends it
        same = checks.comes_of_failing(raised) and not refusals.kept()
    if same:
        error.unlink()
