"""Further operators of random programs: what models are made of, several operators at a time.

Each is a `Maker` as those of `programs`: it takes one or two values of the pool and writes the same
on both sides, divided as the operands are; `rewritten` writes one thing in two ways.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Final

from benchmarks.random_programs.tape import PARTIAL, WHOLE, Place
from benchmarks.random_programs.writer import Both, Maker, Writer, addend_free

HALF: Final = Fraction(1, 2)


def _settled(w: Writer, x: Both) -> Both | None:
    x = w.settled(x)
    return x if addend_free(w.place(x)) else None


def normalised(w: Writer, x: Both, y: Both) -> Both | None:
    """Divided by a sum over everything: over all ranks, and so over replicas."""
    found = _settled(w, x)
    if found is None or w.place(found).get("mb", WHOLE) != WHOLE:
        return None
    shape, place = w.shape(found), w.place(found)
    weight = w.op("sigmoid", [found], shape, place)
    addends = {a: PARTIAL if isinstance(how, int) else how for a, how in place.items()}
    total = w.op("sum", [weight], (1,), addends)
    for axis in w.mesh:
        if w.place(total)[axis] == PARTIAL:
            if w.mistakes.now(f"a normaliser is summed over {axis} by nobody"):
                continue
            total = w.to(total, axis, WHOLE)
    return w.op("div", [found, total], shape, place)


def contrasted(w: Writer, x: Both, y: Both) -> Both | None:
    """Every sample against all samples of all replicas."""
    shape = w.shape(x)
    a, b = _settled(w, x), _settled(w, y)
    if a is None or b is None or len(shape) != 2 or w.shape(b) != shape:
        return None
    whole = w.undivided(b, 0)
    if whole is None:
        return None
    for_x = [w.undivided(v, 1) for v in (a, whole)]
    if for_x[0] is None or for_x[1] is None:
        return None
    a, whole = for_x
    place = w.place(a)
    if any(how == 0 and axis not in w.mesh for axis, how in place.items()):
        return None
    if any(w.place(whole)[axis] not in (WHOLE,) for axis in w.axes):
        return None
    turned = w.op("transpose", [whole], shape[::-1], w.place(whole), {"dim0": 0, "dim1": 1})
    return w.op("matmul", [a, turned], (shape[0], shape[0]), place)


def rotated(w: Writer, x: Both, y: Both) -> Both | None:
    """The second half, negated, beside the first."""
    shape = w.shape(x)
    dim = len(shape) - 1
    found = _settled(w, x)
    whole = None if found is None or shape[dim] % 2 else w.undivided(found, dim)
    if whole is None:
        return None
    place, size = w.place(whole), shape[dim] // 2
    half = (*shape[:dim], size)
    parts = [
        w.op("slice", [whole], half, place, {"dim": dim, "start": start, "size": size})
        for start in (0, size)
    ]
    negated = w.op("mul", [parts[1]], half, place, {"other": Fraction(-1)})
    turned = w.op("concat", [negated, parts[0]], shape, place, {"dim": dim})
    return w.op("add", [whole, turned], shape, place)


def stacked(w: Writer, x: Both, y: Both) -> Both | None:
    """Two tensors as one, and a sum over which."""
    if w.shape(x) != w.shape(y) or len(w.shape(x)) > 3:
        return None
    a = _settled(w, x)
    b = None if a is None else w.alike(w.settled(y), a)
    if a is None or b is None:
        return None
    place: Place = {
        axis: how + 1 if isinstance(how, int) else how for axis, how in w.place(a).items()
    }
    both = w.op("stack", [a, b], (2, *w.shape(a)), place, {"dim": 0})
    both = w.op("tanh", [both], w.shape(both), place)
    return w.op("sum", [both], w.shape(a), w.place(a), {"dim": 0, "keepdim": False})


def largest(w: Writer, x: Both, y: Both) -> Both | None:
    """The strongest feature of a projection, perhaps the weakest one: no two are alike."""
    shape = w.shape(x)
    found = _settled(w, x)
    whole = None if found is None or len(shape) < 2 else w.undivided(found, len(shape) - 1)
    if whole is None:
        return None
    weight = w.parameter((4, shape[-1]), {})
    place = w.place(whole)
    features = w.op("linear", [whole, weight], (*shape[:-1], 4), place)
    if w.random.random() < 0.4:
        factor = {"other": Fraction(-3, 2)}
        features = w.op("mul", [features], w.shape(features), place, factor)
    return w.op("amax", [features], shape[:-1], place, {"dim": len(shape) - 1})


def summed_in_steps(w: Writer, x: Both, y: Both) -> Both | None:
    """Over two dimensions at once, and one after the other."""
    shape = w.shape(x)
    if len(shape) < 3:
        return None
    n = len(shape)
    place = {
        a: PARTIAL if isinstance(how, int) and how >= n - 2 else how
        for a, how in w.place(x).items()
    }
    dims = (n - 2, n - 1)
    w.kinds.add("sum")
    one = w.one.apply("sum", [x.single], shape[:-2], {}, dim=dims, keepdim=False)
    local = w.local(shape, w.place(x))
    inner = w.many.apply("sum", [x.parallel], local[:-1], place, dim=n - 1, keepdim=False)
    many = w.many.apply("sum", [inner], local[:-2], place, dim=n - 2, keepdim=False)
    return Both(one, many)


#: One function of a positive value in several ways: operators with attributes, one after another.
WAYS: Final = (
    ([("sqrt", {})], [("pow", {"exponent": HALF})]),
    ([("rsqrt", {})], [("sqrt", {}), ("reciprocal", {"numerator": Fraction(1)})]),
    ([("rsqrt", {})], [("pow", {"exponent": -HALF})]),
    ([("reciprocal", {"numerator": Fraction(1)})], [("pow", {"exponent": Fraction(-1)})]),
    ([("log", {}), ("mul", {"other": Fraction(1, 2)})], [("log", {}), ("mul", {"other": HALF})]),
)


def rewritten(w: Writer, x: Both, y: Both) -> Both | None:
    """A function of x x + 1, written in one way on the one side, in another on the other one."""
    found = _settled(w, x)
    if found is None:
        return None
    shape, place = w.shape(found), w.place(found)
    square = w.op("mul", [found, found], shape, place)
    above = w.op("add", [square], shape, place, {"other": Fraction(1)})
    ways = list(w.random.choice(WAYS))
    if w.random.random() < 0.5:
        ways.reverse()
    if w.mistakes.now("another function"):
        ways[1] = [("sqrt", {}), ("sqrt", {})]
    single, many = above.single, above.parallel
    for name, attrs in ways[0]:
        single = w.one.apply(name, [single], shape, {}, **attrs)
    for name, attrs in ways[1]:
        many = w.many.apply(name, [many], w.local(shape, place), place, **attrs)
    w.kinds.add("rewritten")
    return Both(single, many)


def quotient(w: Writer, x: Both, y: Both) -> Both | None:
    """x over a root, as a quotient and as a product with the root's inverse."""
    a = _settled(w, x)
    b = None if a is None or w.shape(y) != w.shape(x) else w.alike(w.settled(y), a)
    if a is None or b is None:
        return None
    shape, place = w.shape(a), w.place(a)
    square = w.op("mul", [b, b], shape, place)
    above = w.op("add", [square], shape, place, {"other": Fraction(1)})
    root = w.one.apply("sqrt", [above.single], shape, {})
    one = w.one.apply("div", [a.single, root], shape, {})
    local = w.local(shape, place)
    inverse = w.many.apply("rsqrt", [above.parallel], local, place)
    w.kinds.add("quotient")
    return Both(one, w.many.apply("mul", [a.parallel, inverse], local, place))


def experts(w: Writer, x: Both, y: Both) -> Both | None:
    """Several linear layers side by side, divided over tp, and added up with weights."""
    shape = w.shape(x)
    found = _settled(w, x)
    count = 4
    if found is None or len(shape) != 3 or prod(shape) > 128 or "tp" not in w.mesh:
        return None
    whole = w.undivided(found, 2)
    if whole is None or w.place(whole)["tp"] != WHOLE:
        return None
    weight = w.parameter((count, shape[2], shape[2]), {"tp": 0})
    place = {axis: 2 if axis == "tp" else how for axis, how in w.place(whole).items()}
    each = w.op(
        "einsum", [whole, weight], (*shape[:2], count, shape[2]), place,
        {"equation": "bsk,eko->bseo"},
    )  # fmt: skip
    each = w.op("silu", [each], w.shape(each), place)
    addends = {axis: PARTIAL if axis == "tp" else how for axis, how in place.items()}
    return w.op("sum", [each], shape, addends, {"dim": 2, "keepdim": False})


MAKERS: Final[tuple[tuple[Maker, int], ...]] = (
    (normalised, 2), (contrasted, 2), (rotated, 2), (stacked, 1), (largest, 1),
    (summed_in_steps, 1), (rewritten, 2), (quotient, 1), (experts, 1),
)  # fmt: skip
