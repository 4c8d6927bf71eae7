"""Mutators of dimensions, positions and shapes."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Final

from shardproof.engine.algebra.affine import Affine, affine
from shardproof.engine.plan.ir import Attr, Body
from shardproof.mutation.edit import Draft
from shardproof.mutation.operators import computes, local, with_attr
from shardproof.mutation.table import Changed, Mutator, on_operator

DIMENSIONS: Final = ("dim", "dim0", "dim1", "split_dim", "concat_dim")
POSITIONS: Final = ("start", "stop", "local_expert_start", "local_expert_end")


def another_dimension(body: Body, number: int, rng: Random) -> Changed | None:
    """Another dimension, of the same extent if there is one.

    Example: "softmax in layers.0.attention (rank 0, body forward, operator 21): dim -1 becomes 2".
    """
    op = body.ops[number]
    keys = [k for k in DIMENSIONS if isinstance(op.attrs.get(k), int)]
    tensors = [v for v in (*op.inputs, *op.outputs) if v >= 0]
    if not keys or not tensors:
        return None
    key = rng.choice(keys)
    shape = body.values[tensors[0]].shape
    dim = op.attrs[key]
    assert isinstance(dim, int)
    others = [d for d in range(len(shape)) if d != dim % max(len(shape), 1)]
    same = [d for d in others if -len(shape) <= dim < len(shape) and shape[d] == shape[dim]]
    if not others:
        return None
    return with_attr(body, number, key, rng.choice(same if same and rng.random() < 0.8 else others))


def another_view(body: Body, number: int, rng: Random) -> Changed | None:
    """Two sizes of a view exchanged, or a transposition in place of the view.

    Example: of a view to (1, 10, 6, 8), one to (1, 10, 8, 6) that is transposed to the shape that
    the next operator expects: "sizes 2 and 3 exchanged, then transposed back".
    """
    op = body.ops[number]
    size = op.attrs.get("size")
    if op.backward or not isinstance(size, tuple) or len(size) < 2:
        return None
    i, j = rng.sample(range(len(size)), 2)
    if size[i] != size[j]:
        swapped = list(size)
        swapped[i], swapped[j] = swapped[j], swapped[i]
        # What comes after wants the old shape: give it back as a view.
        draft = Draft(body)
        between = draft.value(op.outputs[0], tuple(n for n in swapped if isinstance(n, int)))
        draft.change(number, attrs={**op.attrs, "size": tuple(swapped)}, outputs=(between,))
        moved = draft.value(op.outputs[0])
        draft.add(number + 1, "transpose", [between], moved, {"dim0": i, "dim1": j})
        draft.add(number + 2, "identity", [moved], op.outputs[0])
        return Changed(draft.built(), f"sizes {i} and {j} exchanged, then transposed back")
    return None


def transposed(body: Body, number: int, rng: Random) -> Changed | None:
    """Two dimensions of equal extent of the result exchanged.

    Example: of attention scores [1, 6, 10, 10], "dimensions 2 and 3 of its result exchanged".
    """
    op = body.ops[number]
    shape = body.values[op.outputs[0]].shape
    pairs = [(i, j) for i in range(len(shape)) for j in range(i) if shape[i] == shape[j] > 1]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    draft = Draft(body)
    between = draft.value(op.outputs[0])
    draft.change(number, outputs=(between, *op.outputs[1:]))
    draft.add(number + 1, "transpose", [between], op.outputs[0], {"dim0": j, "dim1": i})
    return Changed(draft.built(), f"dimensions {j} and {i} of its result exchanged")


def rolled(body: Body, number: int, rng: Random) -> Changed | None:
    """The two halves of a dimension of the result exchanged.

    Example: of eight tokens, tokens 4 to 7 and then 0 to 3: "halves of dimension 1 of its result
    exchanged".
    """
    op = body.ops[number]
    shape = body.values[op.outputs[0]].shape
    dims = [d for d, n in enumerate(shape) if n > 1 and n % 2 == 0]
    if not dims:
        return None
    dim = rng.choice(dims)
    half = (*shape[:dim], shape[dim] // 2, *shape[dim + 1 :])
    draft = Draft(body)
    whole, low, high = (draft.value(op.outputs[0], s) for s in (shape, half, half))
    draft.change(number, outputs=(whole, *op.outputs[1:]))
    cut: dict[str, Attr] = {"dim": dim, "size": shape[dim] // 2}
    draft.add(number + 1, "slice", [whole], low, {**cut, "start": 0})
    draft.add(number + 2, "slice", [whole], high, {**cut, "start": shape[dim] // 2})
    draft.add(number + 3, "concat", [high, low], op.outputs[0], {"dim": dim})
    return Changed(draft.built(), f"halves of dimension {dim} of its result exchanged")


def another_position(body: Body, number: int, rng: Random) -> Changed | None:
    """A slice, a table or experts that begin elsewhere.

    Example: "embedding in wte (rank 0, body forward, operator 1): start 112*tp becomes 111*tp".
    """
    op = body.ops[number]
    keys = [k for k in POSITIONS if isinstance(op.attrs.get(k), int | Affine)]
    if not keys:
        return None
    key = rng.choice(keys)
    old = op.attrs[key]
    assert isinstance(old, int | Affine)
    at = old if isinstance(old, Affine) else Affine(old)
    choices = [at + 1, at + -1, Affine(at.const), at * 2, at * -1]
    choices += [affine(at.const, {a: c + s for a, c in at.terms}) for s in (1, -1)]
    new = rng.choice([c for c in choices if c != at] or [at + 1])
    # A plain number stays one.
    return with_attr(body, number, key, new if isinstance(old, Affine) else new.const)


def another_size(body: Body, number: int, rng: Random) -> Changed | None:
    """A size that the data does not have.

    Example: "size (1, 8, 8, 128) becomes (1, 8, 8, 129)".
    """
    op = body.ops[number]
    size = op.attrs.get("size")
    if isinstance(size, int):
        return with_attr(body, number, "size", max(0, size + rng.choice([-1, 1])))
    if isinstance(size, tuple) and size and isinstance(size[-1], int):
        whole = prod(n for n in size if isinstance(n, int))
        return with_attr(body, number, "size", rng.choice([(*size[:-1], size[-1] + 1), (whole,)]))
    return None


SHAPES: Final = (
    Mutator("another dimension", "dimensions", on_operator(local, another_dimension)),
    Mutator("another view", "dimensions", on_operator(local, another_view)),
    Mutator("result transposed", "dimensions", on_operator(computes, transposed)),
    Mutator("halves exchanged", "dimensions", on_operator(computes, rolled)),
    Mutator("another position", "constants", on_operator(local, another_position)),
    Mutator("another size", "shapes", on_operator(local, another_size)),
)
