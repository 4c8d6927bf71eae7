"""A 2-layer GPT with tensor parallelism, written by hand, proved; and three mistakes, refuted.

    python examples/gpt.py                # prove it, then show that each mistake is caught
    python examples/gpt.py --save DIR     # store all four plans as folders for `shardproof verify`

The model: learned positions, layer norms, attention and a feed-forward block with biases, an output
layer tied to the table of token embeddings, cross entropy, the mean over all tokens.

The parallel version, Megatron's: ``dp`` replicas of ``tp`` ranks, two microbatches.  The first
linear layer of a block is divided by columns, the second by rows, so that a block needs one
all-reduce forward and one backward.  The table of embeddings is divided by its rows, the
vocabulary; so are the logits, and the cross entropy is computed without gathering them.

One function writes both sides: what differs is a `Side`.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import shardproof
from shardproof.engine.algebra.affine import ZERO, affine
from shardproof.engine.plan.ir import Plan, Program
from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along

LAYERS, HIDDEN, HEADS, FFN, VOCABULARY, SEQUENCE = 2, 64, 8, 256, 512, 32
BATCH, MICROBATCHES, DP = 16, 2, 2
EPS = Fraction(1, 100_000)

#: Three mistakes that every team makes once.
MISTAKES = {
    "no-all-reduce": "no all-reduce after the row-parallel product of the last feed-forward block",
    "bias-before-all-reduce": "the bias is added by every rank, before the all-reduce",
    "loss-over-tp": "the loss is divided by the number of tensor-parallel ranks",
}

TP = along("tp")


@dataclass(frozen=True)
class Side:
    """One side of the plan: how many ranks share a layer, the sequences that one call reads, and
    which of `MISTAKES` is made."""

    tp: int
    batch: int
    mistake: str = ""

    def enter(self, body: BodyBuilder, x: int) -> int:
        """Into a block whose ranks work on parts: the gradient is their sum."""
        return body.copy_to(x, TP) if self.tp > 1 else x

    def leave(self, body: BodyBuilder, x: int) -> int:
        """Out of it: every rank holds an addend of ``x``."""
        return body.reduce_from(x, TP) if self.tp > 1 else x


class Gpt:
    """Writes the model into one body of a program."""

    def __init__(self, program: ProgramBuilder, side: Side) -> None:
        self.program = program
        self.side = side
        self.shards: dict[str, int] = {}
        self.body = program.body("forward")

    def parameter(self, name: str, *shape: int, split: int | None = None) -> int:
        """A parameter of full ``shape``; its dimension ``split`` is divided over ``tp``."""
        if name not in self.shards:
            where = {} if split is None else {split: "tp"}
            self.shards[name] = self.program.parameter(name, shape, where)
        return self.body.parameter(self.shards[name])

    def norm(self, x: int, name: str) -> int:
        weight, bias = (self.parameter(f"{name}.{n}", HIDDEN) for n in ("weight", "bias"))
        return self.body.op("layernorm", x, weight, bias, eps=EPS)

    def columns(self, x: int, name: str, outputs: int) -> int:
        """Column-parallel: each rank has some of the outputs."""
        weight = self.parameter(f"{name}.weight", outputs, HIDDEN, split=0)
        return self.body.linear(x, weight, self.parameter(f"{name}.bias", outputs, split=0))

    def rows(self, x: int, name: str, inputs: int) -> int:
        """Row-parallel: each rank has an addend of every output, so an all-reduce follows; the
        bias is added once, after it."""
        body, side = self.body, self.side
        weight = self.parameter(f"{name}.weight", HIDDEN, inputs, split=1)
        bias = self.parameter(f"{name}.bias", HIDDEN)
        y = body.linear(x, weight)
        here = name == f"h.{LAYERS - 1}.mlp.c_proj"
        if here and side.mistake == "bias-before-all-reduce":
            return side.leave(body, body.add(y, bias))
        if here and side.mistake == "no-all-reduce":
            return body.add(y, bias)
        return body.add(side.leave(body, y), bias)

    def attention(self, x: int, name: str) -> int:
        """Causal attention; each rank has some of the heads."""
        body = self.body
        size = HIDDEN // HEADS
        shape = (self.side.batch, SEQUENCE, HEADS // self.side.tp, size)
        x = self.side.enter(body, x)
        q, k, v = (
            body.view(self.columns(x, f"{name}.{part}", HIDDEN), *shape)
            for part in ("q_proj", "k_proj", "v_proj")
        )
        keys = body.transpose(body.transpose(k, 1, 2), 2, 3)
        scores = body.matmul(body.transpose(q, 1, 2), keys)
        scores = body.div_constant(scores, Fraction(repr(math.sqrt(size))))
        weights = body.softmax(body.causal_mask(scores, k))
        mixed = body.transpose(body.matmul(weights, body.transpose(v, 1, 2)), 1, 2)
        joined = body.view(mixed, self.side.batch, SEQUENCE, HIDDEN // self.side.tp)
        return self.rows(joined, f"{name}.c_proj", HIDDEN)

    def feed_forward(self, x: int, name: str) -> int:
        up = self.columns(self.side.enter(self.body, x), f"{name}.c_fc", FFN)
        return self.rows(self.body.op("gelu", up), f"{name}.c_proj", FFN)

    def forward(self) -> BodyBuilder:
        """The whole model, from a microbatch to its part of the loss."""
        body, side = self.body, self.side
        tokens, targets = body.load_batch(
            ("tokens", (side.batch, SEQUENCE), "int64"),
            ("targets", (side.batch, SEQUENCE), "int64"),
        )
        # The rank's first row of the table: its place along tp, times the rows that it has.
        first = affine(0, {"tp": VOCABULARY // side.tp}) if side.tp > 1 else ZERO
        table = self.parameter("wte.weight", VOCABULARY, HIDDEN, split=0)
        with body.module("wte"):
            x = side.leave(body, body.embedding(tokens, table, first))
        with body.module("wpe"):
            x = body.add(x, self.parameter("wpe.weight", SEQUENCE, HIDDEN))
        for number in range(LAYERS):
            name = f"h.{number}"
            with body.module(name):
                with body.module("attn"):
                    x = body.add(x, self.attention(self.norm(x, f"{name}.ln_1"), f"{name}.attn"))
                with body.module("mlp"):
                    x = body.add(x, self.feed_forward(self.norm(x, f"{name}.ln_2"), f"{name}.mlp"))
        with body.module("lm_head"):
            logits = body.linear(side.enter(body, self.norm(x, "ln_f")), table)
        with body.module("loss"):
            if side.tp > 1:
                losses = body.parallel_cross_entropy(logits, targets, first, TP)
            else:
                losses = body.cross_entropy(logits, targets)
            # The losses of all microbatches of all replicas are added up: each contributes its
            # sum, divided by the number of tokens of the whole batch.
            factor = Fraction(1, BATCH * SEQUENCE)
            if side.mistake == "loss-over-tp":
                factor /= side.tp
            body.loss(body.mul_constant(body.sum(losses), factor))
        return body


def write(program: ProgramBuilder, side: Side, microbatches: int) -> Program:
    """One side: forward, backward derived from it, and the gradients added up over replicas."""
    gpt = Gpt(program, side)
    forward = gpt.forward()
    program.schedule(forward, forward.backward(), microbatches)
    if "dp" in program.extents:
        program.reduce([(shard, along("dp")) for shard in gpt.shards.values()])
    return program.build()


def gpt_plan(tp: int = 2, mistake: str = "") -> Plan:
    """Both sides: GPT on one device, and over ``dp`` times ``tp`` ranks."""
    if mistake and mistake not in MISTAKES:
        raise ValueError(f"expected one of {', '.join(MISTAKES)}, found {mistake!r}")
    single = write(ProgramBuilder("single"), Side(tp=1, batch=BATCH), 1)
    # (name, ranks, distance of neighbours): tensor-parallel ranks lie side by side.
    axes = (("dp", DP, tp), ("tp", tp, 1))
    side = Side(tp, BATCH // DP // MICROBATCHES, mistake)
    parallel = write(ProgramBuilder("ranks", axes=axes), side, MICROBATCHES)
    name = f"gpt dp{DP} tp{tp}{f', {mistake}' if mistake else ''}"
    return Plan(name, single, (parallel,), MICROBATCHES, replica_axes=("dp",))


def main() -> None:
    """Prove the plan and refute the three mistakes, or store all four."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", type=Path, metavar="DIR", help="store the plans, verify nothing")
    folder = parser.parse_args().save
    for mistake in ("", *MISTAKES):
        plan = gpt_plan(mistake=mistake)
        name = f"gpt-{mistake}" if mistake else "gpt"
        if folder is not None:
            shardproof.save(plan, folder / name)
        else:
            print(f"\n{name}: {MISTAKES.get(mistake, 'as it should be')}")
            print(shardproof.verify(plan))


if __name__ == "__main__":
    main()
