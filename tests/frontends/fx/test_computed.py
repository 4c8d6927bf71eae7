"""Known numbers of graphs, by NumPy, beside what PyTorch gives for the same calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shardproof.frontends.fx import computed  # noqa: E402
from shardproof.frontends.fx.arrays import RULES  # noqa: E402
from shardproof.frontends.fx.computed import Computed  # noqa: E402
from shardproof.frontends.fx.records import GETITEM, Graph, Node  # noqa: E402
from tests.frontends.aten.calls import CALLS, Draw  # noqa: E402
from tests.frontends.aten.test_table import plain  # noqa: E402

DRAWS = 6
#: Calls of integers, and of what no lowering has.
WHOLE = torch.tensor([[3, -2, 5], [-7, 4, 1]])
OTHER = torch.tensor([2, -3, 4])
FLAGS = torch.tensor([True, False, True])
BYTES = torch.tensor([0, 1, 200], dtype=torch.uint8)
PLANE = torch.tensor([1.5 + 2j, -0.5 - 1j])
LITTLE, TWICE = torch.tensor([-3, 0, 9], dtype=torch.int8), {"alpha": 2}
#: Fractions, and numbers of a sequence, that are cut before anything is added to them.
PARTS, CUT = torch.tensor([0.6, 0.7, -1.3]), {"dtype": torch.int64}
CUT_STEPS = (3.25, -4, -3, {"dtype": torch.int32})
OWN: dict[str, list[tuple[Any, ...]]] = {
    **{f"aten.{n}.Tensor": [(WHOLE, OTHER), (FLAGS, OTHER)] for n in ("mul", "add", "eq", "lt")},
    **{f"aten.{n}.Tensor": [(WHOLE, OTHER)] for n in ("ge", "remainder", "fmod")},
    **{f"aten.{n}.Tensor": [(WHOLE, OTHER), (LITTLE, BYTES, TWICE)] for n in ("sub", "rsub")},
    **{f"aten.{n}.Scalar": [(WHOLE, 2), (WHOLE, 0.5)] for n in ("mul", "add", "sub", "le", "gt")},
    **{f"aten.{n}.Scalar": [(BYTES, -1), (BYTES, 300), (BYTES, 1.5)] for n in ("ge", "ne", "lt")},
    "aten.gt.Tensor": [(BYTES, torch.tensor(-1)), (torch.tensor(300), BYTES)],
    **{f"aten.{n}.Scalar": [(WHOLE, 3), (WHOLE, -3)] for n in ("remainder", "fmod")},
    **{f"aten.bitwise_{n}.Scalar": [(WHOLE, 6)] for n in ("and", "or", "xor")},
    **{f"aten.__{n}__.Scalar": [(WHOLE, 6)] for n in ("and", "or", "xor")},
    **{f"aten.__{n}__.Tensor": [(WHOLE, OTHER)] for n in ("and", "or", "xor")},
    **{f"aten.bitwise_{n}.Tensor": [(FLAGS, ~FLAGS)] for n in ("and", "or", "xor")},
    **{f"aten.{n}.default": [(BYTES,), (LITTLE,)] for n in ("exp", "cos", "sqrt", "reciprocal")},
    **{f"aten.{n}.default": [(LITTLE,)] for n in ("abs", "neg", "sign", "relu", "sigmoid")},
    **{f"aten.{n}.default": [(FLAGS,)] for n in ("logical_not", "bitwise_not", "all", "any")},
    **{f"aten.{n}.default": [(WHOLE,), (BYTES,)] for n in ("amax", "amin", "max", "min")},
    **{f"aten.{n}.default": [(BYTES, torch.tensor(-1))] for n in ("minimum", "maximum")},
    "aten.rsqrt.default": [(BYTES,)],
    "aten.round.default": [(torch.tensor([0.5, 1.5, -2.5]),)],
    "aten.div.Tensor": [(WHOLE, OTHER), (LITTLE, BYTES)],
    "aten.div.Tensor_mode": [(WHOLE, OTHER, {"rounding_mode": m}) for m in ("floor", "trunc")],
    "aten.div.Scalar_mode": [(WHOLE, 2, {"rounding_mode": m}) for m in ("floor", "trunc", None)],
    "aten.floor_divide.default": [(WHOLE, OTHER), (WHOLE / 2, OTHER)],
    "aten.remainder.Scalar_Tensor": [(7, OTHER)],
    "aten.pow.Scalar": [(2, OTHER.abs()), (10000.0, OTHER / 8)],
    "aten.pow.Tensor_Scalar": [(WHOLE, 3), (WHOLE, 0.5)],
    "aten.atan2.default": [(WHOLE / 3, OTHER / 2), (BYTES, FLAGS)],
    "aten.logical_xor.default": [(FLAGS, ~FLAGS)],
    "aten.detach_.default": [(torch.arange(3),)],
    "aten.max.other": [(WHOLE, OTHER)],
    "aten.min.other": [(WHOLE, OTHER)],
    "aten.where.Scalar": [(FLAGS, 2, 3.5)],
    "aten.where.self": [(FLAGS, WHOLE, OTHER)],
    "aten.clamp.default": [(WHOLE, -2, 3), (WHOLE, None, 3), (WHOLE, 3, -2), (WHOLE, 0.5)],
    "aten._to_copy.default": [(WHOLE / 2, {"dtype": torch.int64}), (BYTES, {"dtype": torch.int8})],
    "aten.arange.start_step": [(5, -4, -3), (0.0, 1.0, 0.3), (2, 2, 1), CUT_STEPS],
    "aten.arange.default": [(3.5,)],
    "aten.eye.default": [(3,)],
    "aten.eye.m": [(2, 3)],
    "aten.linspace.default": [(0, 1, 5)],
    "aten.tril_indices.default": [(3, 4), (3, 4, -1)],
    "aten.triu_indices.default": [(3, 4), (4, 3, 1)],
    "aten.slice.Tensor": [(WHOLE, 1, 0, 9223372036854775807, 2), (WHOLE, -1, -2)],
    "aten.split.Tensor": [(WHOLE, 2, 1)],
    "aten.chunk.default": [(torch.arange(7), 3), (torch.arange(4), 3)],
    "aten.index.Tensor": [(WHOLE, [None, OTHER.abs() % 3]), (WHOLE, [FLAGS[:2]])],
    "aten.roll.default": [(WHOLE, [1]), (WHOLE, [1], [1])],
    "aten.cumsum.default": [(WHOLE, 1), (BYTES, 0), (PARTS, 0, CUT)],
    "aten.sum.default": [(WHOLE,), (BYTES,), (PARTS, CUT)],
    "aten.constant_pad_nd.default": [(WHOLE, [1, 2, 0, 1], 7)],
    "aten.repeat_interleave.self_int": [(WHOLE, 2), (WHOLE, 2, 1)],
    "aten.meshgrid.indexing": [([OTHER, OTHER], {"indexing": "xy"})],
    "aten.scalar_tensor.default": [(2.5,)],
    "aten.outer.default": [(OTHER, OTHER)],
    "aten.einsum.default": [("i,j->ij", [OTHER, OTHER])],
    "aten.sum.dim_IntList": [(WHOLE, [0], True), (WHOLE, []), (PARTS, [0], CUT)],
    "aten.select_scatter.default": [(WHOLE, OTHER, 0, -1)],
    "aten.slice_scatter.default": [(WHOLE, WHOLE[:, :2] * 2, 1, 0, 2)],
    "aten.copy.default": [(WHOLE, OTHER)],
    "aten.full_like.default": [(WHOLE, 3)],
    **{f"aten.{n}.default": [(PLANE,)] for n in ("view_as_real", "real", "imag", "_conj", "abs")},
    **{f"aten.{n}.default": [(PLANE,)] for n in ("conj_physical", "resolve_conj")},
    "aten.view_as_complex.default": [(torch.ones(3, 2),)],
    "aten.polar.default": [(torch.ones(3), OTHER / 3)],
    "aten.complex.default": [(torch.ones(3), OTHER / 3)],
    "aten.index_select.default": [(WHOLE, 1, torch.tensor([2, 0]))],
}


def overload(name: str) -> Any:
    found = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def calls(name: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for number, make in enumerate(CALLS.get(name, ())):
        for seed in range(DRAWS):
            args, kwargs = make(Draw(1000 * number + seed))
            yield tuple(map(plain, args)), {k: plain(x) for k, x in kwargs.items()}
    for given in OWN.get(name, ()):
        named = given[-1] if isinstance(given[-1], dict) else {}
        yield given[: len(given) - bool(named)], named


class Written:
    """A call as a graph whose operands are known."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.nodes: list[Node] = []

    def argument(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            name = f"x{len(self.known)}"
            self.known[name] = x.numpy()
            self.nodes.append(Node(name, "placeholder", name, [], {}, list(x.shape), kind(x)))
            return {"n": name}
        if isinstance(x, torch.dtype):
            return str(x).removeprefix("torch.")
        return [self.argument(i) for i in x] if isinstance(x, (list, tuple)) else x

    def evaluated(self, name: str, args: Any, kwargs: Any, expected: Any) -> list[Any]:
        given = [self.argument(x) for x in args]
        named = {key: self.argument(x) for key, x in kwargs.items()}
        if isinstance(expected, torch.Tensor):
            shape = list(expected.shape)
            self.nodes.append(Node("y", "call_function", name, given, named, shape, kind(expected)))
            return [Computed(Graph(0, self.nodes), self.known).array("y")]
        self.nodes.append(Node("y", "call_function", name, given, named))
        for n, x in enumerate(expected):
            part = [{"n": "y"}, n]
            self.nodes.append(
                Node(f"y{n}", "call_function", GETITEM, part, {}, list(x.shape), kind(x))
            )
        numbers = Computed(Graph(0, self.nodes), self.known)
        return [numbers.array(f"y{n}") for n in range(len(expected))]


def kind(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


@pytest.mark.parametrize("name", sorted(RULES))
def test_known_numbers_are_what_pytorch_says(name: str) -> None:
    count = 0
    for args, kwargs in calls(name):
        expected = overload(name)(*args, **kwargs)
        made = Written().evaluated(name, args, kwargs, expected)
        for x, y in zip([expected] if len(made) == 1 else expected, made, strict=True):
            x = (x[0] if isinstance(x, (list, tuple)) else x).resolve_conj()
            assert y is not None, (name, args, kwargs)
            assert y.dtype == x.numpy().dtype
            np.testing.assert_allclose(y, x.numpy(), rtol=2e-6, atol=1e-6)
            count += 1
    assert count


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten.remainder.Tensor", (OTHER, torch.zeros(3, dtype=torch.int64))),
        ("aten.index_select.default", (WHOLE, 1, torch.tensor([-1]))),
        ("aten._to_copy.default", (torch.tensor([float("inf")]),)),
        ("aten.nonsense.default", (WHOLE,)),
        ("aten.triu.default", (WHOLE, 0, 1)),
    ],
)
def test_what_pytorch_refuses_or_leaves_open_is_not_known(name: str, args: Any) -> None:
    like = torch.zeros(args[0].shape, dtype=torch.int64)
    assert Written().evaluated(name, args, {}, like) == [None]


def test_numbers_of_inputs_are_not_known() -> None:
    w = Written()
    x = w.argument(OTHER)
    w.nodes += [
        Node("a", "call_function", "aten.arange.default", [3], {}, [3], "int64"),
        Node("b", "call_function", "aten.add.Tensor", [{"n": "a"}, 1], {}, [3], "int64"),
        Node("c", "call_function", "aten.add.Tensor", [{"n": "b"}, x], {}, [3], "int64"),
    ]
    numbers = Computed(Graph(0, w.nodes), {})
    assert numbers.array("b").tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert numbers.array("c") is None
    assert not numbers.is_known("c")


def test_an_operand_that_lends_its_type_need_not_be_known() -> None:
    w = Written()
    x = w.argument(torch.tensor([2.0, 3.0]))
    full = [x, [2, 2], float("-inf")]
    w.nodes += [
        Node("a", "call_function", "aten.ones_like.default", [x], {}, [2], "float32"),
        Node("b", "call_function", "aten.new_full.default", full, {}, [2, 2], "float32"),
        Node("c", "call_function", "aten.triu.default", [{"n": "b"}, 1], {}, [2, 2], "float32"),
        Node("d", "call_function", "aten.mul.Tensor", [{"n": "a"}, x], {}, [2], "float32"),
    ]
    numbers = Computed(Graph(0, w.nodes), {})
    assert numbers.array("a").tolist() == [1, 1]  # type: ignore[union-attr]
    assert numbers.array("c").tolist() == [[0, -np.inf], [0, 0]]  # type: ignore[union-attr]
    assert numbers.array("d") is None


def test_large_tables_are_not_computed() -> None:
    size = computed.MOST_ELEMENTS + 1
    node = Node("a", "call_function", "aten.arange.default", [size], {}, [size], "int64")
    assert Computed(Graph(0, [node]), {}).array("a") is None


def logarithms(choice: list[object]) -> Computed:
    """Whole logarithms ``c`` of [0, 2, 4], and ``e``: a choice by whether that is 0."""
    made = ("call_function", [3])
    nodes = [
        Node("a", made[0], "aten.arange.start_step", [0, 6, 2], {}, [3], "int64"),
        Node("f", made[0], "aten._to_copy.default", [{"n": "a"}], {}, [3], "float32"),
        Node("b", made[0], "aten.log.default", [{"n": "f"}], {}, [3], "float32"),
        Node("c", made[0], "aten._to_copy.default", [{"n": "b"}], {}, [3], "int64"),
        Node("d", made[0], "aten.gt.Scalar", [{"n": "a"}, 0], {}, [3], "bool"),
        Node("e", made[0], "aten.where.self", choice, {}, [3], "int64"),
        Node("g", made[0], "aten.gt.Scalar", [{"n": "c"}, 0], {}, [3], "bool"),
    ]
    return Computed(Graph(0, nodes), {})


def test_numbers_that_integers_do_not_have_are_known_where_nothing_depends_on_them() -> None:
    """T5's buckets: the logarithm of a distance of 0 is minus infinity, and is not chosen."""
    chosen = logarithms([{"n": "d"}, {"n": "c"}, {"n": "a"}])
    assert chosen.array("e").tolist() == [0, 0, 1]  # type: ignore[union-attr]
    assert chosen.array("c") is not None, "minus infinity is the least integer everywhere"
    assert chosen.array("g").tolist() == [False, False, True]  # type: ignore[union-attr]


def test_integers_of_what_is_no_number_are_not_known_where_something_depends_on_them() -> None:
    """x86 makes another integer of it than ARM and CUDA do."""
    made = ("call_function", [1])
    nodes = [
        Node("a", made[0], "aten.full.default", [[1], float("nan")], {}, [1], "float32"),
        Node("b", made[0], "aten._to_copy.default", [{"n": "a"}], {}, [1], "int64"),
        Node("c", made[0], "aten.lt.Scalar", [{"n": "b"}, 0], {}, [1], "bool"),
        Node("d", made[0], "aten.lt.Scalar", [{"n": "b"}, 1], {}, [1], "bool"),
    ]
    numbers = Computed(Graph(0, nodes), {})
    assert numbers.array("b") is None
    assert numbers.array("c") is None
    assert numbers.array("d").tolist() == [True]  # type: ignore[union-attr]
