"""Llama: grouped-query attention with rotary positions, SwiGLU, RMS norms."""

from __future__ import annotations

from collections.abc import Iterator

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.settings import Count
from shardproof.frontends.zoo.attention import causal_attention
from shardproof.frontends.zoo.config import ModelConfig, Parallel
from shardproof.frontends.zoo.transformer import Model


class LlamaConfig(ModelConfig, frozen=True):
    """Hyperparameters of a Llama model.

    Example: Llama-3 8B has 32 heads, 8 ``kv_heads`` and ``ffn`` 14336; ``hidden=100`` is refused,
    as it does not divide into 32 heads of even size.
    """

    heads: Count
    kv_heads: Count
    ffn: Count
    rope_theta: Count

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads):
            raise InvalidInput(
                f"hidden {self.hidden} is not divisible into {self.heads} heads of even size",
                self.name,
            )
        if self.heads % self.kv_heads:
            raise InvalidInput(
                f"{self.heads} heads are not divisible by {self.kv_heads} kv_heads", self.name
            )

    def divided(self, parallel: Parallel) -> Iterator[tuple[str, str]]:
        """tp divides heads, key and value heads, the feed-forward and the vocabulary."""
        yield from (("heads", "tp"), ("kv_heads", "tp"), ("ffn", "tp"))
        yield from ModelConfig.divided(self, parallel)


class Llama(Model[LlamaConfig]):
    """Writes one program of a Llama model.

    Example: on two tensor-parallel ranks, ``layers.0.attention.wq`` is held by rows and ``wo`` by
    columns.
    """

    frequencies: int

    def tables(self) -> None:
        """The rotary frequencies [sequence, head/2, 2] of this rank's positions."""
        c = self.config
        half = c.hidden // c.heads // 2
        self.frequencies = self.parameter(
            "freqs_cis", (c.sequence, half, 2), {0: "cp"}, trainable=False
        )

    @classmethod
    def notes(cls, config: LlamaConfig, parallel: Parallel) -> tuple[str, ...]:
        """What a verdict assumes of the rotary table."""
        return (
            f"freqs_cis: the table of rotary frequencies (theta {config.rope_theta}) is an input",
        )

    def attention(self, x: int, path: str, number: int) -> int:
        """Causal grouped-query attention."""
        c, body, layout = self.config, self.body, self.layout
        head = c.hidden // c.heads
        heads, groups = c.heads // layout.tp, c.kv_heads // layout.tp
        shape = (layout.batch, layout.tokens)
        x = layout.enter(body, x)
        q = body.view(self.linear(x, f"{path}.wq", c.hidden, c.hidden, 0), *shape, heads, head)
        k = body.view(
            self.linear(x, f"{path}.wk", c.kv_heads * head, c.hidden, 0), *shape, groups, head
        )
        v = body.view(
            self.linear(x, f"{path}.wv", c.kv_heads * head, c.hidden, 0), *shape, groups, head
        )
        q, k = body.rotary(q, k, self.frequencies)
        mixed = causal_attention(body, layout, q, k, v)
        return layout.leave(body, self.linear(mixed, f"{path}.wo", c.hidden, c.hidden, 1))

    def feed_forward(self, x: int, path: str, number: int) -> int:
        """SwiGLU."""
        c, body, layout = self.config, self.body, self.layout
        x = layout.enter(body, x)
        gate = body.silu(self.linear(x, f"{path}.w1", c.ffn, c.hidden, 0))
        up = self.linear(x, f"{path}.w3", c.ffn, c.hidden, 0)
        fed = self.linear(body.mul(gate, up), f"{path}.w2", c.hidden, c.ffn, 1)
        return layout.leave(body, fed)
