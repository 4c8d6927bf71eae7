"""Random models of the families that people train, with nnScaler's annotations for their layouts.

Decoders (embedding, grouped-query attention, gated MLP, mixture of experts, normalisation, a loss
of the registry) and odd blocks (choices, lookups, masks, padding) on a residual stream [batch,
sequence, hidden].  How an operator may be cut is read from its annotation, as nnScaler's planner
reads it (``graph/function/dimops.py``): along an identifier that leads its dimension everywhere and
is not frozen; over one marked ``+`` that the result lacks, what comes out are addends.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.frontends.plan_layouts import PARTIAL, REPLICATED, cut
from tests.frontends.plan_values import Choice, Model, Operation, Value

F, R, T = "torch.nn.functional", "nnscaler.runtime.function", "torch.Tensor"
Dims = list[list[tuple[str, str]]]


# -- annotations -----------------------------------------------------------------------------------


def shapes_of(text: str) -> list[Dims]:
    """``'a (b c^), k+'``: for each tensor, for each dimension, its identifiers with their marks."""
    found: list[Dims] = []
    for tensor in text.split(","):
        groups = re.findall(r"\(([^)]*)\)|(\S+)", tensor)
        found.append([
            [(word.rstrip("+^"), word[len(word.rstrip("+^")) :]) for word in (a or b).split()]
            for a, b in groups
        ])  # fmt: skip
    return found


def _lengths(op: Operation, values: Sequence[Value], ins: Sequence[Dims]) -> dict[str, int]:
    """How long identifiers are, by the shapes of operands and the operator's own numbers."""
    known = {k: v for k, v in op.kwargs.items() if type(v) is int}
    for value, dims in zip(values, ins, strict=True):
        for size, group in zip(value.shape, dims, strict=True):
            if len(group) == 1:
                known[group[0][0]] = size
    for value, dims in zip(values, ins, strict=True):
        for size, group in zip(value.shape, dims, strict=True):
            rest = [known.get(name, int(name) if name.isdigit() else 0) for name, _ in group[1:]]
            if len(group) > 1 and all(rest):
                known.setdefault(group[0][0], size // math.prod(rest))
    return known


def annotated(op: Operation, count: int) -> list[Choice]:
    """All layouts of an operation over ``count`` devices, by its annotation."""
    values = [x for x in op.inputs if isinstance(x, Value)]
    left, right = op.anno.split("->")
    ins = [x for x in shapes_of(left) if x not in ([], [[("?", "")]])]
    outs = [x for x in shapes_of(right) if x]
    whole = [REPLICATED] * len(values)
    found = [Choice(whole, [REPLICATED] * len(outs), whole)]
    groups = [group for dims in (*ins, *outs) for group in dims]
    marks = {name: mark for group in groups for name, mark in group}
    inner = {name for group in groups for name, _ in group[1:]}
    lengths = _lengths(op, values, ins)
    for name, mark in marks.items() if count > 1 else ():
        if mark == "^" or name.isdigit() or name in inner or lengths.get(name, 1) % count:
            continue
        inputs, gradients = [], []
        for dims in ins:
            at = _place(dims, name)
            inputs.append(REPLICATED if at < 0 else cut(at))
            gradients.append(PARTIAL if at < 0 else cut(at))
        results = [PARTIAL if _place(dims, name) < 0 else cut(_place(dims, name)) for dims in outs]
        if PARTIAL in results and mark != "+":
            continue
        found.append(Choice(inputs, results, gradients, name))
    return found


def _place(dims: Dims, name: str) -> int:
    return next((i for i, group in enumerate(dims) if group[0][0] == name), -1)


# -- blocks ----------------------------------------------------------------------------------------


class Families:
    """A model while it grows: blocks on the stream [b, s, h]."""

    def __init__(self, draw: random.Random, unit: int) -> None:
        self.draw, self.unit = draw, unit
        self.b, self.s = unit * draw.choice((1, 2)), 2 * unit
        self.heads = unit * draw.choice((1, 2))
        self.width = draw.choice((2, 4))
        self.h = self.heads * self.width
        self.stage = 0
        self.operations: list[Operation] = []
        self.weights: list[Value] = []
        self.batches: list[Value] = []

    # Pieces.

    def op(self, signature: str, anno: str, *inputs: Any, shapes: Any, **kwargs: Any) -> Any:
        """An operation; its result (results, for several ``shapes``).  ``kind``: of results that
        are no numbers, by position; ``size``: the name of the attribute that is a local shape."""
        kinds: Mapping[int, str] = kwargs.pop("kinds", {})
        local, turned = kwargs.pop("local", None), kwargs.pop("turned", False)
        many = bool(shapes) and isinstance(shapes[0], tuple)
        given = [x for x in inputs if isinstance(x, Value)]
        made = []
        for i, shape in enumerate(shapes if many else [shapes]):
            kind = kinds.get(i, "float32")
            graded = kind == "float32" and any(x.graded for x in given)
            batched = any(x.batched for x in given) and shape != (1,)
            name, along = f"v{len(self.operations)}_{i}", int(turned)
            made.append(
                Value(
                    name, shape, graded, stage=self.stage, kind=kind, batched=batched, along=along
                )
            )
        self.keep(signature, anno, inputs, made[0], kwargs, made[1:], local)
        return made if many else made[0]

    def keep(self, signature: str, anno: str, inputs: Sequence[Any], first: Any, kwargs: Any,
             more: Any = (), local: str | None = None) -> None:  # fmt: skip
        self.operations.append(
            Operation(signature, list(inputs), first, kwargs, list(more), anno, local)
        )

    def weight(self, *sizes: int) -> Value:
        self.weights.append(Value(f"layers.{len(self.weights)}.weight", sizes, weight=True))
        return self.weights[-1]

    def batch(self, name: str, shape: tuple[int, ...], kind: str, high: int = 0) -> Value:
        made = Value(name, shape, False, kind=kind, high=high, batched=True)
        self.batches.append(made)
        return made

    def same(self, signature: str, x: Value, *more: Any, **kwargs: Any) -> Any:
        """An elementwise function; operands of its shape, of trailing sizes, or constants."""
        names = "abcdefgh"[: len(x.shape)]
        left = [" ".join(names)]
        for y in more:
            if isinstance(y, Value):
                own = names[len(names) - len(y.shape) :]
                dims = [n if size > 1 else "1" for n, size in zip(own, y.shape, strict=True)]
                left.append(" ".join(dims))
            else:
                left.append("?")
        return self.op(
            signature, f"{', '.join(left)} -> {' '.join(names)}", x, *more, shapes=x.shape, **kwargs
        )

    def linear(self, x: Value, out: int, bias: bool = False) -> Any:
        weight = self.weight(out, x.shape[-1])
        shape = (*x.shape[:-1], out)
        lead = " ".join("abcdefgh"[: len(x.shape) - 1])
        signature = f"{F}.linear"
        if bias:
            return self.op(signature, f"{lead} k^, n k^, n -> {lead} n", x, weight,
                           self.weight(out), shapes=shape)  # fmt: skip
        return self.op(signature, f"{lead} k+, n k+ -> {lead} n", x, weight, shapes=shape,
                       bias=None)  # fmt: skip

    def add(self, x: Any, y: Any) -> Any:
        return self.same("torch.add", x, y, alpha=1)

    def view(self, x: Value, anno: str, shape: tuple[int, ...], signature: str = "") -> Any:
        name = signature or f"{T}.view"
        key = "shape" if name.endswith("reshape") else "size"
        return self.op(name, anno, x, shapes=shape, local=key, kinds={0: x.kind}, **{key: shape})

    # Blocks.

    def norm(self, x: Value) -> Any:
        draw = self.draw.random()
        if draw < 0.4:
            scale, shift = self.weight(self.h), self.weight(self.h)
            return self.op(f"{R}.layer_norm", "a b c^, d^, e^ -> a b c^", x, scale, shift,
                           shapes=x.shape, normalized_shape=(self.h,), eps=0.5)  # fmt: skip
        kept = (*x.shape[:-1], 1)
        square = self.same("torch.pow" if draw < 0.7 else "_operator.pow", x, 2)
        mean = self.op("torch.mean", "a b c^ -> a b 1", square, shapes=kept, dim=(2,), keepdim=True)
        root = self.same("torch.rsqrt", self.same("torch.add", mean, 0.5, alpha=1))
        return self.same("torch.mul", self.same("torch.mul", x, root), self.weight(self.h))

    def mlp(self, x: Value) -> Any:
        inner = self.unit * self.draw.choice((2, 4))
        kind = self.draw.choice(("gated", "plain", "chunked"))
        if kind == "gated":
            gate = self.same(f"{F}.silu", self.linear(x, inner), inplace=False)
            return self.linear(self.same("torch.mul", gate, self.linear(x, inner)), self.h)
        if kind == "plain":
            bias = self.draw.random() < 0.5
            hidden = self.same(f"{F}.gelu", self.linear(x, inner, bias), approximate="none")
            return self.linear(hidden, self.h, bias)
        both = self.linear(x, 2 * inner)
        half = (*x.shape[:2], inner)
        gate, up = self.op("torch.chunk", f"a b {2 * inner} -> a b {inner}, a b {inner}", both,
                           shapes=[half, half], chunks=2, dim=-1)  # fmt: skip
        return self.linear(self.same("torch.mul", self.same("torch.sigmoid", gate), up), self.h)

    def heads_of(self, x: Value, count: int) -> Any:
        b, s, d = self.b, self.s, self.width
        rows = self.linear(x, count * d)
        parts = self.view(rows, f"a b (c {d}) -> a b c {d}", (b, s, count, d))
        return self.op("torch.transpose", "a b c d -> a c b d", parts, shapes=(b, count, s, d),
                       dim0=1, dim1=2)  # fmt: skip

    def attention(self, x: Value) -> Any:
        b, s, n, d = self.b, self.s, self.heads, self.width
        groups = self.draw.choice([g for g in (1, 2) if n % (g * self.unit) == 0])
        kept = n // groups
        q, k, v = self.heads_of(x, n), self.heads_of(x, kept), self.heads_of(x, kept)
        if groups > 1:
            k, v = (self.repeated(y, kept, groups) for y in (k, v))
        whole = (b, n, s, d)
        if self.draw.random() < 0.35:
            found = self.op(f"{F}.scaled_dot_product_attention",
                            "a b c^ d^, a b c^ d^, a b c^ e -> a b c^ e", q, k, v, shapes=whole,
                            dropout_p=0.0, is_causal=True)  # fmt: skip
        else:
            turned = self.op("torch.transpose", "a b c d -> a b d c", k, shapes=(b, n, d, s),
                             dim0=2, dim1=3)  # fmt: skip
            scores = self.op("torch.matmul", "a b m k+, a b k+ n -> a b m n", q, turned,
                             shapes=(b, n, s, s))  # fmt: skip
            scores = self.same(*self.draw.choice((
                ("torch.div", scores, math.sqrt(d)), ("torch.mul", scores, 0.5),
            )))  # fmt: skip
            scores = self.masked(scores, x)
            weights = self.op(f"{F}.softmax", "a b c d^ -> a b c d^", scores, shapes=scores.shape,
                              dim=-1, _stacklevel=3, dtype=None)  # fmt: skip
            found = self.op("torch.matmul", "a b m k+, a b k+ n -> a b m n", weights, v,
                            shapes=whole)  # fmt: skip
        found = self.op("torch.transpose", "a b c d -> a c b d", found, shapes=(b, s, n, d),
                        dim0=1, dim1=2)  # fmt: skip
        name = self.draw.choice((f"{T}.reshape", f"{T}.view"))
        if name.endswith("view"):
            found = self.same(f"{T}.contiguous", found)
        joined = self.view(found, f"a b c {d} -> a b (c {d})", (b, s, n * d), name)
        return self.linear(joined, self.h)

    def repeated(self, x: Value, kept: int, groups: int) -> Any:
        """Each key head for its group of query heads, as Llama's ``repeat_kv`` has it."""
        b, s, d = self.b, self.s, self.width
        one = self.op(f"{R}.fullslice", "a b c d, ?, ?, ? -> a b 1 c d", x, slice(None),
                      slice(None), None, shapes=(b, kept, 1, s, d))  # fmt: skip
        wide = self.op(f"{T}.expand", f"a b 1^ c d -> a b {groups} c d", one,
                       shapes=(b, kept, groups, s, d), size=(-1, -1, groups, -1, -1))  # fmt: skip
        return self.view(wide, f"a b {groups} c d -> a (b {groups}) c d", (b, kept * groups, s, d),
                         f"{T}.reshape")  # fmt: skip

    def masked(self, scores: Value, x: Value) -> Any:
        """What may not be attended to is hidden, in one of the ways that models have."""
        s = self.s
        kind = self.draw.choice(("none", "model", "fill", "where"))
        if kind == "none":
            return scores
        if kind == "model":
            mask = self.op("my.model.create_mask", "N^ s^, N^ s^ H^ -> 1 1 s^ s^", self.ids(), x,
                           shapes=(1, 1, s, s))  # fmt: skip
            mask.graded, mask.batched = False, False
            return self.op("my.model.apply_mask", "a b s^ t^, 1 1 s^ t^ -> a b s^ t^", scores, mask,
                           shapes=scores.shape)  # fmt: skip
        ones = self.op(f"{R}.ones", f" -> {s}^ {s}^", shapes=(s, s), size=(s, s),
                       requires_grad=False)  # fmt: skip
        low = self.op("torch.tril", "a^ b^ -> a^ b^", ones, shapes=(s, s), diagonal=0)
        hidden = self.op("torch.eq", "a b, ? -> a b", low, 0, shapes=(s, s), kinds={0: "bool"})
        if kind == "fill":
            return self.op("torch.masked_fill", "a b c d, c d -> a b c d", scores, hidden,
                           shapes=scores.shape, value=float("-inf"))  # fmt: skip
        return self.op("torch.where", "c d, ?, a b c d -> a b c d", hidden, -10000.0, scores,
                       shapes=scores.shape)  # fmt: skip

    def ids(self) -> Value:
        found = [x for x in self.batches if x.kind == "int64"]
        return found[0] if found else self.batch("ids", (self.b, self.s), "int64", 2 * self.unit)

    def experts(self, x: Value) -> Any:
        """A mixture: DeepSeek's gate, and its experts as one function."""
        tokens, h = self.b * self.s, self.h
        held = self.unit * 2
        k, width = self.draw.choice((1, 2)), self.unit
        flat = self.view(x, f"a {self.s} c -> (a {self.s}) c", (tokens, h))
        weights, indices = self.op(
            "my.moe.gate_fw", "a^ h^, e^ h^ -> a^ k^, a^ k^", flat, self.weight(held, h),
            shapes=[(tokens, k), (tokens, k)], kinds={1: "int64"}, bias=None, n_groups=1,
            topk_groups=1, topk=k, route_scale=1.5, score_func=self.draw.choice(
                ("softmax", "sigmoid")),
        )  # fmt: skip
        made = self.op(
            "my.moe.nnscaler_moe_gmm", "a h^, a e, a e, E+ d+ h^, E+ d+ h^, E+ h^ d+ -> a h^", flat,
            indices, weights, self.weight(held, width, h), self.weight(held, width, h),
            self.weight(held, h, width), shapes=(tokens, h), local="experts",
            n_routed_experts=held, local_expert_start=0, local_expert_end=held,
        )  # fmt: skip
        back = (self.b, self.s, h)
        return self.view(made, f"(a {self.s}) c -> a {self.s} c", back)

    # Odd blocks.

    def odd(self, x: Value) -> Any:
        name = self.draw.choice((
            "choice", "best", "larger", "padded", "gathered", "clamped", "summed", "rows", "topped",
            "joined", "product", "registered", "registered",
        ))  # fmt: skip
        return getattr(self, name)(x)

    def choice(self, x: Value) -> Any:
        positive = self.same(self.draw.choice(("torch.gt", "_operator.gt")), x, 0.25,
                             kinds={0: "bool"})  # fmt: skip
        other: Any = self.draw.choice((0.0, self.same("torch.neg", x)))
        return self.same("torch.where", positive, x, other)

    def best(self, x: Value) -> Any:
        shape = (*x.shape[:-1], 1)
        top, _ = self.op(self.draw.choice(("torch.max", "torch.min")), "a b c^ -> a b 1, a b 1", x,
                         shapes=[shape, shape], kinds={1: "int64"}, dim=-1, keepdim=True)  # fmt: skip
        return self.same("torch.sub", x, top, alpha=1)

    def larger(self, x: Value) -> Any:
        return self.same(self.draw.choice(("torch.max", "torch.min")), x, self.linear(x, self.h))

    def padded(self, x: Value) -> Any:
        b, s, h = x.shape
        wide = self.op(f"{F}.pad", f"a {s} {h} -> a {s + 1} {h}", x, shapes=(b, s + 1, h),
                       pad=(0, 0, 1, 0), mode="constant", value=0.0)  # fmt: skip
        return self.op(f"{R}.fullslice", f"a b^ c, ?, ? -> a {s} c", wide, slice(None),
                       slice(None, -1), shapes=x.shape)  # fmt: skip

    def gathered(self, x: Value) -> Any:
        """Rows of a table by ids."""
        table = self.weight(2 * self.unit, self.h)
        found = self.op(f"{R}.embedding", "a b, n+ e -> a b e", self.ids(), table,
                        shapes=(self.b, self.s, self.h), local="rows", padding_idx=None, start=0,
                        stop=2 * self.unit)  # fmt: skip
        return self.same("torch.mul", x, found)

    def clamped(self, x: Value) -> Any:
        return self.same("torch.clamp", x, min=-0.5, max=0.75)

    def summed(self, x: Value) -> Any:
        return self.op("torch.cumsum", "a b^ c -> a b^ c", x, shapes=x.shape, dim=1)

    def rows(self, x: Value) -> Any:
        kept = (*x.shape[:-1], 1)
        norm = self.op("torch.norm", "a b c^ -> a b 1", x, shapes=kept, p="fro", dim=-1,
                       keepdim=True)  # fmt: skip
        return self.same("torch.div", x, self.same("torch.add", norm, 1.0, alpha=1))

    def topped(self, x: Value) -> Any:
        shape = (*x.shape[:-1], 2)
        values, places = self.op("torch.topk", "a b c^ -> a b 2, a b 2", x, shapes=[shape, shape],
                                 kinds={1: "int64"}, k=2, dim=-1, largest=True,
                                 sorted=True)  # fmt: skip
        again = self.op("torch.gather", "a b c^, ?, a b d^ -> a b d^", self.linear(x, self.h), -1,
                        places, shapes=shape)  # fmt: skip
        return self.linear(self.same("torch.mul", values, again), self.h)

    def joined(self, x: Value) -> Any:
        h = self.h
        both = self.op(f"{R}.cat", f"a b {h}, a b {h} -> a b {2 * h}", x, self.same("torch.neg", x),
                       shapes=(*x.shape[:2], 2 * h), dim=-1)  # fmt: skip
        return self.linear(self.same(f"{F}.relu", both, inplace=False), h)

    def product(self, x: Value) -> Any:
        return self.op("torch.bmm", "b m k+, b k+ n -> b m n", self.op(
            "torch.bmm", "b m k+, b k+ n -> b m n", x, self.op(
                "torch.transpose", "a b c -> a c b", x, shapes=(self.b, self.h, self.s), dim0=1,
                dim1=2), shapes=(self.b, self.s, self.s)), x, shapes=x.shape)  # fmt: skip

    def registered(self, x: Value) -> Any:
        """A function that the model registers with an annotation."""
        kind = self.draw.choice(("mixed", "expert", "paired", "headed"))
        if kind == "mixed":
            return self.op("my.kernels.mixed", "b s h^, h^ o -> b s o", x, self.weight(self.h, self.h),
                           shapes=x.shape, eps=0.5)  # fmt: skip
        if kind == "expert":
            inner = 2 * self.unit
            return self.op("my.kernels.expert", "b s h^, f+ h^, h^ f+ -> b s h^", x,
                           self.weight(inner, self.h), self.weight(self.h, inner),
                           shapes=x.shape)  # fmt: skip
        if kind == "headed":
            turned = self.op("torch.transpose", "a b c -> b a c", x, dim0=0, dim1=1,
                             shapes=(self.s, self.b, self.h), turned=True)  # fmt: skip
            found = self.op(
                "my.kernels.headed", "l^ n e^, (h+ d^ 3^) e^, e^ (h+ d^) -> l^ n e^", turned,
                self.weight(self.heads * self.width * 3, self.h),
                self.weight(self.h, self.heads * self.width), shapes=turned.shape, local="h",
                h=self.heads, mask=True, turned=True,
            )  # fmt: skip
            return self.op("torch.transpose", "a b c -> b a c", found, dim0=0, dim1=1,
                           shapes=x.shape)  # fmt: skip
        one, two = self.op("my.kernels.paired", "a b c^, c^ -> a b c^, a b c^", x,
                           self.weight(self.h), shapes=[x.shape, x.shape])  # fmt: skip
        return self.same("torch.mul", one, two)

    # Losses.

    def loss(self, x: Value) -> bool:
        """A loss of the registry; whether it is a mean."""
        kind = self.draw.choice(("sum", "cross_entropy", "cross_entropy", "nll", "mse", "l1"))
        mean = kind != "sum" and self.draw.random() < 0.4
        reduction = "mean" if mean else "sum"
        mark = "^" if mean else "+"
        if kind == "sum":
            made = self.op("torch.sum", "a+ b+ c+ -> 1", x, shapes=(1,))
        elif kind in ("mse", "l1"):
            target = self.batch("target", x.shape, "float32")
            dims = f"a{mark} b{mark} c{mark}"
            made = self.op(f"{F}.{kind}_loss", f"{dims}, {dims} -> 1", x, target, shapes=(1,),
                           size_average=None, reduce=None, reduction=reduction)  # fmt: skip
        else:
            made = self.of_classes(x, kind, mark, reduction)
        made.loss = True
        return mean

    def of_classes(self, x: Value, kind: str, mark: str, reduction: str) -> Any:
        b, s, v = self.b, self.s, 2 * self.unit
        logits = self.linear(x, v)
        labels = self.batch("labels", (b, s), "int64", v)
        rows = self.view(logits, f"a {s} c -> (a {s}) c", (b * s, v))
        flat = self.view(labels, f"a {s} -> (a {s})", (b * s,))
        kwargs: dict[str, Any] = {
            "weight": None, "size_average": None, "ignore_index": -100, "reduce": None,
            "reduction": reduction,
        }  # fmt: skip
        anno = f"N{mark} C^, N{mark} -> 1"
        if kind == "nll":
            rows = self.op(f"{F}.log_softmax", "a c^ -> a c^", rows, shapes=rows.shape, dim=-1,
                           _stacklevel=3, dtype=None)  # fmt: skip
            return self.op(f"{F}.nll_loss", anno, rows, flat, shapes=(1,), **kwargs)
        return self.op(f"{F}.cross_entropy", anno, rows, flat, shapes=(1,), label_smoothing=0.0,
                       **kwargs)  # fmt: skip


def family(made: Families, stages: int) -> Model:
    """A random model of the families."""
    draw = made.draw
    if draw.random() < 0.7:
        table = made.weight(2 * made.unit, made.h)
        x = made.op(f"{R}.embedding", "a b, n+ e -> a b e", made.ids(), table,
                    shapes=(made.b, made.s, made.h), local="rows", padding_idx=None, start=0,
                    stop=2 * made.unit)  # fmt: skip
    else:
        x = made.linear(made.batch("data", (made.b, made.s, made.h), "float32"), made.h)
    for made.stage in range(stages):
        for _ in range(draw.randint(1, 2)):
            kind = draw.choice((made.mlp, made.attention, made.odd, made.odd, made.experts))
            normed = made.norm(x) if draw.random() < 0.4 else x
            grown = kind(normed)
            x = made.add(x, grown) if draw.random() < 0.7 else grown
    mean = made.loss(x)
    return Model(made.batches, made.operations, made.weights, stages, mean)
