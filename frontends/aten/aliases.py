"""Second names of ATen operators, with the arguments of the first: `torch.export` leaves them in a
program.

Source: PyTorch's documentation ("Alias for ..."), and the schemas of the overloads.
"""

from __future__ import annotations

from typing import Final

#: An overload, and the one whose rule and arguments it has.
ALIASES: Final = {
    "absolute.default": "abs.default",
    "arccos.default": "acos.default",
    "arccosh.default": "acosh.default",
    "arcsin.default": "asin.default",
    "arcsinh.default": "asinh.default",
    "arctan.default": "atan.default",
    "arctanh.default": "atanh.default",
    "clip.default": "clamp.default",
    "clip.Tensor": "clamp.Tensor",
    "concat.default": "cat.default",
    "concatenate.default": "cat.default",
    "diagonal.default": "diagonal_copy.default",
    "divide.Scalar": "div.Scalar",
    "divide.Scalar_mode": "div.Scalar_mode",
    "divide.Tensor": "div.Tensor",
    "divide.Tensor_mode": "div.Tensor_mode",
    "fix.default": "trunc.default",
    "ger.default": "outer.default",
    "greater.Scalar": "gt.Scalar",
    "greater.Tensor": "gt.Tensor",
    "greater_equal.Scalar": "ge.Scalar",
    "greater_equal.Tensor": "ge.Tensor",
    "less.Scalar": "lt.Scalar",
    "less.Tensor": "lt.Tensor",
    "less_equal.Scalar": "le.Scalar",
    "less_equal.Tensor": "le.Tensor",
    "linalg_matmul.default": "matmul.default",
    "max.other": "maximum.default",
    "min.other": "minimum.default",
    "moveaxis.int": "movedim.int",
    "multiply.Scalar": "mul.Scalar",
    "multiply.Tensor": "mul.Tensor",
    "negative.default": "neg.default",
    "not_equal.Scalar": "ne.Scalar",
    "not_equal.Tensor": "ne.Tensor",
    "special_erf.default": "erf.default",
    "special_erfc.default": "erfc.default",
    "special_exp2.default": "exp2.default",
    "special_expit.default": "sigmoid.default",
    "special_expm1.default": "expm1.default",
    "special_log1p.default": "log1p.default",
    "special_logit.default": "logit.default",
    "special_log_softmax.default": "log_softmax.int",
    "special_logsumexp.default": "logsumexp.default",
    "special_softmax.default": "softmax.int",
    "special_xlogy.default": "xlogy.Tensor",
    "special_xlogy.other_scalar": "xlogy.Scalar_Other",
    "special_xlogy.self_scalar": "xlogy.Scalar_Self",
    "split.sizes": "split_with_sizes.default",
    "subtract.Tensor": "sub.Tensor",
    "subtract.Scalar": "sub.Scalar",
    "swapdims.default": "swapaxes.default",
    "true_divide.Scalar": "div.Scalar",
    "true_divide.Tensor": "div.Tensor",
    "unfold.default": "unfold_copy.default",
    "unsafe_chunk.default": "chunk.default",
}
