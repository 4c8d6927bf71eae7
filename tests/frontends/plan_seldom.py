"""Blocks of functions in forms that are seldom written: types of results, masks of truth values,
diagonals, padding by name."""

from __future__ import annotations

from typing import Any

from tests.frontends.pickles import FLOAT32
from tests.frontends.plan_families import F, R, T
from tests.frontends.plan_values import Value
from tests.frontends.plan_wider import Wider


class Seldom(Wider):
    """A model while it grows: the blocks here instead of the odd ones."""

    def odd(self, x: Value) -> Any:
        """One of the blocks, drawn."""
        name = self.draw.choice((
            "bent", "true_mask", "diagonals", "typed", "same_size", "truths", "kept_sizes",
        ))  # fmt: skip
        return getattr(self, name)(x)

    def bent(self, x: Value) -> Any:
        """A layer with GPT-2's activation."""
        wide = self.linear(x, 2 * self.h)
        return self.linear(self.same(f"{F}.gelu", wide, approximate="tanh"), self.h)

    def true_mask(self, x: Value) -> Any:
        """Attention under a mask of truth values: of a row, which keys it reads."""
        s = self.s
        ones = self.op(f"{R}.full", f" -> {s}^ {s}^", shapes=(s, s), size=(s, s), fill_value=1.0,
                       dtype=FLOAT32, requires_grad=False)  # fmt: skip
        low = self.op("torch.tril", "a^ b^ -> a^ b^", ones, shapes=(s, s),
                      diagonal=self.draw.choice((0, 1)))  # fmt: skip
        mask = self.op("torch.gt", "a^ b^, ? -> a^ b^", low, 0, shapes=(s, s), kinds={0: "bool"})
        for each in (ones, low, mask):
            each.graded = False
        return self.attended(x, mask)

    def diagonals(self, x: Value) -> Any:
        """Positions on one side of a diagonal of sequence and features."""
        name, diagonal = self.draw.choice((("triu", 0), ("triu", -1), ("tril", 1), ("tril", -1)))
        return self.op(f"torch.{name}", "a b^ c^ -> a b^ c^", x, shapes=x.shape, diagonal=diagonal)

    def typed(self, x: Value) -> Any:
        """A softmax in a type of its own, and casts by the names of tensor classes."""
        found = self.op(f"{F}.softmax", "a b c^ -> a b c^", x, shapes=x.shape, dim=-1,
                        _stacklevel=3, dtype=FLOAT32)  # fmt: skip
        return self.op(f"{T}.type", "a b c -> a b c", found, shapes=x.shape,
                       dtype=self.draw.choice(("torch.FloatTensor", "torch.DoubleTensor")),
                       non_blocking=False)  # fmt: skip

    def same_size(self, x: Value) -> Any:
        """A convolution along the sequence that keeps its length."""
        b, s, h = x.shape
        weight = self.weight(h, h, self.draw.choice((2, 3)))
        made = self.op("torch.conv1d", f"n i+ {s}, o i+ k^ -> n o {s}", self.turned(x), weight,
                       shapes=(b, h, s), bias=None, stride=1, padding="same", dilation=1,
                       groups=1)  # fmt: skip
        return self.turned(made)

    def truths(self, x: Value) -> Any:
        """Whether an entry is outside of an interval, by the sum of two truth values."""
        low = self.same("torch.lt", x, 0.25, kinds={0: "bool"})
        both = self.same("torch.lt", x, 0.5, kinds={0: "bool"})
        under = self.same("torch.add", low, both, alpha=1, kinds={0: "bool"})
        scale = self.same("torch.where", under, 0.5, 2.0)
        for each in (low, both, under, scale):
            each.graded = False
        return self.same("torch.mul", x, scale)

    def kept_sizes(self, x: Value) -> Any:
        """What is within a bound, less a mean over two dimensions from behind."""
        mean = self.op("torch.mean", "a b^ c^ -> a 1 1", x, shapes=(x.shape[0], 1, 1), dim=(1, 2),
                       keepdim=True)  # fmt: skip
        bounded = self.same("torch.clamp", x, min=float("-inf"), max=0.75)
        return self.op("torch.sub", "a b c, a 1 1 -> a b c", bounded, mean, shapes=x.shape, alpha=1)
