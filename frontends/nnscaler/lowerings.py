"""Calls that a row of parameters cannot say: what they are, by their arguments.

Each function takes the arguments of a call by parameter and gives the declared operator with its
operands and attributes, in order; what it does not understand it refuses by name (`Refused`).
Shapes are those that the plan records for the operands; what an operator makes of them is compared
with what it records for the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from shardproof.frontends.nnscaler.calls import (
    Arguments,
    Composed,
    Function,
    Operands,
    Refused,
    operand,
    rewritten,
    shown,
    unless,
)
from shardproof.frontends.nnscaler.chain import Chain, exact_number
from shardproof.frontends.nnscaler.records import Constant, Tensor
from shardproof.frontends.untrusted.inert import DType

Lowered = tuple[str, Operands]

#: Parts that one tensor may be cut into.
_MOST_PARTS: Final = 4096
_INTEGERS: Final = ("bool", "uint8", "int8", "int16", "int32", "int64")


def whole(arguments: Arguments, name: str, default: int | None = None) -> int:
    """An integer argument, such as ``dim``; raises `Refused` for anything else."""
    value = arguments.get(name, default)
    if type(value) is not int:
        raise Refused(f"{name} {shown(value)}")
    return value


def wholes(value: Constant, name: str) -> tuple[int, ...]:
    """One integer or several: 2 and (2, 3), for example, but not 1.5."""
    items = value if isinstance(value, tuple) else (value,)
    if any(type(item) is not int for item in items):
        raise Refused(f"{name} {shown(value)}")
    return tuple(item for item in items if isinstance(item, int))


def dim_of(dim: int, rank: int) -> int:
    """A dimension counted from the front (-1 of 3, for example, is 2); raises `Refused` for one
    that there is not."""
    if not -rank <= dim < rank:
        raise Refused(f"dimension {dim} of {rank}")
    return dim % rank


def real(arguments: Arguments, name: str, default: float) -> Constant:
    """A number; None is the default, such as 1e-5 for ``eps``."""
    value = arguments.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Refused(f"{name} {shown(value)}")
    return value


def kept(value: Constant, kind: str, name: str) -> int | float:
    """A number as a tensor of a type holds it; raises `Refused` for one that would become another.

    Example: True in bool is 1, and 2.0 in int64 is 2; 2.5 in int64 is refused, and 5 in bool.
    """
    number = int(value) if isinstance(value, bool) else value
    if not isinstance(number, (int, float)) or not math.isfinite(number):
        raise Refused(f"{name} {shown(value)}")
    rounded = kind in _INTEGERS and number != int(number)
    if rounded or (kind == "bool" and number not in (0, 1)) or (kind == "uint8" and number < 0):
        raise Refused(f"{name} {shown(value)} in {kind}")
    return int(number) if kind in _INTEGERS else number


# -- casts -----------------------------------------------------------------------------------------


def cast(arguments: Arguments) -> Lowered:
    """A cast, by whatever parameter its type is given, such as ``x.to(torch.bfloat16)``; a device
    changes nothing."""
    x = operand(arguments, "tensor")
    kinds: list[Constant] = []
    for name, value in arguments.items():
        if isinstance(value, DType):
            kinds.append(value)
        elif isinstance(value, Tensor) and name != "tensor":
            kinds.append(value.dtype)
        elif not isinstance(value, (bool, str, type(None), Tensor)):
            raise Refused(f"{name} {shown(value)}")
    if len(kinds) > 1:
        raise Refused("two types")
    if not kinds:
        return "identity", {"tensor": x}
    wanted = kinds[0].name if isinstance(kinds[0], DType) else str(kinds[0])
    if _holds(wanted, x.dtype):
        return "identity", {"tensor": x}
    return "to", {"tensor": x, "dtype": wanted}


#: Types by the names of their tensor classes, as `torch.Tensor.type` takes them.
_CLASSES: Final = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool",
}  # fmt: skip


def typed(arguments: Arguments) -> Lowered:
    """``tensor.type(dtype)``, where the type may be a name: "torch.LongTensor", for example, is
    int64, as is "torch.cuda.LongTensor"."""
    given = arguments.get("dtype")
    if isinstance(given, str):
        word = given.removeprefix("torch.").removeprefix("cuda.").removesuffix("Tensor")
        if word not in _CLASSES or not given.endswith("Tensor"):
            raise Refused(f"dtype {shown(given)}")
        given = DType("torch", _CLASSES[word])
    return cast({"tensor": operand(arguments, "tensor"), "dtype": given})


def _holds(wanted: str, given: str) -> bool:
    """Whether an integer type holds all numbers of another."""
    known = wanted in _INTEGERS and given in _INTEGERS and "uint8" not in (wanted, given)
    return known and _INTEGERS.index(wanted) >= _INTEGERS.index(given)


def cast_to(kind: str) -> Function:
    """``tensor.float()`` and the like; ``tensor.half()``, for example, is ``to`` float16."""

    def rewrite(arguments: Arguments) -> Lowered:
        name, operands = cast(
            {"tensor": operand(arguments, "tensor"), "dtype": DType("torch", kind)}
        )
        return ("float" if (name, kind) == ("to", "float32") else name), operands

    return rewritten(rewrite, "tensor memory_format")


# -- arithmetic ------------------------------------------------------------------------------------


def add(arguments: Arguments) -> Lowered:
    """x + alpha y; ``torch.add(x, 2, alpha=3)``, for example, is ``add`` of 2 with alpha 3."""
    return _sum(arguments, 1)


def sub(arguments: Arguments) -> Lowered:
    """x - alpha y; ``1 - x``, for example, is ``affine`` with factor -1 and shift 1."""
    return _sum(arguments, -1)


def _sum(arguments: Arguments, sign: int) -> Lowered:
    """x ± alpha y, where either may be a constant."""
    unless(arguments, "out", None)
    x, y, alpha = arguments.get("input"), arguments.get("other"), real(arguments, "alpha", 1)
    assert isinstance(alpha, (int, float))
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        if sign < 0 and alpha == 1:
            return "sub", {"input": x, "other": y}
        return "add", {"input": x, "other": y, "alpha": sign * alpha}
    if isinstance(x, Tensor):
        shift = real(arguments, "other", 0)
        if sign < 0 and alpha == 1:
            return "sub", {"input": x, "other": shift}
        return "add", {"input": x, "other": shift, "alpha": sign * alpha}
    if isinstance(y, Tensor) and "input" in arguments:
        shift = real(arguments, "input", 0)
        if sign > 0 and alpha == 1:
            return "add", {"input": y, "other": shift}
        return "affine", {"input": y, "factor": sign * alpha, "shift": shift}
    raise Refused("constant operands")


def div(arguments: Arguments) -> Lowered:
    """x / y, where either may be a number (3 / x, for example, is ``reciprocal``); rounding modes
    are refused."""
    unless(arguments, "rounding_mode", None)
    unless(arguments, "out", None)
    x, y = arguments.get("input"), arguments.get("other")
    if isinstance(x, Tensor):
        return "div", {
            "input": x,
            "other": y if isinstance(y, Tensor) else real(arguments, "other", 0),
        }
    if isinstance(y, Tensor):
        return "reciprocal", {"other": y, "numerator": real(arguments, "input", 0)}
    raise Refused("constant operands")


def reciprocal(arguments: Arguments) -> Lowered:
    """1 / x, for example 0.5 of 2."""
    unless(arguments, "out", None)
    return "reciprocal", {"input": operand(arguments, "input"), "numerator": 1}


def neg(arguments: Arguments) -> Lowered:
    """-x, as x times -1; for example -2 of 2."""
    unless(arguments, "out", None)
    return "mul", {"input": operand(arguments, "input"), "other": -1}


# -- contractions ----------------------------------------------------------------------------------


def matmul(arguments: Arguments) -> Lowered:
    """As PyTorch's, by the ranks of the operands ([2, 4] and [4], for example, are the ``einsum``
    "mk,k->m"); batches are not broadcast against each other."""
    unless(arguments, "out", None)
    x, y = operand(arguments, "input"), operand(arguments, "other")
    a, b = len(x.shape), len(y.shape)
    if a == b >= 2:
        return "matmul", {"input": x, "other": y}
    lead = "abcdefghij"[: max(a, b) - 2] if max(a, b) > 2 else ""
    left = "k" if a == 1 else (lead if a > 2 else "") + "mk"
    right = "k" if b == 1 else (lead if b > 2 else "") + "kn"
    if a < 1 or b < 1 or min(a, b) > 2 or max(a, b) > 12:
        raise Refused(f"operands of {a} and {b} dimensions")
    out = lead + ("m" if a > 1 else "") + ("n" if b > 1 else "")
    return "einsum", {"input": x, "other": y, "equation": f"{left},{right}->{out}"}


def addmm(arguments: Arguments) -> Lowered:
    """beta input + alpha mat1 mat2, with numbers for beta and alpha, for example beta 2 and alpha
    1; the batched form too."""
    unless(arguments, "out", None)
    names = [name for name in ("input", "mat1", "mat2", "batch1", "batch2") if name in arguments]
    tensors = {name: operand(arguments, name) for name in names}
    scales = {name: real(arguments, name, 1) for name in ("alpha", "beta")}
    return "addmm", {**tensors, **scales}


def outer(arguments: Arguments) -> Lowered:
    """The product of every entry of one vector with every entry of another, for example [4, 3] of
    [4] and [3]."""
    unless(arguments, "out", None)
    x, y = operand(arguments, "input"), operand(arguments, "vec2")
    return "einsum", {"input": x, "vec2": y, "equation": "a,b->ab"}


def einsum(arguments: Arguments) -> Lowered:
    """The equation as PyTorch reads it: without a result, the letters that occur once, sorted;
    "ij,jk", for example, is "ij,jk->ik"."""
    equation, operands = arguments.get("equation"), arguments.get("*operands", ())
    if not isinstance(equation, str) or not isinstance(operands, tuple):
        raise Refused(f"equation {shown(equation)}")
    text = equation.replace(" ", "")
    if "->" not in text:
        letters = text.replace(",", "")
        text += "->" + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    tensors = _tensors(operands, "operands")
    return "einsum", {**tensors, "equation": text}


def _tensors(values: Sequence[Constant], name: str) -> Operands:
    if not values or not all(isinstance(x, Tensor) for x in values):
        raise Refused(f"{name} that are no tensors")
    return {f"{name}.{i}": x for i, x in enumerate(values)}


def layer_norm(arguments: Arguments) -> Lowered | Composed:
    """Over the last dimensions; over several, such as (2, 4), or without a weight, as several
    operators."""
    x, weight = operand(arguments, "input"), arguments.get("weight")
    given = arguments.get("normalized_shape")
    over = wholes(given, "normalized_shape") if given is not None else x.shape[-1:]
    if over != x.shape[len(x.shape) - len(over) :] or not over:
        raise Refused(f"normalized_shape {list(over)}")
    bias, eps = arguments.get("bias"), real(arguments, "eps", 1e-5)
    if len(over) == 1 and isinstance(weight, Tensor):
        operands: Operands = {"input": x, "weight": weight}
        if bias is not None:
            operands["bias"] = operand(arguments, "bias")
        return "layernorm", {**operands, "eps": eps}
    scales = [x for x in (weight, bias) if x is not None]
    if not all(isinstance(x, Tensor) and x.shape == over for x in scales):
        raise Refused("weight and bias")
    chain = Chain(x, *(x for x in scales if isinstance(x, Tensor)))
    dims = tuple(range(len(x.shape) - len(over), len(x.shape)))
    centred = chain("sub", 0, chain("mean", 0, dim=dims, keepdim=True))
    square = chain("mean", chain("mul", centred, centred), dim=dims, keepdim=True)
    root = chain("rsqrt", chain("affine", square, factor=1, shift=exact_number(eps)))
    normal = chain("mul", centred, root)
    if weight is not None:
        normal = chain("mul", normal, 1)
    if bias is not None:
        chain("add", normal, len(scales))
    return chain.done()


def rms_norm(arguments: Arguments) -> Composed:
    """x divided by the root of the mean of its squares over the last dimensions.

    Example: x [3, 4] over (4,) with ``eps=0.1`` is ``mul``, ``mean``, ``affine``, ``rsqrt`` and
    ``mul``; without ``eps``, which is then the type's own, it is refused.
    """
    x, weight = operand(arguments, "input"), arguments.get("weight")
    over = wholes(arguments.get("normalized_shape"), "normalized_shape")
    if over != x.shape[len(x.shape) - len(over) :] or not over:
        raise Refused(f"normalized_shape {list(over)}")
    scales = [operand(arguments, "weight")] if weight is not None else []
    if any(scale.shape != over for scale in scales):
        raise Refused("weight")
    chain = Chain(x, *scales)
    dims = tuple(range(len(x.shape) - len(over), len(x.shape)))
    square = chain("mean", chain("mul", 0, 0), dim=dims, keepdim=True)
    eps = exact_number(arguments.get("eps"))
    normal = chain("mul", 0, chain("rsqrt", chain("affine", square, factor=1, shift=eps)))
    if scales:
        chain("mul", normal, 1)
    return chain.done()


# -- shapes ----------------------------------------------------------------------------------------


def squeeze(arguments: Arguments) -> Lowered:
    """The tensor without its dimensions of size 1, all of them or the named ones; for example [2,
    4] of [2, 1, 4]."""
    x = operand(arguments, "input")
    rank, dim = len(x.shape), arguments.get("dim")
    dims = range(rank) if dim is None else [dim_of(d, rank) for d in wholes(dim, "dim")]
    size = tuple(n for i, n in enumerate(x.shape) if i not in dims or n != 1)
    return "view", {"input": x, "size": size}


def unsqueeze(arguments: Arguments) -> Lowered:
    """The tensor with one more dimension of size 1; for example [2, 4, 1] of [2, 4]."""
    x = operand(arguments, "input")
    dim = dim_of(whole(arguments, "dim"), len(x.shape) + 1)
    return "view", {"input": x, "size": (*x.shape[:dim], 1, *x.shape[dim:])}


def flatten(arguments: Arguments) -> Lowered:
    """Dimensions from ``start_dim`` to ``end_dim`` as one, for example [2, 12] of [2, 3, 4]."""
    x = operand(arguments, "input")
    rank = len(x.shape)
    first = dim_of(whole(arguments, "start_dim", 0), rank)
    last = dim_of(whole(arguments, "end_dim", -1), rank)
    if last < first:
        raise Refused(f"dimensions {first} to {last}")
    size = math.prod(x.shape[first : last + 1])
    return "view", {"input": x, "size": (*x.shape[:first], size, *x.shape[last + 1 :])}


def permute(arguments: Arguments) -> Lowered:
    """The tensor with its dimensions in another order, such as (2, 0, 1)."""
    x = operand(arguments, "input")
    dims = wholes(arguments.get("*dims"), "dims")
    return "permute", {"input": x, "dims": tuple(dim_of(d, len(x.shape)) for d in dims)}


def expand(arguments: Arguments) -> Lowered:
    """The tensor repeated to a size; new leading dimensions are a broadcast, for example of [4] to
    [2, 4]."""
    x, size = operand(arguments, "input"), wholes(arguments.get("*size"), "size")
    return ("expand" if len(size) == len(x.shape) else "broadcast_to"), {"input": x, "size": size}


def expand_as(arguments: Arguments) -> Lowered:
    """The tensor repeated to the shape of another one, for example [1, 4] to [2, 4]."""
    return expand(
        {"input": operand(arguments, "input"), "*size": operand(arguments, "other").shape}
    )


def repeat(arguments: Arguments) -> Lowered:
    """The whole tensor, so many times along each dimension, more of which may lead; for example [2,
    12] of [4] by (2, 3)."""
    x, times = operand(arguments, "input"), wholes(arguments.get("*repeats"), "repeats")
    rank, lead = len(x.shape), len(times) - len(x.shape)
    if lead < 0 or len(times) > 12 or any(n < 1 for n in times):
        raise Refused(f"repeats {list(times)}")
    old, new = "abcdefghijkl"[:rank], "mnopqrstuvwx"[: len(times)]
    inner = "".join(n + (old[i - lead] if i >= lead else "") for i, n in enumerate(new))
    return "rearrange", {
        "input": x, "groups": (1,) * rank, "split": (-1,) * rank, "equation": f"{old}->{inner}",
        "sizes": times, "merge": tuple(2 if i >= lead else 1 for i in range(len(times))),
    }  # fmt: skip


def cat(arguments: Arguments) -> Lowered:
    """Tensors one after the other along a dimension, for example [2, 8] of two [2, 4] along 1."""
    return "concat", {**_listed(arguments), "dim": whole(arguments, "dim", 0)}


def stack(arguments: Arguments) -> Lowered:
    """Tensors of one shape along a new dimension, for example [2, 2, 4] of two [2, 4]."""
    return "stack", {**_listed(arguments), "dim": whole(arguments, "dim", 0)}


def _listed(arguments: Arguments) -> Operands:
    unless(arguments, "out", None)
    values = arguments.get("*tensors", arguments.get("tensors"))
    return _tensors(values if isinstance(values, tuple) else (values,), "tensors")


def chunk(arguments: Arguments) -> Lowered:
    """At most ``chunks`` parts of a dimension, all but the last of equal size; for example 3, 3 and
    1 of 7."""
    x = operand(arguments, "input")
    dim = dim_of(whole(arguments, "dim", 0), len(x.shape))
    count = whole(arguments, "chunks")
    if count < 1:
        raise Refused(f"chunks {count}")
    step = max(1, -(-x.shape[dim] // count))
    return _parts(x, dim, step)


def split(arguments: Arguments) -> Lowered:
    """Parts of a dimension, of one size or of the listed sizes, for example (2, 5) of 7."""
    x, given = operand(arguments, "tensor"), arguments.get("split_size_or_sections")
    dim = dim_of(whole(arguments, "dim", 0), len(x.shape))
    if isinstance(given, tuple):
        return _cut(x, dim, wholes(given, "sections"))
    step = whole(arguments, "split_size_or_sections")
    if step < 1:
        raise Refused(f"split_size_or_sections {step}")
    return _parts(x, dim, step)


def _parts(x: Tensor, dim: int, step: int) -> Lowered:
    size = x.shape[dim]
    if size > _MOST_PARTS * step:
        raise Refused(f"more than {_MOST_PARTS} parts")
    return _cut(x, dim, tuple(min(step, size - low) for low in range(0, size, step)))


def _cut(x: Tensor, dim: int, sizes: tuple[int, ...]) -> Lowered:
    return "split", {"input": x, "sizes": sizes, "dim": dim, "parts": len(sizes)}


def select(arguments: Arguments) -> Lowered:
    """One position of a dimension, which is gone then; for example the last column of [2, 4]."""
    x = operand(arguments, "input")
    dim = dim_of(whole(arguments, "dim"), len(x.shape))
    return box(x, [slice(None)] * dim + [whole(arguments, "index")])


def narrow(arguments: Arguments) -> Lowered:
    """``length`` positions of a dimension, from ``start`` on, for example columns 1 and 2."""
    x = operand(arguments, "input")
    dim = dim_of(whole(arguments, "dim"), len(x.shape))
    start, length = whole(arguments, "start"), whole(arguments, "length")
    start = start + x.shape[dim] if start < 0 else start
    return box(x, [slice(None)] * dim + [slice(start, start + length)])


def box(x: Tensor, slicers: Sequence[Constant]) -> Lowered:
    """``x[slicers]`` by integers, slices without a step, and None, such as ``x[0, 1:3]``."""
    starts: list[int] = []
    sizes: list[int] = []
    kept: list[int] = []
    for slicer in slicers:
        if slicer is None:
            kept.append(-1)
            continue
        if len(starts) == len(x.shape):
            raise Refused(f"{len(slicers)} slices of {len(x.shape)} dimensions")
        size = x.shape[len(starts)]
        if type(slicer) is int:
            if not -size <= slicer < size:
                raise Refused(f"position {slicer} of {size}")
            starts.append(slicer % size)
            sizes.append(1)
        elif isinstance(slicer, slice) and slicer.step in (None, 1):
            ends = (slicer.start, slicer.stop)
            if any(not (end is None or type(end) is int) for end in ends):
                raise Refused(f"a slice {shown(ends)}")
            low, high, _ = slice(*ends).indices(size)
            kept.append(len(starts))
            starts.append(low)
            sizes.append(max(0, high - low))
        else:
            raise Refused(f"a slice {shown(slicer)}")
    rest = range(len(starts), len(x.shape))
    return "index", {
        "input": x, "starts": (*starts, *(0 for _ in rest)), "sizes": (*sizes, *(-1 for _ in rest)),
        "kept": (*kept, *rest),
    }  # fmt: skip
