"""The builder's door: handles, the caller's line, numbers as they are meant, operators by name."""

from __future__ import annotations

import warnings
from fractions import Fraction

import pytest

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, Sqrt, along


def made(tp: int = 2) -> tuple[ProgramBuilder, BodyBuilder]:
    program = ProgramBuilder("ranks", axes=(("tp", tp, 1),))
    return program, program.body("forward")


def test_a_shard_where_a_value_is_expected_says_so() -> None:
    program, body = made()
    weight = program.parameter("weight", (4, 4))
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    with pytest.raises(InvalidInput, match=r"found the shard of weight: .*parameter\(\.\.\.\)"):
        body.linear(x, weight)
    assert body.shape(body.linear(x, body.parameter(weight))) == (2, 4)


def test_a_value_where_a_shard_is_expected_says_so() -> None:
    _, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    with pytest.raises(InvalidInput, match="expected a shard of the program"):
        body.parameter(x)


def test_a_value_of_another_body_says_whose_it_is() -> None:
    program, body = made()
    other = program.body("other")
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    with pytest.raises(InvalidInput, match=r"x \[2, 4\] of forward is used here"):
        other.exp(x)


@pytest.mark.parametrize("wrong", ["x", 1.5, True, 99, -1])
def test_what_is_no_value_is_refused(wrong: object) -> None:
    _, body = made()
    with pytest.raises(InvalidInput, match="expected a value of this body"):
        body.exp(wrong)  # type: ignore[arg-type]


def test_python_computes_with_no_handle() -> None:
    _, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    for wrong in (lambda: x + x, lambda: 2 * x, lambda: x / 2, lambda: x @ x, lambda: -x):
        with pytest.raises(InvalidInput, match=r"methods of the body, as in body\.add"):
            wrong()


def test_a_root_is_an_attribute_where_it_is_a_number() -> None:
    _, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    body.op("mul", x, other=Sqrt(16))
    assert body.ops[-1].attrs["other"] == 4
    with pytest.raises(InvalidInput, match=r"mul_constant\(x, Sqrt\(8\)\)"):
        body.op("mul", x, other=Sqrt(8))
    assert body.shape(body.div_constant(x, Sqrt(8))) == (2, 4)


def test_a_group_and_a_dimension_in_each_others_place_say_so() -> None:
    _, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    with pytest.raises(InvalidInput, match=r"expected a group of ranks, as along\('tp'\)"):
        body.reduce_from(x, "tp")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="expected the number of a dimension"):
        body.all_gather(x, along("tp"), 0)  # type: ignore[arg-type]


def test_a_loss_of_no_parameter_says_so() -> None:
    program, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    body.loss(body.sum(x))
    with pytest.raises(InvalidInput, match=r"depends on no trainable parameter"):
        program.schedule(body, body.backward(), 1)


def test_a_forward_that_leads_to_nothing_says_so() -> None:
    program, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    body.sum(body.linear(x, body.parameter(program.parameter("weight", (4, 4)))))
    with pytest.raises(InvalidInput, match=r"forward has no loss .* loss\(value\)"):
        program.schedule(body, body.backward(), 1)


def test_a_program_that_runs_nothing_says_so() -> None:
    program, body = made()
    body.load_batch(("x", (2, 4), "float32"))
    with pytest.raises(InvalidInput, match=r"none of the bodies forward is ever run: schedule\("):
        program.build()
    program.call(body)
    assert program.build().calls


def test_an_axis_that_there_is_not_names_what_is_near() -> None:
    program, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    with pytest.raises(InvalidInput, match=r"axis ttp is not an axis .*\(did you mean tp\?\)"):
        body.reduce_from(x, along("ttp"))
    with pytest.warns(UserWarning, match=r"weight is divided over tpp, .*\(did you mean tp\?\)"):
        shard = program.parameter("weight", (4, 4), {0: "tpp"})
    assert program.shards[shard].shape == (4, 4)
    # A degree of one may be left out of the axes.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.parameter("other", (4, 4), {0: "dp"})


def test_an_output_without_gradient_is_read_by_a_backward() -> None:
    """The indices of a router's choice have none."""
    program, body = made()
    weight = body.parameter(program.parameter("weight", (2, 4)))
    values, _ = body.topk(weight, topk=2)
    body.loss(body.sum(values))
    assert -1 in next(op for op in body.backward().ops if op.name == "topk").inputs


def test_plain_numbers_still_work() -> None:
    _, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    assert body.exp(int(x)) == 1


def test_a_float_is_the_decimal_that_it_prints_as_and_a_warning_says_so() -> None:
    program, body = made()
    weight = body.parameter(program.parameter("weight", (4,)))
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    with pytest.warns(UserWarning, match=r"eps=1e-05 is taken for 1/100000 exactly") as said:
        body.rms_norm(x, weight, 1e-5)
    assert body.ops[-1].attrs["eps"] == Fraction(1, 100_000)
    assert said[0].filename == __file__
    with pytest.raises(InvalidInput, match="expected a number"):
        body.rms_norm(x, weight, float("nan"))


def test_a_declared_operator_is_a_method() -> None:
    _, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    assert body.shape(body.slice(x, dim=1, start=0, size=2)) == (2, 2)
    assert body.shape(body.concat(x, x, dim=0)) == (4, 4)
    assert body.shape(body.mean(x, dim=1, keepdim=False)) == (2,)
    both = body.multiref(x, times=2)
    assert [body.shape(v) for v in both] == [(2, 4), (2, 4)]


def test_an_operator_that_is_not_declared_names_what_is_near() -> None:
    _, body = made()
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    with pytest.raises(InvalidInput, match=r"layer_norm is not declared.*layernorm"):
        body.op("layer_norm", x)
    with pytest.raises(AttributeError, match="layernorm"):
        body.layer_norm(x)
    with pytest.raises(AttributeError, match="all_reduce"):
        body.allreduce(x)


def test_dimensions_count_from_either_end() -> None:
    program, body = made()
    weight = program.parameter("weight", (4, 6), {-1: "tp"})
    assert program.shards[weight].shape == (4, 3)
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    assert body.shape(body.all_gather(x, -1, along("tp"))) == (2, 8)
    assert body.ops[-1].attrs["dim"] == 1
    assert body.shape(body.all_to_all(x, -1, 0, along("tp"))) == (4, 2)
    with pytest.raises(InvalidInput, match="dimension 2"):
        body.chunk(x, 2, along("tp"))
    with pytest.raises(InvalidInput, match="dimension -3"):
        program.parameter("other", (4, 6), {-3: "tp"})


def test_every_operator_names_the_line_that_wrote_it_and_backward_the_same() -> None:
    program, body = made(1)
    weight = program.parameter("weight", (4, 4))
    (x,) = body.load_batch(("x", (2, 4), "float32"))
    y = body.linear(x, body.parameter(weight))
    body.loss(body.sum(y))
    back = body.backward()
    (forward,) = [op for op in body.ops if op.name == "linear"]
    (backward,) = [op for op in back.ops if op.name == "linear"]
    assert forward.source.location.startswith("frontends/test_handles.py:")
    assert backward.source == forward.source


def test_a_plan_of_the_zoo_names_no_line_of_ours() -> None:
    from shardproof.frontends.zoo import build

    plan = build("llama3-8b", tp=2, layers=1, hidden=16, heads=4, vocabulary=32, sequence=8,
                 kv_heads=2, ffn=24)  # fmt: skip
    places = {op.source.location for b in plan.programs[0].bodies for op in b.ops}
    assert places == {""}
