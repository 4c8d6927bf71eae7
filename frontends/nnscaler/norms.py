"""Norms of images, as nnScaler wraps the modules that have them (``graph/function/wrapnn.py``).

Their running statistics are written in place while a model trains, and read where it does not:
nothing of a step that trains reads them.
"""

from __future__ import annotations

from typing import Final

from shardproof.frontends.nnscaler.calls import Arguments, Composed, Refused, operand, shown, unless
from shardproof.frontends.nnscaler.chain import Chain, exact_number
from shardproof.frontends.nnscaler.lowerings import real
from shardproof.frontends.nnscaler.records import Tensor

#: Said of plans that write such statistics.
RUNNING: Final = (
    "running statistics of norms, which a step that trains writes and does not read, are not "
    "compared"
)


def instance_norm(arguments: Arguments) -> Composed:
    """``wrap_instancenorm2d_func``: each channel of each image by itself.

    Example: of x [2, 3, 4, 4] the mean and the variance are taken over the last two dimensions; of
    one position there is none, and PyTorch refuses it.
    """
    x = operand(arguments, "input")
    if len(x.shape) not in (3, 4):
        raise Refused(f"input of {len(x.shape)} dimensions")
    if _given(arguments, "affine", False):
        unless(arguments, "num_features", x.shape[-3])
    tracked = _given(arguments, "track_running_stats", False)
    training = _given(arguments, "training", True)
    if training or not tracked:
        dims = (len(x.shape) - 2, len(x.shape) - 1)
        return _of_its_own(x, arguments, dims, tracked and training)
    return _of_running(x, arguments)


def batch_norm(arguments: Arguments) -> Composed:
    """``wrap_batchnorm2d_func`` where it does not train: by running statistics, or (without these)
    by those of what it is given.

    Example: in training it is refused: the code that is generated has all replicas, and the ranks
    that have parts of the batch, share their statistics.
    """
    x = operand(arguments, "input")
    if len(x.shape) != 4:
        raise Refused(f"input of {len(x.shape)} dimensions")
    if _given(arguments, "training", True):
        raise Refused("training True (ranks share their statistics, which is not understood)")
    if arguments.get("running_mean") is None and arguments.get("running_var") is None:
        return _of_its_own(x, arguments, (0, 2, 3), writes=False)
    return _of_running(x, arguments)


def _given(arguments: Arguments, name: str, default: bool) -> bool:
    value = arguments.get(name, default)
    if not isinstance(value, bool):
        raise Refused(f"{name} {shown(value)}")
    return value


def _of_its_own(x: Tensor, arguments: Arguments, dims: tuple[int, ...], writes: bool) -> Composed:
    """By the mean and the variance of what is given."""
    if all(x.shape[d] == 1 for d in dims):
        raise Refused("one position for each channel")
    scales = _scales(arguments)
    chain = Chain(x, *scales.values())
    centred = chain("sub", 0, chain("mean", 0, dim=dims, keepdim=True))
    square = chain("mean", chain("mul", centred, centred), dim=dims, keepdim=True)
    _scaled(chain, centred, square, arguments, scales)
    return chain.done(RUNNING if writes else "")


def _of_running(x: Tensor, arguments: Arguments) -> Composed:
    """By the statistics that the module has."""
    statistics = [operand(arguments, name) for name in ("running_mean", "running_var")]
    scales = _scales(arguments)
    chain = Chain(x, *scales.values(), *statistics)
    mean, square = (_along(chain, len(scales) + 1 + i) for i in range(2))
    _scaled(chain, chain("sub", 0, mean), square, arguments, scales)
    return chain.done()


def _scales(arguments: Arguments) -> dict[str, Tensor]:
    return {
        name: operand(arguments, name)
        for name in ("weight", "bias")
        if arguments.get(name) is not None
    }


def _scaled(
    chain: Chain, centred: int, square: int, arguments: Arguments, scales: dict[str, Tensor]
) -> None:
    """What is centred over its deviation, times a weight and with a bias for each channel."""
    shift = exact_number(real(arguments, "eps", 1e-5))
    normal = chain("mul", centred, chain("rsqrt", chain("affine", square, factor=1, shift=shift)))
    for number, name in enumerate(scales, 1):
        normal = chain("mul" if name == "weight" else "add", normal, _along(chain, number))


def _along(chain: Chain, number: int) -> int:
    """A number for each channel, beside the positions of an image."""
    return chain("view", number, size=(*chain.shapes[number], 1, 1))
