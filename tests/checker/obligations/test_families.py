"""A claim over a family is looked at for as many members as decide it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest

from shardproof.checker.obligations.families import members, nodes_at
from shardproof.checker.obligations.forms import form
from shardproof.checker.obligations.restate import MOST_WIDENED, Rebuilder
from shardproof.checker.result import Problems
from shardproof.engine.algebra.affine import ZERO, Affine, affine
from shardproof.engine.errors import Unsupported
from shardproof.engine.lineage.expressions import Causal, Combine, Einsum, Input, Opaque, Operand
from shardproof.engine.lineage.lineage import ABSOLUTE, Addend, Dim, Lineage, StridedInterval, View
from shardproof.engine.lineage.nodes import NodeTable
from shardproof.engine.obligations.obligation import Claim, build
from shardproof.engine.records.run import TemplateRecord
from shardproof.partition.stages.partition import WIDEST
from shardproof.solvers import Query
from tests.engine.asking import Holds

EXTENTS = {"dp": 4, "mb": 2}


def table() -> tuple[NodeTable, int]:
    nodes = NodeTable()
    return nodes, nodes.define(Input("x"), (512,))


def view(node: int, *dims: Dim) -> Lineage:
    shape = []
    for dim in dims:
        size = 1
        for interval in dim:
            size *= interval.size
        shape.append(size)
    return Lineage(tuple(shape), (Addend(Fraction(1), node, View(dims)),))


def merged(start: Affine) -> Dim:
    return (StridedInterval(0, 1, 512, start, 128),)


def split(start: Affine) -> Dim:
    return (StridedInterval(0, 128, 4, start, 1), StridedInterval(0, 1, 128, ZERO, 128))


def identity(given: Lineage, claimed: Lineage) -> Claim:
    return Claim("op", "identity", {}, False, (), 1, (given,), (claimed,), EXTENTS)


def all_reduce(given: Lineage, claimed: Lineage, kind: str = "all_reduce") -> Claim:
    attrs = {"op": "sum"} if kind == "all_reduce" else {"dim": 0}
    return Claim(kind, kind, attrs, False, (("dp", 4),), 1, (given,), (claimed,), EXTENTS)


DP = affine(0, {"dp": 1})


def test_members_that_are_one_claim_moved_are_not_looked_at() -> None:
    nodes, x = table()
    claim = identity(view(x, merged(DP * 128)), view(x, merged(DP * 128)))
    assert list(members(nodes, claim)) == []
    claim = identity(view(x, merged(DP * 128)), view(x, split(DP)))
    assert list(members(nodes, claim)) == []


@pytest.mark.parametrize(
    "claimed", [merged(affine(128)), split(affine(1))], ids=["merged", "split"]
)
def test_one_member_is_no_family(claimed: Dim, holds: Holds) -> None:
    """What only the second replica has is not what all have, however its box is written."""
    nodes, x = table()
    claim = identity(view(x, merged(DP * 128)), view(x, claimed))
    assert not all(holds(nodes, member) for _, member in members(nodes, claim))


def test_a_reduced_value_is_the_same_everywhere(holds: Holds) -> None:
    nodes, x = table()
    given = view(x, merged(ZERO))
    right = given._replace(addends=(given.addends[0]._replace(factor=Fraction(4)),))
    assert holds(nodes, all_reduce(given, right))
    moved = view(x, merged(DP * 128))
    wrong = moved._replace(addends=(moved.addends[0]._replace(factor=Fraction(4)),))
    claim = all_reduce(given, wrong)
    assert not all(holds(nodes, member) for _, member in members(nodes, claim))


def test_what_is_scattered_is_written_out(holds: Holds) -> None:
    nodes, x = table()
    given = view(x, (StridedInterval(0, 1, 512, ZERO, 512),))
    full = Fraction(4)

    def kept(start: Affine) -> Lineage:
        found = view(x, merged(start))
        return found._replace(addends=(found.addends[0]._replace(factor=full),))

    claim = all_reduce(given, kept(DP * 128), "reduce_scatter")
    ((_, written),) = members(nodes, claim)
    assert (written.members, written.over, len(written.outputs)) == (4, (), 4)
    assert holds(nodes, written)
    ((_, written),) = members(nodes, all_reduce(given, kept(ZERO), "reduce_scatter"))
    assert not holds(nodes, written)


def test_a_value_that_differs_along_the_joined_axis_is_refused() -> None:
    """A node of every replica's own is no symbol that four replicas have in common."""
    nodes, x = table()
    own = nodes.define(Opaque((view(x, merged(DP * 128)).addends[0],)), (128,), frozenset({"dp"}))
    given = view(own, (StridedInterval(0, 1, 128, ZERO, 128),))
    total = given._replace(addends=(given.addends[0]._replace(factor=Fraction(4)),))
    problems = Problems()
    rebuilder = Rebuilder(nodes, [TemplateRecord("", "", "parallel", 0)], problems, thorough=False)
    with pytest.raises(Exception, match=r"another value at every \['dp'\]|differs along the axis"):
        rebuilder.claim(all_reduce(given, total), 0, "rank 0", None)


# -- forms
# ------------------------------------------------------------------------------------------


def test_forms_are_equal_up_to_names_only() -> None:
    nodes, x = table()
    y = nodes.define(Input("y"), (512,))
    z = nodes.define(Input("z"), (256,))

    def of(given: Lineage, claimed: Lineage, **changes: object) -> object:
        return form(nodes, identity(given, claimed)._replace(**changes))

    one = of(view(x, merged(ZERO)), view(x, merged(ZERO)))
    assert of(view(y, merged(ZERO)), view(y, merged(ZERO))) == one
    assert of(view(x, merged(ZERO)), view(y, merged(ZERO))) != one
    assert of(view(x, merged(affine(128))), view(x, merged(affine(128)))) != one
    assert of(view(x, merged(ZERO)), view(x, merged(ZERO)), attrs={"p": True}) != of(
        view(x, merged(ZERO)), view(x, merged(ZERO)), attrs={"p": 1}
    )
    small: Dim = (StridedInterval(0, 1, 256, ZERO, 128),)
    assert of(view(z, small), view(z, small)) != one


def test_forms_hold_the_definitions_that_are_read() -> None:
    nodes, x = table()
    operand = Operand(x, ((0, 1, 512, 0),))
    double = nodes.define(Combine((Fraction(2),), (operand,), (0,)), (512,))
    triple = nodes.define(Combine((Fraction(3),), (operand,), (0,)), (512,))
    whole: Dim = (StridedInterval(0, 1, 512, ZERO, 512),)
    forms = {form(nodes, identity(view(x, whole), view(n, whole))) for n in (double, triple)}
    assert len(forms) == 2
    # Where both are symbols, their definitions are not read.
    forms = {form(nodes, identity(view(n, whole), view(n, whole))) for n in (double, triple)}
    assert len(forms) == 1


def test_claims_that_may_be_moved_ones_read_nothing_of_symbols() -> None:
    """The forward of a recurrence begins with a product and goes on with sums of two; what is read
    is another matter."""
    nodes, x = table()
    y = nodes.define(Input("y"), (512,))
    own = Operand(x, ((0, 1, 512, 0),))
    other = Operand(y, ((0, 1, 512, 0),))
    product = nodes.define(Einsum((own, other), (0,)), (512,))
    total = nodes.define(Combine((Fraction(1), Fraction(2)), (own, other), (0,)), (512,))
    whole: Dim = (StridedInterval(0, 1, 512, ZERO, 512),)

    def forms(given: int | None) -> set[object]:
        return {
            form(
                nodes,
                identity(view(n if given is None else given, whole), view(n, whole)),
                placed=False,
            )
            for n in (product, total)
        }

    assert len(forms(None)) == 1
    assert len(forms(x)) == 2


def test_equal_forms_have_equal_texts() -> None:
    nodes, x = table()
    y = nodes.define(Input("y"), (512,))
    texts = set()
    for node in (x, y):
        claim = identity(view(node, merged(DP * 128)), view(node, split(DP)))
        texts.add(Query.of("", build(nodes, claim).goals).linear_text)
    assert len(texts) == 1


# -- masks
# ------------------------------------------------------------------------------------------


def masked(rows: Affine) -> Lineage:
    """16 rows of a causal mask from ``rows`` on, and its keys 200 to 204."""
    dims: tuple[Dim, Dim] = (
        (StridedInterval(0, 1, ABSOLUTE, rows, 16),),
        (StridedInterval(1, 1, ABSOLUTE, affine(200), 4),),
    )
    return Lineage((16, 4), (Addend(Fraction(1), 0, View(dims)),))


@pytest.mark.parametrize(
    ("claimed", "everywhere"),
    [
        (affine(0, {"dp": 128}), True),
        (affine(16, {"dp": 64}), False),  # only the third member has other rows before the keys
    ],
)
def test_a_mask_is_looked_at_for_every_member(
    claimed: Affine, everywhere: bool, holds: Holds
) -> None:
    nodes = NodeTable()
    number = nodes.define(Causal(), (ABSOLUTE, ABSOLUTE))
    given, other = (
        x._replace(addends=(x.addends[0]._replace(node=number),))
        for x in (masked(affine(0, {"dp": 128})), masked(claimed))
    )
    claim = identity(given, other)
    assert holds(nodes, claim) == everywhere
    assert [here["dp"] for here, _ in members(nodes, claim)] == [0, 1, 2, 3]
    # Where all is masked on both sides there is nothing to show.
    at_each = [
        not build(nodes, member).goals or holds(nodes, member)
        for _, member in members(nodes, claim)
    ]
    assert at_each == [True, True, everywhere, True]


def test_too_many_members_of_a_mask_are_refused() -> None:
    nodes = NodeTable()
    number = nodes.define(Causal(), (ABSOLUTE, ABSOLUTE))
    x = masked(affine(0, {"dp": 128}))
    x = x._replace(addends=(x.addends[0]._replace(node=number),))
    claim = identity(x, x)._replace(extents={"dp": 2048})
    with pytest.raises(Unsupported, match="a family of more than 1024 members that differ"):
        build(nodes, claim)


# -- one claim, moved
# ------------------------------------------------------------------------------------------


def of_batch(node: int, number: int, heads: Sequence[Dim]) -> Lineage:
    """A rank's sequence of the batch, by its heads: as many sequences as heads of a rank."""
    batch: Dim = (StridedInterval(1, 1, 8, affine(number), 1), StridedInterval(2, 1, 6, ZERO, 6))
    return view(node, batch, *heads)


def headed(nodes: NodeTable, given: int, claimed: int | None = None) -> Claim:
    """Features, viewed as heads, of one sequence (claimed: of another one)."""
    x = nodes.define(Input("x"), (128, 8, 6))
    joined = [(StridedInterval(0, 1, 128, DP * 32, 32),)]
    apart = [
        (StridedInterval(0, 4, 32, DP * 8, 8),),
        (StridedInterval(0, 1, 4, ZERO, 4),),
    ]
    other = of_batch(x, given if claimed is None else claimed, apart)
    claim = identity(of_batch(x, given, joined), other)
    return claim._replace(name="view", attrs={"size": (6, 8, 4)})


def rebuilt(nodes: NodeTable, claims: Sequence[Claim], named: Sequence[int]) -> Rebuilder:
    """Claims stated again under the templates that they name; each claim's text is a template."""
    stated = [Query.of("", build(nodes, claim).goals) for claim in claims]
    templates = [TemplateRecord(q.linear_text, q.nonlinear_text, "parallel", 0) for q in stated]
    assert len({t.linear for t in templates}) == len(templates)
    rebuilder = Rebuilder(nodes, templates, Problems(), thorough=False)
    for number, (claim, template) in enumerate(zip(claims, named, strict=True)):
        rebuilder.claim(claim, template, f"claim {number}", None)
    rebuilder.finish()
    return rebuilder


def test_a_claim_whose_text_is_another_templates_may_be_its_own_moved() -> None:
    """A sequence inside is represented otherwise than the first one, since digits of equal extent
    are cut alike; its claim is the first's, moved, and its own text is solved beside it."""
    nodes = NodeTable()
    claims = [headed(nodes, 0), headed(nodes, 6)]
    rebuilder = rebuilt(nodes, claims, [0, 0])
    assert not rebuilder.problems
    assert rebuilder.texts[1] in rebuilder.extra


def test_a_claim_of_which_half_has_moved_is_another_claim() -> None:
    nodes = NodeTable()
    claims = [headed(nodes, 0), headed(nodes, 0, 6)]
    rebuilder = rebuilt(nodes, claims, [0, 0])
    (problem,) = rebuilder.problems.all()
    assert problem.message.startswith("claim 1: its obligation, stated again, is not the text of")


def test_a_claim_of_another_form_is_not_moved() -> None:
    nodes = NodeTable()
    first = headed(nodes, 0)
    whole = of_batch(first.inputs[0].addends[0].node, 6, [(StridedInterval(0, 1, 128, ZERO, 128),)])
    claims = [first, headed(nodes, 6), identity(whole, whole)]
    rebuilder = rebuilt(nodes, claims, [0, 2, 2])
    (problem,) = rebuilder.problems.all()
    assert problem.message == (
        "claim 1: its obligation, stated again, is not the text of template 2"
    )


def test_the_checker_moves_a_cut_back_as_far_as_the_prover() -> None:
    """With less, it could not follow what was proved."""
    assert MOST_WIDENED >= WIDEST


# -- definitions of coordinates
# ------------------------------------------------------------------------------------------


def row(nodes: NodeTable, x: int, start: Affine, *coordinates: str) -> Lineage:
    """A row of a matrix of four, as a node of its own."""
    operand = Operand(x, ((1, 1, 128, 0),), ((0, 1, 4, start),))
    extents, axes = (128,), frozenset(coordinates)
    number = nodes.define(Combine((Fraction(1),), (operand,), (0,)), extents, axes)
    return view(number, (StridedInterval(0, 1, 128, ZERO, 128),))


@pytest.mark.parametrize(("step", "everywhere"), [(1, True), (0, False)])
def test_a_definition_that_moves_is_looked_at_for_every_member(
    step: int, everywhere: bool, holds: Holds
) -> None:
    """Replica dp has row dp; that it is row 1 holds of replica 1 only."""
    nodes = NodeTable()
    x = nodes.define(Input("x"), (4, 128))
    whole: Dim = (StridedInterval(1, 1, 128, ZERO, 128),)
    start = affine(1 - step, {"dp": step})
    given = Lineage(
        (128,),
        (Addend(Fraction(1), x, View((whole,), (StridedInterval(0, 1, 4, start, 1),))),),
    )
    claim = identity(given, row(nodes, x, DP, "dp"))
    found = list(members(nodes, claim))
    assert [here["dp"] for here, _ in found] == [0, 1, 2, 3]
    at_each = [holds(nodes_at(nodes, member, here), member) for here, member in found]
    assert at_each == [everywhere or here["dp"] == 1 for here, _ in found]
    assert holds(nodes, claim) == everywhere
