"""Programs as people write them by hand: a second set, in another style than `programs`.

Each function writes one side of a small training step with the builder, whose backward is derived;
called without a mesh it is the single-device program.  With ``wrong`` it has one mistake that
people make there.  Nothing here is drawn at random, and no rule of the engine was made for it:
the set was written before it was run (README.md says what came out, before and after).

Example: ``made("fused_qkv", 0)`` is a plan whose sides compute the same, ``made("fused_qkv", 0,
wrong=True)`` one whose sides do not.
"""

from __future__ import annotations

from fractions import Fraction

from benchmarks.random_programs import written_attention
from benchmarks.random_programs.programs import CLASSES
from benchmarks.random_programs.side import (
    ALL,
    BOTH,
    CASES,
    DP,
    FOUR,
    MB,
    TP,
    B,
    K,
    Mesh,
    S,
    Side,
    case,
    made,
)
from shardproof.engine.plan.ir import Group, Program
from shardproof.frontends.builder.builder import along

#: Importing `written_attention` adds its programs, the first ones.
__all__ = ["CASES", "made", "written_attention"]


# -- norms, softmaxes, losses --------------------------------------------------------------------


@case(*ALL)
def rms_by_hand(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    square = s.mean(s.mul(x, x), dim=2, keepdim=True)
    above = s.plus(square, Fraction(1, 100 if not s.wrong else 10))
    if s.parallel:
        y = s.mul(x, s.rsqrt(above))
    else:
        y = s.div(x, s.sqrt(above))
    y = s.mul(y, s.w("gain", K))
    return s.loss(s.mul(y, y))


@case(TP, BOTH, FOUR)
def norm_over_divided_features(s: Side) -> Program:
    x = s.linear(s.enter(s.x(S, K)), s.w("in", K, K, tp=0))
    square = s.everywhere(s.sum(s.mul(x, x), 2, keepdim=True), "tp")
    count = K if not s.wrong else K // s.n("tp")
    above = s.plus(s.const(square, Fraction(1, count)), Fraction(1, 10))
    y = s.mul(s.mul(x, s.rsqrt(above)), s.w("gain", K, tp=0))
    return s.loss(s.leave(s.sum(s.mul(y, y))))


@case(*ALL)
def layernorm_by_hand(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    centred = s.sub(x, s.mean(x, dim=2, keepdim=True))
    var = s.mean(s.mul(centred, centred), dim=2, keepdim=True)
    power = s.op("pow", s.plus(var, Fraction(1, 10)), exponent=Fraction(-1, 2))
    if s.parallel:
        root = s.sqrt(s.plus(var, Fraction(1, 10)))
        power = root if s.wrong else s.op("reciprocal", root, numerator=Fraction(1))
    y = s.add(s.mul(s.mul(centred, power), s.w("gain", K)), s.w("shift", K))
    return s.loss(s.mul(y, y))


@case(TP, BOTH, FOUR)
def softmax_in_parts(s: Side) -> Program:
    """A softmax over a divided dimension: maximum and sum are all-reduced."""
    x = s.linear(s.enter(s.x(S, K)), s.w("in", K, K, tp=0))
    e = s.exp(x)
    total = s.sum(e, 2, keepdim=True)
    total = total if s.wrong else s.everywhere(total, "tp")
    p = s.div(e, total)
    return s.loss(s.leave(s.sum(s.mul(p, p))))


@case(*ALL)
def cooled_softmax(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    p = s.softmax(s.const(x, Fraction(-3, 2) if not s.wrong else Fraction(3, 2)), dim=2)
    return s.loss(s.mul(p, x))


@case(DP, BOTH, Mesh(dp=4))
def one_normaliser(s: Side) -> Program:
    """Weighted sum over the sum of weights, of all replicas."""
    x = s.linear(s.x(S, K), s.w("in", K, K))
    weight = s.sigmoid(s.sum(x, 2))
    value = s.sum(s.mul(weight, s.sum(s.mul(x, x), 2)))
    total = s.sum(weight)
    if not s.wrong:
        total = s.everywhere(total, "dp")
    return s.loss(s.div(value, total))


@case(DP, Mesh(dp=4))
def contrastive(s: Side) -> Program:
    a, b = s.load_batch(*((n, (s.batch, K), "float32") for n in "ab"))
    a, b = (s.linear(y, s.w(n, 4, K)) for y, n in ((a, "left"), (b, "right")))
    every = s.gather(b, 0, "dp")
    if s.wrong:
        every = s.cat(*[b] * s.n("dp"), dim=0)
    logits = s.matmul(a, s.transpose(every, 0, 1))
    positive = s.sum(s.mul(a, b), 1)
    return s.loss(s.sub(s.log(s.sum(s.exp(logits), 1)), positive))


@case(*ALL)
def several_terms(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    q, z = s.tanh(x), s.mul(x, x)
    factor = Fraction(1, 10) if not s.wrong else Fraction(1, 5)
    return s.loss(s.add(s.sum(q), s.const(s.sum(z), factor)))


@case(*ALL)
def summed_in_steps(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    y = s.mul(x, x)
    total = s.sum(y) if not s.parallel else s.sum(s.sum(y, 2 if not s.wrong else 1))
    if s.parallel and s.wrong:
        total = s.sum(s.mul(s.sum(x, 1), s.sum(x, 1)))
    return s.loss(total)


@case(DP, MB)
def local_means_mean(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    y = s.mean(s.mul(x, x), dim=(1, 2))
    total = s.mean(y) if not s.wrong else s.sum(y)
    return s.loss(total)


@case(*ALL)
def logsumexp_squared(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    z = s.log(s.sum(s.exp(x), 2))
    return s.loss(s.const(s.mul(z, z), Fraction(1, 100) if not s.wrong else Fraction(1, 10)))


@case(DP, MB)
def chunked_cross_entropy(s: Side) -> Program:
    x, ids = s.load_batch(("x", (s.batch, S, K), "float32"), ("ids", (s.batch, S), "int64"))
    w = s.w("head", CLASSES, K)
    if not s.parallel:
        return s.loss(s.cross_entropy(s.linear(x, w), ids))
    halves = []
    for start in (0, S // 2):
        part = s.linear(s.cut(x, 1, start, S // 2), w)
        there = start if not s.wrong else 0
        halves.append(s.cross_entropy(part, s.cut(ids, 1, there, S // 2)))
    return s.loss(s.cat(*halves, dim=1))


@case(DP, MB)
def label_smoothing(s: Side) -> Program:
    x, ids = s.load_batch(("x", (s.batch, S, K), "float32"), ("ids", (s.batch, S), "int64"))
    logits = s.linear(x, s.w("head", CLASSES, K))
    exact = s.cross_entropy(logits, ids)
    lse = s.log(s.sum(s.exp(logits), 2))
    even = s.sub(lse, s.mean(logits, dim=2))
    share = Fraction(1, 10)
    keep = 1 - share if not s.wrong else Fraction(1)
    return s.loss(s.add(s.const(exact, keep), s.const(even, share)))


@case(DP, MB)
def squared_error(s: Side) -> Program:
    x, t = s.load_batch(*((n, (s.batch, S, K), "float32") for n in "xt"))
    y = s.sub(s.linear(x, s.w("in", K, K), s.w("bias", K)), t)
    y = s.const(s.mul(y, y), Fraction(1, B * S * K if not s.wrong else s.batch * S * K))
    return s.loss(y)


# -- algebra that people rewrite -------------------------------------------------------------------


def _positive(s: Side) -> int:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    return s.plus(s.mul(x, x), 1)


@case(*ALL)
def quotient_of_itself(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    if s.parallel:
        return s.loss(s.plus(s.const(x, 0 if s.wrong else 1), 1))
    return s.loss(s.add(x, s.div(x, x)))


@case(*ALL)
def decay(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    if s.parallel:
        y = s.op("reciprocal", s.exp(s.const(x, 2 if not s.wrong else 3)), numerator=Fraction(1))
    else:
        y = s.exp(s.const(x, -2))
    return s.loss(s.mul(y, x))


@case(*ALL)
def divided_by_a_count(s: Side) -> Program:
    """Divided by how many there are, counted on the spot."""
    x = s.linear(s.x(S, K), s.w("in", K, K))
    total = s.sum(s.mul(x, x), 2)
    if s.parallel:
        ones = s.op("full", size=(s.batch, S, K), value=Fraction(1))
        return s.loss(
            s.div(
                total,
                s.sum(ones, 1 if s.wrong else 2) if not s.wrong else s.const(s.sum(ones, 2), 2),
            )
        )
    return s.loss(s.const(total, Fraction(1, K)))


@case(*ALL)
def root_as_power(s: Side) -> Program:
    y = _positive(s)
    half = Fraction(1, 2)
    if s.parallel:
        return s.loss(s.op("pow", y, exponent=half if not s.wrong else Fraction(1, 3)))
    return s.loss(s.sqrt(y))


@case(*ALL)
def one_over_root(s: Side) -> Program:
    y = _positive(s)
    if s.parallel:
        root = s.rsqrt(y)
        return s.loss(s.mul(root, root) if s.wrong else s.mul(root, y))
    return s.loss(s.sqrt(y))


@case(*ALL)
def cosine(s: Side) -> Program:
    x, y = (s.linear(s.x(S, K), s.w("in", K, K)), None)
    y = s.linear(x, s.w("other", K, K))
    dot, xx, yy = (s.plus(s.sum(s.mul(a, b), 2), 1) for a, b in ((x, y), (x, x), (y, y)))
    if s.parallel:
        return s.loss(s.mul(dot, s.mul(s.rsqrt(xx), s.rsqrt(xx if s.wrong else yy))))
    return s.loss(s.div(dot, s.mul(s.sqrt(xx), s.sqrt(yy))))


@case(DP, MB)
def distances(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    c = s.w("centres", K)
    if not s.parallel:
        y = s.sub(x, c)
        return s.loss(s.sum(s.mul(y, y)))
    factor = -2 if not s.wrong else -1
    cross = s.const(s.mul(x, c), factor)
    return s.loss(s.sum(s.add(s.add(s.mul(x, x), cross), s.mul(c, c))))


@case(DP, TP, FOUR)
def chain_from_the_other_end(s: Side) -> Program:
    """x (A B) for (x A) B, with the inner dimension divided."""
    x = s.enter(s.x(S, K))
    a, b = s.w("a", K, 4, tp=1), s.w("b", 4, K, tp=0)
    y = s.matmul(x, s.matmul(a, b)) if s.parallel else s.matmul(s.matmul(x, a), b)
    y = y if s.wrong else s.leave(y)
    return s.loss(s.mul(y, y))


# -- parameters and layers -----------------------------------------------------------------------


@case(DP, Mesh(dp=4), BOTH)
def parameter_divided_like_the_batch(s: Side) -> Program:
    x = s.x(S, K)
    shard = s.program.parameter("in", (K, K), {0: "dp"})
    w = s.body.parameter(shard)
    if s.n("dp") > 1:
        w = s.gather_parameter(w, 0, along("dp"))
    x = s.linear(x, w)
    y = s.linear(x, s.w("out", K, K))
    return s.loss(s.const(s.mul(y, y), 1 if not s.wrong else 2))


@case(DP, BOTH)
def gradients_in_buckets(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K), s.w("bias", K))
    y = s.linear(s.tanh(x), s.w("out", 4, K))
    s.body.loss(s.sum(s.mul(y, y)))
    s.program.schedule(s.body, s.body.backward(), s.mb)
    if s.n("dp") == 1:
        return s.program.build()
    body = s.program.body("bucket")
    shards = [s.program.shards[n] for n in s.plain]
    before = [body.value(shard.shape, "gradient") for shard in shards]
    sizes = [_size(shard.shape) for shard in shards]
    flat = [body.view(v, n) for v, n in zip(before, sizes, strict=True)]
    bucket = body.reduce_from(body.op("concat", *flat, dim=0), along("dp"))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    if s.wrong:
        starts[1] -= 1
    after = [
        body.view(body.op("slice", bucket, dim=0, start=start, size=n), *shard.shape)
        for start, n, shard in zip(starts, sizes, shards, strict=True)
    ]
    body.reduced = list(zip(before, after, s.plain, strict=True))
    s.program.call(body)
    return s.program.build()


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


@case(TP, BOTH, FOUR)
def bias_in_shares(s: Side) -> Program:
    """Every rank adds its share of the bias before the sum over ranks."""
    x = s.linear(s.enter(s.x(S, K)), s.w("up", 2 * K, K, tp=0))
    y = s.linear(s.silu(x), s.w("down", K, 2 * K, tp=1))
    bias = s.enter(s.w("bias", K))
    share = Fraction(1, s.n("tp")) if not s.wrong else Fraction(1)
    y = s.leave(s.add(y, s.const(bias, share)))
    return s.loss(s.mul(y, y))


@case(TP, BOTH)
def sequence_parallel(s: Side) -> Program:
    group, tp = along("tp"), s.n("tp")
    x = s.x(S, K)
    x = s.gather(s.chunk(x, 1, group), 1, "tp") if tp > 1 else x
    h = s.silu(s.linear(x, s.w("up", 2 * K, K, tp=0)))
    y = s.linear(h, s.w("down", K, 2 * K, tp=1))
    y = s.reduce_scatter(y, 1, group) if tp > 1 else y
    y = s.sum(s.mul(y, y))
    s.body.loss(y if s.wrong else s.leave(y))
    s.program.schedule(s.body, s.body.backward(), s.mb)
    if s.n("dp") > 1:
        s.program.reduce([(shard, along("dp")) for shard in s.plain])
    return s.program.build()


@case(*ALL)
def low_rank(s: Side) -> Program:
    x = s.enter(s.x(S, K))
    base = s.linear(x, s.w("base", K, K, tp=0))
    low = s.linear(s.linear(x, s.w("a", 2, K, tp=None)), s.w("b", K, 2, tp=0))
    a = [n for n in s.plain if s.program.shards[n].name == "a"]
    y = s.add(base, s.const(low, Fraction(1, 2)))
    s.body.loss(s.leave(s.sum(s.mul(y, y))))
    s.program.schedule(s.body, s.body.backward(), s.mb)
    todo: list[tuple[int, Group]] = []
    for n in s.plain:
        axes = tuple(x for x in ("dp", "tp") if s.n(x) > 1 and (x == "dp" or n in a))
        if s.wrong:
            axes = axes[:-1]
        if axes:
            todo.append((n, along(*axes)))
    if todo:
        s.program.reduce(todo)
    return s.program.build()


@case(DP, MB)
def tied_head(s: Side) -> Program:
    (ids,) = s.load_batch(("ids", (s.batch, S), "int64"))
    table = s.w("table", CLASSES, K)
    x = s.tanh(s.embedding(ids, table))
    head = table if not s.wrong else s.const(table, 2)
    return s.loss(s.cross_entropy(s.linear(x, head), ids))


@case(DP, MB)
def token_shift(s: Side) -> Program:
    """Every token sees the one before it; the first sees zeros."""
    x = s.linear(s.x(S, K), s.w("in", K, K))
    zeros = s.op("full", size=(s.batch, 1, K), value=Fraction(0))
    before = s.cat(zeros, s.cut(x, 1, 0 if not s.wrong else 1, S - 1), dim=1)
    y = s.mul(x, before)
    return s.loss(s.add(y, s.mul(before, before)))


@case(DP, MB)
def stacked_branches(s: Side) -> Program:
    x = s.x(S, K)
    a, b = (s.linear(x, s.w(n, K, K)) for n in "ab")
    y = s.op("stack", s.tanh(a), b, dim=1)
    y = s.mean(y, dim=1) if not s.wrong else s.sum(y, 1)
    return s.loss(s.mul(y, y))


@case(TP, BOTH)
def dense_experts(s: Side) -> Program:
    """All experts on all tokens, weighted by their gates; experts divided over tp."""
    x = s.x(S, K)
    gates = s.softmax(s.linear(x, s.w("gate", 4, K)), dim=2)
    x = s.enter(x)
    mine = s.enter(gates)
    mine = s.chunk(gates, 2, along("tp")) if s.n("tp") > 1 else gates
    w = s.w("experts", 4, K, K, tp=0)
    each = s.op("einsum", x, w, equation="bsk,eko->bseo")
    y = s.op("einsum", s.silu(each), mine, equation="bseo,bse->bso")
    y = y if s.wrong else s.leave(y)
    return s.loss(s.mul(y, y))


@case(DP, MB)
def deep_residual(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    for i in range(3):
        inner = s.silu(
            s.linear(s.rms_norm(x, s.w(f"g{i}", K), eps=Fraction(1, 100)), s.w(f"w{i}", K, K))
        )
        x = s.add(
            s.const(x, Fraction(3, 4)),
            s.const(inner, Fraction(1, 4 if not (s.wrong and i == 1) else 2)),
        )
    return s.loss(s.mul(x, x))


@case(DP, MB)
def strongest_feature(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    top = s.amax(s.const(x, -2 if not s.wrong else 2), 2)
    return s.loss(s.mul(top, top))
