"""A verdict on a JAX step: does it compute on a mesh what it computes on one device?

::

    import jax, shardproof.jax as sj
    from jax.sharding import PartitionSpec as P

    def step(weights, x): ...

    shape = jax.ShapeDtypeStruct
    result = sj.verify(
        step,
        args=({"w": shape((64, 256), "float32")}, shape((8, 64), "float32")),
        mesh={"dp": 2, "tp": 4},
        in_shardings=({"w": P(None, "tp")}, P("dp")),
    )
    assert result.verdict == "proved", result

The single side is what ``jax.jit(step).lower()`` gives before any pass of XLA; the parallel side is
what one device runs behind XLA's partitioner, or a ``shard_map`` twin of the step (``parallel=``).
Nothing is computed, no accelerator is needed.  See docs/jax.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan.ir import Plan
from shardproof.frontends.graphs.sides import Side
from shardproof.frontends.jax.capture import Captured, capture
from shardproof.frontends.jax.step import Step
from shardproof.run.options import Options
from shardproof.run.progress import Progress
from shardproof.run.result import Result

__all__ = ["Result", "verify"]


def verify(
    step: Callable[..., Any],
    *,
    args: Sequence[Any],
    mesh: Any = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    parallel: Callable[..., Any] | None = None,
    validate: bool = False,
    capture_timeout: float = 600.0,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Whether ``step`` on a mesh, or ``parallel``, computes what ``step`` computes on one device.

    Example: ``verify(step, args=(w, x), mesh={"tp": 4}, in_shardings=(P(None, "tp"), P()))``.

    ``args``: arrays or ``jax.ShapeDtypeStruct``, in trees.  ``mesh``: names and extents of axes
    (``{"dp": 2, "tp": 4}``) or a ``jax.sharding.Mesh``.  ``in_shardings``, ``out_shardings``: trees
    of ``PartitionSpec``, as ``jax.jit`` takes them.  ``parallel``: shard_map code, with a mesh of
    its own or that of ``mesh``.  ``validate``: run both programs of XLA in NumPy, too, on random
    values, and compare with what they are read as.  The other options are those of
    `shardproof.verify`.

    What cannot be lowered is a result too (verdict "invalid input").
    """
    from shardproof import api
    from shardproof.frontends.hlo.read import contents

    Options(**options)
    if not isinstance(args, Sequence):
        return Result("invalid input", reason=f"args={args!r:.200}, expected a tuple of arguments")
    try:
        request = Step(
            step, parallel, tuple(args), _axes(mesh), in_shardings, out_shardings, _own(mesh)
        )
        made = sides_of(capture(request, capture_timeout), getattr(step, "__name__", "step"))
    except InvalidInput as error:
        return Result("invalid input", reason=str(error))
    plan, alone, _ = made
    plan = replace(plan, tables=contents(alone.recorder))
    result = api.run(plan, None, Options(**options), progress)
    if not validate or result.verdict == "invalid input":
        return result
    from shardproof import sources
    from shardproof.frontends.hlo.replay import validated

    return sources.replayed(result, validated(*made))


def sides_of(captured: Captured, name: str) -> tuple[Plan, Side, Side]:
    """The plan of a captured step, and what each side was lowered to.

    Example: for a step of one matrix product on four devices, the plan, the module before and the
    one behind the partitioner.
    """
    from shardproof.frontends.hlo import read

    single, parallel = read.parsed(captured.single), read.parsed(captured.parallel)
    single = replace(
        single,
        inputs=tuple(
            replace(i, name=n) for i, n in zip(single.inputs, captured.inputs, strict=True)
        ),
        outputs=tuple(
            replace(o, name=n) for o, n in zip(single.outputs, captured.outputs, strict=True)
        ),
    )
    return read.paired(
        single, parallel, name.strip("<>"), captured.placed_inputs, captured.placed_outputs
    )


def _own(mesh: Any) -> Any:
    return None if mesh is None or isinstance(mesh, Mapping) else mesh


def _axes(mesh: Any) -> dict[str, int]:
    """Names and extents of a mesh."""
    if mesh is None:
        return {}
    extents = mesh if isinstance(mesh, Mapping) else getattr(mesh, "shape", None)
    if not isinstance(extents, Mapping) or not all(
        isinstance(n, int) and n >= 1 for n in extents.values()
    ):
        raise InvalidInput(f"mesh={mesh!r}, expected names and extents of axes")
    return dict(extents)
