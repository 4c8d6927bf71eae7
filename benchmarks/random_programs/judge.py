"""What a plan computes, by NumPy alone: the independent eye of the campaign.

Every rank's values are computed operator by operator, with functions of this file; backward
operators are the complex-step derivative of the forward function, and the reference gradients that
of the whole single-device loss.  Nothing of the engine is used but the plan's data classes.

Example: ``judge(plan, seed)`` is ``""`` where loss and gradients agree on random inputs, else what
differs: ``"gradient of w0 at rank 1 differs by 0.5"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from shardproof.engine.plan.ir import Body, Group, Op, Plan, Program, Shard

#: The step of the complex-step derivative: small enough that its error is below rounding.
STEP = 1e-30
#: Relative differences above this are differences.
TOLERANCE = 1e-7
#: The input that is the gradient of the loss: any number.
SEED = "gradient of the loss"

Array = np.ndarray[Any, Any]
Ranks = list[dict[str, int]]


def _number(value: object) -> float:
    return float(value)  # type: ignore[arg-type]


def _softmax(x: Array, dim: int) -> Array:
    e = np.exp(x)
    return e / e.sum(axis=dim, keepdims=True)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without an exponential of what is large."""
    small = np.exp(-np.where(x.real < 0, -x, x))
    return np.where(x.real < 0, small, 1) / (1 + small)


def _reduce(how: Callable[..., Array], x: Array, attrs: Mapping[str, Any]) -> Array:
    if "dim" not in attrs:
        return how(x).reshape(1)
    return how(x, axis=attrs["dim"], keepdims=bool(attrs.get("keepdim", False)))


def _rms(x: Array, w: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w


def _layer(x: Array, w: Array, b: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps) * w + b


def _embedding(ids: Array, table: Array, start: int) -> Array:
    rows = ids.real.astype(int) - start
    inside = (rows >= 0) & (rows < table.shape[0])
    return np.where(inside[..., None], table[np.where(inside, rows, 0)], 0)


def _cross_entropy(logits: Array, ids: Array) -> Array:
    rows = ids.real.astype(int)
    picked = np.take_along_axis(logits, rows[..., None], axis=-1)[..., 0]
    return np.log(np.exp(logits).sum(axis=-1)) - picked


def _amax(x: Array, dim: int, keepdim: bool) -> Array:
    """The entry with the largest real part; where there are several, it has no derivative."""
    at = np.expand_dims(x.real.argmax(axis=dim), dim)
    if ((x.real == x.real.max(axis=dim, keepdims=True)).sum(axis=dim) > 1).any():
        raise FloatingPointError("two entries are the largest of a row")
    found = np.take_along_axis(x, at, axis=dim)
    return found if keepdim else found.squeeze(dim)


def _binary(
    how: Callable[[Any, Any], Array], xs: Sequence[Array], attrs: Mapping[str, Any]
) -> Array:
    return how(xs[0], xs[1] if len(xs) > 1 else _number(attrs["other"]))


def _linear(xs: Sequence[Array]) -> Array:
    found = xs[0] @ np.swapaxes(xs[1], -1, -2)
    return found + xs[2] if len(xs) > 2 else found


def _slice(x: Array, attrs: Mapping[str, Any]) -> Array:
    cut: list[slice] = [slice(None)] * x.ndim
    cut[attrs["dim"]] = slice(attrs["start"], attrs["start"] + attrs["size"])
    return x[tuple(cut)]


#: Each operator on NumPy arrays, complex ones too: (inputs, attributes) -> output.
FORWARD: dict[str, Callable[[Sequence[Array], Mapping[str, Any]], Array]] = {
    "add": lambda xs, a: _binary(np.add, xs, a),
    "sub": lambda xs, a: _binary(np.subtract, xs, a),
    "mul": lambda xs, a: _binary(np.multiply, xs, a),
    "div": lambda xs, a: _binary(np.divide, xs, a),
    "add_n": lambda xs, a: sum(xs[1:], start=xs[0]),
    "identity": lambda xs, a: xs[0],
    "exp": lambda xs, a: np.exp(xs[0]),
    "log": lambda xs, a: np.log(xs[0]),
    "sqrt": lambda xs, a: np.sqrt(xs[0]),
    "rsqrt": lambda xs, a: 1 / np.sqrt(xs[0]),
    "sigmoid": lambda xs, a: _sigmoid(xs[0]),
    "tanh": lambda xs, a: np.tanh(xs[0]),
    "silu": lambda xs, a: xs[0] * _sigmoid(xs[0]),
    "pow": lambda xs, a: xs[0] ** _number(a["exponent"]),
    "sum": lambda xs, a: _reduce(np.sum, xs[0], a),
    "mean": lambda xs, a: _reduce(np.mean, xs[0], a),
    "softmax": lambda xs, a: _softmax(xs[0], a["dim"]),
    "linear": lambda xs, a: _linear(xs),
    "matmul": lambda xs, a: xs[0] @ xs[1],
    "transpose": lambda xs, a: np.swapaxes(xs[0], a["dim0"], a["dim1"]),
    "view": lambda xs, a: xs[0].reshape(a["size"]),
    "slice": lambda xs, a: _slice(xs[0], a),
    "concat": lambda xs, a: np.concatenate(xs, axis=a["dim"]),
    "repeat_interleave": lambda xs, a: np.repeat(xs[0], a["repeats"], axis=a["dim"]),
    "rms_norm": lambda xs, a: _rms(xs[0], xs[1], _number(a["eps"])),
    "layernorm": lambda xs, a: _layer(xs[0], xs[1], xs[2], _number(a["eps"])),
    "embedding": lambda xs, a: _embedding(xs[0], xs[1], a.get("start", 0)),
    "cross_entropy": lambda xs, a: _cross_entropy(xs[0], xs[1]),
    "amax": lambda xs, a: _amax(xs[0], a["dim"], bool(a.get("keepdim", False))),
    "reciprocal": lambda xs, a: _number(a["numerator"]) / xs[0],
    "stack": lambda xs, a: np.stack(xs, axis=a["dim"]),
    "einsum": lambda xs, a: np.einsum(a["equation"], *xs),
    "full": lambda xs, a: np.full(a["size"], _number(a["value"])),
    "broadcast_to": lambda xs, a: np.broadcast_to(xs[0], a["size"]),
}


def _derivative(
    op: Op, inputs: Sequence[Array], gradient: Array, attrs: Mapping[str, Any]
) -> list[Array]:
    """The gradients of the inputs that ``wrt`` names, by complex steps."""
    found = []
    for place in attrs["wrt"]:
        result = np.zeros(inputs[place].shape)
        for index in np.ndindex(*result.shape):
            stepped = inputs[place].astype(complex)
            stepped[index] += 1j * STEP
            moved = FORWARD[op.name]([*inputs[:place], stepped, *inputs[place + 1 :]], attrs)
            result[index] = (moved.imag * gradient).sum() / STEP
        found.append(result)
    return found


class Inputs:
    """Random inputs by name: the same for both sides and all ranks.  Those of every other seed are
    small: what saturates at large values tells nothing there."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._reach = 1 if seed % 2 else 0.25
        self.arrays: dict[str, Array] = {}

    def get(self, name: str, shape: Sequence[int], classes: int = 0) -> Array:
        if name not in self.arrays:
            self.arrays[name] = (
                self._random.integers(0, classes, shape).astype(float)
                if classes
                else self._random.uniform(-self._reach, self._reach, shape)
            )
        return self.arrays[name]


class Machine:
    """One side of a plan on its ranks, in lock-step: all ranks of the program do the same."""

    def __init__(self, plan: Plan, program: Program, inputs: Inputs, classes: int) -> None:
        self.plan, self.program, self.inputs, self.classes = plan, program, inputs, classes
        names = [name for name, _, _ in program.axes]
        self.ranks: Ranks = [
            dict(zip(names, at, strict=True))
            for at in product(*(range(extent) for _, extent, _ in program.axes))
        ]
        self.slots: list[dict[int, Array]] = [{} for _ in self.ranks]
        self.gradients: list[dict[int, Array]] = [{} for _ in self.ranks]
        self.contexts: dict[int, list[list[dict[int, Array]]]] = {}
        self.issued: dict[int, int] = {}
        self.losses: list[list[Array]] = []

    def run(self, only_forward: bool = False) -> None:
        seeds = dict(self.program.seeds)
        for call in self.program.calls:
            body = self.program.bodies[call.body]
            if only_forward and (body.forward_body >= 0 or body.reduced):
                continue
            values = [self._bound(r, call.inputs, body) for r in range(len(self.ranks))]
            self._mirrored(call.body, body, values)
            for op in body.ops:
                self._step(op, body, values, call.microbatch)
            for r, held in enumerate(values):
                for slot, value in zip(call.outputs, body.outputs, strict=True):
                    if slot in seeds:
                        raise LookupError(f"slot {slot} is the gradient of a loss, and written")
                    self.slots[r][slot] = held[value]
                for value, shard in body.gradients:
                    self.gradients[r][shard] = self.gradients[r].get(shard, 0.0) + held[value]
                for _, value, shard in body.reduced:
                    self.gradients[r][shard] = held[value]
            for value in body.losses:
                self.losses.append([held[value] for held in values])
            self.contexts.setdefault(call.body, []).append(values)

    def shard(self, shard: Shard, at: Mapping[str, int]) -> tuple[slice, ...]:
        starts = [offset.at(at) for offset in shard.offset]
        return tuple(slice(a, a + n) for a, n in zip(starts, shard.shape, strict=True))

    def _bound(self, r: int, slots: Sequence[int], body: Body) -> dict[int, Array]:
        seeds = dict(self.program.seeds)
        values: dict[int, Array] = {}
        for value, slot in zip(body.inputs, slots, strict=True):
            if slot in seeds:
                self.slots[r][seeds[slot]]  # a LookupError where the loss has not been computed
                share = self._slices() if self.plan.loss == "mean" and self.program.axes else 1
                values[value] = (
                    self.inputs.get(SEED, (1,)).reshape(body.values[value].shape) / share
                )
            else:
                values[value] = self.slots[r][slot]
        for value, number in body.shards:
            shard = self.program.shards[number]
            full = self.inputs.get(shard.name, shard.full_shape)
            values[value] = full[self.shard(shard, self.ranks[r])]
        for value, _, number in body.reduced:
            zeros = np.zeros(self.program.shards[number].shape)
            values[value] = self.gradients[r].get(number, zeros)
        return values

    def _mirrored(self, number: int, body: Body, values: Sequence[dict[int, Array]]) -> None:
        if body.forward_body < 0:
            return
        k = self.issued.get(number, 0)
        self.issued[number] = k + 1
        for r, held in enumerate(values):
            for value, there in body.saved:
                held[value] = self.contexts[body.forward_body][k][r][there]

    def _slices(self) -> int:
        count = self.plan.microbatches
        for axis in self.plan.replica_axes:
            count *= self.program.extents.get(axis, 1)
        return count

    def _step(self, op: Op, body: Body, values: list[dict[int, Array]], microbatch: int) -> None:
        if op.name == "load_batch":
            for i, out in enumerate(op.outputs):
                for r, held in enumerate(values):
                    held[out] = self._load(i, body.values[out].shape, self.ranks[r], microbatch)
        elif "group" in op.attrs:
            self._communicate(op, values)
        else:
            for r, held in enumerate(values):
                attrs = {
                    k: v.at(self.ranks[r]) if hasattr(v, "at") else v for k, v in op.attrs.items()
                }
                given = [held[v] for v in op.inputs]
                if op.backward:
                    arity = attrs["arity"]
                    found = _derivative(op, given[:arity], given[arity], attrs)
                else:
                    found = [FORWARD[op.name](given, attrs)]
                held.update(zip(op.outputs, found, strict=True))
        for value in op.outputs:
            declared = body.values[value].shape
            if any(held[value].shape != declared for held in values):
                raise ValueError(f"{op.name} gives another shape than {list(declared)}")

    def _load(
        self, number: int, shape: Sequence[int], at: Mapping[str, int], microbatch: int
    ) -> Array:
        (value,) = (
            body.values[op.outputs[number]]
            for body in self.plan.single.bodies
            for op in body.ops
            if op.name == "load_batch"
        )
        classes = self.classes if "int" in value.dtype else 0
        full = self.inputs.get(f"batch {number}", value.shape, classes)
        if not self.program.axes:
            return full
        replica = 0
        for axis in self.plan.replica_axes:
            replica = replica * self.program.extents.get(axis, 1) + at.get(axis, 0)
        place = replica * self.plan.microbatches + max(0, microbatch)
        cuts = tuple(
            slice(None) if n == m else slice(place * m, (place + 1) * m)
            for n, m in zip(full.shape, shape, strict=True)
        )
        return full[cuts]

    def _communicate(self, op: Op, values: list[dict[int, Array]]) -> None:
        group = op.attrs["group"]
        assert isinstance(group, Group)
        (x,), (out,) = op.inputs, op.outputs
        found: dict[int, Array] = {}
        for r, at in enumerate(self.ranks):
            ranks = [
                k
                for k, other in enumerate(self.ranks)
                if all(other[a] == at[a] for a in at if a not in group.axes)
            ]
            found[r] = _exchanged(op, [values[k][x] for k in ranks], ranks.index(r))
        for r, held in enumerate(values):
            held[out] = found[r]


def _exchanged(op: Op, parts: list[Array], position: int) -> Array:
    attrs: Mapping[str, Any] = op.attrs
    count = len(parts)
    match op.name:
        case "all_reduce":
            how = np.max if attrs.get("op") == "max" else np.sum
            return how(parts, axis=0)
        case "all_gather":
            return np.concatenate(parts, axis=attrs["dim"])
        case "reduce_scatter":
            return np.split(np.sum(parts, axis=0), count, axis=attrs["dim"])[position]
        case "chunk":
            return np.split(parts[position], count, axis=attrs["dim"])[position]
        case "all_to_all":
            cut = [np.split(part, count, axis=attrs["split_dim"])[position] for part in parts]
            return np.concatenate(cut, axis=attrs["concat_dim"])
    raise ValueError(f"the judge does not know {op.name}")


def _reference(plan: Plan, inputs: Inputs, classes: int) -> tuple[float, dict[str, Array]]:
    """The single device's loss, and its gradient by complex steps through the whole forward."""

    def loss() -> Any:
        machine = Machine(plan, plan.single, inputs, classes)
        machine.run(only_forward=True)
        return sum(terms[0].sum() for terms in machine.losses)

    value = loss()
    gradients = {}
    for shard in plan.single.shards:
        full = inputs.get(shard.name, shard.full_shape)
        gradient = np.zeros(full.shape)
        for index in np.ndindex(*full.shape):
            stepped = full.astype(complex)
            stepped[index] += 1j * STEP
            inputs.arrays[shard.name] = stepped
            gradient[index] = loss().imag / STEP
        gradient *= inputs.get(SEED, (1,))[0]
        inputs.arrays[shard.name] = full
        gradients[shard.name] = gradient
    return float(value.real), gradients


def _differs(what: str, found: Array, expected: Array) -> str:
    if found.shape != expected.shape:
        return f"{what} has shape {list(found.shape)}, expected {list(expected.shape)}"
    if not np.isfinite(expected).all():
        raise FloatingPointError(f"{what} is not finite on the single device")
    scale = max(1e-4, float(np.abs(expected).max(initial=0)))
    most = float(np.abs(found - expected).max(initial=0)) / scale
    return "" if most <= TOLERANCE else f"{what} differs by {most:.2g}"


def judge(plan: Plan, seed: int, classes: int) -> str:
    """What differs between the sides on random inputs; "" if nothing does."""
    inputs = Inputs(seed)
    loss, gradients = _reference(plan, inputs, classes)
    (program,) = plan.programs
    machine = Machine(plan, program, inputs, classes)
    machine.run()
    found = _loss_fault(plan, machine, loss)
    if found:
        return found
    for r, at in enumerate(machine.ranks):
        for number, shard in enumerate(program.shards):
            expected = gradients[shard.name][machine.shard(shard, at)]
            mine = machine.gradients[r].get(number, np.zeros(shard.shape))
            fault = _differs(f"gradient of {shard.name} at rank {r}", np.asarray(mine), expected)
            if fault:
                return fault
    return ""


def _loss_fault(plan: Plan, machine: Machine, loss: float) -> str:
    """What is wrong with the loss: those of replicas and microbatches combine to the single
    device's, at every position along the other axes."""
    others: dict[tuple[int, ...], float] = {}
    for r, at in enumerate(machine.ranks):
        key = tuple(at[a] for a in at if a not in plan.replica_axes)
        others[key] = others.get(key, 0.0) + sum(float(terms[r].sum()) for terms in machine.losses)
    share = machine._slices() if plan.loss == "mean" else 1
    for total in others.values():
        fault = _differs("the loss", np.asarray([total / share]), np.asarray([loss]))
        if fault:
            return fault
    return ""
