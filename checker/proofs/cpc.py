"""A proof checker for the part of cvc5's proof calculus (CPC) that proofs of templates use.

A proof is a list of terms that are given names, assumptions and steps. Every step has to follow by
its rule (`checker.proofs.rules`) from the steps before it, every assumption has to be what the
SMT-LIB text asserts, and the last step has to say ``false``. Names are replaced by what they stand
for before anything is compared.

The rules are few, and each is a fact about reals and truth values that can be read off its
function. A proof that uses any other rule is *not covered*, which is neither accepted nor
rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardproof.checker.proofs.rules import RULES
from shardproof.checker.proofs.terms import Form, NotCovered, Rejected, Terms, forms_of


class Checked(NamedTuple):
    """A proof that holds. ``steps``: how many were checked; ``rules``: how often each was used.

    Example: ``Checked(8, {"evaluate": 1, "cong": 2, "trans": 2, ...})`` for the proof that x + y is
    y + x.
    """

    steps: int
    rules: Mapping[str, int]


def check_proof(text: str, proof: str) -> Checked:
    """Check that ``proof`` refutes the SMT-LIB ``text``; raises `Rejected` or `NotCovered`.

    Example: cvc5's proof that ``(= (+ x y) (+ y x))`` cannot fail has 8 steps; with another
    premise for the last one: "@p9 does not follow by eq_resolve: it says something else".
    """
    terms = Terms()
    try:
        asserted = _asserted(terms, text)
        return _Proof(terms, asserted).run(proof)
    except RecursionError as error:
        raise Rejected("terms are nested too deeply") from error


def _asserted(terms: Terms, text: str) -> set[int]:
    """What a text asserts, its definitions replaced."""
    names: dict[str, int] = {}
    asserted: set[int] = set()
    for form in forms_of(text):
        match form:
            case ["set-logic", _] | ["declare-fun", str(), _, "Real"] | ["check-sat"]:
                continue
            case ["define-fun", str(name), [], "Real", body]:
                names[name] = terms.read(body, names)
            case ["assert", body]:
                asserted.add(terms.read(body, names))
            case _:
                raise NotCovered("a command that templates do not have")
    return asserted


class _Proof:
    """The steps of one proof so far."""

    def __init__(self, terms: Terms, asserted: set[int]) -> None:
        self.terms = terms
        self.asserted = asserted
        self.names: dict[str, int] = {}
        self.facts: dict[str, int] = {}
        self.rules: Counter[str] = Counter()

    def run(self, proof: str) -> Checked:
        forms = forms_of(proof)
        if len(forms) == 1 and isinstance(forms[0], list):
            forms = forms[0]  # as cvc5 prints it: one list
        last = -1
        for form in forms:
            match form:
                case ["declare-const", str(), _]:
                    continue
                case ["define", str(name), [], body]:
                    self.names[name] = self.terms.read(body, self.names)
                case ["assume", str(name), body]:
                    self.assume(name, body)
                case ["step", str(name), *rest]:
                    last = self.facts[name] = self.step(name, rest)
                case _:
                    raise NotCovered(f"the command {_shown(form)}")
        if last != self.terms.false:
            raise Rejected("its last step is not false")
        return Checked(self.rules.total(), dict(self.rules))

    def assume(self, name: str, body: Form) -> None:
        fact = self.terms.read(body, self.names)
        if fact not in self.asserted:
            raise Rejected(f"{name} assumes what the text does not assert")
        self.facts[name] = fact

    def step(self, name: str, rest: Sequence[Form]) -> int:
        printed: list[Form] = []
        while rest and rest[0] != ":rule":
            printed.append(rest[0])
            rest = rest[1:]
        named = len(rest) % 2 == 0 and all(isinstance(key, str) for key in rest[::2])
        fields = dict(zip(rest[::2], rest[1::2], strict=True)) if named else {}
        rule = fields.pop(":rule", None)
        premises, arguments = fields.pop(":premises", []), fields.pop(":args", [])
        lists = isinstance(premises, list) and isinstance(arguments, list)
        if len(printed) > 1 or not isinstance(rule, str) or fields or not lists:
            raise Rejected(f"{name} is no step")
        if rule not in RULES:
            raise NotCovered(f"the rule {rule}")
        unknown = [p for p in premises if not isinstance(p, str) or p not in self.facts]
        if unknown:
            raise Rejected(f"{name} rests on {_shown(unknown[0])}, which is not before it")
        self.rules[rule] += 1
        given = [self.facts[p] for p in premises]
        terms = [self.terms.read(a, self.names) for a in arguments]
        try:
            conclusion = RULES[rule](self.terms, given, terms)
        except Rejected as error:
            raise Rejected(f"{name} does not follow by {rule}: {error}") from error
        except ValueError as error:
            raise Rejected(f"{name}: {rule} takes other premises and arguments") from error
        if printed and self.terms.read(printed[0], self.names) != conclusion:
            raise Rejected(f"{name} does not follow by {rule}: it says something else")
        return conclusion


def _shown(form: Form) -> str:
    text = form if isinstance(form, str) else str(form[0] if form else "()")
    return text[:40]
