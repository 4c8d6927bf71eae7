"""Further blocks of random models: what the registry has beyond transformers.

Convolutions, rotary positions by `arange` and `linspace`, learned positions, attention over few
keys, sorted rows, patterns of einops, dropout, sizes that are read in the graph, values whose
gradient stops.
"""

from __future__ import annotations

from typing import Any

from tests.frontends.plan_families import F, Families, R, T
from tests.frontends.plan_records import INT64
from tests.frontends.plan_values import Thing, Value


class Blocks(Families):
    """A model while it grows: the blocks here instead of the odd ones."""

    def odd(self, x: Value) -> Any:
        """One of the blocks, drawn."""
        name = self.draw.choice((
            "along", "image", "strided", "rotated", "positioned", "single", "ordered", "patterned",
            "dropped", "rooted", "sized", "detached", "smoothed", "stacked",
        ))  # fmt: skip
        return getattr(self, name)(x)

    def turned(self, x: Value) -> Any:
        b, s, h = x.shape
        return self.op("torch.transpose", "a b c -> a c b", x, shapes=(b, h, s), dim0=1, dim1=2)

    def along(self, x: Value) -> Any:
        """A convolution along the sequence, of all channels or of each by itself."""
        b, s, h = x.shape
        if self.draw.random() < 0.5:
            weight = self.weight(h, h, 3)
            made = self.op("torch.conv1d", "n i+ l^, o i+ k^ -> n o l^", self.turned(x), weight,
                           shapes=(b, h, s), bias=None, stride=1, padding=1, dilation=1,
                           groups=1)  # fmt: skip
        else:
            made = self.op("torch.conv1d", "n i^ l^, i^ 1^ k^, i^ -> n i^ l^", self.turned(x),
                           self.weight(h, 1, 3), self.weight(h), shapes=(b, h, s), stride=(1,),
                           padding=(2,), dilation=(2,), groups=h)  # fmt: skip
        return self.turned(made)

    def stacked(self, x: Value) -> Any:
        """Two convolutions of the sequence, with an activation after each."""
        b, s, h = x.shape
        made = self.turned(x)
        for _ in range(2):
            made = self.op("torch.conv1d", "n i+ l^, o i+ k^ -> n o l^", made, self.weight(h, h, 3),
                           shapes=(b, h, s), bias=None, stride=1, padding=1, dilation=1,
                           groups=1)  # fmt: skip
            made = self.same(f"{F}.gelu", made, approximate="none")
        return self.turned(made)

    def image(self, x: Value) -> Any:
        """Two convolutions of the residual stream as an image of one channel."""
        b, s, h = x.shape
        one = self.op(f"{R}.fullslice", "a b c, ?, ? -> a 1 b c", x, slice(None), None,
                      shapes=(b, 1, s, h))  # fmt: skip
        wide = self.op("torch.conv2d", "n i+ h^ w^, o i+ k^ l^, o -> n o h^ w^", one,
                       self.weight(2 * self.unit, 1, 3, 2), self.weight(2 * self.unit),
                       shapes=(b, 2 * self.unit, s, h + 1), stride=1, padding=(1, 1), dilation=1,
                       groups=1)  # fmt: skip
        back = self.op(f"{R}.conv2d", "n i+ h^ w^, o i+ k^ l^ -> n o h^ w^",
                       self.same(f"{F}.relu", wide, inplace=False),
                       self.weight(1, 2 * self.unit, 1, 2), None, shapes=(b, 1, s, h), stride=1,
                       padding=[0, 0, 0, 0], dilation=1, groups=1)  # fmt: skip
        return self.op("torch.squeeze", "a 1 b c -> a b c", back, shapes=x.shape, dim=1)

    def strided(self, x: Value) -> Any:
        """Every other position by a convolution, and back by a transposed one."""
        b, s, h = x.shape
        less = self.op(f"{F}.conv1d", "n i+ l^, o i+ k^ -> n o m^", self.turned(x),
                       self.weight(h, h, 2), shapes=(b, h, s // 2), bias=None, stride=2, padding=0,
                       dilation=1, groups=1)  # fmt: skip
        more = self.op(f"{F}.conv_transpose1d", "n i+ m^, i+ o k^ -> n o l^", less,
                       self.weight(h, h, 2), shapes=(b, h, s), bias=None, stride=2, padding=0,
                       output_padding=0, groups=1, dilation=1)  # fmt: skip
        return self.turned(more)

    def numbers(self, name: str, size: int, kind: str = "float32", **kwargs: Any) -> Any:
        made = self.op(f"{R}.{name}", f" -> {size}^", shapes=(size,), kinds={0: kind}, **kwargs)
        made.graded = False
        return made

    def rotated(self, x: Value) -> Any:
        """Rotary positions as Hugging Face's models have them."""
        _, s, h = x.shape
        half = (*x.shape[:2], h // 2)
        steps = self.numbers("arange", s, start=0, end=s, step=1, dtype=None, requires_grad=False)
        rates = self.numbers("linspace", h, start=0.5, end=1, steps=h, dtype=None,
                             requires_grad=False)  # fmt: skip
        angles = self.op("torch.outer", "a, b -> a b", steps, rates, shapes=(s, h))
        low, high = self.op("torch.chunk", f"a b {h} -> a b {h // 2}, a b {h // 2}", x,
                            shapes=[half, half], chunks=2, dim=-1)  # fmt: skip
        swapped = self.op(f"{R}.cat", f"a b {h // 2}, a b {h // 2} -> a b {h}",
                          self.same("torch.neg", high), low, shapes=x.shape, dim=-1)  # fmt: skip
        return self.add(self.same("torch.mul", x, self.same("torch.cos", angles)),
                        self.same("torch.mul", swapped, self.same("torch.sin", angles)))  # fmt: skip

    def positioned(self, x: Value) -> Any:
        """Learned positions."""
        _, s, h = x.shape
        ids = self.numbers("arange", s, "int64", start=0, end=s, step=1, dtype=INT64,
                           requires_grad=False)  # fmt: skip
        rows = self.op(f"{R}.embedding", "b, n+ e -> b e", ids, self.weight(s, h), shapes=(s, h),
                       local="rows", padding_idx=None, start=0, stop=s)  # fmt: skip
        return self.add(x, rows)

    def one_key(self, x: Value) -> Any:
        """Attention to the first position alone, beside the stream."""
        b, s, h = x.shape
        first = self.op(f"{R}.fullslice", "a b^ c, ?, ? -> a 1 c", x, slice(None), slice(0, 1),
                        shapes=(b, 1, h))  # fmt: skip
        turned = self.op("torch.transpose", "a b c -> a c b", self.linear(first, h),
                         shapes=(b, h, 1), dim0=1, dim1=2)  # fmt: skip
        scores = self.op("torch.matmul", "a b k+, a k+ c -> a b c", self.linear(x, h), turned,
                         shapes=(b, s, 1))  # fmt: skip
        weights = self.op(f"{F}.softmax", "a b^ c^ -> a b^ c^", scores, shapes=(b, s, 1), dim=-1,
                          _stacklevel=3, dtype=None)  # fmt: skip
        mixed = self.op("torch.matmul", "a b k+, a k+ c -> a b c", weights, self.linear(first, h),
                        shapes=(b, s, h))  # fmt: skip
        return self.add(x, mixed)

    def single(self, x: Value) -> Any:
        """Attention to the first one or two positions."""
        b, s, h = x.shape
        kept = self.draw.choice((1, 2))
        first = self.op(f"{R}.fullslice", "a b^ c, ?, ? -> a k^ c", x, slice(None),
                        slice(0, kept), shapes=(b, kept, h))  # fmt: skip
        keys, values = self.linear(first, h), self.linear(first, h)
        turned = self.op("torch.transpose", "a b c -> a c b", keys, shapes=(b, h, kept), dim0=1,
                         dim1=2)  # fmt: skip
        scores = self.op("torch.matmul", "a m k+, a k+ n -> a m n", self.linear(x, h), turned,
                         shapes=(b, s, kept))  # fmt: skip
        weights = self.op(f"{F}.softmax", "a b c^ -> a b c^", scores, shapes=scores.shape, dim=-1,
                          _stacklevel=3, dtype=None)  # fmt: skip
        return self.op("torch.matmul", "a m k+, a k+ n -> a m n", weights, values, shapes=x.shape)

    def ordered(self, x: Value) -> Any:
        values, _ = self.op("torch.sort", "a b c^ -> a b c^, a b c^", x, shapes=[x.shape, x.shape],
                            kinds={1: "int64"}, dim=-1, descending=True)  # fmt: skip
        return self.linear(values, self.h)

    def patterned(self, x: Value) -> Any:
        """Means over the positions of each head, spread again."""
        b, s, d = self.b, self.s, self.width
        parts = self.op("einops.einops.rearrange", f"a b (c {d}) -> a c b {d}", x,
                        shapes=(b, self.heads, s, d), pattern="b s (n d) -> b n s d", d=d)  # fmt: skip
        means = self.op("einops.einops.reduce", f"a c b {d}^ -> a b c", parts,
                        shapes=(b, s, self.heads), pattern="b n s d -> b s n",
                        reduction="mean")  # fmt: skip
        wide = self.op("einops.einops.repeat", f"a b c -> a b (c {d})", means, shapes=x.shape,
                       pattern="b s n -> b s (n r)", r=d)  # fmt: skip
        return self.same("torch.mul", x, wide)

    def dropped(self, x: Value) -> Any:
        return self.same(f"{F}.dropout", x, p=self.draw.choice((0.5, 0.1)),
                         training="self.training", inplace=False)  # fmt: skip

    def rooted(self, x: Value) -> Any:
        return self.op(f"{F}.rms_norm", "a b c^, ?, c^ -> a b c^", x, (self.h,),
                       self.weight(self.h), shapes=x.shape, eps=0.5)  # fmt: skip

    def rooted_beside(self, x: Value) -> Any:
        """A norm of several steps that read their operand, which the stream beside it reads too."""
        return self.add(x, self.rooted(x))

    def rotated_beside(self, x: Value) -> Any:
        """Rotary positions beside the stream, and a norm behind them: halves of the gradient differ."""
        return self.rooted(self.add(x, self.rotated(x)))

    def routed(self, x: Value) -> Any:
        """Experts in front of attention to the first position: their gate has gradients in parts."""
        return self.single(self.add(x, self.experts(x)))

    def thing(self, signature: str, *inputs: Any, **kwargs: Any) -> Thing:
        """What an operator gives that is no tensor."""
        made = Thing(f"v{len(self.operations)}", stage=self.stage)
        tensors = [" ".join(f"{a}^" for a in "abcd"[: len(x.shape)]) if isinstance(x, Value)
                   else "?" for x in inputs]  # fmt: skip
        self.keep(signature, f"{', '.join(tensors)} -> ", inputs, made, kwargs)
        return made

    def sized(self, x: Value) -> Any:
        """Pairs of positions side by side, by a size that is read."""
        b, s, h = x.shape
        half = self.thing("_operator.floordiv", self.thing("torch.Tensor.size", x, dim=1), 2)
        flat = self.op(f"{T}.reshape", f"a {s}^ {h}^ -> a {s // 2}^ {2 * h}^", x,
                       shapes=(b, s // 2, 2 * h), local="shape", shape=(b, half, 2 * h))  # fmt: skip
        mixed = self.linear(self.same(f"{F}.silu", flat, inplace=False), 2 * h)
        back = self.view(mixed, f"a {s // 2}^ {2 * h}^ -> a {s}^ {h}^", x.shape, f"{T}.reshape")
        return self.same("torch.mul", back, self.same("torch.sigmoid", back))

    def detached(self, x: Value) -> Any:
        other = self.same("torch.detach", x)
        other.graded = False
        return self.same("torch.mul", x, self.same("torch.tanh", other))

    def smoothed(self, x: Value) -> Any:
        """Softmax written out, with its largest entry taken away without a gradient."""
        kept = (*x.shape[:-1], 1)
        top = self.op("torch.amax", "a b c^ -> a b 1", x, shapes=kept, dim=(2,), keepdim=True)
        still = self.same("torch.detach", top)
        still.graded = False
        powers = self.same("torch.exp", self.same("torch.sub", x, still, alpha=1))
        total = self.op("torch.sum", "a b c+ -> a b 1", powers, shapes=kept, dim=(2,), keepdim=True)
        return self.same("torch.div", powers, total)
