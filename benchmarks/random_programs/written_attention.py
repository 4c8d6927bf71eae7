"""Programs as people write them by hand (see `written`): attention and what is around it.

Importing this file registers them in `side.CASES`.
"""

from __future__ import annotations

from fractions import Fraction

from benchmarks.random_programs.side import (
    ALL,
    BOTH,
    DP,
    FOUR,
    MB,
    TP,
    D,
    H,
    K,
    S,
    Side,
    case,
)
from shardproof.engine.plan.ir import Program
from shardproof.frontends.builder.builder import along


def _heads(s: Side, x: int, heads: int) -> int:
    """[b, s, h d] -> [b, h, s, d]"""
    b, t, _ = s.shape(x)
    return s.transpose(s.view(x, b, t, heads, D), 1, 2)


def _merged(s: Side, x: int) -> int:
    b, h, t, d = s.shape(x)
    return s.view(s.transpose(x, 1, 2), b, t, h * d)


def _attend(s: Side, q: int, k: int, v: int) -> int:
    scores = s.const(s.matmul(q, s.transpose(k, 2, 3)), Fraction(7, 10))
    return s.matmul(s.softmax(scores, dim=3), v)


@case(TP, BOTH, FOUR)
def fused_qkv(s: Side) -> Program:
    x = s.enter(s.x(S, K))
    q, k, v = (_heads(s, s.linear(x, w), H // s.n("tp")) for w in s.boxes("qkv", (3 * K, K), 3))
    if s.wrong:
        k, v = v, k
    out = s.linear(_merged(s, _attend(s, q, k, v)), s.w("out", K, K, tp=1))
    y = s.leave(out)
    return s.loss(s.mul(y, y))


@case(TP, BOTH, MB)
def gate_up_in_one(s: Side) -> Program:
    x = s.enter(s.x(S, K))
    gate, up = s.boxes("gate_up", (2 * 2 * K, K), 2)
    if s.wrong:
        gate, up = up, gate
    joined = s.linear(x, s.cat(gate, up, dim=0))
    half = s.shape(joined)[-1] // 2
    hidden = s.mul(s.silu(s.cut(joined, 2, 0, half)), s.cut(joined, 2, half, half))
    y = s.leave(s.linear(hidden, s.w("down", K, 2 * K, tp=1)))
    return s.loss(s.mul(y, y))


@case(*ALL, FOUR)
def rotate_half(s: Side) -> Program:
    x = s.enter(s.x(S, K))
    q = _heads(s, s.linear(x, s.w("q", K, K, tp=0)), H // s.n("tp"))
    first, second = s.cut(q, 3, 0, D // 2), s.cut(q, 3, D // 2, D // 2)
    turned = s.cat(s.const(second, 1 if s.wrong else -1), first, dim=3)
    cos, sin = (s.w(n, S, D) for n in ("cos", "sin"))
    cos, sin = s.enter(cos), s.enter(sin)
    y = s.add(s.mul(q, cos), s.mul(turned, sin))
    return s.loss(s.leave(s.sum(s.mul(y, y))))


@case(TP, BOTH)
def grouped_heads(s: Side) -> Program:
    x = s.enter(s.x(S, K))
    q = _heads(s, s.linear(x, s.w("q", K, K, tp=0)), H // s.n("tp"))
    k, v = (
        s.repeat_interleave(
            _heads(s, s.linear(x, s.w(n, K // 2, K, tp=0)), H // 2 // s.n("tp")), 2, 1
        )
        for n in "kv"
    )
    if s.wrong:
        v = k
    y = s.leave(s.linear(_merged(s, _attend(s, q, k, v)), s.w("out", K, K, tp=1)))
    return s.loss(s.mul(y, y))


@case(TP, BOTH)
def ulysses(s: Side) -> Program:
    """Sequence divided outside of attention, heads inside."""
    tp, group = s.n("tp"), along("tp")
    x = s.x(S, K)
    x = s.chunk(x, 1, group) if tp > 1 else x
    own = [s.linear(x, s.w(n, K, K)) for n in "qkv"]
    heads = [_heads(s, y, H) for y in own]
    if tp > 1:
        heads = [s.all_to_all(y, 1, 2, group) for y in heads]
    y = _attend(s, *heads)
    if tp > 1:
        y = s.all_to_all(y, 2, 1, group)
    y = s.sum(s.mul(y, y))
    return _summed_over_tp(s, y)


def _summed_over_tp(s: Side, total: int) -> Program:
    """The loss is the sum over tp; parameters that all ranks hold get addends of their gradients,
    which are all-reduced over tp (and over dp)."""
    s.body.loss(s.leave(total))
    s.program.schedule(s.body, s.body.backward(), s.mb)
    axes = tuple(a for a in ("dp", "tp") if s.n(a) > 1 and not (s.wrong and a == "tp"))
    if axes:
        s.program.reduce([(shard, along(*axes)) for shard in s.plain])
    return s.program.build()


@case(TP, BOTH)
def keys_gathered(s: Side) -> Program:
    """Context parallel: queries divided along the sequence, keys and values gathered."""
    x = s.x(S, K)
    x = s.chunk(x, 1, along("tp")) if s.n("tp") > 1 else x
    q, k, v = (_heads(s, s.linear(x, s.w(n, K, K)), H) for n in "qkv")
    k, v = (s.gather(y, 2, "tp") for y in (k, v))
    y = _attend(s, q, k, v)
    return _summed_over_tp(s, s.sum(s.mul(y, y)))


@case(DP, MB)
def learned_prefix(s: Side) -> Program:
    x = s.linear(s.x(S, K), s.w("in", K, K))
    prefix = s.op("broadcast_to", s.w("prefix", 2, K), size=(s.batch, 2, K))
    both = (x, prefix) if s.wrong else (prefix, x)
    t = s.cat(*both, dim=1)
    q = _heads(s, t, H)
    y = s.cut(_attend(s, q, q, q), 2, 0, 3)
    return s.loss(s.mul(y, y))


@case(DP, MB, TP)
def learned_keys(s: Side) -> Program:
    """Learned logits beside those of the tokens (attention sinks)."""
    x = s.enter(s.x(S, K))
    q, k, v = (_heads(s, s.linear(x, s.w(n, K, K, tp=0)), H // s.n("tp")) for n in "qkv")
    scores = s.matmul(q, s.transpose(k, 2, 3))
    sink = s.w("sink", H, 1, 1, tp=0)
    sink = s.op("broadcast_to", sink, size=(s.batch, H // s.n("tp"), S, 1))
    p = s.softmax(s.cat(scores, sink, dim=3), dim=3)
    p = s.cut(p, 3, 0 if not s.wrong else 1, S)
    y = s.leave(s.linear(_merged(s, s.matmul(p, v)), s.w("out", K, K, tp=1)))
    return s.loss(s.mul(y, y))
