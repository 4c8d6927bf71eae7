"""Functions of PyTorch and nnScaler that no declaration can have, and what to write in their place.

They are refused also where a plan has an annotation of them: what they give is no function of
their operands, or its shape is none of theirs.
"""

from __future__ import annotations

from typing import Final

from shardproof.frontends.nnscaler.cells import LIBRARIES

_RANDOM: Final = frozenset({
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal",
    "bernoulli", "multinomial", "poisson", "binomial", "gumbel_softmax", "rrelu", "alpha_dropout",
    "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "fractional_max_pool2d",
    "fractional_max_pool3d", "native_dropout", "_standard_gamma",
})  # fmt: skip
_EMPTY: Final = frozenset({"empty", "empty_like", "empty_strided", "new_empty"})
_SHAPED_BY_NUMBERS: Final = frozenset(
    {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"}
)
_LEAVING: Final = frozenset({"item", "tolist", "numpy"})


def reason(signature: str) -> str:
    """Why a function of a library is not understood, and what to do; "" where it may be.

    Example: of ``torch.nonzero``: "a shape that depends on numbers (hide entries by where or
    masked_fill instead)"; of ``torch.exp`` and of the model's own ``my.model.item`` nothing.
    """
    if not signature.startswith(LIBRARIES):
        return ""
    last = signature.rsplit(".", 1)[-1]
    if last in _RANDOM:
        return "random numbers of its own (draw them outside and load them with the batch)"
    if last in _EMPTY:
        return "entries that nothing defines (make them by zeros or full instead)"
    if last in _SHAPED_BY_NUMBERS:
        return "a shape that depends on numbers (hide entries by where or masked_fill instead)"
    if last in _LEAVING:
        return "a number that leaves its tensor (compute with the tensor instead)"
    return ""
