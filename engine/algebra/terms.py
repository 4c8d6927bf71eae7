"""Real-valued terms as a hash-consed DAG with exact rational constants.

One reading of every operator is over terms: NumPy object arrays of :class:`Term` are added,
multiplied and contracted as arrays of floats would be, and the resulting DAG is what the solvers
are asked about. Terms of one :class:`TermTable` are structurally equal exactly when they are the
same object.

Only simplifications that are exact at a glance happen at construction: constants are folded,
``0 + t``, ``1 * t`` and ``0 * t`` vanish, and constant factors move in front. Nothing is sorted
or expanded; :func:`normal_form` does that beside the DAG, for indexing and fast paths, and is
never a verdict.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from numbers import Integral, Rational
from typing import Any, Literal, NoReturn, TypeAlias

Kind = Literal["const", "symbol", "add", "mul", "app"]
Exact: TypeAlias = int | Fraction | Decimal | str | float

EXPANSION_LIMIT = 512
"""Monomials beyond which :func:`normal_form` keeps a product of sums as one opaque factor."""

ZERO, ONE = Fraction(0), Fraction(1)


class Term:
    """A node of the DAG; made by a :class:`TermTable` or by arithmetic, never directly.

    ``kind`` decides which fields count: ``value`` for "const", ``name`` for "symbol" and "app"
    (the function's), ``args`` for "add", "mul" and "app". A "mul" that holds a constant has
    exactly two arguments, the constant first. ``uid`` numbers the nodes of one table in order of
    creation, so arguments have smaller uids than the term they are in.

    Example: ``x * 2 + 0`` is ``(* 2 x)``, the same object as ``2 * x``.
    """

    __slots__ = ("args", "kind", "name", "table", "uid", "value")

    kind: Kind
    args: tuple[Term, ...]
    value: Fraction | None
    name: str | None
    uid: int
    table: TermTable

    def __init__(self) -> None:
        raise TypeError("terms are made by a TermTable, so that equal terms are one object")

    def __setattr__(self, field: str, value: object) -> NoReturn:
        raise AttributeError(f"terms are immutable, cannot set {field!r}")

    def __delattr__(self, field: str) -> NoReturn:
        raise AttributeError(f"terms are immutable, cannot delete {field!r}")

    def __add__(self, other: object) -> Term:
        right = self.table.lift(other)
        return NotImplemented if right is None else self.table.add(self, right)

    def __radd__(self, other: object) -> Term:
        left = self.table.lift(other)
        return NotImplemented if left is None else self.table.add(left, self)

    def __mul__(self, other: object) -> Term:
        right = self.table.lift(other)
        return NotImplemented if right is None else self.table.mul(self, right)

    def __rmul__(self, other: object) -> Term:
        left = self.table.lift(other)
        return NotImplemented if left is None else self.table.mul(left, self)

    def __neg__(self) -> Term:
        return self.table.scale(Fraction(-1), self)

    def __pos__(self) -> Term:
        return self

    def __sub__(self, other: object) -> Term:
        right = self.table.lift(other)
        return NotImplemented if right is None else self.table.add(self, -right)

    def __rsub__(self, other: object) -> Term:
        left = self.table.lift(other)
        return NotImplemented if left is None else self.table.add(left, -self)

    def __truediv__(self, other: object) -> Term:
        """Divide by a constant; raises TypeError otherwise, ZeroDivisionError by zero."""
        divisor = self.table.lift(other)
        if divisor is None:
            return NotImplemented
        if divisor.value is None:
            raise TypeError(
                f"cannot divide by the term {divisor!r}: multiply by app('inv', divisor), "
                "whose laws are guarded by its domain"
            )
        return self.table.scale(1 / divisor.value, self)

    def __rtruediv__(self, other: object) -> Term:
        left = self.table.lift(other)
        return NotImplemented if left is None else left / self

    def __pow__(self, exponent: object) -> Term:
        """Raise to a non-negative integer power; raises TypeError for any other exponent."""
        if not isinstance(exponent, Integral) or exponent < 0:
            raise TypeError(f"a term has non-negative integer powers only, not {exponent!r}")
        return self.table.mul(*[self] * int(exponent))

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the term {self!r} has no truth value; compare terms with 'is'")

    def __copy__(self) -> Term:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Term:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a term cannot be pickled, its identity is its table; emit SMT-LIB text")

    def __repr__(self) -> str:
        if self.kind == "const":
            return str(self.value)
        if self.kind == "symbol":
            return str(self.name)
        head = {"add": "+", "mul": "*"}.get(self.kind) or self.name
        inner = [f"({a.name or a.kind} ...)" if a.args else repr(a) for a in self.args[:4]]
        return f"({head} {' '.join(inner)}{' ...' if len(self.args) > 4 else ''})"


_set = object.__setattr__


class TermTable:
    """Makes terms and keeps one object per structure. Holds on to every term it made.

    Example: with symbols x and y, ``table.add(x, 1, y, 2)`` is the term ``(+ x y 3)``, and the same
    object each time that it is made.

    ``len(table)`` is the number of distinct terms. Terms of two tables do not mix: arithmetic
    between them raises ValueError.
    """

    def __init__(self) -> None:
        self._terms: dict[tuple[str, Any], Term] = {}
        # By numerator and denominator: a Fraction is slow to hash and to compare.
        self._constants: dict[tuple[int, int], Term] = {}
        self._count = 0
        self._normal: dict[Term, NormalForm] = {}
        self.zero = self.const(ZERO)
        self.one = self.const(ONE)

    def __len__(self) -> int:
        return self._count

    def const(self, x: Exact) -> Term:
        """The constant ``x``, exactly.

        A float stands for its shortest decimal text: ``1e-05`` is 1/100000, not the nearest
        binary fraction. Raises ValueError for what is not a finite number.
        """
        if type(x) is int or type(x) is Fraction:
            value: int | Fraction = x
        elif isinstance(x, int | Integral):
            value = int(x)
        else:
            try:
                value = Fraction(repr(float(x)) if isinstance(x, float) else x)
            except (ValueError, OverflowError) as error:
                raise ValueError(f"not a finite number: {x!r}") from error
        key = (value.numerator, value.denominator)
        term = self._constants.get(key)
        if term is None:
            exact = value if isinstance(value, Fraction) else Fraction(value)
            term = self._constants[key] = self._new("const", (), exact, None)
        return term

    def symbol(self, name: str) -> Term:
        """The free variable ``name``. Raises ValueError if the name is empty."""
        if not name:
            raise ValueError("a symbol needs a name")
        return self._intern("symbol", name, (), name)

    def app(self, fn: str, *args: Term | int | Fraction) -> Term:
        """The uninterpreted function ``fn`` applied to one or more arguments.

        Raises ValueError without a name or without arguments (that is a symbol).
        """
        if not fn or not args:
            raise ValueError(f"function {fn!r} needs a name and at least one argument")
        terms = tuple(self._operand(a) for a in args)
        return self._intern("app", (fn, terms), terms, fn)

    def add(self, *args: Term | int | Fraction) -> Term:
        """The sum of the arguments in their order, their constants folded into one at the end."""
        kept, total = [], ZERO
        for term in map(self._operand, args):
            if term.value is None:
                kept.append(term)
            elif term.value:
                total = term.value if total is ZERO else total + term.value
        if total or not kept:
            kept.append(self.const(total))
        if len(kept) == 1:
            return kept[0]
        terms = tuple(kept)
        return self._intern("add", terms, terms, None)

    def mul(self, *args: Term | int | Fraction) -> Term:
        """The product of the arguments in their order, constant factors folded in front."""
        kept, coefficient = [], ONE
        for term in map(self._operand, args):
            inner = term.value
            if inner is None:
                if term.kind == "mul" and (inner := term.args[0].value) is not None:
                    term = term.args[1]
                kept.append(term)
            if inner is not None and inner is not ONE:
                coefficient = inner if coefficient is ONE else coefficient * inner
        if not kept or not coefficient:
            return self.const(coefficient)
        if len(kept) == 1:
            return self.scale(coefficient, kept[0])
        terms = tuple(kept)
        return self.scale(coefficient, self._intern("mul", terms, terms, None))

    def scale(self, coefficient: Fraction, term: Term) -> Term:
        """``coefficient * term``, as one constant in front of the term."""
        if coefficient is ONE:
            return term
        if term.kind == "mul" and (inner := term.args[0].value) is not None:
            coefficient, term = coefficient * inner, term.args[1]
        if term.value is not None or not coefficient:
            return self.const(coefficient * (term.value or 0))
        if coefficient == 1:
            return term
        terms = (self.const(coefficient), term)
        return self._intern("mul", terms, terms, None)

    def lift(self, x: object) -> Term | None:
        """``x`` as a term of this table, or None if arithmetic with it would not be exact.

        Raises ValueError for a term of another table.
        """
        if isinstance(x, Term):
            if x.table is not self:
                raise ValueError(f"the term {x!r} belongs to another TermTable")
            return x
        if isinstance(x, int | Fraction):
            return self.const(x)
        if isinstance(x, Rational):
            return self.const(Fraction(int(x.numerator), int(x.denominator)))
        return None

    def _operand(self, x: object) -> Term:
        if type(x) is Term and x.table is self:
            return x
        term = self.lift(x)
        if term is None:
            raise TypeError(f"expected a term, an int or a Fraction, found {x!r}")
        return term

    def _intern(self, kind: Kind, key: object, args: tuple[Term, ...], name: str | None) -> Term:
        term = self._terms.get((kind, key))
        if term is None:
            term = self._terms[kind, key] = self._new(kind, args, None, name)
        return term

    def _new(
        self, kind: Kind, args: tuple[Term, ...], value: Fraction | None, name: str | None
    ) -> Term:
        term = object.__new__(Term)
        _set(term, "kind", kind)
        _set(term, "args", args)
        _set(term, "value", value)
        _set(term, "name", name)
        _set(term, "uid", self._count)
        _set(term, "table", self)
        self._count += 1
        return term


Monomial: TypeAlias = tuple[tuple[str, int], ...]
"""A product: (factor, exponent) pairs sorted by factor; () is the constant 1."""

NormalForm: TypeAlias = tuple[tuple[Monomial, Fraction], ...]
"""A linear combination: (monomial, non-zero coefficient) pairs sorted by monomial."""

Polynomial: TypeAlias = dict[Monomial, Fraction]


def normal_form(term: Term) -> NormalForm:
    """The sorted linear combination of sorted products that ``term`` expands to.

    Equal normal forms belong to terms that are equal over the reals (up to collisions of 128-bit
    digests, so never a verdict); unequal ones say nothing: products of sums beyond
    :data:`EXPANSION_LIMIT` monomials stay one factor. Independent of table and order of creation.

    Example: ``x * (y + 1)`` and ``x + y * x`` are two terms with one normal form.
    """
    known = term.table._normal
    stack = [term]
    while stack:
        top = stack[-1]
        if top in known:
            stack.pop()
            continue
        parts = _sum_parts(top)
        factors = {p: _factors(p) for p in parts if p.kind == "mul"}
        needed = [a for p in parts if p.kind == "app" for a in p.args]
        needed += [f for powers in factors.values() for f in powers if f.kind in ("add", "app")]
        waiting = [n for n in needed if n not in known and n is not top]
        if waiting:
            stack.extend(waiting)
            continue
        total: Polynomial = {}
        for part, coefficient in parts.items():
            if part.kind == "mul":
                _accumulate(total, _product(factors[part], known), coefficient)
            else:
                _accumulate(total, _atom(part, known), coefficient)
        known[top] = tuple(sorted((m, c) for m, c in total.items() if c))
        stack.pop()
    return known[term]


def _sum_parts(root: Term) -> dict[Term, Fraction]:
    """The terms that ``root`` is a linear combination of, with their coefficients."""
    return _region(root, "add")


def _factors(root: Term) -> dict[Term, Fraction]:
    """The terms that the product ``root`` is made of, with their (integral) exponents."""
    return _region(root, "mul")


def _region(root: Term, kind: Kind) -> dict[Term, Fraction]:
    """Push weights down through nodes of ``kind`` in topological order (descending uid)."""
    weight = {root: ONE}
    parts: dict[Term, Fraction] = {}
    queue = [(-root.uid, root)]
    while queue:
        node = heapq.heappop(queue)[1]
        carried = weight.pop(node)
        targets: tuple[Term, ...] = ()
        scaled = node.args[0].value if node.kind == "mul" else None
        if node.kind == kind and scaled is None:
            targets = node.args
        elif kind == "add" and scaled is not None:
            carried, targets = carried * scaled, node.args[1:]
        else:
            parts[node] = carried
        for target in targets:
            if target not in weight:
                weight[target] = ZERO
                heapq.heappush(queue, (-target.uid, target))
            weight[target] += carried
    return parts


def _atom(term: Term, known: dict[Term, NormalForm]) -> NormalForm:
    if term.value is not None:
        return (((), term.value),) if term.value else ()
    if term.kind == "symbol":
        return (((((str(term.name), 1)),), ONE),)
    return ((((_digest(str(term.name), [known[a] for a in term.args]), 1),), ONE),)


def _digest(head: str, forms: list[NormalForm]) -> str:
    """A name for an opaque factor; the NUL keeps it apart from the names of symbols."""
    return f"{head}\0{blake2b(repr(forms).encode(), digest_size=16).hexdigest()}"


def _product(powers: dict[Term, Fraction], known: dict[Term, NormalForm]) -> NormalForm:
    """The product of already normalised factors, expanded while it stays small."""
    result: NormalForm = (((), ONE),)
    for factor, power in powers.items():
        exponent = int(power)
        form = known[factor] if factor in known else _atom(factor, known)
        steps: list[NormalForm]
        if len(form) == 1 and form[0][1] == 1:
            steps = [(((tuple((f, e * exponent) for f, e in form[0][0])), ONE),)]
        elif exponent <= 8 and len(form) ** exponent * len(result) <= EXPANSION_LIMIT:
            steps = [form] * exponent
        else:
            steps = [((((_digest("", [form]), exponent),), ONE),)]
        for step in steps:
            expanded: Polynomial = {}
            for monomial, coefficient in step:
                shifted = tuple((_merge(m, monomial), c) for m, c in result)
                _accumulate(expanded, shifted, coefficient)
            result = tuple((m, c) for m, c in expanded.items() if c)
    return result


def _merge(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for factor, exponent in right:
        powers[factor] = powers.get(factor, 0) + exponent
    return tuple(sorted(powers.items()))


def _accumulate(total: Polynomial, form: Iterable[tuple[Monomial, Fraction]], by: Fraction) -> None:
    for monomial, coefficient in form:
        total[monomial] = total.get(monomial, ZERO) + coefficient * by
