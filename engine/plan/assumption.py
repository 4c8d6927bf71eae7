"""One assumption under which a verdict holds: a sentence for people, and what a machine asks of it.

`engine.plan.assumptions` says which ones a plan makes.  A reader of plans adds those of its own to
`Plan.assumed`, for example

    Assumption("user's word", "my.kernels.softmax", "layer 3, gate.py:12",
               "my.kernels.softmax computes the declared operator softmax")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

#: ``default``: holds of every verdict unless somebody says otherwise; ``stated``: the plan or
#: ``--assume`` says so; ``framework``: what the training framework does, as it documents it;
#: ``inferred``: concluded from the plan, not read in it; ``stand-in``: one thing is taken for
#: another; ``not captured``: the program does it and the plan does not have it; ``user's word``: a
#: name or a declaration of the user's is believed; ``not compared``: the program gives it and no
#: demand is about it: nothing is proved of the program as a whole; ``unwritten``: the parallel
#: program reads memory that nothing has written, which may hold anything.
Kind: TypeAlias = Literal[
    "default",
    "stated",
    "framework",
    "inferred",
    "stand-in",
    "not captured",
    "user's word",
    "not compared",
    "unwritten",
]
KINDS: Final[tuple[str, ...]] = get_args(Kind)

#: What is assumed of rows whose number data say: that each rank has at least one.  Where one has
#: none, a mean of them is no number, and that tells nothing.
SOME_ROWS: Final = "rows whose number data say"

#: What is assumed of scores that a mask hides by minus infinity: that it hides no row altogether.
#: Of one that it does, a softmax is no number, and that tells nothing.
HIDDEN_SCORES: Final = "minus infinity"

#: What a proof may rest on with ``--strict``.
STRICT: Final = frozenset({"default", "stated", "framework"})


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that a verdict rests on.

    Example: ``Assumption("default", "numbers", "", "numbers are real: rounding and casts change
    nothing")``.

    ``about``: what is assumed something of, in a word or a name; ``where``: the place in the
    input, or ``--assume`` (empty: of the whole); ``text``: the sentence that is printed.
    """

    kind: Kind
    about: str
    where: str
    text: str


def texts(assumptions: Iterable[Assumption]) -> tuple[str, ...]:
    """The sentences of assumptions, in their order.

    Example: ``("numbers are real: rounding and casts change nothing", ...)``.
    """
    return tuple(assumption.text for assumption in assumptions)


def unstated(assumptions: Iterable[Assumption]) -> tuple[Assumption, ...]:
    """The assumptions that neither the plan nor the user states.

    Example: of "numbers are real" (default) and "the single-device loss is the mean ... (--assume)"
    (stated) the former.
    """
    return tuple(a for a in assumptions if a.kind != "stated")


def beyond_strict(assumptions: Iterable[Assumption]) -> tuple[Assumption, ...]:
    """The assumptions that a strict proof may not rest on.

    Example: a fused kernel taken for the operator that it stands in for ("stand-in"), but not what
    the framework documents ("framework").
    """
    return tuple(a for a in assumptions if a.kind not in STRICT)


def left_out(assumptions: Iterable[Assumption]) -> tuple[Assumption, ...]:
    """The assumptions with which there is no proof of the whole program.

    Example: an output of the program that no demand is about ("not compared").
    """
    return tuple(a for a in assumptions if a.kind in ("not compared", "unwritten"))


def has_rows(assumptions: Iterable[Assumption]) -> bool:
    """Whether it is assumed that there are rows where data say how many there are.

    Example: of "of rows whose number data say (x[mask]) there is at least one" it is True.
    """
    return any(assumption.about == SOME_ROWS for assumption in assumptions)


def hides_scores(assumptions: Iterable[Assumption]) -> bool:
    """Whether it is assumed that no row of scores is hidden altogether.

    Example: of "minus infinity that hides entries is taken for -1e30 ..." it is True.
    """
    return any(assumption.about == HIDDEN_SCORES for assumption in assumptions)


# -- as plain data -------------------------------------------------------------------------------


def listed(assumption: Assumption) -> list[str]:
    """An assumption as plain data: its fields in order.

    Example: ``["default", "numbers", "", "numbers are real: rounding and casts change nothing"]``.
    """
    return [assumption.kind, assumption.about, assumption.where, assumption.text]


def unlisted(cells: Sequence[Any]) -> Assumption:
    """The assumption that `listed` gave.

    Example: of ``["default", "batch", "", "both sides read the same batch"]`` the ``about`` is
    "batch".
    """
    kind, about, where, text = cells
    return Assumption(kind, about, where, text)


def are_listed(value: object) -> bool:
    """Whether a value is a list of what `listed` gives.

    Example: ``[["default", "batch", "", "both sides read the same batch"]]`` is one; with "likely"
    in the place of "default", which is none of `KINDS`, it is none.
    """
    return isinstance(value, list) and all(_is_listed(cells) for cells in value)


def _is_listed(cells: object) -> bool:
    return (
        isinstance(cells, list)
        and len(cells) == 4
        and all(isinstance(cell, str) for cell in cells)
        and cells[0] in KINDS
    )
