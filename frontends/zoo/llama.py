"""Llama 3: the single-device training graph, and the parallel one as Megatron lays it out.

Both sides are written by the same layer functions.  `Layout` is what differs: on a single device
every linear is whole; with tensor parallelism a block *enters* a region whose ranks hold columns
of its first weights and rows of its last, and *leaves* it by adding up.  With sequence parallelism
the activations between regions are divided along the sequence.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

from engine.affine import ZERO, Affine, affine
from engine.ir import Group, Plan, Program
from frontends.zoo.builder import BodyBuilder, ProgramBuilder, along
from frontends.zoo.config import LlamaConfig, Parallel
from frontends.zoo.shapes import Inference

TP = along("tp")


@dataclass(frozen=True, slots=True)
class Layout:
    """How one side computes: tensor-parallel degree, whether the sequence is divided outside
    tensor-parallel regions, sequences per microbatch, and the factor of the summed loss."""

    tp: int
    sequence_parallel: bool
    batch: int
    loss_factor: Fraction

    def enter(self, body: BodyBuilder, x: int) -> int:
        """Into a tensor-parallel region: every rank needs all of ``x``."""
        if self.tp == 1:
            return x
        return body.all_gather(x, 1, TP) if self.sequence_parallel else body.copy_to(x, TP)

    def leave(self, body: BodyBuilder, x: int) -> int:
        """Out of it: the ranks hold addends of the result."""
        if self.tp == 1:
            return x
        return body.reduce_scatter(x, 1, TP) if self.sequence_parallel else body.reduce_from(x, TP)

    def first(self, size: int) -> Affine:
        """The first of the ``size`` positions that a rank holds of a divided dimension."""
        return affine(0, {"tp": size}) if self.tp > 1 else ZERO


@dataclass(frozen=True, slots=True)
class Stage:
    """Which part of the model a program holds: layers [first, last), embedding, output; and the
    base ranks of the neighbouring stages (None: there is none)."""

    first: int
    last: int
    before: int | None = None
    after: int | None = None


class Llama:
    """Writes one program (a pipeline stage, or the single device) of a model."""

    def __init__(self, config: LlamaConfig, layout: Layout, program: ProgramBuilder) -> None:
        self.config = config
        self.layout = layout
        self.program = program
        self.norms: list[int] = []
        self.forward = program.body("forward")

    # -- parameters -----------------------------------------------------------------------------

    def norm(self, x: int, name: str) -> int:
        """RMS norm with the weight ``name`` [hidden], which every rank holds."""
        shard = self.program.parameter(f"{name}.weight", (self.config.hidden,))
        self.norms.append(shard)
        return self.forward.rms_norm(
            x, self.forward.parameter(shard), self.config.norm_eps, name=name.rpartition(".")[2]
        )

    def linear(self, x: int, name: str, outputs: int, inputs: int, split: int) -> int:
        """A linear layer [outputs, inputs], divided by columns of its result (``split`` 0) or
        rows (``split`` 1)."""
        shard = self.program.parameter(f"{name}.weight", (outputs, inputs), {split: "tp"})
        return self.forward.linear(x, self.forward.parameter(shard), name=name.rpartition(".")[2])

    # -- layers ---------------------------------------------------------------------------------

    def embed(self, tokens: int) -> int:
        """[b, s] -> [b, s, hidden], from a table divided by rows."""
        c, body = self.config, self.forward
        name = "tok_embeddings.weight"
        table = self.program.parameter(name, (c.vocabulary, c.hidden), {0: "tp"})
        with body.module("tok_embeddings"):
            start = self.layout.first(c.vocabulary // self.layout.tp)
            rows = body.embedding(tokens, body.parameter(table), start)
            return self.layout.leave(body, rows)

    def attention(self, x: int, path: str, frequencies: int) -> int:
        """Causal grouped-query attention, [b, s, hidden] -> addends of [b, s, hidden]."""
        c, body = self.config, self.forward
        head = c.hidden // c.heads
        heads, groups = c.heads // self.layout.tp, c.kv_heads // self.layout.tp
        shape = (self.layout.batch, c.sequence)
        q = body.view(self.linear(x, f"{path}.wq", c.hidden, c.hidden, 0), *shape, heads, head)
        k = body.view(
            self.linear(x, f"{path}.wk", c.kv_heads * head, c.hidden, 0), *shape, groups, head
        )
        v = body.view(
            self.linear(x, f"{path}.wv", c.kv_heads * head, c.hidden, 0), *shape, groups, head
        )
        q, k = body.rotary(q, k, frequencies)
        if heads != groups:
            k = body.repeat_interleave(k, heads // groups, 2)
            v = body.repeat_interleave(v, heads // groups, 2)
        keys = body.transpose(body.transpose(k, 1, 2), 2, 3)
        scores = body.matmul(body.transpose(q, 1, 2), keys, name="scores")
        scores = body.div_constant(scores, Fraction(repr(math.sqrt(head))))
        weights = body.softmax(body.causal_mask(scores, q))
        mixed = body.transpose(body.matmul(weights, body.transpose(v, 1, 2)), 1, 2)
        joined = body.view(mixed, *shape, heads * head)
        return self.linear(joined, f"{path}.wo", c.hidden, c.hidden, 1)

    def feed_forward(self, x: int, path: str) -> int:
        """SwiGLU, [b, s, hidden] -> addends of [b, s, hidden]."""
        c, body = self.config, self.forward
        gate = body.silu(self.linear(x, f"{path}.w1", c.ffn, c.hidden, 0))
        up = self.linear(x, f"{path}.w3", c.ffn, c.hidden, 0)
        return self.linear(body.mul(gate, up), f"{path}.w2", c.hidden, c.ffn, 1)

    def layer(self, x: int, number: int, frequencies: int) -> int:
        """One transformer layer, [b, s, hidden] (its part of s) to the same."""
        body, layout, path = self.forward, self.layout, f"layers.{number}"
        with body.module(path):
            normed = self.norm(x, f"{path}.attention_norm")
            with body.module("attention"):
                inner = layout.enter(body, normed)
                mixed = self.attention(inner, f"{path}.attention", frequencies)
                x = body.add(x, layout.leave(body, mixed), name="residual")
            normed = self.norm(x, f"{path}.ffn_norm")
            with body.module("feed_forward"):
                inner = layout.enter(body, normed)
                fed = self.feed_forward(inner, f"{path}.feed_forward")
                return body.add(x, layout.leave(body, fed), name="residual")

    def head(self, x: int, targets: int) -> None:
        """Final norm, output, per-token loss, and the loss: their sum times the factor."""
        c, body, layout = self.config, self.forward, self.layout
        normed = self.norm(x, "norm")
        with body.module("output"):
            inner = layout.enter(body, normed)
            logits = self.linear(inner, "output", c.vocabulary, c.hidden, 0)
        with body.module("loss"):
            if layout.tp == 1:
                losses = body.cross_entropy(logits, targets)
            else:
                start = layout.first(c.vocabulary // layout.tp)
                losses = body.parallel_cross_entropy(logits, targets, start, TP)
            body.loss(body.mul_constant(body.sum(losses), layout.loss_factor, name="loss"))

    # -- the program ----------------------------------------------------------------------------

    def write(self, stage: Stage, microbatches: int, warmup: int = 0) -> None:
        """Forward and backward bodies of a stage, and their schedule."""
        c, body = self.config, self.forward
        batch = (self.layout.batch, c.sequence)
        tokens = targets = -1
        if stage.before is None or stage.after is None:
            tokens, targets = body.load_batch(
                ("tokens", batch, "int64"), ("targets", batch, "int64")
            )
        if stage.before is None:
            x = self.embed(tokens)
        else:
            local = c.sequence // (self.layout.tp if self.layout.sequence_parallel else 1)
            x = body.recv((self.layout.batch, local, c.hidden), stage.before, name="hidden")
        if stage.first < stage.last:
            half = c.hidden // c.heads // 2
            table = self.program.parameter("freqs_cis", (c.sequence, half, 2), trainable=False)
            frequencies = body.parameter(table)
            for number in range(stage.first, stage.last):
                x = self.layer(x, number, frequencies)
        if stage.after is None:
            self.head(x, targets)
        else:
            body.send(x, stage.after)
        self.program.schedule(body, body.backward(), microbatches, warmup)


def single_program(config: LlamaConfig, batch: int, inference: Inference) -> Program:
    """The model on one device: ``batch`` sequences at once, loss the mean over their tokens."""
    program = ProgramBuilder("single", inference=inference)
    layout = Layout(1, False, batch, Fraction(1, batch * config.sequence))
    Llama(config, layout, program).write(Stage(0, config.layers), 1)
    return program.build()


def stage_layers(layers: int, stages: int) -> list[tuple[int, int]]:
    """[first, last) of every stage: even, the first ones one more where it does not divide."""
    each, more = divmod(layers, stages)
    bounds = [each * s + min(s, more) for s in range(stages + 1)]
    return list(itertools.pairwise(bounds))


def stage_program(
    config: LlamaConfig, parallel: Parallel, number: int, batch: int, inference: Inference
) -> Program:
    """Pipeline stage ``number``: tensor-parallel ranks innermost, then replicas, then stages."""
    size = parallel.dp * parallel.tp
    axes = (("dp", parallel.dp, parallel.tp), ("tp", parallel.tp, 1))
    program = ProgramBuilder(
        f"stage {number}", number * size, tuple(a for a in axes if a[1] > 1), inference
    )
    first, last = stage_layers(config.layers, parallel.pp)[number]
    stage = Stage(
        first,
        last,
        None if number == 0 else (number - 1) * size,
        None if number == parallel.pp - 1 else (number + 1) * size,
    )
    layout = Layout(
        parallel.tp,
        parallel.sequence_parallel,
        parallel.microbatch_size,
        Fraction(1, batch * config.sequence),
    )
    model = Llama(config, layout, program)
    model.write(stage, parallel.microbatches, parallel.pp - 1 - number)
    reduced: list[tuple[int, Group]] = []
    if parallel.dp > 1:
        reduced += [(i, along("dp")) for i, s in enumerate(program.shards) if s.trainable]
    if parallel.tp > 1 and parallel.sequence_parallel:
        reduced += [(i, TP) for i in model.norms]
    if reduced:
        program.reduce(reduced)
    return program.build()


def build(config: LlamaConfig, parallel: Parallel) -> Plan:
    """Both sides of the plan."""
    batch = parallel.dp * parallel.microbatches * parallel.microbatch_size
    inference = Inference()
    programs = tuple(
        stage_program(config, parallel, number, batch, inference) for number in range(parallel.pp)
    )
    return Plan(
        f"{config.name} {parallel}",
        single_program(config, batch, inference),
        programs,
        parallel.microbatches,
        ("dp",),
        "sum",
        (
            f"loss: mean over {batch} x {config.sequence} tokens; every microbatch of every "
            f"replica contributes its sum times 1/{batch * config.sequence}",
            f"freqs_cis: the table of rotary frequencies (theta {config.rope_theta}) is an input",
        ),
    )
