"""The builder's former place: ``frontends.zoo.builder``, kept for plans written against it."""

import warnings

from shardproof.frontends.builder.builder import BodyBuilder, ProgramBuilder, along

__all__ = ["BodyBuilder", "ProgramBuilder", "along"]

warnings.warn(
    "frontends.zoo.builder is shardproof.frontends.builder.builder now",
    DeprecationWarning,
    stacklevel=2,
)
