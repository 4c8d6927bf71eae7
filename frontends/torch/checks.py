"""Checks of a program's own: questions that a statement asks only to raise.

Example: of ``if torch.any(variance < 0): raise ValueError(...)`` the answer is false, and of
``assert (weights > 0).all()`` it is true, whatever the numbers are: a run that raises trains
nothing.

That it does come to raise, and that nothing catches what it raises, is seen in one more recording
for each such check (`shardproof.frontends.torch.failing`), in which that check fails.
"""

from __future__ import annotations

import ast
import dis
import linecache
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
#: Functions that change nothing: what is asked behind another question may call them.
_QUIET: Final = frozenset(
    {
        *("abs", "all", "allclose", "any", "bool", "dim", "equal", "float", "get_rank", "int"),
        *("get_world_size", "is_available", "is_compiling", "is_floating_point", "is_initialized"),
        *("is_scripting", "is_tracing", "isfinite", "isinf", "isinstance", "isnan", "item", "len"),
        *("logical_and", "logical_not", "logical_or", "max", "mean", "min", "norm", "numel"),
        *("size", "sum"),
    }
)

#: Files of what records a step, which calls it otherwise each time.
_RECORDS: Final = re.compile(rf"{re.escape(os.path.dirname(__file__))}/").match

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


@dataclass(slots=True)
class _Failing:
    """Checks that were come to in this process, by what calls led there, and the one that fails."""

    way: str = ""
    ways: dict[str, None] = field(default_factory=dict)
    path: str = ""
    lines: range = range(0)


_FAILING: Final = _Failing()


def begin(way: str = "") -> None:
    """A step begins, of which one check fails, by the calls that lead there; "": none does.

    Example: ``begin(ways()[0])`` before a step is recorded anew.
    """
    _FAILING.way, _FAILING.ways, _FAILING.path = way, {}, ""


def ways() -> tuple[str, ...]:
    """By what calls checks were come to in this step, each way once.

    Example: one of a check in a layer of which there are several in a loop.
    """
    return tuple(_FAILING.ways)


def failed() -> bool:
    """Whether the check that fails was come to.

    Example: true once ``assert (x > 0).all()`` asked, if it is that one.
    """
    return bool(_FAILING.path)


def comes_of_failing(error: BaseException | None) -> bool:
    """Whether an error is, or was raised because of, that of the check that fails.

    Example: ``except ValueError as error: raise RuntimeError from error`` around it.
    """
    while error is not None:
        raised = list(traceback.walk_tb(error.__traceback__))[-1:]
        at = [line for frame, line in raised if frame.f_code.co_filename == _FAILING.path]
        if any(line in _FAILING.lines for line in at):
            return True
        error = error.__cause__ or error.__context__
    return False


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
                    return (branch.by is raises) is _fails(frame, check.place), where
        if not is_machinery(code.co_filename):
            return None
        frame = frame.f_back
    return None


def _fails(frame: FrameType, check: Place) -> bool:
    """Whether the check that a frame is at is to fail, which is noted."""
    path = frame.f_code.co_filename
    calls = ((f.f_code.co_filename, line) for f, line in traceback.walk_stack(frame.f_back))
    way = "\n".join((f"{path}:{check}", *(f"{p}:{n}" for p, n in calls if not _RECORDS(p))))
    _FAILING.ways.setdefault(way)
    if way == _FAILING.way:
        _FAILING.path, _FAILING.lines = path, range(check[0] or 0, (check[1] or 0) + 1)
    return way == _FAILING.way


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
    quiet = all(_is_quiet(x) for x in parts if isinstance(x, ast.BoolOp))
    if quiet and not chained and not any(isinstance(x, _BRANCHING) for x in parts):
        yield _Check(_place(node), body)


def _is_quiet(test: ast.BoolOp) -> bool:
    """Whether it is nothing to the program how many of several questions are asked."""
    calls = [x.func for part in test.values[1:] for x in ast.walk(part) if isinstance(x, ast.Call)]
    names = [getattr(f, "attr", getattr(f, "id", "")) for f in calls]
    return _QUIET.issuperset(names)


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
