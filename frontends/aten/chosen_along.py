"""Which operators read rows that a mask chooses one by one (`chosen`): data, no rules.

Source: PyTorch's documentation of each operator.
"""

from __future__ import annotations

from typing import Final

from shardproof.frontends.aten import ordered


def _named(names: str, *overloads: str) -> frozenset[str]:
    return frozenset(f"aten.{name}.{overload}" for name in names.split() for overload in overloads)


#: Operators of which an entry of a result depends on the entries at its place alone.
ENTRYWISE: Final = (
    ordered.ENTRYWISE
    | _named("clamp clamp_min clamp_max xlogy fmod remainder", "Tensor")
    | _named("fmod remainder", "Scalar")
    | _named("where", "ScalarSelf", "ScalarOther")
    | _named("pow", "Scalar")
    | _named("xlogy", "Scalar_Self", "Scalar_Other")
    | _named("div floor_divide", "Tensor_mode", "Scalar_mode", "default")
    | _named("log_sigmoid_forward log_sigmoid_backward sgn bitwise_not floor ceil", "default")
    | _named("trunc round isnan isinf celu selu hardsigmoid hardsigmoid_backward", "default")
    | _named("softshrink hardshrink logit logit_backward tan atan atan2 sinh cosh", "default")
    | _named("erfc exp2 log2 log10 nan_to_num special_entr", "default")
    | _named("softshrink_backward hardshrink_backward", "default")
)
#: What is cast, entry by entry.
CASTS: Final = frozenset({"move.cast", "aten.copy.default"})
#: Operators along dimensions of their own, by the place of these among their arguments.
ALONG: Final = {
    **dict.fromkeys(
        (
            *_named(
                "_softmax _log_softmax amax amin logsumexp argmax argmin cumsum flip", "default"
            ),
            *_named("glu sort argsort scatter_add gather", "default"),
            *_named("var std var_mean std_mean", "correction"),
            *_named("any all max min", "dim"),
            *_named("scatter", "src", "value"),
            *("aten.any.dims", "aten.all.dims", "aten.sort.stable", "aten.prod.dim_int"),
            *("aten.sum.dim_IntList", "aten.mean.dim"),
        ),
        1,
    ),
    "aten._softmax_backward_data.default": 2,
    "aten._log_softmax_backward_data.default": 2,
    "aten.topk.default": 2,
    "aten.glu_backward.default": 2,
    "aten.linalg_vector_norm.default": 2,
    "aten.norm.ScalarOpt_dim": 2,
    "aten.roll.default": 2,
}
#: Which dimension it is if none is given; of the others it is all.
DEFAULTS: Final = dict.fromkeys(
    (*_named("topk glu sort argsort", "default"), "aten.sort.stable"), -1
)
#: Those that read each row of one operand by itself, and what has no such rows as a whole, by the
#: place of that operand.
BY_ROWS: Final = {
    "aten.native_layer_norm.default": 0,
    "aten._fused_rms_norm.default": 0,
}
#: Those of a gradient that sum over its rows what has none.
SUMMING: Final = _named("native_layer_norm_backward _fused_rms_norm_backward", "default")
#: Those whose rows are 0 where those of the first operand are.
LINEAR: Final = (
    _named("mul div", "Scalar", "Tensor")
    | _named("neg _to_copy clone silu_backward gelu_backward sigmoid_backward", "default")
    | _named("tanh_backward threshold_backward native_layer_norm_backward", "default")
    | _named("_softmax_backward_data _log_softmax_backward_data", "default")
    | _named("_fused_rms_norm_backward", "default")
)
