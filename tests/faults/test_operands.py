"""Operands and attributes that a declaration does not have, and what an operator takes after all.

Each fault stands beside its twin: the same plan without it, proved by the same path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome

from shardproof import cli
from shardproof.checker import check
from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.errors import InvalidInput, ShapeMismatch, Unsupported
from shardproof.engine.ops import apply_forward
from shardproof.engine.plan.ir import Attr, Body, Op, Plan, Source
from shardproof.engine.plan_files import store
from shardproof.engine.plan_files.calling import Calls, check_call
from shardproof.engine.schedule.unroll import unroll
from shardproof.engine.simulation.simulate import simulate
from shardproof.engine.simulation.true_size import confirmed
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along
from shardproof.frontends.builder.shapes import ShapeInterpreter
from shardproof.frontends.nnscaler.bodies import BodyWriter
from shardproof.partition.stages.partition import partition
from tests.faults.plans import (
    OpEdit,
    appended,
    assert_proved,
    attrs,
    edit_body,
    edit_op,
    find,
    llama,
    verify,
)
from tests.faults.rows import ROWS, WIDTH, Compute, plan
from tests.faults.test_joined import RIGHT, joined


def more(op: Op) -> Op:
    """The operator with its last operand once more."""
    return replace(op, inputs=(*op.inputs, op.inputs[-1]))


def fewer(op: Op) -> Op:
    return replace(op, inputs=op.inputs[:-1])


#: The operator of a tiny Llama, the change, and what is said of it.
CALLS: dict[str, tuple[str, OpEdit, str]] = {
    "add of three": ("add", more, r"add takes 1 to 2 operands \(x, \[y\]\), found 3"),
    "silu of two": ("silu", more, r"silu takes 1 operand \(x\), found 2"),
    "silu of none": ("silu", fewer, r"silu takes 1 operand \(x\), found 0"),
    "class weights": (
        "cross_entropy",
        more,
        r"cross_entropy takes 2 operands \(logits, ids\), found 3",
    ),
    "a constant beside an operand": (
        "mul",
        lambda op: replace(op, attrs={"other": 2}, inputs=(op.inputs[0],) * 2),
        "the operand y or the attribute other, found both",
    ),
    "no constant and no operand": ("add", fewer, "the attribute other, found neither"),
    "a size as text": ("view", attrs(size="all"), "an integer or a tuple of integers as its"),
    "a dimension that is true": ("softmax", attrs(dim=True), "an integer as its attribute dim"),
    "no epsilon": ("rms_norm", lambda op: replace(op, attrs={}), "lacks its attribute eps"),
}


def test_the_twin_of_these_calls_is_proved() -> None:
    assert_proved(llama())


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_its_declaration_does_not_have_is_no_plan(name: str) -> None:
    operator, change, said = CALLS[name]
    with pytest.raises(InvalidInput, match=said) as found:
        verify(edit_op(llama(), operator, change))
    assert "parallel program" in found.value.where
    assert "body 0 (forward)" in found.value.where
    assert f"({operator})" in found.value.where


DEAD: dict[str, tuple[Callable[[Body], Body], type[Exception] | str]] = {
    "too many operands": (lambda b: appended(b, "silu", (0, 0), b.values[0].shape), InvalidInput),
    "too few operands": (lambda b: appended(b, "linear", (0,), b.values[0].shape), InvalidInput),
    "another shape": (lambda b: appended(b, "silu", (find_float(b),), (7,)), "refuted"),
    "no attribute of it": (
        lambda b: with_last(appended(b, "silu", (find_float(b),), shape_of(b)), {"inplace": 1}),
        "inconclusive",
    ),
    "nothing wrong": (lambda b: appended(b, "silu", (find_float(b),), shape_of(b)), "proved"),
}


def find_float(body: Body) -> int:
    return body.ops[find(body, "silu")].inputs[0]


def shape_of(body: Body) -> tuple[int, ...]:
    return body.values[find_float(body)].shape


def with_last(body: Body, given: dict[str, Attr]) -> Body:
    return replace(body, ops=(*body.ops[:-1], replace(body.ops[-1], attrs=given)))


@pytest.mark.parametrize("name", DEAD)
def test_what_nobody_reads_is_looked_at_all_the_same(name: str) -> None:
    change, said = DEAD[name]
    changed = edit_body(llama(), 0, "forward", change)
    if isinstance(said, str):
        assert verify(changed).verdict == said
        return
    with pytest.raises(said):
        verify(changed)


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    operator, change, _ = CALLS["add of three"]
    store.save(llama(), tmp_path / "right")
    assert run("verify", tmp_path / "right", "--out", tmp_path / "run").exit_code == 0
    store.save(edit_op(llama(), operator, change), tmp_path / "wrong")
    found = run("verify", tmp_path / "wrong", "--out", tmp_path / "other")
    assert found.exit_code == 3
    assert "body 0 (forward), operator" in found.stderr
    assert "add takes 1 to 2 operands (x, [y]), found 3" in found.stderr


def run(*args: object) -> Outcome:
    return CliRunner().invoke(cli.main, [str(arg) for arg in args])


def test_operators_are_listed_and_named_if_they_are_near() -> None:
    assert "linear(x, weight, [bias])" in run("operators").output
    assert '"name": "silu"' in run("operators", "silu", "--json").output
    found = run("operators", "slu")
    assert found.exit_code == 3
    assert "near: silu" in found.stderr


def test_a_call_of_pytorch_that_no_declaration_knows_is_none_of_that_operator() -> None:
    """What the nnScaler reader meets may be legal; it is named, and has no meaning."""

    def read(name: str, inputs: list[int], given: dict[str, Attr]) -> str:
        held = SimpleNamespace(ops=[], device=SimpleNamespace(made=Calls()))
        BodyWriter.emit(held, name, inputs, [9], given, Source())  # type: ignore[arg-type]
        (op,) = held.ops
        check_call(0, op)
        return str(op.name)

    assert read("cross_entropy", [0, 1], {}) == "cross_entropy"
    weighted = read("cross_entropy", [0, 1, 2], {})
    assert weighted == "cross_entropy (takes 2 operands (logits, ids), found 3)"
    with pytest.raises(Unsupported, match="is not declared"):
        apply_forward(ShapeInterpreter(), weighted, [(2, 3, 4), (2, 3), (4,)], {})
    # An attribute that is not declared is said where the operator is read.
    assert read("softmax", [0], {"dim": 1, "beta": 2}) == "softmax"


# -- what is joined again, experts -----------------------------------------------------------------


def test_an_attribute_of_what_joins_slices_is_read() -> None:
    """Joined slices are the tensor that they are of, unless more is said of the joining."""

    def within(key: str, value: Attr, name: str) -> Plan:
        def change(body: Body) -> Body:
            number = max(i for i, op in enumerate(body.ops) if op.name == name)
            ops = list(body.ops)
            ops[number] = replace(ops[number], attrs={**ops[number].attrs, key: value})
            return replace(body, ops=tuple(ops))

        return edit_body(joined(RIGHT[1]), 0, "forward", change)

    assert_proved(joined(RIGHT[1]))
    for name in ("concat", "slice"):
        found = verify(within("reverse", True, name))
        assert found.verdict == "inconclusive"
        assert "attribute reverse of operator" in found.reason


@pytest.mark.parametrize("start", [2, affine(0, {"ep": 2})], ids=["number", "affine"])
def test_where_local_experts_end_is_read(start: int | Affine) -> None:
    shapes = [(3, 4), (3, 2), (3, 2), (2, 5, 4), (2, 5, 4), (2, 4, 5)]

    def result(end: int | Affine) -> object:
        given: dict[str, Attr] = {"local_expert_start": start, "local_expert_end": end}
        return apply_forward(ShapeInterpreter(), "nnscaler_moe_gmm", shapes, given)

    assert result(start + 2) == [(3, 4)]
    for wrong in (start + 1, start + 3):
        with pytest.raises(ShapeMismatch, match="local experts"):
            result(wrong)


# -- operators that took less than PyTorch's -------------------------------------------------------


def linear(b: BodyBuilder, x: int, w: int) -> int:
    return b.linear(x, w)


def permuted(b: BodyBuilder, x: int, w: int) -> int:
    turned = b.op("permute", b.linear(x, w), dims=(-1, -2))
    return b.op("permute", turned, dims=(1, -2))


def rows_of_matrices(b: BodyBuilder, x: int, w: int) -> int:
    """Each row a matrix of its own, times one matrix."""
    rows = b.shape(x)[0]
    product = b.matmul(b.view(x, rows, 1, WIDTH), b.transpose(w, 0, 1))
    return b.view(product, rows, WIDTH)


def vectors(b: BodyBuilder, x: int, w: int) -> int:
    """A factor of one dimension: the matrix times a column of ones, times the rows."""
    rows = b.shape(x)[0]
    return b.view(b.matmul(b.view(x, rows, 1, 1, WIDTH), b.transpose(w, 0, 1)), rows, WIDTH)


def expanded(b: BodyBuilder, x: int, w: int) -> int:
    return b.op("mean", b.op("expand", b.linear(x, w), size=(3, -1, WIDTH)), dim=0)


def constants(b: BodyBuilder, x: int, w: int) -> int:
    """``(x w^T) (0 x + 1 + 0 x + 2)`` in two constants."""
    zero = b.op("mul", x, other=Fraction(0))
    one, two = (b.op("add", zero, other=Fraction(n)) for n in (1, 2))
    return b.mul(b.linear(x, w), b.add(one, two))


def tripled(b: BodyBuilder, x: int, w: int) -> int:
    return b.mul_constant(b.linear(x, w), Fraction(3))


RIGHT_PAIRS: dict[str, tuple[Compute, Compute]] = {
    "permute from the end": (linear, permuted),
    "matmul of matrices by one": (linear, rows_of_matrices),
    "matmul of matrices by one in more": (linear, vectors),
    "expand to more dimensions": (linear, expanded),
    "two constants added": (constants, tripled),
    "a constant as two": (tripled, constants),
}


@pytest.mark.parametrize("name", RIGHT_PAIRS)
def test_what_pytorch_takes_is_proved_and_checked(name: str, tmp_path: Path) -> None:
    single, parallel = RIGHT_PAIRS[name]
    found = verify(plan(single, parallel), out=tmp_path)
    assert found.verdict == "proved", (found.reason, found.findings[:2])
    assert [str(problem) for problem in check(tmp_path).problems] == []


@pytest.mark.parametrize("name", RIGHT_PAIRS)
def test_and_twice_of_it_is_refuted(name: str) -> None:
    single, parallel = RIGHT_PAIRS[name]

    def twice(b: BodyBuilder, x: int, w: int) -> int:
        return b.mul_constant(parallel(b, x, w), Fraction(2))

    assert verify(plan(single, twice)).verdict == "refuted"


# -- what has no meaning ---------------------------------------------------------------------------


def without_mask(b: BodyBuilder, x: int, w: int) -> int:
    """``(w + mask) - mask``: minus infinity less itself."""
    mask = b.view(b.op("create_mask", w, w), WIDTH, WIDTH)
    return b.linear(x, b.sub(b.add(w, mask), mask))


def nothing_summed(b: BodyBuilder, x: int, w: int) -> int:
    left, right = (b.op("slice", v, dim=1, start=0, size=0) for v in (x, w))
    return b.add(b.linear(x, w), b.linear(left, right))


@pytest.mark.parametrize(
    ("compute", "said"),
    [(without_mask, "masked"), (nothing_summed, "which has no entries")],
    ids=["a mask less itself", "an inner dimension of 0"],
)
def test_what_is_no_number_is_inconclusive(compute: Compute, said: str) -> None:
    assert_proved(plan(linear))
    found = verify(plan(compute))
    assert found.verdict == "inconclusive"
    assert said in found.reason


@pytest.mark.parametrize("name", ["softmax", "view"])
def test_a_derivative_that_no_gradient_reaches_is_inconclusive(name: str) -> None:
    """The operator runs backward though nothing arrives."""

    def change(op: Op) -> Op:
        return replace(op, inputs=(*op.inputs[:-1], -1))

    found = verify(edit_op(llama(), name, change, body="backward"))
    assert found.verdict == "inconclusive"
    assert f"the derivative of {name} where no gradient arrives" in found.reason


def test_a_fault_of_ours_is_no_word_about_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardproof.partition.inference.interpreter import LineageInterpreter

    def fails(*_: object) -> None:
        raise IndexError("tuple index out of range")

    assert_proved(plan(linear))
    monkeypatch.setattr(LineageInterpreter, "einsum", fails)
    with pytest.raises(IndexError) as found:
        verify(plan(linear))
    assert any("linear in layer" in note for note in found.value.__notes__)


# -- the same by another route ---------------------------------------------------------------------


def scaled_rows(operator: str, factor: Fraction) -> Compute:
    """The softmax, or the maximum, of rows times a factor."""

    def compute(b: BodyBuilder, x: int, w: int) -> int:
        h = b.op("mul", b.linear(x, w), other=factor)
        return b.softmax(h) if operator == "softmax" else b.add(x, b.amax(h, 1, keepdim=True))

    return compute


@pytest.mark.parametrize("factor", [Fraction(-2), Fraction(-1, 3), Fraction(-1), Fraction(2)])
@pytest.mark.parametrize("operator", ["softmax", "amax"])
def test_a_maximum_of_what_is_scaled_is_proved_for_either_sign(
    operator: str, factor: Fraction, tmp_path: Path
) -> None:
    right = scaled_rows(operator, factor)
    found = verify(plan(right), out=tmp_path)
    assert found.verdict == "proved", found.reason
    assert [str(problem) for problem in check(tmp_path).problems] == []
    assert verify(plan(right, scaled_rows(operator, -factor))).verdict == "refuted"


def divided(b: BodyBuilder, x: int, w: int) -> int:
    return b.div_constant(b.linear(x, w), Fraction(WIDTH))


def counted(b: BodyBuilder, x: int, w: int, more: int = 0) -> int:
    """Divided by how many there are in a row, which is added up."""
    h = b.linear(x, w)
    ones = b.op("add", b.op("mul", h, other=Fraction(0)), other=Fraction(1 + more))
    return b.op("div", h, b.sum(ones, 1, keepdim=True))


def root(b: BodyBuilder, x: int, w: int) -> int:
    return b.op("sqrt", b.exp(b.linear(x, w)))


def power(exponent: Fraction) -> Compute:
    return lambda b, x, w: b.op("pow", b.exp(b.linear(x, w)), exponent=exponent)


def decay(b: BodyBuilder, x: int, w: int) -> int:
    return b.mul(x, b.exp(b.op("mul", b.linear(x, w), other=Fraction(-1))))


def quotient(b: BodyBuilder, x: int, w: int) -> int:
    return b.op("div", x, b.exp(b.linear(x, w)))


def inverted(b: BodyBuilder, x: int, w: int) -> int:
    return b.mul(x, power(Fraction(-1))(b, x, w))


def growth(b: BodyBuilder, x: int, w: int) -> int:
    return b.mul(x, b.exp(b.linear(x, w)))


ROUTES: dict[str, tuple[Compute, Compute, Compute]] = {
    "a counted divisor": (divided, counted, lambda b, x, w: counted(b, x, w, 1)),
    "a root": (root, power(Fraction(1, 2)), power(Fraction(1, 3))),
    "a quotient by an exponential": (decay, quotient, growth),
    "an exponential inverted": (decay, inverted, growth),
}


@pytest.mark.parametrize("name", ROUTES)
def test_the_same_by_a_law_is_proved_both_ways_and_checked(name: str, tmp_path: Path) -> None:
    one, other, wrong = ROUTES[name]
    for number, pair in enumerate(((one, other), (other, one), (other, other))):
        found = verify(plan(*pair), out=tmp_path / str(number))
        assert found.verdict == "proved", (pair, found.reason, found.findings[:2])
        assert [str(problem) for problem in check(tmp_path / str(number)).problems] == []
    assert verify(plan(one, wrong)).verdict == "refuted"
    assert verify(plan(other, wrong)).verdict == "refuted"


def test_a_quotient_by_itself_is_not_refuted_by_rounding() -> None:
    """``h / h`` is 1 where it is defined, and its gradient is a rounding error of 0."""

    def itself(b: BodyBuilder, x: int, w: int) -> int:
        h = b.linear(x, w)
        return b.op("div", h, h)

    def one(b: BodyBuilder, x: int, w: int) -> int:
        return b.op("add", b.op("mul", b.linear(x, w), other=Fraction(0)), other=Fraction(1))

    assert_proved(plan(itself))
    assert verify(plan(itself, one)).verdict != "refuted"
    assert verify(plan(one, itself)).verdict == "inconclusive"


# -- another plan is no counterexample -------------------------------------------------------------

VOCABULARY = 16

Loss = Callable[[BodyBuilder, int, int], int]


def classes(single: Loss, parallel: Loss) -> Plan:
    """A loss of logits ``[rows, 4, vocabulary]`` and their ids, rows divided over two ranks."""

    def side(program: ProgramBuilder, rows: int, loss: Loss) -> ProgramBuilder:
        weight = program.parameter("w", (VOCABULARY, WIDTH))
        body = program.body("forward")
        x, ids = body.load_batch(("x", (rows, 4, WIDTH), "float32"), ("ids", (rows, 4), "int64"))
        body.loss(body.sum(loss(body, body.linear(x, body.parameter(weight)), ids)))
        program.schedule(body, body.backward(), 1)
        if program.extents:
            program.reduce([(weight, along("dp"))])
        return program

    one = side(ProgramBuilder("single"), 2 * ROWS, single).build()
    many = side(ProgramBuilder("ranks", axes=(("dp", 2, 1),)), ROWS, parallel).build()
    return Plan("classes", one, (many,), 1, ("dp",))


def times(factor: Fraction) -> Loss:
    return lambda b, y, ids: b.mul_constant(b.cross_entropy(y, ids), factor)


def number_of_classes(b: BodyBuilder, y: int) -> int:
    ones = b.op("add", b.op("mul", y, other=Fraction(0)), other=Fraction(1))
    return b.sum(ones, 2)


def per_class(b: BodyBuilder, y: int, ids: int) -> int:
    return b.op("div", b.cross_entropy(y, ids), number_of_classes(b, y))


def per_root(b: BodyBuilder, y: int, ids: int) -> int:
    return b.op("div", b.cross_entropy(y, ids), b.op("sqrt", number_of_classes(b, y)))


def test_a_mean_over_classes_that_are_counted_is_proved() -> None:
    assert_proved(classes(times(Fraction(1, VOCABULARY)), per_class))
    assert_proved(classes(per_class, times(Fraction(1, VOCABULARY))))
    assert verify(classes(times(Fraction(1, VOCABULARY - 1)), per_class)).verdict == "refuted"


def test_a_difference_that_fewer_classes_make_is_no_counterexample() -> None:
    """A root of 16 is 4, and of fewer classes it is not."""
    right = classes(times(Fraction(1, 4)), per_root)
    wrong = classes(times(Fraction(1, 5)), per_root)
    for made, differs in ((right, False), (wrong, True)):
        result = partition(made)
        assert result.counted
        sides = result.derived, unroll(made.programs, made.microbatches)
        fewer_classes = simulate(made, *sides)
        assert fewer_classes.counts(result.counted)
        assert fewer_classes.differs
        itself = confirmed(fewer_classes, made, *sides)
        assert not itself.counts(result.counted)
        assert itself.differs == differs
    assert verify(right).verdict == "inconclusive"
    assert verify(wrong).verdict == "refuted"


def test_nothing_is_counted_in_an_ordinary_loss() -> None:
    made = classes(times(Fraction(1)), times(Fraction(1)))
    assert not partition(made).counted
    assert verify(classes(times(Fraction(1)), times(Fraction(2)))).verdict == "refuted"
