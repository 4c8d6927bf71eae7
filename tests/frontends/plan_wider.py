"""Blocks of what the registry has beyond `plan_families` and `plan_blocks`."""

from __future__ import annotations

from typing import Any

from tests.frontends.pickles import FLOAT32
from tests.frontends.plan_blocks import Blocks
from tests.frontends.plan_families import F, R, T
from tests.frontends.plan_records import INT64
from tests.frontends.plan_values import Value


class Wider(Blocks):
    """A model while it grows: the blocks here instead of the odd ones."""

    def odd(self, x: Value) -> Any:
        """One of the blocks, drawn."""
        name = self.draw.choice((
            "functions", "stacked_pairs", "equated", "added", "signed", "halves", "repeated",
            "filled", "cast", "rotary", "padding_row", "chosen", "between", "masked_attention",
            "grouped", "powers",
        ))  # fmt: skip
        return getattr(self, name)(x)

    def functions(self, x: Value) -> Any:
        """Functions of one number each."""
        y = self.same("torch.add", self.same("torch.abs", x), 0.5, alpha=1)
        one = self.draw.choice(("torch.log", "torch.sqrt", "torch.erf", "torch.exp"))
        two = self.draw.choice(("torch._C._nn.log_sigmoid", "torch.tanh", f"{F}.relu"))
        found = self.same("torch.multiply", self.same(one, y), self.same(two, x))
        return self.same("torch.true_divide", found, y)

    def stacked_pairs(self, x: Value) -> Any:
        """Two tensors on top of each other, and their mean."""
        b, s, h = x.shape
        both = self.op(f"{R}.stack", "a b c, a b c -> a 2^ b c", x, self.same("torch.sin", x),
                       shapes=(b, 2, s, h), dim=1)  # fmt: skip
        turned = self.op("torch.permute", "a b c d -> a c b d", both, shapes=(b, s, 2, h),
                         dims=(0, 2, 1, 3))  # fmt: skip
        if self.draw.random() < 0.5:
            flat = self.op("torch.flatten", "a b c^ d^ -> a b (c^ d^)", turned,
                           shapes=(b, s, 2 * h), start_dim=2, end_dim=3)  # fmt: skip
            return self.linear(flat, h)
        return self.op("torch.mean", "a b c^ d -> a b d", turned, shapes=x.shape, dim=(2,),
                       keepdim=False)  # fmt: skip

    def equated(self, x: Value) -> Any:
        weight = self.weight(self.heads, self.width, self.h)
        b, s, _ = x.shape
        parts = self.op(f"{R}.einsum", "b s k+, n d k+ -> b n s d", x, weight,
                        shapes=(b, self.heads, s, self.width),
                        equation="b s k, n d k -> b n s d")  # fmt: skip
        return self.op(f"{R}.einsum", "b n+ s d+, o n+ d+ -> b s o", parts,
                       self.weight(self.h, self.heads, self.width), shapes=x.shape,
                       equation="b n s d, o n d -> b s o")  # fmt: skip

    def added(self, x: Value) -> Any:
        """Products with something added: of rows, or of batches."""
        b, s, h = x.shape
        if self.draw.random() < 0.5:
            flat = self.view(x, f"a {s} c -> (a {s}) c", (b * s, h), f"{T}.reshape")
            found = self.op("torch.addmm", "b, a k^, k^ b -> a b", self.weight(h), flat,
                            self.weight(h, h), shapes=flat.shape, beta=1, alpha=1)  # fmt: skip
            return self.view(found, f"(a {s}) c -> a {s} c", x.shape)
        turned = self.turned(x)
        return self.op("torch.baddbmm", "b m n, b m k^, b k^ n -> b m n", x, self.op(
            "torch.bmm", "b m k+, b k+ n -> b m n", x, turned, shapes=(b, s, s)), x,
            shapes=x.shape, alpha=0.5, beta=1)  # fmt: skip

    def signed(self, x: Value) -> Any:
        name = self.draw.choice(("torch.sign", "torch.ceil"))
        step = self.same(name, x)
        rest = self.op("torch.fmod", "a b c, ? -> a b c", x, 2, shapes=x.shape)
        return self.add(self.same("torch.mul", step, x), rest)

    def halves(self, x: Value) -> Any:
        """Parts of unequal sizes, exchanged."""
        b, s, h = x.shape
        first = self.draw.choice([n for n in (1, h // 2, h - 1) if 0 < n < h])
        one, two = self.op("torch.functional.split", f"a b {h} -> a b {first}, a b {h - first}", x,
                           shapes=[(b, s, first), (b, s, h - first)],
                           split_size_or_sections=(first, h - first), dim=-1)  # fmt: skip
        return self.op(f"{R}.cat", f"a b {h - first}, a b {first} -> a b {h}", two, one,
                       shapes=x.shape, dim=-1)  # fmt: skip

    def repeated(self, x: Value, kept: int = 0, groups: int = 0) -> Any:
        if groups:
            return super().repeated(x, kept, groups)
        b, s, h = x.shape
        twice = self.op(f"{T}.repeat", "a b c^ -> a b (2 c^)", x, shapes=(b, s, 2 * h),
                        repeats=(1, 1, 2))  # fmt: skip
        return self.linear(twice, h)

    def filled(self, x: Value) -> Any:
        """Numbers in the shape of a tensor."""
        name, more = self.draw.choice((
            ("ones_like", {}), ("zeros_like", {}), ("full_like", {"fill_value": 0.75}),
        ))  # fmt: skip
        made = self.op(f"torch.{name}", "a b c -> a b c", x, shapes=x.shape, **more,
                       requires_grad=False, dtype=None)  # fmt: skip
        made.graded = False
        return self.same("torch.sub", self.same("torch.cos", x), made, alpha=2)

    def cast(self, x: Value) -> Any:
        y = self.same(self.draw.choice((f"{T}.float", f"{T}.half")), self.same("torch.clone", x))
        return self.op(f"{T}.to", "a b c -> a b c", y, shapes=x.shape, dtype=FLOAT32)

    def rotary(self, x: Value) -> Any:
        """Learned rotary positions, by complex numbers."""
        b, s, n, half = self.b, self.s, self.heads, self.width // 2
        pairs = self.view(x, f"a b (c {2 * half}) -> a b c {half} 2", (b, s, n, half, 2))
        numbers = self.number(pairs, "a b c d 2 -> a b c d")
        turns = self.number(self.weight(s, half, 2), "a b 2 -> a b")
        turns.batched = False
        wide = self.op(f"{T}.view", "a b -> 1 a 1 b", turns, shapes=(1, s, 1, half), local="size",
                       size=(1, s, 1, half), kinds={0: "complex64"})  # fmt: skip
        wide.graded, wide.batched = True, False
        found = self.op("torch.mul", "a b c d, 1 b 1 d -> a b c d", numbers, wide,
                        shapes=numbers.shape, kinds={0: "complex64"})  # fmt: skip
        found.graded = True
        real = self.op("torch.view_as_real", "a b c d -> a b c d 2", found, shapes=pairs.shape)
        return self.view(real, f"a b c {half} 2 -> a b (c {2 * half})", x.shape)

    def number(self, pairs: Value, anno: str) -> Any:
        made = self.op("torch.view_as_complex", anno, pairs, shapes=pairs.shape[:-1],
                       kinds={0: "complex64"})  # fmt: skip
        made.graded = True
        return made

    def padding_row(self, x: Value) -> Any:
        """A table with a row that is not trained: read whole or in parts of its columns."""
        rows = 2 * self.unit
        found = self.op(f"{R}.embedding", "a b, n^ e -> a b e", self.ids(),
                        self.weight(rows, self.h), shapes=x.shape, padding_idx=1, start=0,
                        stop=rows)  # fmt: skip
        return self.add(x, found)

    def chosen(self, x: Value) -> Any:
        """Columns by known places."""
        h = self.h
        places = self.numbers("arange", h, "int64", start=h - 1, end=-1, step=-1, dtype=INT64,
                              requires_grad=False)  # fmt: skip
        return self.op(f"{R}.index_select", "a b c^, d -> a b d", x, places, shapes=x.shape, dim=2)

    def between(self, x: Value) -> Any:
        """Numbers in an interval, by two comparisons."""
        low = self.same("torch.ge", x, -0.5, kinds={0: "bool"})
        high = self.same("torch.lt", x, 0.75, kinds={0: "bool"})
        outside = self.same("torch.bitwise_or", self.same("torch.bitwise_not", low, kinds={
            0: "bool"}), self.same("torch.bitwise_not", high, kinds={0: "bool"}),
            kinds={0: "bool"})  # fmt: skip
        return self.same("torch.where", outside, 0.25, x)

    def masked_attention(self, x: Value) -> Any:
        """Attention in one function, with a mask of numbers."""
        s = self.s
        full = self.op(f"{R}.full", f" -> {s}^ {s}^", shapes=(s, s), size=(s, s), fill_value=-9.0,
                       dtype=FLOAT32, requires_grad=False)  # fmt: skip
        mask = self.op("torch.triu", "a^ b^ -> a^ b^", full, shapes=(s, s), diagonal=1)
        full.graded = mask.graded = False
        return self.attended(x, mask)

    def attended(self, x: Value, mask: Value) -> Any:
        b, s, n, d = self.b, self.s, self.heads, self.width
        q, k, v = (self.heads_of(x, n) for _ in range(3))
        found = self.op(f"{F}.scaled_dot_product_attention",
                        "a b c^ d^, a b e^ d^, a b e^ f, c^ e^ -> a b c^ f", q, k, v, mask,
                        shapes=(b, n, s, d), dropout_p=0.0, is_causal=False)  # fmt: skip
        found = self.op("torch.transpose", "a b c d -> a c b d", found, shapes=(b, s, n, d),
                        dim0=1, dim1=2)  # fmt: skip
        joined = self.view(found, f"a b c {d} -> a b (c {d})", x.shape, f"{T}.reshape")
        return self.linear(joined, self.h)

    def written(self, x: Value) -> Any:
        """Numbers that are written into a mask."""
        s = self.s
        full = self.op(f"{R}.full", f" -> {s}^ {s}^", shapes=(s, s), size=(s, s), fill_value=-9.0,
                       dtype=FLOAT32, requires_grad=False)  # fmt: skip
        mask = self.op("torch.triu", "a^ b^ -> a^ b^", full, shapes=(s, s), diagonal=1)
        own = self.op("torch.clone", "a^ b^ -> a^ b^", mask, shapes=(s, s))
        first = self.op(f"{R}.fullslice", "a^ b^, ?, ? -> a^ 1", own, slice(None), slice(0, 1),
                        shapes=(s, 1))  # fmt: skip
        new = self.op("torch.add", "a^ 1, ? -> a^ 1", first, 0.5, shapes=(s, 1), alpha=1)
        put = self.op(f"{R}.setitem", "a^ b^, ?, ?, a^ 1 -> a^ b^", own, slice(None), slice(0, 1),
                      new, shapes=(s, s))  # fmt: skip
        for each in (full, mask, own, first, new, put):
            each.graded = False
        return self.attended(x, put)

    def written_over(self, x: Value) -> Any:
        """A position that is written over by another one."""
        b, s, h = x.shape
        # What is communicated before it is written is refused, so that is whole on a rank.
        other = self.op("torch.mul", "a^ b^ c^, ? -> a^ b^ c^", x, 2.0, shapes=x.shape)
        over = self.op(f"{R}.setitem", "a^ b^ c^, ?, ?, a^ c^ -> a^ b^ c^", other, slice(None), 0,
                       self.op(f"{R}.fullslice", "a^ b^ c^, ?, ? -> a^ c^", x, slice(None), s - 1,
                               shapes=(b, h)), shapes=x.shape)  # fmt: skip
        return self.same("torch.sin", over)

    def grouped(self, x: Value) -> Any:
        """A convolution in groups along the sequence, cut between groups."""
        b, s, h = x.shape
        anno = f"n (g {h // self.unit}) l^, (g {h // self.unit}) m^ k^ -> n (g {h // self.unit}) l^"
        made = self.op("torch.conv1d", anno, self.turned(x),
                       self.weight(h, h // self.unit, 3), shapes=(b, h, s), bias=None, stride=1,
                       padding=1, dilation=1, groups=self.unit, local="groups")  # fmt: skip
        return self.turned(made)

    def powers(self, x: Value) -> Any:
        """A number to the power of a tensor, and a tensor to a power."""
        one = self.op("torch.pow", "a b c, ? -> a b c", x, 3, shapes=x.shape)
        return self.same("torch.sub", self.same("torch.tanh", one), self.same("torch.neg", x),
                         alpha=1)  # fmt: skip
