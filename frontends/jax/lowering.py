"""The child's side: jax is imported, the step lowered and partitioned, nothing computed."""

from __future__ import annotations

import glob
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.jax.step import Step

#: The pass behind which the program is what one device runs, before anything is optimized.
PASS = "spmd-partition.*"
_AFTER = "*after_spmd-partitioning*.txt"


def started() -> int:
    """How many devices jax has; 0: it has not started.

    Example: 1 after ``jnp.zeros(3)`` on a processor, without flags.
    """
    from jax._src import xla_bridge

    return len(jax.devices()) if xla_bridge.backends_are_initialized() else 0


def devices(count: int) -> None:
    """Have jax start with so many devices, all on this machine's processor.

    Example: ``devices(8)`` before anything else, and ``jax.devices()`` are eight of the processor.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def lowered(step: Step) -> Mapping[str, Any]:
    """HLO texts of both sides of a step, names and placements of inputs and outputs, as plain data.

    Example: of ``mlp`` on a mesh dp 2, tp 4: the text of ``jit_mlp`` for one device, that of one
    device after the partitioner, and for ``p['a']`` the shape [8, 16] with eight starts.
    """
    args = [jax.tree.map(_abstract, arg) for arg in step.args]
    parallel = step.parallel or step.step
    axes = dict(step.axes)
    alone = _alone(step.step, args, tuple(axes))
    mesh = step.mesh if isinstance(step.mesh, Mesh) else None
    if mesh is None:
        mesh = jax.make_mesh(
            tuple(axes.values()),
            tuple(axes),
            axis_types=(jax.sharding.AxisType.Auto,) * len(axes),
        )
    given: dict[str, Any] = {}
    for key in ("in_shardings", "out_shardings"):
        spec = getattr(step, key)
        if spec is not None:
            given[key] = jax.tree.map(lambda s: _named(mesh, s), spec, is_leaf=_is_leaf)
    with jax.set_mesh(mesh):
        ranks = jax.jit(parallel, keep_unused=True, **given).lower(*args)
        text, compiled = _partitioned(ranks)
    paths = jax.tree_util.tree_flatten_with_path(tuple(args))[0]
    results = jax.tree_util.tree_flatten_with_path(alone.out_info)[0]
    others = jax.tree_util.tree_flatten_with_path(ranks.out_info)[0]
    shapes = [[leaf.shape for _, leaf in leaves] for leaves in (results, others)]
    if shapes[0] != shapes[1]:
        raise InvalidInput(f"the steps' results have shapes {shapes[0][:6]} and {shapes[1][:6]}")
    shardings = jax.tree.leaves(compiled.input_shardings[0])
    outs = jax.tree.leaves(compiled.output_shardings)
    names = _parameters(step.step, len(step.args))
    return {
        "single": alone.as_text(dialect="hlo"),
        "parallel": text,
        "inputs": [names[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in paths],
        "outputs": ["result" + jax.tree_util.keystr(path) for path, _ in results],
        "placed_inputs": [_starts(s, leaf) for s, (_, leaf) in zip(shardings, paths, strict=True)],
        "placed_outputs": [_starts(s, leaf) for s, (_, leaf) in zip(outs, results, strict=True)],
    }


def _alone(step: Callable[..., Any], args: list[Any], axes: tuple[str, ...]) -> Any:
    """The step lowered for one device: without a mesh, or where a constraint names axes of one
    (``with_sharding_constraint(x, P("dp"))``), on a mesh of one device along each of them."""
    jitted = jax.jit(step, keep_unused=True)
    try:
        return jitted.lower(*args)
    except RuntimeError as error:
        if "mesh" not in str(error):
            raise
    kinds = (jax.sharding.AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh((1,) * len(axes), axes, axis_types=kinds, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        return jitted.lower(*args)


def _abstract(x: Any) -> Any:
    """What is known of an argument before the step runs; a number of Python is one as in
    ``jax.jit``."""
    if isinstance(x, bool | int | float | complex):
        x = jax.typeof(x)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=True)
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        raise InvalidInput(
            f"args: {x!r:.200}, expected arrays, jax.ShapeDtypeStruct or numbers, in trees"
        )
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _is_leaf(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec | NamedSharding)


def _named(mesh: Mesh, sharding: Any) -> Any:
    """``sharding`` on the mesh; None lets the compiler choose."""
    if isinstance(sharding, PartitionSpec):
        return NamedSharding(mesh, sharding)
    if isinstance(sharding, NamedSharding):
        return NamedSharding(mesh, sharding.spec)
    return sharding


def _parameters(step: Callable[..., Any], count: int) -> list[str]:
    """What the function calls its arguments."""
    import inspect

    try:
        names = list(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        names = []
    return names if len(names) == count else [f"argument {n}" for n in range(count)]


def _partitioned(ranks: Any) -> tuple[str, Any]:
    """What one device runs, as the partitioner wrote it."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = ranks.compile(
            compiler_options={
                "xla_dump_to": folder,
                "xla_dump_hlo_pass_re": PASS,
                "xla_dump_large_constants": True,
            }
        )
        files = sorted(glob.glob(str(Path(folder) / _AFTER)))
        if not files:
            raise InvalidInput("XLA wrote no program behind its partitioner")
        return Path(files[-1]).read_text(), compiled


def _starts(sharding: Any, leaf: Any) -> tuple[list[int], list[list[int]]]:
    """The full shape, and where the part of every device begins, in the order of device numbers;
    of typed keys those of the numbers that they consist of, which are never divided."""
    shape = leaf.shape
    if any(n and math.isnan(n) for n in shape):
        raise InvalidInput(f"shape {shape}")
    inside: tuple[int, ...] = ()
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        inside = jax.eval_shape(jax.random.key_data, _abstract(leaf)).shape[len(shape) :]
    starts = []
    for index in sharding.devices_indices_map(shape).values():
        starts.append([*(int(part.start or 0) for part in index), *(0 for _ in inside)])
    return [int(n) for n in (*shape, *inside)], starts
