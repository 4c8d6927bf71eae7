"""Random small models, and how each of their operations may be laid out over a team of devices."""

from __future__ import annotations

import random
from typing import Any

from tests.frontends.plan_families import annotated
from tests.frontends.plan_layouts import PARTIAL, REPLICATED, cut
from tests.frontends.plan_values import Choice, Model, Operation, Value

DROPOUT = "torch.nn.functional.dropout"


class _Draft:
    """A model while it grows."""

    def __init__(self, draw: random.Random, hidden: int) -> None:
        self.draw = draw
        self.hidden = hidden
        self.stage = 0
        self.operations: list[Operation] = []
        self.weights: list[Value] = []
        self.live: list[Value] = []

    def apply(
        self, signature: str, *inputs: Any, like: Value | None = None, **kwargs: Any
    ) -> Value:
        sizes = like.shape if like is not None else inputs[0].shape
        name = f"v{len(self.operations)}"
        made = Value(name, sizes, stage=self.stage, batched=len(sizes) == 3)
        self.operations.append(Operation(signature, list(inputs), made, kwargs))
        return made

    def weight(self, *sizes: int) -> Value:
        self.weights.append(Value(f"layers.{len(self.weights)}.weight", sizes, weight=True))
        return self.weights[-1]

    def linear(self, x: Value) -> Value:
        weight = self.weight(self.hidden, self.hidden)
        return self.apply("torch.nn.functional.linear", x, weight, bias=None)

    def normed(self, x: Value) -> Value:
        row = Value("", (*x.shape[:-1], 1))
        square = self.apply("torch.pow", x, 2)
        mean = self.apply("torch.mean", square, like=row, dim=(2,), keepdim=True)
        root = self.apply("torch.rsqrt", self.apply("torch.add", mean, 0.5, alpha=1))
        return self.apply("torch.mul", x, root)

    def block(self, x: Value) -> Value:
        draw = self.draw
        kind = draw.choice(
            ("linear", "linear", "add", "mul", "function", "normed", "scale", "dropout")
        )
        if kind == "linear":
            return self.linear(x)
        if kind in ("add", "mul"):
            kwargs = {"alpha": 1} if kind == "add" else {}
            return self.apply(f"torch.{kind}", x, draw.choice(self.live), **kwargs)
        if kind == "function":
            function = draw.choice(("torch.sigmoid", "torch.nn.functional.silu"))
            if len(self.operations) % 3 == 2:
                # A function that is several operators.
                return self.apply("torch.clamp", x, min=-0.5, max=1.5)
            return self.apply(function, x)
        if kind == "normed":
            return self.normed(x)
        if kind == "dropout":
            rate = draw.choice((0.5, 0.25, 0.1, 0.0))
            return self.apply(DROPOUT, x, p=rate, training="self.training", inplace=False)
        scaled = self.apply("torch.mul", x, self.weight(self.hidden))
        return self.apply("torch.mul", scaled, draw.choice((2, 0.5)))


def model(draw: random.Random, shape: tuple[int, int, int], stages: int) -> Model:
    """A random model on a batch of ``shape``."""
    draft = _Draft(draw, shape[2])
    batch = Value("data", shape, graded=False, batched=True)
    current = draft.linear(batch)
    draft.live.append(current)
    for draft.stage in range(stages):
        for _ in range(draw.randint(1, 3)):
            current = draft.block(current)
            draft.live.append(current)
    loss = draft.apply("torch.sum", current, like=Value("", (1,)))
    loss.loss = True
    return Model([batch], draft.operations, draft.weights, stages)


# -- how an operation may be laid out
# ----------------------------------------------------------------


def choices(op: Operation, count: int) -> list[Choice]:
    """All layouts of an operation over ``count`` devices."""
    if op.anno:
        return annotated(op, count)
    values = [x for x in op.inputs if isinstance(x, Value)]
    found = [Choice([REPLICATED] * len(values), [REPLICATED], [REPLICATED] * len(values))]
    if count == 1:
        return found
    shape = values[0].shape
    even = [d for d, n in enumerate(shape) if n % count == 0 and n >= count]
    if op.name == "linear":
        for dim in even:
            if dim < len(shape) - 1:
                found.append(Choice([cut(dim), REPLICATED], [cut(dim)], [cut(dim), PARTIAL]))
        if shape[-1] % count == 0:
            last = cut(len(shape) - 1)
            found.append(Choice([REPLICATED, cut(0)], [last], [PARTIAL, cut(0)]))
            found.append(Choice([last, cut(1)], [PARTIAL], [last, cut(1)]))
        return found
    if op.name == "sum":
        return found + [Choice([cut(d)], [PARTIAL], [cut(d)]) for d in even]
    if op.name == "mean":
        return found + [Choice([cut(d)], [cut(d)], [cut(d)]) for d in even if d < len(shape) - 1]
    for dim in even:
        inputs, gradients = [], []
        for value in values:
            own = dim - (len(shape) - len(value.shape))
            whole = own < 0 or value.shape[own] == 1
            inputs.append(REPLICATED if whole else cut(own))
            gradients.append(PARTIAL if whole else cut(own))
        found.append(Choice(inputs, [cut(dim)], gradients))
    return found
