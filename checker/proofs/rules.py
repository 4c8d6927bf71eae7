"""The rules of CPC that proofs of templates use: what follows from premises and arguments.

A rule is given the facts of its premises and its arguments, and returns the fact that follows; it
raises `Rejected` where nothing does, `NotCovered` where it does not know, and ``ValueError`` for
another number of premises or arguments than it takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from shardproof.checker.proofs.terms import NotCovered, Rejected, Terms, bounded

#: Monomials up to which a polynomial is written out.
MOST_MONOMIALS = 50_000

Rule: TypeAlias = Callable[[Terms, Sequence[int], Sequence[int]], int]


def _refl(t: Terms, given: Sequence[int], arguments: Sequence[int]) -> int:
    """t = t."""
    () = given
    (term,) = arguments
    return t.app("=", term, term)


def _eq_refl(t: Terms, given: Sequence[int], arguments: Sequence[int]) -> int:
    """(t = t) = true."""
    return t.app("=", _refl(t, given, arguments), t.true)


def _symm(t: Terms, given: Sequence[int], arguments: Sequence[int]) -> int:
    """From a = b: b = a."""
    (fact,) = given
    () = arguments
    a, b = t.equality(fact)
    return t.app("=", b, a)


def _trans(t: Terms, given: Sequence[int], arguments: Sequence[int]) -> int:
    """From a = b, b = c, ...: a = the last."""
    first, *others = given
    () = arguments
    start, end = t.equality(first)
    for fact in others:
        a, b = t.equality(fact)
        if a != end:
            raise Rejected("one equality does not begin where the one before it ends")
        end = b
    return t.app("=", start, end)


def _cong(t: Terms, given: Sequence[int], arguments: Sequence[int]) -> int:
    """From a = b, ...: f(..., a, ...) = f(..., b, ...); the premises are about the last operands,
    because a function is applied to one operand after the other."""
    (term,) = arguments
    head, operands = t.split(term)
    pairs = [t.equality(fact) for fact in given]
    kept = len(operands) - len(pairs)
    if not pairs or kept < 0 or tuple(a for a, _ in pairs) != operands[kept:]:
        raise Rejected("the premises are not about the last operands of the argument")
    return t.app("=", term, t.operation(head, [*operands[:kept], *(b for _, b in pairs)]))


def _eq_resolve(t: Terms, given: Sequence[int], arguments: Sequence[int]) -> int:
    """From F and F = G: G."""
    fact, equal = given
    () = arguments
    a, b = t.equality(equal)
    if a != fact:
        raise Rejected("the equality does not begin with the first premise")
    return b


def _evaluate(t: Terms, given: Sequence[int], arguments: Sequence[int]) -> int:
    """A term without symbols equals its value."""
    () = given
    (term,) = arguments
    value = _value(t, term, {})
    if isinstance(value, bool):
        return t.app("=", term, t.true if value else t.false)
    return t.app("=", term, t.of(value))


Value: TypeAlias = bool | Fraction


def _value(t: Terms, term: int, known: dict[int, Value]) -> Value:
    """Every term is looked at once, however often it occurs."""
    if term not in known:
        known[term] = _evaluated(t, term, known)
    return known[term]


def _evaluated(t: Terms, term: int, known: dict[int, Value]) -> Value:
    key = t.keys[term]
    if isinstance(key, Fraction):
        return key
    if isinstance(key, str):
        if key not in ("true", "false"):
            raise NotCovered("evaluate of a term with symbols")
        return key == "true"
    head, operands = key
    values = [_value(t, o, known) for o in operands]
    truths = [v for v in values if isinstance(v, bool)]
    numbers = [v for v in values if not isinstance(v, bool)]
    if head == "=" and len(values) == 2 and not (truths and numbers):
        return values[0] == values[1]
    if head in ("and", "or") and not numbers:
        return all(truths) if head == "and" else any(truths)
    if head == "not" and len(truths) == 1 and not numbers:
        return not truths[0]
    if head in ("+", "*", "-", "/") and numbers and not truths:
        return _arithmetic(head, numbers)
    raise NotCovered(f"evaluate of {head}")


def _arithmetic(head: str, numbers: Sequence[Fraction]) -> Fraction:
    total, *others = numbers
    if head == "-" and not others:
        return -total
    for number in others:
        if head == "/" and number == 0:
            raise NotCovered("evaluate of a division by 0")
        if head == "+":
            total += number
        elif head == "*":
            total *= number
        else:
            total = total - number if head == "-" else total / number
        bounded(total)
    return total


def _poly_norm(t: Terms, given: Sequence[int], arguments: Sequence[int]) -> int:
    """a = b for terms that are one polynomial."""
    () = given
    (claim,) = arguments
    a, b = t.equality(claim)
    known: dict[int, Polynomial] = {}
    if _polynomial(t, a, known) != _polynomial(t, b, known):
        raise Rejected("the two sides are different polynomials")
    return claim


Polynomial: TypeAlias = dict[tuple[int, ...], Fraction]
_LOGICAL = frozenset(
    {"=", "and", "or", "not", "=>", "<", "<=", ">", ">=", "ite", "distinct", "xor"}
)


def _polynomial(t: Terms, term: int, known: dict[int, Polynomial]) -> Polynomial:
    if term not in known:
        known[term] = _expanded(t, term, known)
    return known[term]


def _expanded(t: Terms, term: int, known: dict[int, Polynomial]) -> Polynomial:
    key = t.keys[term]
    if isinstance(key, Fraction):
        return {(): key} if key else {}
    head, operands = t.split(term)
    if head in _LOGICAL or term in (t.true, t.false):
        raise NotCovered("arith_poly_norm of truth values")
    if head in ("+", "*") or (head == "-" and operands):
        parts = [_polynomial(t, o, known) for o in operands]
        if head == "*":
            return _product(parts)
        signs = [Fraction(1 if head == "+" else -1)] * len(parts)
        if head == "-" and len(parts) > 1:
            signs[0] = Fraction(1)
        return _sum(zip(signs, parts, strict=True))
    if head == "/" and len(operands) == 2:
        under = _polynomial(t, operands[1], known)
        if under.keys() == {()}:
            return _sum([(1 / under[()], _polynomial(t, operands[0], known))])
    return {(term,): Fraction(1)}


def _sum(parts: Any) -> Polynomial:
    total: Polynomial = {}
    for factor, part in parts:
        for monomial, coefficient in part.items():
            total[monomial] = bounded(total.get(monomial, Fraction(0)) + factor * coefficient)
    return {m: c for m, c in total.items() if c}


def _product(parts: Sequence[Polynomial]) -> Polynomial:
    total: Polynomial = {(): Fraction(1)}
    for part in parts:
        if len(total) * len(part) > MOST_MONOMIALS:
            raise NotCovered("arith_poly_norm of a large product")
        total = _sum(
            (c, {tuple(sorted((*m, *n))): d for n, d in part.items()}) for m, c in total.items()
        )
    return total


def _aci_norm(t: Terms, given: Sequence[int], arguments: Sequence[int]) -> int:
    """a = b for conjunctions (disjunctions) of the same, or sums (products) of the same."""
    () = given
    (claim,) = arguments
    a, b = t.equality(claim)
    heads = {t.split(a)[0], t.split(b)[0]} & {"and", "or", "+", "*"}
    if not any(_leaves(t, a, head) == _leaves(t, b, head) for head in heads):
        raise Rejected("the two sides do not join the same")
    return claim


def _leaves(t: Terms, term: int, head: str) -> dict[int, int]:
    """What a term joins by ``head``, with how often, or once where that does not matter."""
    unit = {"and": t.true, "or": t.false, "+": t.of(Fraction(0)), "*": t.of(Fraction(1))}[head]
    counts: Counter[int] = Counter()
    stack = [(term, 1)]
    looked = 0
    while stack:
        part, times = stack.pop()
        looked += 1
        if t.split(part)[0] != head:
            counts[part] += times
        else:
            stack += [(o, n * times) for o, n in Counter(t.split(part)[1]).items()]
        if looked > MOST_MONOMIALS:
            raise NotCovered("aci_norm of a large term")
    counts.pop(unit, None)
    return dict(counts) if head in "+*" else dict.fromkeys(counts, 1)


#: Every rule by its name in CPC.
RULES: Mapping[str, Rule] = {
    "refl": _refl,
    "eq-refl": _eq_refl,
    "symm": _symm,
    "trans": _trans,
    "cong": _cong,
    "nary_cong": _cong,
    "eq_resolve": _eq_resolve,
    "evaluate": _evaluate,
    "arith_poly_norm": _poly_norm,
    "aci_norm": _aci_norm,
}
