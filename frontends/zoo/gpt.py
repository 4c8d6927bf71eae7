"""GPT: learned positions, layer norms and linears with biases, GELU, tied embeddings."""

from __future__ import annotations

from collections.abc import Iterator

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.settings import Count
from shardproof.frontends.zoo.attention import causal_attention
from shardproof.frontends.zoo.config import ModelConfig, Parallel
from shardproof.frontends.zoo.layout import TP
from shardproof.frontends.zoo.transformer import Model


class GptConfig(ModelConfig, frozen=True):
    """Hyperparameters of a GPT model.

    Example: GPT-3 175B has 96 layers of 96 heads, ``hidden`` 12288 and ``ffn`` 49152.
    """

    heads: Count
    ffn: Count

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise InvalidInput(
                f"hidden {self.hidden} is not divisible into {self.heads} heads", self.name
            )

    def divided(self, parallel: Parallel) -> Iterator[tuple[str, str]]:
        """tp divides heads, the feed-forward and the vocabulary."""
        yield from (("heads", "tp"), ("ffn", "tp"))
        yield from ModelConfig.divided(self, parallel)


class Gpt(Model[GptConfig]):
    """Writes one program of a GPT model.

    Example: on two tensor-parallel ranks, ``h.0.attn.q_proj.weight`` is held by rows,
    ``h.0.attn.c_proj.weight`` by columns, and its bias by both.
    """

    TOKENS = "wte"
    OUTPUT = "wte"
    LAST_NORM = "ln_f"
    LAYERS = "h"
    ATTENTION = ("ln_1", "attn")
    FEED_FORWARD = ("ln_2", "mlp")

    @classmethod
    def tied(cls, config: GptConfig) -> tuple[str, ...]:
        """The table of token embeddings is the output's weight too."""
        return (f"{cls.TOKENS}.weight",)

    def norm(self, x: int, path: str) -> int:
        """Layer norm with weight and bias [hidden], which every rank holds."""
        weight, bias = (
            self.parameter(f"{path}.{name}", (self.config.hidden,), outside=True)
            for name in ("weight", "bias")
        )
        name = path.rpartition(".")[2]
        return self.body.op("layernorm", x, weight, bias, name=name, eps=self.config.norm_eps)

    def embed(self, tokens: int) -> int:
        """Tokens and positions; the table of positions is divided over ``cp``, and a rank takes
        those of the positions that it holds."""
        c, body, layout = self.config, self.body, self.layout
        x = Model.embed(self, tokens)
        with body.module("wpe"):
            rows = self.parameter("wpe.weight", (c.sequence, c.hidden), {0: "cp"})
            if layout.outside != layout.tokens:
                rows = body.chunk(rows, 0, TP)
            return body.add(x, rows, name="positions")

    def rows(self, x: int, path: str, inputs: int) -> int:
        """A linear layer by rows, with its bias, out of a tensor-parallel region."""
        hidden = self.config.hidden
        y = self.layout.leave(self.body, self.linear(x, path, hidden, inputs, 1))
        bias = self.parameter(f"{path}.bias", (hidden,), outside=True)
        return self.body.add(y, bias, name="bias")

    def attention(self, x: int, path: str, number: int) -> int:
        """Causal attention, every head with its own keys and values."""
        c, body, layout = self.config, self.body, self.layout
        shape = (layout.batch, layout.tokens, c.heads // layout.tp, c.hidden // c.heads)
        x = layout.enter(body, x)
        q, k, v = (
            body.view(self.linear(x, f"{path}.{name}", c.hidden, c.hidden, 0, bias=True), *shape)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        return self.rows(causal_attention(body, layout, q, k, v), f"{path}.c_proj", c.hidden)

    def feed_forward(self, x: int, path: str, number: int) -> int:
        """Two linear layers around a GELU."""
        c, body = self.config, self.body
        up = self.linear(self.layout.enter(body, x), f"{path}.c_fc", c.ffn, c.hidden, 0, bias=True)
        return self.rows(body.op("gelu", up), f"{path}.c_proj", c.ffn)
