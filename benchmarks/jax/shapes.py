"""What the steps of this folder share: shapes of arguments, and functions mapped over a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

S = jax.ShapeDtypeStruct
F, B, IDS = jnp.float32, jnp.bfloat16, jnp.int32
#: Arguments of `shardproof.jax.verify`.
Case = dict[str, Any]


def mapped(f: Callable[..., Any], ins: Any, outs: Any, **more: Any) -> Callable[..., Any]:
    """``f`` on every device of the mesh, with its parts of arguments; no check of replication."""
    return jax.shard_map(f, in_specs=ins, out_specs=outs, check_vma=False, **more)


def beside_twins(
    steps: Mapping[Callable[[str], Case], Sequence[str]],
) -> tuple[dict[str, Callable[[], Case]], dict[str, Callable[[], Case]]]:
    """The right steps and the wrong ones by name; ``steps``: what is wrong in each of their twins.

    Example: of ``{causal_ring: ("places",)}``, "causal ring" and "causal ring, places".
    """
    names = {step: step.__name__.replace("_", " ") for step in steps}
    right = {name: partial(step, "") for step, name in names.items()}
    wrong = {
        f"{names[step]}, {mistake}": partial(step, mistake)
        for step, mistakes in steps.items()
        for mistake in mistakes
    }
    return right, wrong
