"""Every function of the table beside PyTorch: what it gives, and its derivative, on real
numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.interpreters import FloatInterpreter, exact
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.frontends.nnscaler import cells
from shardproof.frontends.nnscaler.functions import FUNCTIONS
from shardproof.frontends.nnscaler.memory import WRITING
from shardproof.frontends.nnscaler.operators import declared
from shardproof.frontends.nnscaler.records import FullTensor, Part, Tensor
from shardproof.frontends.untrusted.inert import DType
from tests.frontends.runtime_functions import call

REAL = torch.float64
FLOAT = DType("torch", "float32")


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=REAL) + 0.25


def mask(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape).bool()


def ids(stop: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, stop, shape)


def turns(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.view_as_complex(rand(*shape, 2))


#: Operands by position (tensors among them) and keyword arguments, by signature.
Calls = dict[str, list[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]]


def at(*inputs: Callable[[], Any] | Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: (tuple(x() if callable(x) else x for x in inputs), kwargs)


def some(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: rand(*shape)


W = "nnscaler.graph.function.wrapnn"
R, N, F = "nnscaler.runtime.function", "torch._C._nn", "torch.nn.functional"
X, XY = some(3, 4), (some(3, 4), some(3, 4))
LINEAR = [at(some(2, 3, 4), some(5, 4)), at(some(3, 4), some(5, 4), bias=rand(5))]
SPLIT = [at(some(5, 3), 2), at(some(3, 5), [1, 4], dim=-1), at(some(4, 3), 2, 0)]
ATTENTION = [
    at(some(2, 4, 8), some(2, 5, 8), some(2, 5, 3)),
    at(some(2, 3, 4, 4), some(2, 3, 4, 4), some(2, 3, 4, 6), is_causal=True),
    at(some(2, 4, 8), some(2, 5, 8), some(2, 5, 3), dropout_p=0.0, scale=0.5),
    at(some(2, 4, 8), some(2, 5, 8), some(2, 5, 3), some(4, 5), scale=None),
    at(some(2, 4, 3, 2), some(2, 2, 3, 2), some(2, 2, 3, 5), is_causal=True, enable_gqa=True),
    at(some(2, 4, 3, 2), some(2, 2, 3, 2), some(2, 2, 3, 5), some(2, 1, 3, 3), enable_gqa=True),
]
CONV1 = [
    at(some(2, 3, 8), some(4, 3, 3), some(4), padding=1),
    at(some(1, 4, 9), some(6, 2, 2), None, 2, (0,), 3, 2),
    at(some(2, 3, 4), some(5, 3, 1)),
]
CONV2 = [
    at(some(1, 2, 5, 4), some(3, 2, 3, 2), some(3), (2, 1), (1, 0), (1, 2)),
    at(some(1, 4, 3, 3), some(4, 1, 2, 2), groups=4),
    at(some(2, 1, 4, 4), some(2, 1, 2, 2), stride=2),
]
NORM = [at(X), at(X, "fro"), at(X, p=2, dim=(1,), keepdim=True), at(X, "fro", 0)]
EINSUM = ["ij,jk->ik", "bij, bjk -> bik", "ij,ij", "ij->ji", "ij->", "ij,kj->ikj"]


SETTING = [
    at(X, slice(None), slice(0, 2), some(3, 2)),
    at(X, 1, some(4)),
    at(X, 1, -1.5),
    at(X, slice(1, 2), 2, 3),
    at(X, None, slice(-2, None), slice(1, 3), some(2)),
    at(some(2, 4, 5), slice(None), slice(1, 3), slice(2, 4), some(1, 2, 1, 1)),
    at(some(2, 4, 5), 0, slice(1, 3), slice(0, 5), some(5)),
    at(X, (slice(0, 2), 3), some(2)),
    at(X, slice(None), some(3, 1)),
    at(X, slice(2, 2), 5.0),
    at(X, lambda: mask(3, 4), 0.5),
    at(X, lambda: mask(3), 2.0),
    at(lambda: ids(9, 4), slice(1, 3), 7),
    at(lambda: ids(9, 4), slice(1, 3), lambda: ids(9, 1)),
    at(lambda: mask(4), 2, True),
]


def equations(last: bool) -> list[Any]:
    shapes = {"i": 3, "j": 4, "k": 5, "b": 2}
    found = []
    for text in EINSUM:
        left = text.replace(" ", "").split("->")[0].split(",")
        operands = [some(*(shapes[x] for x in names)) for names in left]
        found.append(at(*operands, equation=text) if last else at(text, *operands))
    return found


def named(names: str, calls: list[Any]) -> Calls:
    """The same calls of a function and of the method."""
    return {f"{p}.{name}": calls for name in names.split() for p in ("torch", "torch.Tensor")}


CALLS: Calls = {
    **{
        f"{place}.{name}": [at(X)]
        for name in ["exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "sin", "cos", "erf", "relu", "abs"]
        for place in ("torch", "torch.Tensor")
    },
    **{f"{F}.{name}": [at(X)] for name in ("sigmoid", "tanh")},
    **{f"{F}.{name}": [at(X), at(X, inplace=False)] for name in ("silu", "relu")},
    f"{F}.gelu": [at(X), at(X, approximate="none")],
    f"{N}.gelu": [at(X)],
    f"{F}.logsigmoid": [at(X)],
    f"{N}.log_sigmoid": [at(X)],
    **named("add", [at(*XY), at(X, 2), at(X, some(4), alpha=3), at(X, 0.5, alpha=2)]),
    **named("sub", [at(*XY), at(X, 2), at(X, some(4), alpha=3), at(X, 0.5, alpha=2)]),
    **named("mul multiply true_divide", [at(*XY), at(X, 0.5), at(X, some(3, 1))]),
    **named("div", [at(*XY), at(X, 4.0), at(X, some(4), rounding_mode=None)]),
    **named("neg clone isnan isinf", [at(X)]),
    **named("nan_to_num", [at(X), at(X, nan=0.0), at(X, 1.0, 2.0, None)]),
    **named("pow", [at(X, 2), at(X, 0.5), at(X, exponent=-1)]),
    **named("masked_fill", [at(X, lambda: mask(3, 4), -1.5), at(X, lambda: mask(4), value=2)]),
    **named("masked_fill_", [at(X, lambda: mask(3, 4), -1.5), at(X, lambda: mask(4), value=2)]),
    **named("fill_", [at(X, -1.5), at(X, value=2), at(lambda: ids(3, 4), 5)]),
    f"{R}.setitem": SETTING,
    "_operator.setitem": SETTING,
    **named("sum mean amax", [at(X, 1), at(X, (0,), True), at(X, dim=(0, 1), keepdim=True)]),
    **named("norm", NORM),
    "torch.functional.norm": NORM,
    **named("softmax log_softmax", [at(X, 1), at(X, dim=-2), at(X, dim=0, dtype=None)]),
    f"{F}.softmax": [at(X, 1), at(X, dim=-1, _stacklevel=3, dtype=None)],
    f"{F}.log_softmax": [at(X, 1), at(X, dim=-1, _stacklevel=3, dtype=None)],
    f"{R}.layer_norm": [at(X, some(4), some(4), (4,), 0.1), at(X, some(4), bias=None,
                        normalized_shape=[4], eps=0.5)],
    f"{F}.layer_norm": [at(X, (4,), some(4), some(4)), at(X, [4], some(4), eps=0.5),
                        at(some(2, 3, 4), (3, 4), some(3, 4), some(3, 4)), at(X, (4,))],
    f"{W}.wrap_instancenorm2d_func": [
        at(some(2, 3, 4, 2), None, None, None, None, momentum=0.1, eps=0.5, training=True,
           track_running_stats=False, num_features=3, affine=False),
        at(some(2, 3, 4, 2), some(3), some(3), some(3), some(3), track_running_stats=True,
           num_features=3, affine=True),
        at(some(3, 4, 2), some(3), some(3), some(3), some(3), training=False,
           track_running_stats=True, num_features=3, affine=True),
    ],
    f"{W}.wrap_batchnorm2d_func": [
        at(some(2, 3, 4, 2), some(3), some(3), some(3), some(3), lambda: ids(9), momentum=0.1,
           training=False, track_running_stats=True, eps=0.5),
        at(some(2, 3, 4, 2), None, None, None, None, None, momentum=None, training=False,
           track_running_stats=False),
    ],
    f"{R}.accum": [at(*XY), at(*XY, X)],
    f"{F}.linear": LINEAR,
    f"{N}.linear": [at(some(2, 3, 4), some(5, 4)), at(some(3, 4), some(5, 4), some(5))],
    **named("matmul", [
        at(some(3, 4), some(4, 2)), at(some(2, 3, 4), some(2, 4, 2)), at(some(2, 3, 4), some(4, 2)),
        at(some(4), some(4)), at(some(3, 4), some(4)), at(some(4), some(4, 2)),
        at(some(3, 4), some(2, 4, 2)), at(some(2, 3, 3, 4), some(4)),
    ]),
    **named("mm", [at(some(3, 4), some(4, 2))]),
    **named("bmm", [at(some(2, 3, 4), some(2, 4, 5))]),
    **named("addmm", [at(some(3, 2), some(3, 4), some(4, 2)),
                       at(some(2), some(3, 4), some(4, 2), beta=0.5, alpha=2)]),
    **named("baddbmm", [at(some(2, 3, 5), some(2, 3, 4), some(2, 4, 5), beta=2, alpha=0.25)]),
    **named("outer", [at(some(3), some(4))]),
    "torch.einsum": equations(False),
    "torch.functional.einsum": equations(False),
    f"{R}.einsum": equations(True),
    f"{F}.scaled_dot_product_attention": ATTENTION,
    f"{N}.scaled_dot_product_attention": ATTENTION,
    f"{R}.embedding": [at(lambda: ids(6, 2, 3), some(6, 4), padding_idx=None, start=0, stop=6),
                       at(lambda: ids(9, 5), some(3, 4), padding_idx=None, start=2, stop=5),
                       at(lambda: ids(6, 9), some(6, 4), padding_idx=2, start=0, stop=6),
                       at(lambda: ids(9, 9), some(3, 4), padding_idx=0, start=2, stop=5)],
    "torch.Tensor.view": [at(X, 2, 6), at(X, (4, -1)), at(X, size=(12,))],
    "torch.Tensor.reshape": [at(X, 2, 6), at(X, (4, -1))],
    "torch.reshape": [at(X, (2, 6)), at(X, shape=(4, -1))],
    "torch.Tensor.contiguous": [at(X)],
    **named("transpose", [at(some(2, 3, 4), 0, -1), at(some(2, 3, 4), dim0=1, dim1=2)]),
    **named("permute", [at(some(2, 3, 4), (2, 0, -2)), at(some(2, 3, 4), dims=(1, 0, 2))]),
    **named("squeeze", [at(some(1, 3, 1)), at(some(1, 3, 1), 0), at(some(1, 3, 1), dim=(0, -1)),
                         at(some(2, 3), 0)]),
    **named("unsqueeze", [at(X, 0), at(X, -1), at(X, dim=1)]),
    **named("flatten", [at(some(2, 3, 4)), at(some(2, 3, 4), 1), at(some(2, 3, 4), 0, -2)]),
    **named("chunk", [at(some(5, 3), 2), at(some(3, 4), chunks=2, dim=-1)]),
    **named("split", SPLIT),
    "torch.functional.split": SPLIT,
    **named("select", [at(some(2, 3, 4), 1, 2), at(some(2, 3, 4), dim=-1, index=-4)]),
    **named("narrow", [at(some(5, 3), 0, 1, 3), at(some(5, 3), dim=-1, start=-2, length=2)]),
    "torch.Tensor.expand": [at(some(3, 1), 3, 5), at(some(3, 1), (2, -1, 5)), at(some(4), 3, 4)],
    "torch.Tensor.expand_as": [at(some(3, 1), some(2, 3, 4))],
    "torch.Tensor.repeat": [at(X, 2, 3), at(X, (2, 1, 2)), at(some(4), 3), at(X, repeats=(2, 3))],
    "torch.cat": [lambda: (([rand(3, 2), rand(3, 4)], 1), {}),
                  lambda: (((rand(3, 2), rand(1, 2)),), {})],
    "torch.stack": [lambda: (([rand(3, 2), rand(3, 2)], -1), {})],
    f"{R}.cat": [at(some(3, 2), some(3, 4), dim=1), at(some(3, 2), some(1, 2), some(2, 2), dim=0)],
    f"{R}.stack": [at(some(3, 2), some(3, 2), dim=1), at(some(4), some(4), dim=-1)],
    f"{R}.fullslice": [
        at(some(4, 5), 2), at(some(4, 5), slice(1, 3)), at(some(4, 5), slice(None), -1),
        at(some(4, 5), None, slice(-2, None), None, 3), at(some(4, 5, 2), 0, slice(0, 9)),
        at(some(4, 5), lambda: ids(4, 2, 3)),
        at(some(4, 5, 2), slice(1, 3), lambda: ids(5, 3), None, slice(0, 1)),
    ],
    f"{R}.identity": [at(X)],
    f"{R}.multiref": [at(X, times=3), at(X, times=1)],
    **{f"torch.Tensor.{n}": [at(X)] for n in ["float", "half", "bfloat16", "double"]},
    "torch.Tensor.int": [at(lambda: ids(9, 4).int())],
    "torch.Tensor.long": [at(lambda: ids(9, 4).int())],
    "torch.Tensor.bool": [at(lambda: mask(4))],
    "torch.Tensor.type_as": [at(*XY)],
    "torch.Tensor.type": [at(X, FLOAT), at(X, dtype=FLOAT, non_blocking=False)],

    "torch.Tensor.to": [at(X, FLOAT), at(X, dtype=FLOAT), at(*XY)],
    f"{R}.to": [at(X, dtype_or_device=FLOAT)],
    f"{F}.dropout": [at(X, 0.0), at(X, p=0.5, training=False, inplace=False)],
    f"{R}.nndropout": [at(X, p=0.0)],
    f"{R}.zeros": [at(size=(2, 3), dtype=FLOAT, requires_grad=False)],
    f"{R}.ones": [at(size=(2, 3))],
    f"{R}.full": [at((2, 3), 1.5), at(size=(4,), fill_value=-2, dtype=FLOAT)],
    "torch.zeros_like": [at(X)],
    "torch.ones_like": [at(X, dtype=None)],
    "torch.full_like": [at(X, 2.5), at(X, fill_value=3)],
    # Losses, comparisons and choices.
    f"{F}.cross_entropy": [
        at(some(5, 4), lambda: ids(4, 5)), at(some(5, 4), lambda: ids(4, 5), reduction="sum"),
        at(some(5, 4), lambda: ids(4, 5), reduction="none", label_smoothing=0.0),
        at(some(2, 4, 3), lambda: ids(4, 2, 3)),
        at(some(2, 4, 3, 2), lambda: ids(4, 2, 3, 2), reduction="sum"),
    ],
    f"{F}.nll_loss": [
        at(some(5, 4), lambda: ids(4, 5)), at(some(5, 4), lambda: ids(4, 5), reduction="sum"),
        at(some(2, 4, 3), lambda: ids(4, 2, 3)),
    ],
    f"{F}.l1_loss": [at(*XY), at(*XY, reduction="sum"), at(*XY, reduction="none")],
    f"{F}.mse_loss": [at(*XY), at(*XY, reduction="sum")],
    **named("gt lt ge le ne eq", [
        at(*XY), at(X, 0.75), at(lambda: ids(3, 9), lambda: ids(3, 9)), at(lambda: ids(3, 9), 1),
    ]),
    **named("sign", [at(lambda: rand(3, 4) - 0.75)]),
    **named("clamp", [
        at(X, 0.5, 1.0), at(X, min=0.5), at(X, max=0.75), at(lambda: rand(3, 4) - 0.5, -1, 0),
    ]),
    **named("clamp_min", [at(X, 0.5), at(X, min=1)]),
    **named("tril", [at(some(2, 4, 4)), at(some(3, 5), 0)]),
    **named("triu", [at(some(2, 4, 4), 1), at(some(3, 5), diagonal=1)]),
    **named("cumsum", [at(X, 1), at(X, dim=0), at(some(2, 3, 4), -2)]),
    **named("index_select", [
        at(some(5, 3), 0, lambda: ids(5, 7)), at(some(2, 3, 4), 1, lambda: ids(3, 5)),
    ]),
    **named("gather", [
        at(some(5, 3), 0, lambda: ids(5, 2, 3)), at(some(2, 5, 3), -1, lambda: ids(3, 2, 4, 2)),
        at(some(3, 4), 1, lambda: ids(4, 3, 4), sparse_grad=False),
    ]),
    **named("topk", [
        at(some(3, 5), 2), at(some(2, 5, 3), k=3, dim=1, largest=False, sorted=True), at(some(5), 1),
    ]),
    **{f"{place}.{name}": [at(some(3, 5), 1), at(some(3, 5), 0, True), at(some(2, 3, 4), dim=1),
                           at(some(3, 5), dim=-1, keepdim=True), at(some(3, 4)), at(*XY)]
       for name in ("max", "min") for place in ("torch", "torch.Tensor")},
    **named("maximum minimum", [at(*XY)]),
    f"{F}.pad": [
        at(X, (1, 2)), at(some(2, 3, 4), [0, 1, 2, 0], "constant", 1.5),
        at(some(3, 4), (-1, 2, 1, -1), mode="constant", value=None),
    ],
    **named("ceil floor", [at(lambda: 3 * rand(3, 4) - 2)]),
    **named("fmod", [at(lambda: 3 * rand(3, 4) - 2, 0.75)]),
    **named("floor_divide", [at(lambda: ids(9, 5), 2), at(lambda: ids(9, 5), 4)]),
    **named("bitwise_not logical_not", [at(lambda: mask(3, 4))]),
    **named("bitwise_or bitwise_and", [at(lambda: mask(3, 4), lambda: mask(3, 4))]),
    **named("any", [at(lambda: mask(3, 4)), at(lambda: mask(3, 4), 1),
                     at(lambda: mask(3, 4), dim=0, keepdim=True)]),
    **named("detach square reciprocal", [at(X)]),
    **named("diag", [at(some(4, 4)), at(some(3), diagonal=0)]),
    **named("sort", [at(some(3, 5)), at(some(3, 5), 0, descending=True)]),
    f"{F}.rms_norm": [at(X, (4,), some(4), eps=0.1), at(X, [3, 4], None, 0.5)],
    f"{R}.arange": [at(0, 5, 1, DType("torch", "int64")), at(start=1, end=8, step=3, dtype=FLOAT),
                    at(2.5, 0, -0.75, None)],
    f"{R}.linspace": [at(0, 1, 5, FLOAT), at(start=2, end=-1.5, steps=1, dtype=FLOAT)],
    f"{R}.tensor": [at(2.5), at(data=[[2, 2]], dtype=DType("torch", "int64"))],
    # Convolutions.
    **{f"{place}.conv1d": CONV1 for place in ("torch", F)},
    **{f"{place}.conv2d": CONV2 for place in ("torch", F)},
    **{f"{place}.conv3d": [at(some(1, 2, 3, 4, 3), some(2, 2, 2, 2, 1), padding=(1, 0, 1))]
       for place in ("torch", F)},
    **{f"{place}.conv_transpose1d": [
        at(some(2, 3, 4), some(3, 5, 2), some(5), 2),
        at(some(1, 4, 5), some(4, 3, 3), None, 2, 1, 1, 2, 1),
        at(some(1, 2, 4), some(2, 2, 3), stride=3, dilation=2, padding=2),
    ] for place in ("torch", F)},
    **{f"{place}.conv_transpose2d": [
        at(some(1, 2, 3, 2), some(2, 3, 2, 3), stride=(2, 1), padding=(0, 1)),
    ] for place in ("torch", F)},
    f"{R}.conv2d": [
        at(some(1, 2, 4, 5), some(3, 2, 2, 3), None, stride=2, padding=[1, 0, 2, 1], dilation=1),
    ],
    f"{R}.conv3d": [
        at(some(1, 2, 3, 3, 3), some(2, 2, 2, 1, 2), some(2), stride=1, padding=[1, 0, 1],
           dilation=1, groups=1),
    ],
    f"{F}.unfold": [at(some(1, 2, 3, 4), 2), at(some(2, 1, 4, 4), (2, 3), 1, 1, (2, 1))],
    "torch.where": [
        at(lambda: mask(3, 4), *XY), at(lambda: mask(3, 4), X, 2.0),
        at(lambda: mask(3, 4), -1.5, X),
    ],
    f"{R}.index_select": [at(some(5, 3), lambda: ids(5, 7), dim=0)],
    "torch.view_as_complex": [at(some(3, 4, 2)), at(some(2))],
    "torch.view_as_real": [at(turns(3, 4)), at(turns(2, 1))],
    f"{F}.embedding": [at(lambda: ids(6, 2, 3), some(6, 4)), at(lambda: ids(6, 4), some(6, 2), None),
                      at(lambda: ids(6, 9), some(6, 2), -1)],
    # No functions of the table: they have a pattern.
    "einops.rearrange": [
        at(some(2, 6, 3), "b (h d) s -> h s (d b)", h=2), at(X, "... c -> c ..."),
        at(some(2, 3, 4), "b ... -> b (...)"), at(some(1, 3, 2), "1 a b -> b 1 a"),
        at(some(4, 3), "(a b) c -> a c b", b=2),
    ],
    "einops.einops.repeat": [
        at(X, "a b -> a r b", r=2), at(X, "a b -> (a r) b", r=3), at(X, "a b -> 2 b a"),
        at(some(2, 1), "a 1 -> a c", c=3),
    ],
    "einops.reduce": [
        at(some(2, 4, 3), "b (h k) c -> b h", "mean", k=2), at(X, "a b -> b", reduction="sum"),
        at(X, "... a -> ... 1", "sum"), at(some(2, 3, 4), "b ... -> b", "mean"),
    ],
}  # fmt: skip


def record(x: torch.Tensor, ident: int) -> Tensor:
    kind = str(x.dtype).removeprefix("torch.")
    kind = "float32" if kind == "float64" else kind
    shape = tuple(x.shape) or (1,)
    full = FullTensor(ident, "x", shape, kind, False, False, False, True)
    box = tuple((0, n) for n in shape)
    return Tensor(ident, Part("x", shape, kind, False, False, box, (0, 1), full), None)


#: Of complex numbers, with operands of fewer sizes, or real ones.
CALLS["torch.mul"] = [
    *CALLS["torch.mul"], at(turns(2, 3, 4), turns(1, 3, 1)), at(turns(2, 3), some(3)),
    at(some(2, 3), turns(2, 3)),
]  # fmt: skip
CALLS["torch.add"] = [*CALLS["torch.add"], at(turns(2, 3), turns(2, 3), alpha=1)]
for _name in ("torch.Tensor.contiguous", "torch.clone"):
    CALLS[_name] = [*CALLS[_name], at(turns(2, 3))]
CALLS["torch.transpose"] = [*CALLS["torch.transpose"], at(turns(2, 3, 4), 0, -1)]
CALLS["torch.Tensor.view"] = [*CALLS["torch.Tensor.view"], at(turns(2, 3), (1, 2, 1, 3))]


#: Python's operators are called as the functions that they are.
CALLS |= {
    "_operator." + name: CALLS[f"torch.{other}"][:2] for name, other in {
        "sub": "sub", "mul": "mul", "truediv": "true_divide", "pow": "pow", "neg": "neg",
        "matmul": "matmul", "eq": "eq", "ne": "ne", "gt": "gt", "lt": "lt", "ge": "ge", "le": "le",
        "invert": "bitwise_not", "or_": "bitwise_or", "and_": "bitwise_and", "add": "add",
    }.items()
}  # fmt: skip
CALLS["_operator.pow"] = [at(X, 2), at(X, 0.5)]
CALLS["_operator.floordiv"] = CALLS["torch.floor_divide"]


def test_what_was_hidden_by_minus_infinity_is_infinite() -> None:
    op = cells.ForwardOp(1, "f", "torch.isinf", (record(rand(2), 1),), (), {}, (), "", None)
    x = exact(np.array([-1e30, 1e28]))
    assert ran(declared(op), [x])[-1][0].data.tolist() == [1, 0]


def test_every_function_of_the_table_is_called() -> None:
    assert FUNCTIONS.keys() - CALLS.keys() == set()


def _is_real(x: torch.Tensor) -> bool:
    """Whether it has a gradient: complex ones have too."""
    return x.is_floating_point() or x.is_complex()


def numbers(x: torch.Tensor) -> np.ndarray[Any, Any]:
    x = torch.view_as_real(x) if x.is_complex() else x
    return x.detach().numpy().astype(float) if x.is_floating_point() else x.numpy().astype(np.int64)


@pytest.mark.parametrize("signature", CALLS)
def test_a_function_is_pytorchs(signature: str) -> None:
    torch.manual_seed(len(signature))
    agree(signature, CALLS[signature])


def agree(
    signature: str, calls: Sequence[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]
) -> None:
    """What a function gives for each of the calls, and its derivative, beside PyTorch."""
    for make in calls:
        inputs, kwargs = make()
        held: dict[int, torch.Tensor] = {}

        def part(value: Any, held: dict[int, torch.Tensor] = held) -> Any:
            if isinstance(value, torch.Tensor):
                held[len(held) + 1] = value.requires_grad_(_is_real(value))
                return record(value, len(held))
            if isinstance(value, (list, tuple)):
                return tuple(part(x) for x in value)
            return value

        operands = tuple(map(part, inputs))
        named = {key: part(value) for key, value in kwargs.items()}
        outputs = tuple(record(torch.zeros(1), 90 + i) for i in range(9))
        op = cells.ForwardOp(1, "f", signature, operands, outputs, named, (), "", None)
        # A leaf cannot be written, and is compared afterwards.
        kept = (lambda x: x.clone()) if signature in WRITING else (lambda x: x)
        expected = call(op, lambda x, held=held, kept=kept: kept(held[x.id]), strict=False)
        found = declared(op)
        arrays = [numbers(held[x.id]) for x in found.tensors]
        tensors = [exact(x) for x in arrays]
        results = ran(found, tensors)[-1]
        assert len(results) == len(expected), signature
        for mine, theirs in zip(results, expected, strict=True):
            shape = numbers(theirs).shape
            assert mine.data.shape == (shape or mine.data.shape), signature
            wanted = numbers(theirs).reshape(mine.data.shape)
            np.testing.assert_allclose(mine.data, wanted, rtol=1e-9, atol=1e-12)
        backward(signature, found, held, results, expected)


def ran(found: Any, tensors: list[Any]) -> list[list[Any]]:
    """The results of every step of a function; of one that is one operator: its own."""
    if not found.steps:
        return [apply_forward(FloatInterpreter(), found.name, tensors, found.attrs)]
    numbered = [[x] for x in tensors]
    for step in found.steps:
        operands = [numbered[i][0] for i in step.operands]
        numbered.append(apply_forward(FloatInterpreter(), step.name, operands, step.attrs))
        assert numbered[-1][0].data.shape[-len(step.shape) :] == step.shape or not step.shape
    return numbered


def pulled(found: Any, tensors: list[Any], given: list[Any], wrt: list[int]) -> list[Any]:
    """The gradients of a function's operands, step by step."""
    r, numbered = FloatInterpreter(), [x[0] for x in ran(found, tensors)]
    parts: dict[int, list[Any]] = {len(numbered) - 1: given}
    wanted = set(wrt)
    for number, step in enumerate(found.steps, len(tensors)):
        stops = step.name == "detach" or not wanted.intersection(step.operands)
        wanted |= set() if stops else {number}
    for number, step in reversed(list(enumerate(found.steps, len(tensors)))):
        if number not in parts:
            continue
        gradient = apply_forward(r, "add_n", parts[number], {})
        places = [k for k, i in enumerate(step.operands) if i in wanted]
        attrs = {**step.attrs, "wrt": tuple(places), "arity": len(step.operands)}
        operands = [numbered[i] for i in step.operands]
        made = apply_backward(r, step.name, operands, gradient, attrs, places)
        for place, x in zip(places, made, strict=True):
            parts.setdefault(step.operands[place], []).append(x)
    # Of what is written over nothing is left.
    zeros = {i: exact(np.zeros_like(tensors[i].data)) for i in wrt if i not in parts}
    return [zeros[i] if i in zeros else apply_forward(r, "add_n", parts[i], {})[0] for i in wrt]


def backward(signature: str, found: Any, held: Any, results: Any, expected: Any) -> None:
    """The gradients of a random combination of the results."""
    wrt = [i for i, x in enumerate(found.tensors) if _is_real(held[x.id])]
    graded = [y for y in expected if y.requires_grad]
    if not wrt or len(graded) < len(expected):
        return
    given = [torch.rand_like(y) for y in expected]
    leaves = [held[found.tensors[i].id] for i in wrt]
    wanted = torch.autograd.grad(expected, leaves, given, allow_unused=True)
    shaped = [exact(numbers(g).reshape(y.data.shape)) for g, y in zip(given, results, strict=True)]
    kept = [i for i, g in zip(wrt, wanted, strict=True) if g is not None]
    tensors = [exact(numbers(held[x.id])) for x in found.tensors]
    attrs = {**found.attrs, "wrt": tuple(kept), "arity": len(tensors)}
    if found.steps:
        mine = pulled(found, tensors, shaped, kept)
    else:
        mine = apply_backward(FloatInterpreter(), found.name, tensors, shaped, attrs, kept)
    for own, theirs in zip(mine, (g for g in wanted if g is not None), strict=True):
        np.testing.assert_allclose(own.data, numbers(theirs), rtol=1e-8, atol=1e-10)
