"""What the steps of this folder share: shapes of arguments, and functions mapped over a mesh."""

from __future__ import annotations

from collections.abc import Callable
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
