"""Checks of a program's own: questions that a statement asks only to raise.

Example: of ``if torch.any(variance < 0): raise ValueError(...)`` the answer is false, and of
``assert (weights > 0).all()`` it is true, whatever the numbers are: a run that raises trains
nothing.
"""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator, Sequence
from functools import cache
from types import CodeType, FrameType
from typing import Final, NamedTuple

from shardproof.frontends.torch.places import is_machinery

#: What is printed of a check.
PASSES: Final = "stand-in: what is checked at {} holds: the program raises nothing there"
#: What asks for the truth of a value, or compares it: no call, which may ask for another one.
_ASKING: Final = ("POP_JUMP", "TO_BOOL", "COMPARE_OP")
#: What makes a question of several ones, of which each has branches of its own.
_BRANCHING: Final = (
    *(ast.IfExp, ast.NamedExpr, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)

#: Where something lies in a file: first and last line, first and last column, as code objects have
#: them.
Place = tuple[int | None, int | None, int | None, int | None]


class _Check(NamedTuple):
    """A statement that asks: its place, and that of what it does then (an ``assert``: None)."""

    place: Place
    body: Place | None


class _Branch(NamedTuple):
    """Where a program branches: by which answer it jumps, and the place of what it jumps to."""

    by: bool
    to: Place
    raises: bool


def passing(frame: FrameType | None) -> tuple[bool, str] | None:
    """The answer with which the statement that asks raises nothing, and where that is; None: it
    does something else by the answer, or there is no source of it.

    Example: (False, "functional.py:3422") of the check of `torch.nn.functional.gaussian_nll_loss`.
    """
    while frame is not None:
        code = frame.f_code
        if dis.opname[code.co_code[frame.f_lasti]].startswith(_ASKING):
            known = _branches(code).get(frame.f_lasti)
            for check in _checks(code.co_filename) if known else ():
                assert known is not None
                place, branch = known
                if _lies_in(place, check.place) and not _lies_in(place, check.body):
                    raises = branch.raises or _lies_in(branch.to, check.body)
                    where = f"{code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
                    return branch.by is not raises, where
        if not is_machinery(code.co_filename):
            return None
        frame = frame.f_back
    return None


@cache
def _branches(code: CodeType) -> dict[int, tuple[Place, _Branch]]:
    """By the offset of what asks: its place, and how the program branches by the answer."""
    instructions = list(dis.get_instructions(code))
    at = {one.offset: one for one in instructions}
    places: list[Place] = list(code.co_positions())
    branches = {}
    for number, one in enumerate(instructions):
        if not one.opname.startswith(_ASKING):
            continue
        follows = [x for x in instructions[number : number + 3] if x.opname.startswith("POP_JUMP")]
        between = instructions[number + 1 : instructions.index(follows[0])] if follows else []
        if not follows or any(x.opname != "TO_BOOL" for x in between):
            continue
        jump = follows[0]
        if "NONE" not in jump.opname and jump.argval in at:
            raises = at[jump.argval].opname == "LOAD_ASSERTION_ERROR"
            branch = _Branch("TRUE" in jump.opname, places[jump.argval // 2], raises)
            branches[one.offset] = places[one.offset // 2], branch
    return branches


@cache
def _checks(path: str) -> tuple[_Check, ...]:
    """The checks of a file, the innermost first."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(check for node in ast.walk(tree) for check in _check(node))[::-1]


def _check(node: ast.AST) -> Iterator[_Check]:
    """A statement that only raises by what it asks."""
    if isinstance(node, ast.Assert):
        body = None
    elif isinstance(node, ast.If) and not node.orelse and _raises(node.body):
        first, last = _place(node.body[0]), _place(node.body[-1])
        body = first[0], last[1], first[2], last[3]
    else:
        return
    parts = list(ast.walk(node.test))
    chained = any(isinstance(x, ast.Compare) and len(x.ops) > 1 for x in parts)
    if not chained and not any(isinstance(x, _BRANCHING) for x in parts):
        yield _Check(_place(node), body)


def _raises(body: Sequence[ast.stmt]) -> bool:
    """Whether statements do nothing but come to the ``raise`` that is their last one."""
    *before, last = body
    straight = all(isinstance(s, (ast.Assign, ast.AnnAssign, ast.Expr)) for s in before)
    return straight and isinstance(last, ast.Raise)


def _place(node: ast.stmt) -> Place:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _lies_in(place: Place, other: Place | None) -> bool:
    """Whether a place lies in another one; no unknown one does."""
    numbers = [x for x in (*place, *(other or ())) if x is not None]
    if len(numbers) < 2 * len(place):
        return False
    first, last, begin, end, line, until, column, stop = numbers
    return (line, column) <= (first, begin) and (last, end) <= (until, stop)
