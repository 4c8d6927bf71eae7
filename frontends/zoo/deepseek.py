"""DeepSeek V2 and V3: latent attention, shared and routed experts, first layers dense."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage.settings import Count, Natural
from shardproof.frontends.zoo.config import ModelConfig, Parallel
from shardproof.frontends.zoo.mla import Latent, latent_attention
from shardproof.frontends.zoo.moe import Mixture, mixture_of_experts, swiglu
from shardproof.frontends.zoo.transformer import Model


class DeepSeekConfig(ModelConfig, frozen=True):
    """Hyperparameters of a DeepSeek model.

    Example: DeepSeek V3 has 61 layers, of which 3 are dense, and chooses 8 of 256 experts by their
    sigmoids.

    ``q_rank`` 0: queries have no latent.  ``dense_layers`` first layers have a feed-forward block
    of width ``ffn``, the others a mixture (`frontends.zoo.moe.Mixture` has its words).
    ``balance_loss``: whether its load-balancing loss is part of the loss.
    """

    heads: Count
    q_rank: Natural
    kv_rank: Count
    nope: Count
    rope: Count
    value: Count
    ffn: Count
    dense_layers: Natural
    experts: Count
    chosen: Count
    expert_ffn: Count
    shared_experts: Natural
    scoring: str
    groups: Count
    kept_groups: Count
    bias: bool
    normalised: bool
    route_scale: Fraction
    balance: Fraction
    balance_loss: bool
    rope_theta: Count

    def __post_init__(self) -> None:
        if self.rope % 2:
            raise InvalidInput(f"rope {self.rope} is not even", self.name)
        self.mixture.check(self.name)

    @property
    def has_experts(self) -> bool:
        """Always: layers from ``dense_layers`` on are mixtures of experts."""
        return True

    @property
    def mixture(self) -> Mixture:
        """What its mixtures of experts compute: experts, choice, scoring and loss of balance."""
        return Mixture(
            self.experts,
            self.chosen,
            self.expert_ffn,
            self.scoring,
            self.groups,
            self.kept_groups,
            self.bias,
            self.normalised,
            self.route_scale,
            self.balance if self.balance_loss else Fraction(0),
            self.shared_experts * self.expert_ffn,
        )

    @property
    def latent(self) -> Latent:
        """The sizes of multi-head latent attention."""
        return Latent(self.heads, self.q_rank, self.kv_rank, self.nope, self.rope, self.value)

    def divided(self, parallel: Parallel) -> Iterator[tuple[str, str]]:
        """tp divides heads, both feed-forwards and the vocabulary, ep the experts."""
        yield from (("heads", "tp"), ("ffn", "tp"), ("expert_ffn", "tp"), ("experts", "ep"))
        yield from ModelConfig.divided(self, parallel)


class DeepSeek(Model[DeepSeekConfig]):
    """Writes one program of a DeepSeek model.

    Example: layer 3 of DeepSeek V3 is the first with a mixture of experts, after a latent attention
    with 128 heads.
    """

    TOKENS = "embed"
    OUTPUT = "head"
    ATTENTION = ("attn_norm", "attn")
    FEED_FORWARD = ("ffn_norm", "ffn")

    frequencies: int

    def tables(self) -> None:
        """The rotary frequencies [sequence, rope/2, 2] of this rank's positions."""
        c = self.config
        self.frequencies = self.parameter(
            "freqs_cis", (c.sequence, c.rope // 2, 2), {0: "cp"}, trainable=False
        )

    @classmethod
    def notes(cls, config: DeepSeekConfig, parallel: Parallel) -> tuple[str, ...]:
        """What a verdict assumes of the rotary table and of the choice of experts."""
        return (
            f"freqs_cis: the table of rotary frequencies (theta {config.rope_theta}) is an input",
            *config.mixture.notes,
        )

    @classmethod
    def adds_loss(cls, config: DeepSeekConfig, number: int) -> bool:
        """Whether a layer adds a loss of balance: with that option, those that have experts."""
        return config.balance_loss and number >= config.dense_layers

    def attention(self, x: int, path: str, number: int) -> int:
        """Multi-head latent attention of a layer."""
        return latent_attention(self, x, path, self.config.latent, self.frequencies)

    def feed_forward(self, x: int, path: str, number: int) -> int:
        """A gated feed-forward in the first layers, a mixture of experts in the others."""
        c, layout = self.config, self.layout
        if number >= c.dense_layers:
            return mixture_of_experts(self, x, path, c.mixture)
        return layout.leave(self.body, swiglu(self, layout.enter(self.body, x), path, c.ffn))
