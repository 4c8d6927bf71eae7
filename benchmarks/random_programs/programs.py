"""Random parallel programs: a small model written once, on both sides at the same time.

The single-device side gets the operators as they are; the parallel side a randomly chosen way to
divide each of them over the mesh, with the collectives that this needs, and a backward pass derived
step by step.  With a *mistake*, one such choice is wrong.

Example: ``make(seed=7)`` is a plan whose sides compute the same; ``make(seed=7, mistake=3)`` is the
same plan with the fourth opportunity for a mistake taken, if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from random import Random
from typing import Any, Final

from benchmarks.random_programs import models
from benchmarks.random_programs.tape import (
    PARTIAL,
    WHOLE,
    Backward,
    Mistakes,
    Place,
    Shape,
    Tape,
)
from benchmarks.random_programs.writer import Both, Maker, Writer, addend_free
from shardproof.engine.algebra.affine import affine
from shardproof.engine.plan.ir import Body, Call, Group, Op, Plan, Program, Shard, Value

CLASSES: Final = 8
CONSTANTS: Final = (Fraction(2), Fraction(1, 2), Fraction(3), Fraction(-1), Fraction(-1, 3))


@dataclass(frozen=True, slots=True)
class Made:
    """A plan, what it is made of (operator names) and the mistake in it ("" for none)."""

    plan: Plan
    kinds: frozenset[str]
    mistake: str
    opportunities: int


# -- the operators that a program is made of: each takes one or two values of the pool ----------


def _unary(w: Writer, x: Both, y: Both) -> Both | None:
    x = w.settled(x)
    if not addend_free(w.place(x)):
        return None
    name = w.random.choice(["sigmoid", "tanh", "silu", "exp"])
    if name == "exp":
        x = w.op("tanh", [x], w.shape(x), w.place(x))
    return w.op(name, [x], w.shape(x), w.place(x))


def _root(w: Writer, x: Both, y: Both, above_zero: int = 1) -> Both | None:
    """rsqrt(x * x + 1), and kin: defined everywhere."""
    x = w.settled(x)
    if not addend_free(w.place(x)):
        return None
    square = w.op("mul", [x, x], w.shape(x), w.place(x))
    above = w.op("add", [square], w.shape(x), w.place(x), {"other": Fraction(above_zero)})
    return w.op(w.random.choice(["rsqrt", "sqrt", "log"]), [above], w.shape(x), w.place(x))


def _scaled(w: Writer, x: Both, y: Both) -> Both | None:
    return w.op("mul", [x], w.shape(x), w.place(x), {"other": w.random.choice(CONSTANTS)})


def _pair(w: Writer, x: Both, y: Both) -> Both | None:
    if w.shape(x) != w.shape(y):
        return None
    name = w.random.choice(["add", "sub", "mul", "div"])
    if name in ("mul", "div"):
        x, y = w.settled(x), w.settled(y)
    other = w.alike(y, x)
    if other is None or (name in ("mul", "div") and not addend_free(w.place(x))):
        return None
    if name == "div":
        other = _root(w, other, other, above_zero=2)  # no logarithm near zero
        return None if other is None else w.op("div", [x, other], w.shape(x), w.place(x))
    return w.op(name, [x, other], w.shape(x), w.place(x))


def _linear(w: Writer, x: Both, y: Both) -> Both | None:
    shape = w.shape(x)
    if len(shape) < 2:
        return None
    inner, outer = shape[-1], w.random.choice([4, 8, 12])
    x = w.settled(x)
    last = len(shape) - 1
    place: Place = {}
    held: Place = {}
    for axis in w.axes:
        how = w.place(x)[axis]
        if how == last:
            if axis == "mb":
                return None
            held[axis], place[axis] = 1, PARTIAL
        elif how == WHOLE and axis in w.mesh and w.random.random() < 0.5:
            if outer % w.axes[axis] or any(isinstance(v, int) and v == 0 for v in held.values()):
                held[axis] = place[axis] = WHOLE
            else:
                held[axis], place[axis] = 0, last
        else:
            held[axis], place[axis] = WHOLE, how
    result = (*shape[:-1], outer)
    if not w.fits((outer, inner), held) or not w.fits(result, place):
        return None
    weight = w.parameter((outer, inner), held)
    return w.op("linear", [x, weight], result, place)


def _gathered(w: Writer, x: Both, y: Both) -> Both | None:
    """A linear layer whose weight is divided over replicas and gathered (ZeRO-3)."""
    shape = w.shape(x)
    axis = w.random.choice(w.mesh)
    if len(shape) < 2 or shape[-1] % w.axes[axis]:
        return None
    x = w.settled(x)
    whole = w.undivided(x, len(shape) - 1)
    if whole is None:
        return None
    weight = w.parameter((shape[-1], shape[-1]), {axis: w.random.choice([0, 1])})
    return w.op("linear", [whole, w.to(weight, axis, WHOLE)], shape, w.place(whole))


def _matmul(w: Writer, x: Both, y: Both) -> Both | None:
    """x times y transposed, over their last dimension, batch dimensions alike."""
    if len(w.shape(x)) != 3 or w.shape(x) != w.shape(y):
        return None
    x, y = w.settled(x), w.settled(y)
    for dim in (1, 2):
        a, b = w.undivided(x, dim), w.undivided(y, dim)
        if a is None or b is None:
            return None
        x, y = a, b
    b = w.alike(y, x)
    if b is None or not addend_free(w.place(x)):
        return None
    n, s, d = w.shape(x)
    turned = w.op("transpose", [b], (n, d, s), w.place(x), {"dim0": 1, "dim1": 2})
    return w.op("matmul", [x, turned], (n, s, s), w.place(x))


def _summed(w: Writer, x: Both, y: Both) -> Both | None:
    shape = w.shape(x)
    if len(shape) < 2:
        return None
    dim = w.random.randrange(len(shape))
    place = {
        a: PARTIAL if how == dim else how - 1 if isinstance(how, int) and how > dim else how
        for a, how in w.place(x).items()
    }
    result = (*shape[:dim], *shape[dim + 1 :])
    return w.op("sum", [x], result, place, {"dim": dim, "keepdim": False})


def _mean(w: Writer, x: Both, y: Both) -> Both | None:
    """A mean, divided: the mean of a part is an addend once divided by the number of parts."""
    shape = w.shape(x)
    if len(shape) < 2:
        return None
    dim = len(shape) - 1
    divided = [axis for axis, how in w.place(x).items() if how == dim]
    place = {a: PARTIAL if how == dim else how for a, how in w.place(x).items()}
    out = w.op("mean", [x], shape[:-1], place, {"dim": dim, "keepdim": False})
    for axis in divided:
        value, local = out.parallel, w.many.values[out.parallel].shape
        share = Fraction(1, w.axes[axis])
        if w.mistakes.now("a local mean is taken for the mean"):
            share = Fraction(1)
        out = Both(out.single, w.many.apply("mul", [value], local, place, other=share))
    return out


def _softmax(w: Writer, x: Both, y: Both) -> Both | None:
    x = w.settled(x)
    dim = len(w.shape(x)) - 1
    whole = w.undivided(x, dim)
    if whole is None or not addend_free(w.place(whole)):
        return None
    if w.random.random() < 0.4:
        whole = w.op(
            "mul", [whole], w.shape(x), w.place(whole), {"other": w.random.choice(CONSTANTS)}
        )
    return w.op("softmax", [whole], w.shape(x), w.place(whole), {"dim": dim})


def _norm(w: Writer, x: Both, y: Both) -> Both | None:
    x = w.settled(x)
    dim = len(w.shape(x)) - 1
    whole = w.undivided(x, dim)
    if whole is None or not addend_free(w.place(whole)):
        return None
    size = (w.shape(x)[-1],)
    nothing = dict.fromkeys(w.axes, WHOLE)
    weight = w.parameter(size, nothing)
    eps = {"eps": Fraction(1, 100)}
    if w.random.random() < 0.5:
        return w.op("rms_norm", [whole, weight], w.shape(x), w.place(whole), eps)
    return w.op(
        "layernorm", [whole, weight, w.parameter(size, nothing)], w.shape(x), w.place(whole), eps
    )


def _turned(w: Writer, x: Both, y: Both) -> Both | None:
    shape = w.shape(x)
    if len(shape) < 2:
        return None
    i, j = w.random.sample(range(len(shape)), 2)
    turn = {i: j, j: i}
    place = {a: turn.get(how, how) for a, how in w.place(x).items()}
    result = list(shape)
    result[i], result[j] = result[j], result[i]
    return w.op("transpose", [x], tuple(result), place, {"dim0": i, "dim1": j})


def _split(w: Writer, x: Both, y: Both) -> Both | None:
    """The last dimension in two: heads."""
    shape = w.shape(x)
    if shape[-1] % 4 or len(shape) > 3:
        return None
    outer = w.random.choice([2, 4])
    result = (*shape[:-1], outer, shape[-1] // outer)
    place = w.place(x)
    if not w.fits(result, place):
        return None
    return w.op("view", [x], result, place, {"size": result}, {"size": w.local(result, place)})


def _merged(w: Writer, x: Both, y: Both) -> Both | None:
    shape = w.shape(x)
    if len(shape) < 3:
        return None
    whole = w.undivided(x, len(shape) - 1)
    if whole is None:
        return None
    result = (*shape[:-2], shape[-2] * shape[-1])
    place = w.place(whole)
    return w.op("view", [whole], result, place, {"size": result}, {"size": w.local(result, place)})


def _sliced(w: Writer, x: Both, y: Both) -> Both | None:
    """One half of an undivided dimension, plus or times the other."""
    shape = w.shape(x)
    dim = len(shape) - 1
    whole = w.undivided(w.settled(x), dim)
    if whole is None or shape[dim] % 2 or not addend_free(w.place(whole)):
        return None
    half = (*shape[:dim], shape[dim] // 2)
    if not w.fits(half, w.place(whole)):
        return None
    parts = [
        w.op(
            "slice", [whole], half, w.place(whole), {"dim": dim, "start": start, "size": half[dim]}
        )
        for start in (0, half[dim])
    ]
    if w.random.random() < 0.4:
        return w.op("concat", parts[::-1], shape, w.place(whole), {"dim": dim})
    return w.op(w.random.choice(["add", "mul"]), parts, half, w.place(whole))


def _joined(w: Writer, x: Both, y: Both) -> Both | None:
    """Two tensors joined along an undivided dimension."""
    if w.shape(x) != w.shape(y) or w.shape(x)[-1] > 8:
        return None
    dim = len(w.shape(x)) - 1
    a, b = w.undivided(w.settled(x), dim), w.undivided(w.settled(y), dim)
    if a is None or b is None:
        return None
    b = w.alike(b, a)
    if b is None or not addend_free(w.place(a)):
        return None
    result = (*w.shape(x)[:-1], 2 * w.shape(x)[-1])
    return w.op("concat", [a, b], result, w.place(a), {"dim": dim})


def _repeated(w: Writer, x: Both, y: Both) -> Both | None:
    shape = w.shape(x)
    if len(shape) < 2 or shape[-1] > 8:
        return None
    dim = len(shape) - 1
    result = (*shape[:-1], shape[-1] * 2)
    return w.op("repeat_interleave", [x], result, w.place(x), {"repeats": 2, "dim": dim})


def _moved(w: Writer, x: Both, y: Both) -> Both | None:
    """The same value, placed otherwise."""
    axis = w.random.choice(w.mesh)
    shape = w.shape(x)
    choices = [WHOLE, *(d for d in range(len(shape)) if not w.crossed(x, axis, d))]
    target = w.random.choice(choices)
    if not w.fits(shape, {**w.place(x), axis: target}) or target == w.place(x)[axis]:
        return None
    return w.to(x, axis, target)


MAKERS: Final[tuple[tuple[Maker, int], ...]] = (
    (_unary, 2), (_root, 1), (_scaled, 1), (_pair, 4), (_linear, 4), (_gathered, 1), (_matmul, 1),
    (_summed, 1), (_mean, 1), (_softmax, 1), (_norm, 1), (_turned, 1), (_split, 1), (_merged, 1),
    (_sliced, 1), (_joined, 1), (_repeated, 1), (_moved, 3),
)  # fmt: skip


# -- whole programs --------------------------------------------------------------------------------


def _axes(random: Random) -> tuple[dict[str, int], int]:
    """Mesh extents and the number of microbatches."""
    found = {"dp": random.choice([1, 2, 2]), "tp": random.choice([1, 2, 2, 4])}
    axes = {axis: extent for axis, extent in found.items() if extent > 1}
    if not axes:
        axes = {"tp": 2}
    microbatches = random.choice([1, 1, 2])
    if microbatches > 1:
        axes["mb"] = microbatches
    return axes, microbatches


def _start(w: Writer, batch: int) -> Both:
    """What is made of the batch first: floating values, or ids looked up in a table."""
    sequence, width = w.random.choice([4, 8]), w.random.choice([4, 8])
    if w.random.random() < 0.3:
        (ids,) = w.batch([("ids", (batch, sequence), "int64")])
        held: Place = {}
        place = dict(w.place(ids))
        for axis in w.mesh:
            choice = (
                w.random.choice([WHOLE, 0, 1]) if place[axis] == WHOLE and axis == "tp" else WHOLE
            )
            if choice == 0 and CLASSES % w.axes[axis] == 0:
                held[axis], place[axis] = 0, PARTIAL
            elif choice == 1 and width % w.axes[axis] == 0:
                held[axis], place[axis] = 1, 2
        table = w.parameter((CLASSES, width), {**dict.fromkeys(w.axes, WHOLE), **held})
        divided = [axis for axis, how in held.items() if how == 0]
        local = {"start": affine(0, {a: CLASSES // w.axes[a] for a in divided})} if divided else {}
        if divided and w.mistakes.now("the vocabulary begins one later"):
            local = {"start": affine(1, {a: CLASSES // w.axes[a] for a in divided})}
        return w.op("embedding", [ids, table], (batch, sequence, width), place, {}, local)
    (x,) = w.batch([("x", (batch, sequence, width), "float32")])
    return _linear(w, x, x) or x


def _finish(w: Writer, pool: list[Both], loss: str) -> Both:
    """One number: a sum over the values that were left."""
    total: Both | None = None
    for x in pool:
        shape = w.shape(x)
        if w.random.random() < 0.5:
            settled = w.settled(x)
            if addend_free(w.place(settled)):
                x = w.op("mul", [settled, settled], shape, w.place(settled))
        place = {a: PARTIAL if isinstance(how, int) else how for a, how in w.place(x).items()}
        one = w.op("sum", [x], (1,), place)
        for axis in w.mesh:
            if axis != "dp":
                one = w.to(one, axis, WHOLE)
        for axis in w.axes:
            if axis in ("dp", "mb") and w.place(one)[axis] == WHOLE:
                one = w.to(one, axis, PARTIAL)
        if total is None:
            total = one
        else:
            total = w.op("add", [total, one], (1,), w.place(one))
    assert total is not None
    slices = prod(w.axes[axis] for axis in w.axes if axis in ("dp", "mb"))
    if loss == "mean" and slices > 1:
        value = w.many.apply("mul", [total.parallel], (1,), w.place(total), other=Fraction(slices))
        total = Both(total.single, value)
    return total


def _pool(w: Writer, first: Both) -> list[Both]:
    """Values that nothing has used yet, after some random operators."""
    makers = [maker for maker, weight in (*MAKERS, *models.MAKERS) for _ in range(weight)]
    values, unused = [first], [first]
    for _ in range(w.random.randint(3, 9)):
        x, y = w.random.choice(values[-4:]), w.random.choice(values)
        out = w.random.choice(makers)(w, x, y)
        if out is None or prod(w.shape(out)) > 512:
            continue
        values.append(out)
        unused = [v for v in unused if v not in (x, y)] + [out]
    return unused[-3:]


def _body(tape: Tape, loss: int) -> Body:
    """The forward body; the first value is the batch."""
    ops = (Op("load_batch", (), (0,)), *(step.op for step in tape.steps))
    shards = tuple(tape.shards.items())
    return Body("forward", tuple(tape.values), ops, (), (loss,), shards, losses=(loss,))


def _program(name: str, tape: Tape, loss: int, shards: list[Shard], microbatches: int) -> Program:
    forward = _body(tape, loss)
    backward = Backward(tape)
    back = backward.run(loss)
    calls, seeds = [], []
    for m in range(microbatches):
        calls.append(Call(0, (), (2 * m,), m if microbatches > 1 or tape.axes else -1))
        seeds.append((2 * m + 1, 2 * m))
    order = list(range(microbatches))
    calls += [Call(1, (2 * m + 1,), ()) for m in order]
    bodies = [forward, back]
    if backward.unreduced and not tape.mistakes.now("gradients are not reduced over dp"):
        if len(backward.unreduced) > 1 and tape.random.random() < 0.3:
            wrong = tape.mistakes.now("a bucket is cut one position off")
            bodies.append(_bucket(shards, backward.unreduced, wrong))
        else:
            bodies.append(_reducer(shards, backward.unreduced))
        calls.append(Call(2))
    axes = [(axis, extent) for axis, extent in tape.axes.items() if axis != "mb"]
    strides = [prod(extent for _, extent in axes[i + 1 :]) for i in range(len(axes))]
    mesh = tuple(
        (axis, extent, stride) for (axis, extent), stride in zip(axes, strides, strict=True)
    )
    return Program(name, tuple(bodies), tuple(calls), tuple(shards), 0, mesh, tuple(seeds))


def _bucket(shards: list[Shard], unreduced: list[int], wrong: bool) -> Body:
    """All gradients in one flat tensor, all-reduced together."""
    values: list[Value] = []
    ops: list[Op] = []

    def add(name: str, inputs: list[int], shape: Shape, **attrs: Any) -> int:
        values.append(Value(shape, "float32", "gradient"))
        ops.append(Op(name, tuple(inputs), (len(values) - 1,), attrs))
        return len(values) - 1

    sizes = [prod(shards[n].shape) for n in unreduced]
    for n in unreduced:
        values.append(Value(shards[n].shape, "float32", "gradient"))
    before = range(len(unreduced))
    flat = [add("view", [v], (n,), size=(n,)) for v, n in zip(before, sizes, strict=True)]
    joined = add("concat", flat, (sum(sizes),), dim=0)
    group = Group(axes=("dp",))
    total = add("all_reduce", [joined], (sum(sizes),), group=group, op="sum")
    reduced = []
    for i, n in enumerate(unreduced):
        start = sum(sizes[:i]) - (1 if wrong and i else 0)
        part = add("slice", [total], (sizes[i],), dim=0, start=start, size=sizes[i])
        shape = shards[n].shape
        reduced.append((i, add("view", [part], shape, size=shape), n))
    return Body("bucket", tuple(values), tuple(ops), reduced=tuple(reduced))


def _reducer(shards: list[Shard], unreduced: list[int]) -> Body:
    values, ops, reduced = [], [], []
    for shard in unreduced:
        before, after = len(values), len(values) + 1
        values += [Value(shards[shard].shape, "float32", "gradient")] * 2
        ops.append(
            Op("all_reduce", (before,), (after,), {"group": Group(axes=("dp",)), "op": "sum"})
        )
        reduced.append((before, after, shard))
    return Body("reducer", tuple(values), tuple(ops), reduced=tuple(reduced))


def make(seed: int, mistake: int = -1) -> Made | None:
    """The plan of a seed; None where it came out without parameters or without an operator."""
    random = Random(seed)
    mistakes = Mistakes(mistake)
    axes, microbatches = _axes(random)
    w = Writer(random, axes, mistakes)
    replicas = axes.get("dp", 1)
    loss = random.choice(["sum", "sum", "mean"])
    total = _finish(w, _pool(w, _start(w, 2 * replicas * microbatches)), loss)
    if not w.shards[0] or total.single not in w.one.needs:
        return None
    if len(_used(w)) < len(w.shards[0]):
        return None
    single = _program("single", w.one, total.single, w.shards[0], 1)
    ranks = _program("ranks", w.many, total.parallel, w.shards[1], microbatches)
    plan = Plan(
        f"random-{seed}", single, (ranks,), microbatches, ("dp",) if "dp" in axes else (), loss
    )
    return Made(plan, frozenset(w.kinds), mistakes.made, mistakes.seen)


def _used(w: Writer) -> set[int]:
    """Shards that the loss depends on: others have no gradient, and are not drawn."""
    reached: set[int] = set()
    wanted = {w.one.steps[-1].op.outputs[0]}
    for step in reversed(w.one.steps):
        if wanted & set(step.op.outputs):
            wanted |= set(step.op.inputs)
    for value, shard in w.one.shards.items():
        if value in wanted:
            reached.add(shard)
    return reached
