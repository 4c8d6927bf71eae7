"""Checks of a program's own: questions that a statement asks only to raise.

Example: of ``if torch.any(variance < 0): raise ValueError(...)`` the answer is false, and of
``assert (weights > 0).all()`` it is true, whatever the numbers are: a run that raises trains
nothing.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from dis import opname
from functools import cache
from itertools import islice
from types import FrameType
from typing import NamedTuple

from shardproof.frontends.torch.places import is_machinery

#: What is printed of a check.
PASSES = "stand-in: what is checked at {} holds: the program raises nothing there"


#: What asks for the truth of a value, or compares it: no call, which may ask for another one.
_ASKING = ("POP_JUMP", "TO_BOOL", "COMPARE_OP")


class _Check(NamedTuple):
    """A statement that asks: where it and its question lie in the file (first and last line, first
    and last column, as code objects have them), and the answer with which it raises nothing."""

    places: tuple[tuple[int | None, ...], ...]
    passes: bool


def passing(frame: FrameType | None) -> tuple[bool, str] | None:
    """The answer with which the statement that asks raises nothing, and where that is; None: it
    does something else by the answer, or there is no source of it.

    Example: (False, "functional.py:3422") of the check of `torch.nn.functional.gaussian_nll_loss`.
    """
    while frame is not None:
        code = frame.f_code
        if opname[code.co_code[frame.f_lasti]].startswith(_ASKING):
            question = next(islice(code.co_positions(), frame.f_lasti // 2, None))
            for check in _checks(code.co_filename):
                if question in check.places:
                    where = code.co_filename.rsplit("/", 1)[-1]
                    return check.passes, f"{where}:{frame.f_lineno}"
        if not is_machinery(code.co_filename):
            return None
        frame = frame.f_back
    return None


@cache
def _checks(path: str) -> tuple[_Check, ...]:
    """The checks of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(check for node in ast.walk(tree) for check in _check(node))


def _check(node: ast.AST) -> Iterator[_Check]:
    """The question of a statement that only raises by it."""
    if isinstance(node, ast.Assert):
        test, passes = node.test, True
    elif isinstance(node, ast.If) and not node.orelse and _raises(node.body):
        test, passes = node.test, False
    else:
        return
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, passes = test.operand, not passes
    several = isinstance(test, (ast.BoolOp, ast.IfExp, ast.NamedExpr))
    if not several and not (isinstance(test, ast.Compare) and len(test.ops) > 1):
        yield _Check((_place(node), _place(test)), passes)


def _raises(body: Sequence[ast.stmt]) -> bool:
    """Whether statements do nothing but come to the ``raise`` that is their last one."""
    *before, last = body
    straight = all(isinstance(s, (ast.Assign, ast.AnnAssign, ast.Expr)) for s in before)
    return straight and isinstance(last, ast.Raise)


def _place(node: ast.stmt | ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
