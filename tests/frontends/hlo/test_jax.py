"""Against JAX itself: what is read computes what JAX computes, and steps verified as users write
them."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed (shardproof[jax])")

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import shardproof.jax as sj
from shardproof.frontends.hlo import evaluate, inline, read, stablehlo, text
from tests.frontends.hlo.functions import CASES, mapped

F = jnp.float32
S = jax.ShapeDtypeStruct
X, A, B = S((8, 16), F), S((16, 32), F), S((32, 16), F)


def two(x: Any, a: Any, b: Any) -> Any:
    return jnp.tanh(x @ a) @ b


def twin(f: Any) -> Any:
    return mapped(f, (P("dp"), P(None, "tp"), P("tp")), P("dp"))


def loss(p: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ p["a"]) @ p["b"])


def replicas(reduce: Any) -> Any:
    """Gradients of replicas, reduced by ``reduce``."""

    def step(p: Any, x: Any) -> Any:
        return jax.tree.map(reduce, jax.grad(loss)(p, x))

    return mapped(step, (P(), P("dp")), P())


def verdict(folder: Path, step: Any, **stated: Any) -> sj.Result:
    return sj.verify(step, out=folder / "run", cache_dir=folder / "cache", **stated)


MESH = {"dp": 2, "tp": 4}


@pytest.mark.parametrize("name", [n for n in CASES if n != "scanned"])
def test_right_steps_are_proved(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    result = verdict(
        tmp_path,
        case.step,
        args=case.args,
        mesh=case.mesh,
        in_shardings=case.in_shardings,
        out_shardings=case.out_shardings,
        parallel=case.parallel,
    )
    assert result.verdict == "proved", result.reason


TWINS = {
    "psum": (lambda x, a, b: lax.psum(two(x, a, b), "tp"), "proved"),
    "no psum": (two, "refuted"),
    "a mean for a sum": (lambda x, a, b: lax.pmean(two(x, a, b), "tp"), "refuted"),
    "the wrong axis": (lambda x, a, b: lax.psum(two(x, a, b), "dp"), "refuted"),
    "twice": (lambda x, a, b: lax.psum(lax.psum(two(x, a, b), "tp"), "tp"), "refuted"),
}


def constrained(factor: float) -> Any:
    """Constraints name axes, and leave the mesh to whoever calls the step."""

    def step(x: Any, a: Any, b: Any) -> Any:
        h = lax.with_sharding_constraint(jnp.tanh(x @ a), P("dp", "tp"))
        return lax.with_sharding_constraint(factor * (h @ b), P("dp", None))

    return step


def test_constraints_need_no_mesh_around_the_single_step(tmp_path: Path) -> None:
    stated: dict[str, Any] = {"args": (X, A, B), "mesh": MESH, "in_shardings": (P("dp"), P(), P())}
    right = verdict(tmp_path / "right", constrained(1.0), **stated)
    assert right.verdict == "proved", right.reason
    wrong = verdict(tmp_path / "wrong", constrained(1.0), parallel=constrained(2.0), **stated)
    assert wrong.verdict == "refuted", wrong.reason


def slots(before: int) -> Any:
    """Which place among the rows of its group that chose the same column each row has."""

    def step(x: Any) -> Any:
        chosen = jax.nn.one_hot(jnp.argmax(x, axis=-1), x.shape[-1])
        return (jnp.cumsum(chosen, axis=0) - before) * chosen

    return step


@pytest.mark.parametrize(("before", "expected"), [(1, "proved"), (0, "refuted")])
def test_places_among_those_who_chose_the_same(before: int, expected: str, tmp_path: Path) -> None:
    def groups(x: Any) -> Any:
        return jax.vmap(slots(1))(x.reshape(2, 6, 4)).reshape(12, 4)

    own = mapped(slots(before), (P("ep"),), P("ep"))
    result = verdict(tmp_path, groups, parallel=own, args=(S((12, 4), F),), mesh={"ep": 2})
    assert result.verdict == expected, result.reason


def noisy(rate: float) -> Any:
    """Noise of a typed key, which a step takes and hands on."""

    def step(key: Any, x: Any) -> Any:
        first, second = jax.random.split(key)
        key = jax.random.fold_in(first, 7)
        return x * jax.random.bernoulli(key, rate, x.shape), second

    return step


@pytest.mark.parametrize(("rate", "expected"), [(0.5, "proved"), (0.25, "refuted")])
def test_typed_keys_are_arguments_and_results(rate: float, expected: str, tmp_path: Path) -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    result = verdict(
        tmp_path,
        noisy(0.5),
        parallel=noisy(rate),
        args=(key, X),
        mesh={"dp": 2},
        in_shardings=(P(), P("dp")),
        out_shardings=(P("dp"), P()),
    )
    assert result.verdict == expected, result.reason


@pytest.mark.parametrize("name", TWINS)
def test_shard_map_twins(name: str, tmp_path: Path) -> None:
    parallel, expected = TWINS[name]
    result = verdict(tmp_path, two, parallel=twin(parallel), args=(X, A, B), mesh=MESH)
    assert result.verdict == expected, result.reason


REPLICAS = {
    "psum": (lambda g: lax.psum(g, "dp"), "proved"),
    "missing": (lambda g: g, "refuted"),
    "mean": (lambda g: lax.pmean(g, "dp"), "refuted"),
    "psum of a sum": (lambda g: lax.psum(lax.psum(g, "dp"), "dp"), "refuted"),
}


@pytest.mark.parametrize("name", REPLICAS)
def test_gradients_of_replicas(name: str, tmp_path: Path) -> None:
    reduce, expected = REPLICAS[name]
    weights = {"a": S((16, 32), F), "b": S((32, 16), F)}
    result = verdict(
        tmp_path,
        jax.grad(loss),
        parallel=replicas(reduce),
        args=(weights, X),
        mesh={"dp": 2},
    )
    assert result.verdict == expected, result.reason


def test_what_cannot_be_lowered_is_told(tmp_path: Path) -> None:
    result = verdict(tmp_path, lambda x: x @ x, args=(X,), mesh={"dp": 2})
    assert result.verdict == "invalid input"
    assert "dot_general" in result.reason or "contracting" in result.reason
    result = verdict(tmp_path, lambda x: x, args=(X,), mesh=("dp", 2))
    assert "expected names and extents" in result.reason
    result = verdict(tmp_path, lambda x: x, args=("a text",), mesh={"dp": 2})
    assert "'a text', expected arrays" in result.reason


@pytest.mark.parametrize(("times", "expected"), [(1, "proved"), (2, "refuted")])
def test_a_number_of_python_is_an_argument(times: int, expected: str, tmp_path: Path) -> None:
    def step(x: Any, rate: Any) -> Any:
        return x - rate * jnp.tanh(x)

    def parallel(x: Any, rate: Any) -> Any:
        return step(x, times * rate)

    result = verdict(
        tmp_path,
        step,
        parallel=lambda *a: jax.shard_map(parallel, in_specs=(P("dp"), P()), out_specs=P("dp"))(*a),
        args=(X, 0.1),
        mesh={"dp": 2},
    )
    assert result.verdict == expected, result.reason


def _values(case: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    found = []
    for leaf in jax.tree.leaves(tuple(case.args)):
        whole = np.issubdtype(leaf.dtype, np.integer)
        found.append(
            rng.integers(0, 32, leaf.shape).astype(leaf.dtype)
            if whole
            else rng.normal(size=leaf.shape).astype(leaf.dtype)
        )
    return found


def _compared() -> None:
    """In a child of its own: it starts JAX."""
    jax.config.update("jax_platforms", "cpu")
    for name, case in CASES.items():
        values = _values(case)
        tree = jax.tree.unflatten(jax.tree.structure(tuple(case.args)), values)
        expected = jax.tree.leaves(case.step(*tree))
        low = jax.jit(case.step, keep_unused=True).lower(*case.args)
        for graph in (
            inline.graph(text.parse(low.as_text(dialect="hlo"))),
            inline.graph(stablehlo.parse(low.as_text())),
            read.parsed(low.as_text()),
        ):
            found = evaluate.run(graph, [values])[0]
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_allclose(
                    x, np.asarray(y), rtol=2e-3, atol=2e-4 * float(np.abs(y).max()), err_msg=name
                )


def _functions() -> None:
    """What StableHLO names and XLA writes out in its own way; in a child of its own."""
    jax.config.update("jax_platforms", "cpu")
    x = np.linspace(-0.95, 0.95, 21, dtype="float32")
    functions: dict[str, Any] = {
        **{n: getattr(jnp, n) for n in ("tan", "sinh", "cosh", "arcsin", "arctan", "arcsinh")},
        **{n: getattr(lax, n) for n in ("erf", "erfc", "erf_inv", "lgamma", "digamma")},
        **{n: getattr(jnp, n) for n in ("arctanh", "cbrt", "rint")},
        "arccosh": lambda x: jnp.arccosh(2 + x),
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "atan2": lambda x: jnp.arctan2(x, 2 + x),
        "power": lambda x: jnp.power(x * x + 1, x),
        "fmod": lambda x: jnp.fmod(x, 0.3),
        "floor_divide": lambda x: x // 0.3,
        "round away": lambda x: lax.round(4 * x, lax.RoundingMethod.AWAY_FROM_ZERO),
    }
    for name, function in functions.items():
        low = jax.jit(function).lower(x)
        for printed in (low.as_text(), low.as_text(dialect="hlo")):
            found = evaluate.run(read.parsed(printed), [[x]])[0][0]
            expected = np.asarray(function(x))
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6, err_msg=name)


def test_functions_are_those_of_jax() -> None:
    child = multiprocessing.get_context("fork").Process(target=_functions)
    child.start()
    child.join(300)
    assert child.exitcode == 0


def _pooled() -> None:
    """Gradients of maxima over windows; in a child of its own."""
    jax.config.update("jax_platforms", "cpu")
    x = np.random.default_rng(0).integers(0, 4, (2, 7, 6, 3)).astype("float32")
    for size, stride, padding in ((2, 2, "VALID"), (3, 2, "SAME"), (3, 1, "SAME"), (3, 2, "VALID")):

        def step(x: Any, size: int = size, stride: int = stride, padding: str = padding) -> Any:
            window, strides = (1, size, size, 1), (1, stride, stride, 1)
            most = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)
            return jnp.sum(jnp.sin(jnp.arange(most.size)).reshape(most.shape) * most)

        low = jax.jit(jax.grad(step)).lower(x)
        graph = inline.graph(text.parse(low.as_text(dialect="hlo")))
        found = evaluate.run(graph, [[x]])[0][0]
        np.testing.assert_allclose(found, np.asarray(jax.grad(step)(x)), rtol=1e-4, atol=1e-4)


def test_gradients_of_maxima_over_windows_are_those_of_jax() -> None:
    child = multiprocessing.get_context("fork").Process(target=_pooled)
    child.start()
    child.join(300)
    assert child.exitcode == 0


def test_what_is_read_computes_what_jax_computes() -> None:
    child = multiprocessing.get_context("fork").Process(target=_compared)
    child.start()
    child.join(300)
    assert child.exitcode == 0
