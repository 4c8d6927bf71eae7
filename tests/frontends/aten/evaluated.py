"""What a lowering computes, on numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardproof.engine.interpreters import FloatInterpreter
from shardproof.engine.interpreters.dims import exact
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.frontends.aten import Lowering


def evaluated(lo: Lowering, given: Mapping[int, Any]) -> dict[int, Any]:
    """The values of all operators, and of tables of constants, by their numbers, from ``given``
    ones."""
    values = dict(given)
    for number, shard in lo.bound:
        name = lo.shards[shard].name
        if name in lo.contents:
            values[number] = lo.contents[name].astype(float)
    interpreter = FloatInterpreter(coordinates={})
    for op in lo.ops:
        read = [exact(np.asarray(values[v], dtype=float)) for v in op.inputs]
        if op.backward:
            arity, wrt = op.attrs["arity"], op.attrs["wrt"]
            assert isinstance(arity, int)
            out = apply_backward(interpreter, op.name, read[:arity], read[arity:], op.attrs, wrt)
        else:
            out = apply_forward(interpreter, op.name, read, op.attrs)
        values.update(zip(op.outputs, (x.data for x in out), strict=True))
    return values
