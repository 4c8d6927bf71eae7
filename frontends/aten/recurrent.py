"""Recurrent layers that `torch.export` leaves whole, step by step.

Source: the formulas in PyTorch's documentation of `torch.nn.RNN`, `LSTM` and `GRU`, and the order
of gates and of parameters that it names there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from shardproof.engine.errors import Unsupported
from shardproof.frontends.aten.composite import _linear
from shardproof.frontends.aten.lowering import Lowered, Lowering
from shardproof.frontends.aten.rules import lowers

#: States [batch, hidden] of a step: of an LSTM the hidden one, then that of the cell.
States: TypeAlias = tuple[Any, ...]
#: (lowering, what the input adds to the gates, weights and bias of the states, states) -> states.
Step: TypeAlias = Callable[[Lowering, Any, Lowered, "Lowered | None", States], States]


def _gates(lo: Lowering, x: Lowered, count: int) -> list[Any]:
    size = x.shape[-1] // count
    return [lo.slice(x, len(x.shape) - 1, n * size, size) for n in range(count)]


def _simple(function: str) -> Step:
    def step(lo: Lowering, x: Any, w: Lowered, b: Lowered | None, states: States) -> States:
        return (lo.unary(function, lo.add(x, _linear(lo, states[0], w, b))),)

    return step


def _lstm(lo: Lowering, x: Any, w: Lowered, b: Lowered | None, states: States) -> States:
    """Gates: input, forget, cell, output."""
    hidden, cell = states
    every = _gates(lo, lo.add(x, _linear(lo, hidden, w, b)), 4)
    into, keep, out = (lo.unary("sigmoid", every[n]) for n in (0, 1, 3))
    cell = lo.add(lo.mul(keep, cell), lo.mul(into, lo.unary("tanh", every[2])))
    return lo.mul(out, lo.unary("tanh", cell)), cell


def _gru(lo: Lowering, x: Any, w: Lowered, b: Lowered | None, states: States) -> States:
    """Gates: reset, update, new; the reset is of what the state adds to the new one."""
    (hidden,) = states
    of_x, of_state = _gates(lo, x, 3), _gates(lo, _linear(lo, hidden, w, b), 3)
    reset, update = (lo.unary("sigmoid", lo.add(of_x[n], of_state[n])) for n in (0, 1))
    new = lo.unary("tanh", lo.add(of_x[2], lo.mul(reset, of_state[2])))
    return (lo.add(new, lo.mul(update, lo.sub(hidden, new))),)


STEPS: dict[str, Step] = {
    "rnn_tanh": _simple("tanh"),
    "rnn_relu": _simple("relu"),
    "gru": _gru,
    "lstm": _lstm,
}


def _along(
    lo: Lowering, step: Step, rows: Sequence[Any], weights: Sequence[Any], states: States
) -> tuple[list[Any], States]:
    """All steps of a layer in one direction: the hidden state after each, and the last states."""
    w_in, w_state, b_in, b_state = weights
    outputs = []
    for row in rows:
        states = step(lo, _linear(lo, row, w_in, b_in), w_state, b_state, states)
        outputs.append(states[0])
    return outputs, states


def _layers(
    lo: Lowering,
    step: Step,
    x: Lowered,
    given: Sequence[Lowered],
    params: Sequence[Lowered],
    biases: bool,
    layers: int,
    directions: int,
    first: bool,
) -> Any:
    """The output of the last layer, and the last states of every layer and direction."""
    at = 1 if first else 0
    rows = [_without(lo, x, at, t) for t in range(x.shape[at])]
    each = 4 if biases else 2
    last: list[States] = []
    for layer in range(layers):
        made: list[list[Any]] = []
        for direction in range(directions):
            n = layer * directions + direction
            own = [*params[n * each : (n + 1) * each], None, None][:4]
            states = tuple(_without(lo, state, 0, n) for state in given)
            turned = rows[::-1] if direction else rows
            outputs, states = _along(lo, step, turned, own, states)
            made.append(outputs[::-1] if direction else outputs)
            last.append(states)
        both = zip(*made, strict=True)
        rows = [lo.concat(parts, 1) if directions > 1 else parts[0] for parts in both]
    ends = [_stacked(lo, [states[k] for states in last], 0) for k in range(len(given))]
    return (_stacked(lo, rows, at), *ends)


def _without(lo: Lowering, x: Lowered, dim: int, place: int) -> Any:
    """One position of a dimension, without it."""
    return lo.reshape(lo.slice(x, dim, place, 1), (*x.shape[:dim], *x.shape[dim + 1 :]))


def _stacked(lo: Lowering, xs: Sequence[Any], dim: int) -> Any:
    grown = [lo.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:])) for x in xs]
    return lo.concat(grown, dim)


def _declare(name: str, step: Step) -> None:
    @lowers(f"aten.{name}.input")
    def layers(
        lo: Lowering,
        x: Lowered,
        states: Any,
        params: Sequence[Lowered],
        biases: bool,
        count: int,
        dropout: float,
        train: bool,
        both: bool,
        first: bool,
    ) -> Any:
        """``first``: the batch is the first dimension."""
        if dropout and train:
            raise Unsupported(f"{name} with dropout")
        given = list(states) if name == "lstm" else [states]
        if len(x.shape) != 3 or len(params) != count * (1 + both) * (4 if biases else 2):
            raise Unsupported(f"{name} without a batch, or with projections")
        return _layers(lo, step, x, given, params, biases, count, 1 + both, first)

    @lowers(f"aten.{name}_cell.default")
    def cell(
        lo: Lowering,
        x: Lowered,
        states: Any,
        w_in: Lowered,
        w_state: Lowered,
        b_in: Lowered | None = None,
        b_state: Lowered | None = None,
    ) -> Any:
        given = tuple(states) if name == "lstm" else (states,)
        made = step(lo, _linear(lo, x, w_in, b_in), w_state, b_state, given)
        return made if name == "lstm" else made[0]


for _name, _step in STEPS.items():
    _declare(_name, _step)
