"""Fused optimizer steps of ATen: all tensors of a group in one operator, which writes them.

Source: the formulas of torch.optim.Adam, AdamW and SGD; constants are computed in double precision
in the order in which the steps over single tensors compute them, so both say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.lowering import Const, Lowered, Lowering, fraction
from shardproof.frontends.aten.masks import _maximum
from shardproof.frontends.aten.roots import scaled
from shardproof.frontends.aten.rules import lowers


class AdamSettings(NamedTuple):
    """The numbers of a step of Adam; ``decoupled``: weights decay by themselves (AdamW).

    Example: ``AdamSettings(1e-3, 0.9, 0.999, 0.01, 1e-8, False, False, True)``, as AdamW has it.
    """

    lr: float
    beta1: float
    beta2: float
    weight_decay: float
    eps: float
    amsgrad: bool
    maximize: bool
    decoupled: bool


def _number(x: float | Lowered) -> float:
    """A learning rate, or the number of a step: a constant, or a tensor that is one."""
    if isinstance(x, (int, float)):
        return x
    if isinstance(x, Const):
        return float(x.value)
    raise Unsupported("an optimizer step whose number, or learning rate, is an input")


def _unscaled(grad_scale: object, found_inf: object) -> None:
    if grad_scale is not None or found_inf is not None:
        raise Unsupported("a fused optimizer step that divides gradients by a scale")


def _adam_step(
    lo: Lowering,
    settings: AdamSettings,
    step: float,
    state: Sequence[Lowered],
) -> tuple[Any, ...]:
    """Parameter, moments (and the largest second one) after a step; ``state``: parameter, gradient,
    moments (and the largest second one) before it."""
    parameter, gradient, first, second, *most = state
    if settings.maximize:
        gradient = lo.scale(gradient, Fraction(-1))
    if settings.weight_decay and settings.decoupled:
        parameter = lo.scale(parameter, fraction(1 - settings.lr * settings.weight_decay))
    elif settings.weight_decay:
        gradient = lo.add(gradient, parameter, fraction(settings.weight_decay))
    part = fraction(1 - settings.beta1)
    first = lo.add(lo.scale(first, 1 - part), gradient, part)
    squared = lo.mul(gradient, gradient)
    second = lo.add(
        lo.scale(second, fraction(settings.beta2)), squared, fraction(1 - settings.beta2)
    )
    most = [_maximum(lo, largest, second) for largest in most]
    root = (1 - settings.beta2**step) ** 0.5
    scale = lo.unary("sqrt", most[0] if most else second)
    below = lo.shift(scaled(lo, scale, 1 / fraction(root)), fraction(settings.eps))
    size = settings.lr / (1 - settings.beta1**step)
    parameter = lo.add(parameter, lo.div(first, below), -fraction(size))
    return parameter, first, second, *most


def _adam(name: str, decoupled: bool) -> None:
    @lowers(f"aten.{name}.default", f"aten.{name}.tensor_lr")
    def rule(
        lo: Lowering,
        parameters: Sequence[Lowered],
        gradients: Sequence[Lowered],
        firsts: Sequence[Lowered],
        seconds: Sequence[Lowered],
        largest: Sequence[Lowered],
        steps: Sequence[Lowered],
        *,
        lr: float | Lowered,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Lowered | None = None,
        found_inf: Lowered | None = None,
    ) -> Any:
        """What is written: parameters, gradients as they are, moments."""
        _unscaled(grad_scale, found_inf)
        rate = _number(lr)
        own = AdamSettings(rate, beta1, beta2, weight_decay, eps, amsgrad, maximize, decoupled)
        lists = [parameters, gradients, firsts, seconds, *([largest] if amsgrad else [])]
        made = [
            _adam_step(lo, own, _number(step), state)
            for step, *state in zip(steps, *lists, strict=True)
        ]
        after, *moments = zip(*made, strict=True)
        rest = [] if amsgrad else list(largest)
        return (*after, *gradients, *(x for column in moments for x in column), *rest)


_adam("_fused_adam_", False)
_adam("_fused_adamw_", True)


@lowers("aten._fused_sgd_.default", "aten._fused_sgd_.tensor_lr")
def _sgd(
    lo: Lowering,
    parameters: Sequence[Lowered],
    gradients: Sequence[Lowered],
    buffers: Sequence[Lowered],
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Lowered,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Lowered | None = None,
    found_inf: Lowered | None = None,
) -> Any:
    """What is written: parameters, gradients as they are, momenta."""
    _unscaled(grad_scale, found_inf)
    after, momenta = [], []
    for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        change: Any = lo.scale(gradient, Fraction(-1)) if maximize else gradient
        if weight_decay:
            change = lo.add(change, parameter, fraction(weight_decay))
        if momentum:
            buffer = change
            if not is_first_step:
                kept = lo.scale(buffers[i], fraction(momentum))
                buffer = lo.add(kept, change, fraction(1 - dampening))
            momenta.append(buffer)
            change = lo.add(change, buffer, fraction(momentum)) if nesterov else buffer
        after.append(lo.add(parameter, change, -fraction(_number(lr))))
    return (*after, *gradients, *(momenta or buffers))
