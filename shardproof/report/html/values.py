"""The counterexample on record, tensor by tensor, as shards with a few of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from shardproof.report.findings import differs, is_conclusion
from shardproof.report.words import numbers


def drawn(shards: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tensors of a finding's counterexample in their order; none for documents of earlier
    versions, which name no tensors.

    Example: ``h.1.mlp.linear (an input of add)`` with the shards of ranks 0 and 1, "0.9477" where
    "0.9639" is expected.
    """
    tensors: dict[str, list[Mapping[str, Any]]] = {}
    for one in shards:
        if one.get("tensor"):
            tensors.setdefault(str(one["tensor"]), []).append(one)
    return [
        {
            "name": name,
            "conclusion": is_conclusion(name),
            "shards": [_shard(one) for one in differences],
            "differ": sum(_differs(one) for one in differences),
            "all": len(differences),
        }
        for name, differences in tensors.items()
    ]


def _shard(one: Mapping[str, Any]) -> dict[str, Any]:
    microbatch = int(one.get("microbatch", -1))
    where = f"rank {numbers(one['ranks'])}" if one["ranks"] else "no rank"
    return {
        "where": where + (f", microbatch {microbatch}" if microbatch >= 0 else ""),
        "box": str(one.get("shard", "")),
        "index": list(one["index"]),
        "differs": _differs(one),
        "expected": _text(one["expected"]),
        "actual": _text(one["actual"]),
        "cells": [
            [
                {
                    "expected": _text(expected),
                    "actual": _text(actual),
                    "off": differs(float(expected), float(actual)),
                }
                for expected, actual in row
            ]
            for row in one.get("near", ())
        ],
    }


def _differs(one: Mapping[str, Any]) -> bool:
    return differs(float(one["expected"]), float(one["actual"]))


def _text(value: float | str) -> str:
    """A value in four digits; infinities and NaN are names in the document."""
    number = float(value)
    return (
        f"{number:.4g}" if isfinite(number) else {"inf": "∞", "-inf": "−∞"}.get(str(value), "NaN")
    )
