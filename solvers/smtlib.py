"""Terms to SMT-LIB 2: the one place where an obligation becomes the text a solver reads.

The text of an obligation asserts its hypotheses and the negation of its goals, so "unsat" means
that the goals follow. It is emitted from the raw DAG: nothing is expanded, collected or sorted
except the factors of uninterpreted products. Its bytes depend on the structure of the goals
alone, not on the order in which terms were made; verdicts are cached by their hash.

Names: definitions are ``?0``, ``?1``, ...; products of the linear rung are ``prod``. Names of
symbols and functions are kept where SMT-LIB allows, quoted with bars where needed; names that
would be taken for something else get a ``?`` in front, and characters that no quoting admits are
written as ``%hex;``. :func:`decode_name` undoes it.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

from shardproof.engine.algebra.terms import Term

Rung: TypeAlias = Literal["linear", "nonlinear"]
Equality: TypeAlias = tuple[Term, Term]

LOGICS: dict[Rung, str] = {"linear": "QF_UFLRA", "nonlinear": "QF_UFNRA"}

PRODUCT = "prod"
"""The uninterpreted function that stands for a product of two non-constants."""

INLINE_HEIGHT = 32
"""Nesting of one line of text; deeper terms are cut by a definition."""

FLATTENED_FACTORS = 16
"""Factors up to which nested products are sorted as one on the linear rung."""

_PLAIN = 2
"""The version of `marshal` that writes equal values alike: it refers to nothing written before."""

_RESERVED = frozenset(
    f"""
    {PRODUCT} par let forall exists match as lambda _ ! and or not xor ite distinct true false
    Bool Real Int Array String RegLan Seq Set BitVec Float64 RoundingMode select store const
    abs mod div to_real to_int is_int divisible iand int2bv bv2nat pow2 min max
    exp sin cos tan csc sec cot arcsin arccos arctan arccsc arcsec arccot sqrt real.pi pi e
    sinh cosh tanh asin acos atan asinh acosh atanh euler bvadd concat extract repeat
    map implies iff if assert declare-fun define-fun check-sat set-logic push pop exit
    BINARY DECIMAL HEXADECIMAL NUMERAL STRING Tuple tuple set bag table seq str re fp rel
    char apply-abs eqrel update root-obj pb at-most at-least tree-order linear-order
    partial-order piecewise-linear-order transitive-closure
    """.split()
)
_SIMPLE = re.compile(r"[A-Za-z~!$%^&*_+=<>.?/-][A-Za-z0-9~!@$%^&*_+=<>.?/-]*")
_UNQUOTABLE = re.compile(r"[^ -~]|[%|\\]")
_ESCAPED = re.compile(r"%([0-9a-f]+);")
_OPERATORS = frozenset({*"+-*/^=<>~!", "<=", ">=", "=>", "!=", "**"})


def emit(goals: Sequence[Equality], hypotheses: Sequence[Equality], rung: Rung) -> str:
    """The SMT-LIB text that is unsatisfiable exactly when the hypotheses entail all goals.

    Example: the goal x + y = y + x is ``(assert (not (= (+ x y) (+ y x))))`` under ``QF_UFLRA``,
    behind the declarations of ``x`` and ``y``.

    On the linear rung the logic is QF_UFLRA and products of non-constants are uninterpreted, so
    only "unsat" speaks about the reals there. Raises ValueError without goals, or when one name
    is used as a symbol and a function, or with different numbers of arguments.
    """
    if not goals:
        raise ValueError("an obligation without goals is not a question")
    roots = [side for equality in (*hypotheses, *goals) for side in equality]
    view = _View(roots, rung)
    rendered = view.render()
    sides = [rendered[root] for root in roots]
    equalities = [f"(= {sides[i]} {sides[i + 1]})" for i in range(0, len(sides), 2)]
    given, wanted = equalities[: len(hypotheses)], equalities[len(hypotheses) :]
    claim = wanted[0] if len(wanted) == 1 else f"(and {' '.join(wanted)})"
    lines = [f"(set-logic {LOGICS[rung]})"]
    lines += [
        f"(declare-fun {name} ({' '.join(['Real'] * arity)}) Real)"
        for name, arity in view.declared.items()
    ]
    lines += view.definitions
    lines += [f"(assert {equality})" for equality in given]
    lines += [f"(assert (not {claim}))", "(check-sat)", ""]
    return "\n".join(lines)


def outline(goals: Sequence[Equality]) -> bytes:
    """The structure of goals: where it is the same, so are the texts of both rungs.

    Example: of x + y = x twice, the same bytes; of x y = x others.

    It costs a fraction of a text, of which many claims share one.
    """
    roots = [side for equality in goals for side in equality]
    number: dict[Term, int] = {}
    rows: list[tuple[object, ...]] = []
    for term in _postorder(roots, None):
        number[term] = len(rows)
        value = term.value
        rows.append(
            (term.kind, term.name, *[number[a] for a in term.args])
            if value is None
            else (value.numerator, value.denominator)
        )
    return marshal.dumps((rows, [number[root] for root in roots]), _PLAIN)


def has_products(linear_text: str) -> bool:
    """Whether a text of the linear rung abstracts from products; without, "sat" is exact too.

    Example: of x y = y x it does, of x + y = y + x not.
    """
    return f"\n(declare-fun {PRODUCT} (Real Real) Real)\n" in linear_text


def encode_name(name: str) -> str:
    """The SMT-LIB spelling of a symbol or function; different names have different spellings.

    Example: ``layers 0/w`` is ``|layers 0/w|``, ``sqrt``, which a solver would take for its own
    function, is ``?sqrt``.
    """
    encoded = _UNQUOTABLE.sub(lambda match: f"%{ord(match[0]):x};", name)
    if encoded in _RESERVED or encoded in _OPERATORS or encoded[0] in "?.@":
        encoded = f"?{encoded}"
    return encoded if _SIMPLE.fullmatch(encoded) else f"|{encoded}|"


def decode_name(spelling: str) -> str:
    """The name that :func:`encode_name` spelled so.

    Example: ``|layers 0/w|`` is ``layers 0/w``, ``?sqrt`` is ``sqrt``.
    """
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), spelling.strip("|").removeprefix("?"))


def constant(value: Fraction) -> str:
    """An exact real constant: ``2.0``, ``(/ 1 100000)``, ``(- (/ 1 3))``; never an exponent. Those
    are, for example, 2, 1/100000 and -1/3."""
    size = abs(value)
    text = f"{size.numerator}.0"
    if size.denominator != 1:
        text = f"(/ {size.numerator} {size.denominator})"
    return text if value >= 0 else f"(- {text})"


class _View:
    """The DAG below ``roots`` as one rung reads it: operands of each term, shares, spellings."""

    def __init__(self, roots: Sequence[Term], rung: Rung) -> None:
        self.roots = roots
        self.rung = rung
        self.declared: dict[str, int] = {}
        self.definitions: list[str] = []
        self._operands: dict[Term, tuple[Term, ...]] = {}
        plain = _postorder(roots, None)
        regrouped = self._flatten(plain)
        self._order = _postorder(roots, self._operands) if regrouped else plain
        self._uses = dict.fromkeys(self._order, 0)
        for term in self._order:
            for operand in self._operands[term]:
                self._uses[operand] += 1
        for root in roots:
            self._uses[root] += 1

    def _flatten(self, raw: list[Term]) -> bool:
        """Set the operands of every term; products of the linear rung get sorted factors.  Whether
        any has others than its arguments."""
        if self.rung != "linear" or not any(_is_product(term) for term in raw):
            self._operands = {term: term.args for term in raw}
            return False
        rank = {term: place for place, term in enumerate(raw)}
        for term in raw:
            operands = term.args
            if _is_product(term):
                nested = [self._operands[a] if _is_product(a) else (a,) for a in operands]
                if sum(map(len, nested)) <= FLATTENED_FACTORS:
                    operands = tuple(factor for factors in nested for factor in factors)
                operands = tuple(sorted(operands, key=rank.__getitem__))
            self._operands[term] = operands
        return True

    def render(self) -> dict[Term, str]:
        """The text of every root, filling declarations and definitions on the way."""
        text: dict[Term, str] = {}
        height: dict[Term, int] = {}
        spliced = {
            operand
            for term in self._order
            for operand in self._operands[term]
            if self._uses[operand] == 1 and self._is_spliced(operand, term)
        }
        for term in self._order:
            if term in spliced:
                continue
            parts = self._parts(term, spliced)
            written = self._write(term, [text[p] for p in parts])
            tall = 1 + max((height[p] for p in parts), default=-1)
            if parts and (self._uses[term] > 1 or tall >= INLINE_HEIGHT):
                name = f"?{len(self.definitions)}"
                self.definitions.append(f"(define-fun {name} () Real {written})")
                written, tall = name, 0
            text[term], height[term] = written, tall
        return {root: text[root] for root in self.roots}

    def _is_spliced(self, operand: Term, term: Term) -> bool:
        """Whether a sum in a sum, or a product in a product, is written as one."""
        if term.kind == "add":
            return operand.kind == "add"
        return self.rung == "nonlinear" and _is_product(term) and _is_product(operand)

    def _parts(self, term: Term, spliced: set[Term]) -> list[Term]:
        """The operands of the term, those of spliced ones in their place."""
        parts: list[Term] = []
        stack = list(reversed(self._operands[term]))
        while stack:
            operand = stack.pop()
            if operand in spliced:
                stack.extend(reversed(self._operands[operand]))
            else:
                parts.append(operand)
        return parts

    def _write(self, term: Term, parts: list[str]) -> str:
        if term.value is not None:
            return constant(term.value)
        if term.kind == "add":
            return f"(+ {' '.join(parts)})"
        if _is_product(term) and self.rung == "linear":
            self._declare(PRODUCT, 2, PRODUCT)
            return _nest(parts)
        if term.kind == "mul":
            return f"(* {' '.join(parts)})"
        spelling = encode_name(str(term.name))
        self._declare(spelling, len(parts), str(term.name))
        return f"({spelling} {' '.join(parts)})" if parts else spelling

    def _declare(self, spelling: str, arity: int, name: str) -> None:
        if self.declared.setdefault(spelling, arity) != arity:
            raise ValueError(
                f"{name!r} is used with {self.declared[spelling]} and with {arity} arguments; "
                "a function's name must fix their number (0 is a symbol)"
            )


def _is_product(term: Term) -> bool:
    """Whether the term is a product of two or more non-constants."""
    return term.kind == "mul" and term.args[0].value is None


def _nest(factors: list[str]) -> str:
    """``(prod (prod a b) c)`` for the factors a, b, c."""
    head = f"({PRODUCT} " * (len(factors) - 1)
    return head + factors[0] + "".join(f" {factor})" for factor in factors[1:])


def _postorder(roots: Sequence[Term], operands: dict[Term, tuple[Term, ...]] | None) -> list[Term]:
    """Every term below the roots once, operands first, left to right."""
    order: list[Term] = []
    done: set[Term] = set()
    stack: list[tuple[Term, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        term, ready = stack.pop()
        if ready:
            order.append(term)
        elif term not in done:
            done.add(term)
            stack.append((term, True))
            below = term.args if operands is None else operands[term]
            stack.extend((operand, False) for operand in reversed(below) if operand not in done)
    return order
