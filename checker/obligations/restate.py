"""Rebuilding: every claim's obligation is stated again and must be the text that was solved."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from shardproof.checker.obligations.defined import Defined, positive
from shardproof.checker.obligations.families import members, nodes_at
from shardproof.checker.obligations.forms import form
from shardproof.checker.obligations.translations import is_moved
from shardproof.checker.result import Problems
from shardproof.checker.values.sides import UNCLAIMED, Side
from shardproof.engine.algebra.terms import Term
from shardproof.engine.algebra.walks import subterms
from shardproof.engine.claims.cone import Cut, cone
from shardproof.engine.claims.scattered import of_the_sum
from shardproof.engine.errors import ShapeMismatch, Unsupported
from shardproof.engine.lineage.expressions import Unary
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim, Obligation, build
from shardproof.engine.ops.primitives import is_partial
from shardproof.engine.records.run import TemplateRecord
from shardproof.engine.specification.boxes import read_at
from shardproof.engine.specification.definedness import domain
from shardproof.solvers import Query

#: By how many definitions a solved obligation may have been widened.
MOST_WIDENED = 5

_LOG: Final = logging.getLogger(__name__)

#: What says that a claim has no obligation.
_FORESEEN = (Unsupported, ShapeMismatch)
#: What else keeps it from being stated: a run that was tampered with, or a fault of ours.
_UNFORESEEN = (ValueError, LookupError, ArithmeticError, AssertionError, RecursionError)

Texts = tuple[str, str]


class Rebuilder:
    """Writes the obligations of a run's claims again, and holds each to the text that was solved.

    ``extra``: texts that the run does not have, but that its verdict rests on: other members of the
    families that a claim stands for; with a place for messages. ``needed``: templates that a live
    instance rests on, likewise. ``partial``: for an operand of a partial function, the texts of
    which one has to hold (it is an operand that the claimed values have as well), with a message.
    ``unforeseen``: how often an obligation could not be stated for a reason that no rule has.

    Example: a Llama with one layer on dp 2 and tp 2 has 248 claims, for which 189 obligations are
    written again: the others have the forms of these.

    ``part``: (k, n) looks at the templates whose number is k modulo n only, and at all their
    instances.
    """

    def __init__(
        self,
        nodes: NodeTable,
        templates: Sequence[TemplateRecord],
        problems: Problems,
        *,
        thorough: bool,
        more: int = 0,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.nodes = nodes
        self.more = more
        self.part = part
        self.texts: list[Texts] = [(t.linear, t.nonlinear) for t in templates]
        self.problems = problems
        self.thorough = thorough
        self.known: dict[tuple[object, ...], int] = {}
        self.extra: dict[Texts, str] = {}
        self.needed: dict[int, str] = {}
        self.partial: dict[tuple[Texts, ...], str] = {}
        self.matched: set[int] = set()
        self.claims_of: dict[int, list[Claim]] = {}
        self.forms: dict[int, list[object]] = {}
        self.translated: list[tuple[Claim, int, str]] = []
        #: Whether it is due to its own nodes that the claim at hand is defined: then no other claim
        #: of its form is known to be.
        self.particular = False
        self.rebuilt = 0
        self.unforeseen = 0

    def side(self, side: Side, defined: Defined | None) -> None:
        """Rebuild all claims of a side.  ``defined``: what partial functions are known to be
        defined of (None: this is the side that defines them)."""
        for number, stage in sorted(side.stages.items()):
            if stage.template < 0 or side.unrolled.instances[number].kind in UNCLAIMED:
                continue
            if stage.template % self.part[1] != self.part[0]:
                continue
            where = side.where(number)
            live = number in side.live
            if live:
                self.needed.setdefault(stage.template, where)
            claim = side.claim(side.unrolled.instances[number])
            if claim is None:
                self.problems.add(
                    "stage", f"{where} has a template, but a tensor of it has no lineage"
                )
                continue
            try:
                known = defined if live else None
                claim = of_the_sum(self.nodes, claim)
                self.claim(claim, stage.template, where, known, stage.opened)
            except _FORESEEN as error:
                self.problems.add("unproved", f"{where}: its obligation cannot be stated: {error}")
            except _UNFORESEEN as error:
                self._unforeseen(error)
                name = type(error).__name__
                self.problems.add(
                    "unproved",
                    f"{where}: its obligation cannot be stated: {f'{name}: {error}'.rstrip(': ')}",
                )

    def _unforeseen(self, error: Exception) -> None:
        """Count what no rule foresees, and log where it came from."""
        self.unforeseen += 1
        _LOG.info("an obligation cannot be stated", exc_info=error)

    def claim(
        self,
        claim: Claim,
        template: int,
        where: str,
        defined: Defined | None,
        opened: Sequence[int] = (),
    ) -> None:
        """Write the obligation of a claim again and hold it to its template's stored text: it is
        that text, at the narrowest cut or a wider one, or the claim is its template's claim, moved;
        else a problem at ``where``.  Claims of one form are written once, unless ``thorough``.

        ``defined``: what partial functions are known to be defined of, as in `side`; ``opened``:
        behind which nodes the run says that the cut lies.
        """
        if self._is_large(claim):
            self._behind(claim, template, where, defined, opened)
            return
        if defined is not None:
            self._nodes(claim, where, defined, 0)
        key = (form(self.nodes, claim), defined is None or defined.operand(claim))
        if not self.thorough and self.known.get(key) == template:
            return
        self._follow(claim, 0)
        self.particular = False
        widened = self._rebuild(claim, template, where, defined, opened)
        if widened is None:
            self._translated(claim, template, where, defined)
            self._remember(key, template)
            return
        self.matched.add(template)
        if widened == 0:
            self._remember(key, template)
            self.claims_of.setdefault(template, []).append(claim)
        self._members(claim, widened, where, self.texts[template])

    def _is_large(self, claim: Claim) -> bool:
        """Whether a claim cannot be stated down to its inputs, for all that they are made of."""
        inputs = [x for x in claim.inputs if x is not None]
        try:
            cone(self.nodes, inputs, claim.outputs, adds=claim.adds)
        except Unsupported:
            return True
        return False

    def _behind(
        self,
        claim: Claim,
        template: int,
        where: str,
        defined: Defined | None,
        opened: Sequence[int],
    ) -> None:
        """A claim that is too large down to its inputs, as it was stated behind them."""
        self.particular = False
        widened = self._rebuild(claim, template, where, defined, opened)
        if widened is None:
            raise Unsupported("a claim that is too large down to its inputs")
        self._follow(claim, widened)
        if defined is not None:
            self._nodes(claim, where, defined, widened)
        self.matched.add(template)
        self._members(claim, widened, where, self.texts[template])

    def _remember(self, key: tuple[object, ...], template: int) -> None:
        if not self.particular:
            self.known[key] = template

    def _translated(self, claim: Claim, template: int, where: str, defined: Defined | None) -> None:
        """A claim whose text is not its template's: it may be the template's claim, moved to where
        it is represented otherwise, and is solved by itself.  Where its text is another template's,
        it has to be the named one's claim, moved (`finish`)."""
        obligation = self._build(claim)
        texts = _texts(obligation.goals)
        if texts in self.texts:
            self.translated.append((claim, template, where))
        self.extra.setdefault(texts, where)
        if defined is not None:
            self._definedness(claim, obligation, where, defined)
        self._members(claim, 0, where, texts)

    def _members(self, claim: Claim, widened: Cut, where: str, known: Texts) -> None:
        """Other members of the family that a claim is of, where they decide it."""
        for here, member in members(self.nodes, claim, widened):
            there = nodes_at(self.nodes, member, here, widened)
            texts = _texts(build(there, member, widened=widened, more=self.more).goals)
            if texts != known:
                place = ", ".join(f"{axis} {n}" for axis, n in here.items())
                self.extra.setdefault(texts, f"{where} at {place or 'every member'}")

    def _is_moved(self, claim: Claim, template: int) -> bool:
        """Whether a claim is one whose text is that of a template, moved."""
        inputs = [x for x in claim.inputs if x is not None]
        here = cone(self.nodes, inputs, claim.outputs, adds=claim.adds)
        unplaced = form(self.nodes, claim, placed=False)
        claims = self.claims_of.get(template, [])
        if template not in self.forms:
            self.forms[template] = [form(self.nodes, other, placed=False) for other in claims]
        return any(
            its == unplaced and is_moved(self.nodes, here, claim, other)
            for its, other in zip(self.forms[template], claims, strict=True)
        )

    def finish(self) -> None:
        """A claim whose text is another template's must be its own template's claim, moved; and
        every template that a verdict rests on must be the text of some claim."""
        for claim, template, where in self.translated:
            if not self._is_moved(claim, template):
                self.problems.add(
                    "obligation",
                    f"{where}: its obligation, stated again, is not the text of "
                    f"template {template}",
                )
        for template, where in sorted(self.needed.items()):
            if template not in self.matched:
                self.problems.add(
                    "obligation",
                    f"{where}: its obligation, stated again, is not the text of "
                    f"template {template}, nor is any other",
                )

    def _follow(self, claim: Claim, widened: Cut) -> None:
        """Raise `Unsupported` where what the operator joins is another value at every coordinate
        along which it is joined, up to the cut that the claim is stated with.  Along other
        coordinates a claim is looked at member by member (`members`)."""
        inputs = [x for x in claim.inputs if x is not None]
        here = cone(self.nodes, inputs, claim.outputs, adds=claim.adds, widened=widened)
        joined = {axis for axis, _ in claim.over}
        for number in here.opaque | here.opened | here.defined:
            if axes := self.nodes[number].coordinates & joined:
                raise Unsupported(f"node {number} is another value at every {sorted(axes)}")

    def _rebuild(
        self,
        claim: Claim,
        template: int,
        where: str,
        defined: Defined | None,
        opened: Sequence[int],
    ) -> Cut | None:
        """How the stored obligation is widened (None: it is another one).  What is too large to
        state down to the inputs may have been stated behind them."""
        cuts: list[Cut] = [frozenset(opened)] if opened else [*range(MOST_WIDENED + 1)]
        narrow: Unsupported | ShapeMismatch | None = None
        for widened in cuts:
            try:
                obligation = self._build(claim, widened)
            except _FORESEEN as error:
                if widened == 0:
                    narrow = error
                    continue
                break
            except _UNFORESEEN as error:
                if not widened:
                    raise
                self._unforeseen(error)
                break
            self.rebuilt += 1
            if _texts(obligation.goals) == self.texts[template]:
                if defined is not None:
                    self._definedness(claim, obligation, where, defined)
                return widened
        if narrow is not None:
            raise narrow
        return None

    def _build(self, claim: Claim, widened: Cut = 0) -> Obligation:
        return build(self.nodes, claim, widened=widened, more=self.more)

    def _definedness(
        self, claim: Claim, obligation: Obligation, where: str, defined: Defined
    ) -> None:
        """What the operator divides by or takes roots of, the claimed values must as well, unless
        it is known to be in the domain."""
        if defined.operand(claim):
            return
        claimed = {*_partial(b for _, b in obligation.goals), *obligation.claimed}
        for term in (t for t in obligation.applications if t not in claimed):
            if positive(term.args[0], obligation.symbols, defined.signs):
                self.particular = True
                continue
            same = tuple(
                dict.fromkeys(
                    _equal(term.args[0], other.args[0])
                    for other in sorted(claimed, key=lambda t: t.uid)
                    if domain(str(other.name)).lies_in(domain(str(term.name)))
                )
            )
            self.partial.setdefault(
                same,
                f"{where} takes {term.name} of a value that the single device does not take it of",
            )

    def _nodes(self, claim: Claim, where: str, defined: Defined, widened: Cut) -> None:
        """The nodes that a claim defines by a partial function are those of the single device; this
        is about particular nodes, so that no other claim of its form says it for this one."""
        inputs = [x for x in claim.inputs if x is not None]
        here = cone(self.nodes, inputs, claim.outputs, adds=claim.adds, widened=widened)
        doubtful = [n for n in sorted(here.defined - defined.nodes) if not defined.node(n)]
        if not doubtful:
            return
        views = [addend for x in (*inputs, *claim.outputs) for addend in x.addends]
        boxes = read_at(self.nodes, views)
        for number in doubtful:
            definition = self.nodes[number].definition
            if isinstance(definition, Unary) and not defined.node(number, boxes.get(number)):
                self.problems.add(
                    "definedness",
                    f"{where} takes {definition.function} of a value that the single "
                    "device does not compute",
                )


def _texts(goals: Sequence[tuple[Term, Term]]) -> Texts:
    query = Query.of("", goals)
    return query.linear_text, query.nonlinear_text


def _equal(left: Term, right: Term) -> Texts:
    query = Query.of("", [(left, right)])
    return query.linear_text, query.nonlinear_text


def _partial(roots: Iterable[Term]) -> set[Term]:
    """Applications of partial functions below the given terms."""
    return {t for t in subterms(roots) if t.kind == "app" and is_partial(str(t.name))}


def single_values(side: Side, nodes: NodeTable) -> frozenset[int]:
    """All nodes that live values of the single-device side are made of.

    Example: all 148 nodes of a Llama with one layer: its ranks make no values of their own.
    """
    instances = (side.unrolled.instances[number] for number in side.live)
    todo = [
        addend.node
        for value in chain.from_iterable(
            (*instance.inputs, *instance.outputs) for instance in instances
        )
        if value >= 0 and (lineage := side.lineages[value]) is not None
        for addend in lineage.addends
    ]
    values: set[int] = set()
    while todo:
        number = todo.pop()
        if number not in values:
            values.add(number)
            todo += nodes[number].definition.children()
    return frozenset(values)
