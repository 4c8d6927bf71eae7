"""Mixtral: Llama's attention, and a mixture of experts in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from shardproof.engine.storage.settings import Count
from shardproof.frontends.zoo.config import Parallel
from shardproof.frontends.zoo.llama import Llama, LlamaConfig
from shardproof.frontends.zoo.moe import Mixture, mixture_of_experts


class MixtralConfig(LlamaConfig, frozen=True):
    """Hyperparameters of a Mixtral model; ``ffn`` is the width of an expert.

    Example: Mixtral 8x7B chooses 2 of 8 experts of width 14336, with the loss of balance times
    1/50; ``chosen=99`` is refused.

    ``balance_loss``: whether the load-balancing loss with coefficient ``balance`` is part of the
    loss.
    """

    experts: Count
    chosen: Count
    balance: Fraction
    balance_loss: bool

    def __post_init__(self) -> None:
        LlamaConfig.__post_init__(self)
        self.mixture.check(self.name)

    @property
    def has_experts(self) -> bool:
        """Always: every feed-forward is a mixture of experts."""
        return True

    @property
    def mixture(self) -> Mixture:
        """A softmax over the chosen experts' logits is one over all of them, normalised."""
        balance = self.balance if self.balance_loss else Fraction(0)
        return Mixture(self.experts, self.chosen, self.ffn, balance=balance)

    def divided(self, parallel: Parallel) -> Iterator[tuple[str, str]]:
        """ep divides the experts; tp what it divides in a Llama."""
        yield "experts", "ep"
        yield from LlamaConfig.divided(self, parallel)


class Mixtral(Llama):
    """Writes one program of a Mixtral model.

    Example: with ep 2 each of two replicas holds four of the eight experts.
    """

    config: MixtralConfig

    @classmethod
    def notes(cls, config: LlamaConfig, parallel: Parallel) -> tuple[str, ...]:
        """What a verdict assumes of the rotary table and of the choice of experts."""
        mixture = config.mixture.notes if isinstance(config, MixtralConfig) else ()
        return (*Llama.notes(config, parallel), *mixture)

    @classmethod
    def adds_loss(cls, config: LlamaConfig, number: int) -> bool:
        """Whether layers add a loss of balance: with that option, all of them."""
        return isinstance(config, MixtralConfig) and config.balance_loss

    def feed_forward(self, x: int, path: str, number: int) -> int:
        """A mixture of experts in the place of one gated feed-forward."""
        return mixture_of_experts(self, x, path, self.config.mixture)
