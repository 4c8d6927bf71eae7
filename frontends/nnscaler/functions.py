"""The table of functions that a plan may hold, and the declared operators that they are.

Signatures and parameters are those of nnScaler's function registry (``graph/parser/mapping.py``,
``graph/function/function.py`` and ``runtime/function/function.py`` of its main branch) and of
PyTorch 2.  `frontends.nnscaler.calls` says how a row is written.  What draws random numbers
(``rand``, ``randn``; dropout is understood), has no particular content (``empty``) or a shape that
depends on numbers (``nonzero``) is in no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardproof.frontends.nnscaler import (
    complexes,
    composed,
    draws,
    indexed,
    inplace,
    losses,
    norms,
    ranges,
    reductions,
    tables,
    triangles,
    windows,
)
from shardproof.frontends.nnscaler import lowerings as low
from shardproof.frontends.nnscaler.calls import Function, Rewrite, function, rewritten

_RUNTIME: Final = "nnscaler.runtime.function"
_FUNCTIONAL: Final = "torch.nn.functional"
_WRAPPED: Final = "nnscaler.graph.function.wrapnn"


def _twice(rows: Mapping[str, Function]) -> dict[str, Function]:
    """Functions that are methods of a tensor too."""
    return {
        f"{place}.{name}": row for name, row in rows.items() for place in ("torch", "torch.Tensor")
    }


def _lowered(rewrite: Rewrite, parameters: str, *signatures: str) -> dict[str, Function]:
    return dict.fromkeys(signatures, rewritten(rewrite, parameters))


_NAMED: Final[Mapping[str, Function]] = {
    # Elementwise.
    **_twice({
        name: function(name, "input: out=None")
        for name in (
            "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "sin", "cos", "erf", "relu", "abs"
        )
    }),
    **{
        f"{_FUNCTIONAL}.{name}": function(name, "input: inplace=False")
        for name in ("sigmoid", "tanh", "silu", "relu")
    },
    f"{_FUNCTIONAL}.gelu": rewritten(composed.gelu, "input approximate"),
    "torch._C._nn.gelu": rewritten(composed.gelu, "input approximate"),
    f"{_FUNCTIONAL}.logsigmoid": function("log_sigmoid", "input:"),
    "torch._C._nn.log_sigmoid": function("log_sigmoid", "input:"),
    **_twice({
        "add": rewritten(composed.add, "input! other! alpha out"),
        "sub": rewritten(low.sub, "input! other! alpha out"),
        "mul": function("mul", "input: other out=None", commutes=True),
        "multiply": function("mul", "input: other out=None", commutes=True),
        "div": rewritten(low.div, "input! other! rounding_mode out"),
        "true_divide": rewritten(low.div, "input! other!"),
        "neg": rewritten(low.neg, "input out"),
        "pow": function("pow", "input: exponent out=None"),
        "masked_fill": rewritten(composed.masked_fill, "input mask value"),
        "masked_fill_": rewritten(inplace.masked_fill, "input mask value"),
        "fill_": rewritten(inplace.fill, "input value"),
        "clone": function("identity", "input: memory_format~"),
        "detach": function("detach", "input:"),
        "square": rewritten(composed.square, "input out"),
        "reciprocal": rewritten(low.reciprocal, "input out"),
    }),
    f"{_RUNTIME}.accum": function("add_n", "x: y:? z:?"),
    # Reductions.
    **_twice({
        "sum": rewritten(reductions.reduction("sum"), "input dim keepdim dtype"),
        "mean": rewritten(reductions.reduction("mean"), "input dim keepdim dtype"),
        "amax": rewritten(reductions.reduction("amax"), "input dim keepdim out"),
        "any": rewritten(reductions.some, "input dim keepdim out"),
        "norm": rewritten(reductions.norm, "input p dim keepdim out dtype"),
        "softmax": rewritten(reductions.softmax("softmax"), "input dim dtype"),
        "log_softmax": rewritten(reductions.softmax("log_softmax"), "input dim dtype"),
    }),
    "torch.functional.norm": rewritten(reductions.norm, "input p dim keepdim out dtype"),
    **{
        f"{_FUNCTIONAL}.{name}": rewritten(
            reductions.softmax(name), "input dim _stacklevel dtype"
        )
        for name in ("softmax", "log_softmax")
    },
    f"{_RUNTIME}.layer_norm": rewritten(low.layer_norm, "input! weight bias normalized_shape! eps"),
    f"{_FUNCTIONAL}.layer_norm": rewritten(
        low.layer_norm, "input! normalized_shape! weight bias eps"
    ),
    f"{_FUNCTIONAL}.rms_norm": rewritten(low.rms_norm, "input! normalized_shape! weight eps"),
    f"{_WRAPPED}.wrap_instancenorm2d_func": rewritten(
        norms.instance_norm,
        "input weight bias running_mean running_var momentum eps training track_running_stats "
        "num_features affine",
    ),
    f"{_WRAPPED}.wrap_batchnorm2d_func": rewritten(
        norms.batch_norm,
        "input weight bias running_mean running_var num_batches_tracked momentum training "
        "track_running_stats eps process_group",
    ),
    # Losses, comparisons and choices.
    f"{_FUNCTIONAL}.cross_entropy": rewritten(
        losses.cross_entropy,
        "input target weight size_average ignore_index reduce reduction label_smoothing",
    ),
    f"{_FUNCTIONAL}.nll_loss": rewritten(
        losses.nll_loss, "input target weight size_average ignore_index reduce reduction"
    ),
    f"{_FUNCTIONAL}.l1_loss": rewritten(
        losses.l1_loss, "input target size_average reduce reduction weight"
    ),
    f"{_FUNCTIONAL}.mse_loss": rewritten(
        losses.mse_loss, "input target size_average reduce reduction weight"
    ),
    **_twice({
        "gt": rewritten(composed.greater, "input! other! out"),
        "lt": rewritten(composed.less, "input! other! out"),
        "ge": rewritten(composed.at_least, "input! other! out"),
        "le": rewritten(composed.at_most, "input! other! out"),
        "ne": rewritten(composed.unequal, "input! other! out"),
        "eq": rewritten(composed.equal, "input! other! out"),
        "sign": rewritten(composed.sign, "input out"),
        "clamp": rewritten(composed.clamp, "input min max out"),
        "clamp_min": rewritten(composed.clamp, "input min out"),
        "tril": rewritten(triangles.tril, "input diagonal out"),
        "triu": rewritten(triangles.triu, "input diagonal out"),
        "cumsum": rewritten(triangles.cumsum, "input dim dtype out"),
        "index_select": rewritten(indexed.index_select, "input dim index out"),
        "gather": rewritten(indexed.gather, "input dim index sparse_grad out"),
        "topk": rewritten(indexed.topk, "input k dim largest sorted out"),
        "sort": rewritten(indexed.sort, "input dim descending stable out"),
        "max": rewritten(indexed.maximum, "input other_or_dim keepdim dim other out"),
        "min": rewritten(indexed.minimum, "input other_or_dim keepdim dim other out"),
        "maximum": rewritten(indexed.maximum, "input! other! out"),
        "minimum": rewritten(indexed.minimum, "input! other! out"),
        "ceil": rewritten(composed.ceil, "input out"),
        "floor": rewritten(composed.floor, "input out"),
        "fmod": rewritten(composed.fmod, "input! other! out"),
        "floor_divide": rewritten(composed.floor_divide, "input! other! out"),
        "bitwise_not": rewritten(composed.bitwise_not, "input out"),
        "isnan": rewritten(composed.is_nan, "input out"),
        "isinf": rewritten(composed.is_infinite, "input out"),
        "nan_to_num": rewritten(composed.finite, "input nan posinf neginf out"),
        "bitwise_or": rewritten(composed.bitwise_or, "input! other! out"),
        "bitwise_and": rewritten(composed.bitwise_and, "input! other! out"),
        "logical_not": rewritten(composed.bitwise_not, "input out"),
    }),
    "torch.where": rewritten(composed.where, "condition input other"),
    f"{_RUNTIME}.index_select": rewritten(indexed.index_select, "input index dim"),
    f"{_FUNCTIONAL}.pad": rewritten(indexed.pad, "input pad mode value"),
    f"{_FUNCTIONAL}.embedding": rewritten(
        tables.embedding,
        "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
    ),
    # Convolutions.
    **{
        f"{place}.conv{rank}d": rewritten(
            windows.convolution, "input weight bias stride padding dilation groups"
        )
        for rank in (1, 2, 3)
        for place in ("torch", _FUNCTIONAL)
    },
    **{
        f"{place}.conv_transpose{rank}d": rewritten(
            windows.transposed_convolution,
            "input weight bias stride padding output_padding groups dilation",
        )
        for rank in (1, 2)
        for place in ("torch", _FUNCTIONAL)
    },
    **{
        f"{_RUNTIME}.conv{rank}d": rewritten(
            windows.padded_convolution, "input weight bias stride padding dilation groups"
        )
        for rank in (2, 3)
    },
    f"{_FUNCTIONAL}.unfold": rewritten(
        windows.unfold, "input kernel_size dilation padding stride"
    ),
    # Contractions.
    f"{_FUNCTIONAL}.linear": function("linear", "input: weight: bias:?"),
    "torch._C._nn.linear": function("linear", "input: weight: bias:?"),
    **_twice({
        "matmul": rewritten(low.matmul, "input other out"),
        "mm": function("matmul", "input: mat2: out=None"),
        "bmm": function("matmul", "input: mat2: out=None"),
        "addmm": rewritten(low.addmm, "input mat1 mat2 beta alpha out"),
        "baddbmm": rewritten(low.addmm, "input batch1 batch2 beta alpha out"),
        "outer": rewritten(low.outer, "input vec2 out"),
    }),
    **_lowered(low.einsum, "equation *operands", "torch.einsum", "torch.functional.einsum"),
    f"{_RUNTIME}.einsum": rewritten(low.einsum, "*operands equation"),
    f"{_FUNCTIONAL}.scaled_dot_product_attention": rewritten(
        composed.attention, "query key value attn_mask dropout_p is_causal scale enable_gqa"
    ),
    "torch._C._nn.scaled_dot_product_attention": rewritten(
        composed.attention, "query key value attn_mask dropout_p is_causal scale enable_gqa"
    ),
    f"{_RUNTIME}.embedding": rewritten(tables.part, "input! weight! padding_idx start! stop!"),
    # Shapes.
    "torch.Tensor.view": function("view", "input: *size"),
    "torch.Tensor.reshape": function("view", "input: *shape:size"),
    "torch.reshape": function("view", "input: *shape:size"),
    "torch.Tensor.contiguous": function("contiguous", "input: memory_format~"),
    **_twice({
        "transpose": function("transpose", "input: dim0 dim1"),
        "permute": rewritten(low.permute, "input *dims"),
        "squeeze": rewritten(low.squeeze, "input dim"),
        "unsqueeze": rewritten(low.unsqueeze, "input dim"),
        "flatten": rewritten(low.flatten, "input start_dim end_dim"),
        "chunk": rewritten(low.chunk, "input chunks dim"),
        "split": rewritten(low.split, "tensor split_size_or_sections dim"),
        "select": rewritten(low.select, "input dim index"),
        "narrow": rewritten(low.narrow, "input dim start length"),
    }),
    "torch.functional.split": rewritten(low.split, "tensor split_size_or_sections dim"),
    "torch.Tensor.expand": rewritten(low.expand, "input *size"),
    "torch.Tensor.expand_as": rewritten(low.expand_as, "input other"),
    "torch.Tensor.repeat": rewritten(low.repeat, "input *repeats"),
    "torch.cat": rewritten(low.cat, "tensors dim out"),
    "torch.stack": rewritten(low.stack, "tensors dim out"),
    f"{_RUNTIME}.cat": rewritten(low.cat, "*tensors dim"),
    f"{_RUNTIME}.stack": rewritten(low.stack, "*tensors dim"),
    f"{_RUNTIME}.fullslice": rewritten(indexed.fullslice, "input *slicers"),
    **_lowered(inplace.setitem, "input *rest", f"{_RUNTIME}.setitem", "_operator.setitem"),
    f"{_RUNTIME}.identity": function("identity", "tensor:"),
    f"{_RUNTIME}.multiref": function("multiref", "tensor: times"),
    "torch.view_as_complex": rewritten(complexes.view_as_complex, "input"),
    "torch.view_as_real": rewritten(complexes.view_as_real, "input"),
    # Casts.
    "torch.Tensor.float": low.cast_to("float32"),
    "torch.Tensor.half": low.cast_to("float16"),
    "torch.Tensor.bfloat16": low.cast_to("bfloat16"),
    "torch.Tensor.double": low.cast_to("float64"),
    "torch.Tensor.int": low.cast_to("int32"),
    "torch.Tensor.long": low.cast_to("int64"),
    "torch.Tensor.bool": low.cast_to("bool"),
    "torch.Tensor.type_as": rewritten(low.cast, "tensor! other!"),
    "torch.Tensor.type": rewritten(low.typed, "tensor dtype non_blocking"),
    "torch.Tensor.to": rewritten(
        low.cast, "tensor dtype device non_blocking copy memory_format other dtype_or_device"
    ),
    f"{_RUNTIME}.to": rewritten(low.cast, "tensor dtype_or_device dtype"),
    # Dropout, and constants.
    f"{_FUNCTIONAL}.dropout": rewritten(draws.dropout, "input p training inplace"),
    f"{_RUNTIME}.nndropout": rewritten(draws.dropout, "input p inplace"),
    f"{_RUNTIME}.zeros": ranges.constant_of(0),
    f"{_RUNTIME}.ones": ranges.constant_of(1),
    f"{_RUNTIME}.full": ranges.constant_of(None),
    "torch.zeros_like": ranges.constant_like(0),
    "torch.ones_like": ranges.constant_like(1),
    "torch.full_like": ranges.constant_like(None),
    f"{_RUNTIME}.arange": rewritten(ranges.arange, "start end step dtype requires_grad"),
    f"{_RUNTIME}.linspace": rewritten(ranges.linspace, "start end steps dtype requires_grad"),
    f"{_RUNTIME}.tensor": rewritten(ranges.tensor, "data dtype requires_grad pin_memory"),
    **_twice({"diag": rewritten(ranges.diag, "input diagonal out")}),
}  # fmt: skip

#: Python's operators, which keep their own signature where a model writes ``-x`` or ``x > 0``.
_OPERATORS: Final[Mapping[str, str]] = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "matmul": "matmul",
    "floordiv": "floor_divide", "pow": "pow", "neg": "neg",
    "eq": "eq", "ne": "ne", "gt": "gt", "lt": "lt", "ge": "ge", "le": "le",
    "invert": "bitwise_not", "or_": "bitwise_or", "and_": "bitwise_and",
}  # fmt: skip

#: What those functions are that read complex numbers, by the last part of their signatures.
OF_COMPLEX: Final[Mapping[str, Function]] = {
    "mul": rewritten(complexes.product, "input! other! out"),
    "multiply": rewritten(complexes.product, "input! other! out"),
    "add": rewritten(complexes.total, "input! other! alpha out"),
}

FUNCTIONS: Final[Mapping[str, Function]] = {
    **_NAMED,
    **{f"_operator.{key}": _NAMED[f"torch.{name}"] for key, name in _OPERATORS.items()},
}

#: Functions of the model's own code, by the last part of their signature.
BY_NAME: Final[Mapping[str, Function]] = {
    "create_mask": function("create_mask", "tokens: h:"),
    "apply_mask": function("apply_mask", "x: mask:"),
    "apply_rotary_emb": function("apply_rotary_emb", "xq: xk: freqs_cis:"),
    "self_attention": rewritten(
        draws.self_attention, "query qkv_proj qkv_bias out_proj h scale dropout_p mask"
    ),
    "feedforward": rewritten(draws.feedforward, "x proj1 proj1_bias proj2 dropout is_training"),
    "gate_fw": function(
        "gate_fw", "x: weight: bias:? n_groups topk_groups topk route_scale score_func"
    ),
    "nnscaler_moe_gmm": function(
        "nnscaler_moe_gmm",
        "x: indices: weights: gate_projs: up_projs: down_projs: n_routed_experts~ "
        "local_expert_start local_expert_end",
    ),
}
