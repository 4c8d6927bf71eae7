"""What Shardproof says of training stacks, packages unmodified, as a table.

python -m benchmarks.torch.stacks                  # every stack that is installed
python -m benchmarks.torch.stacks --only megatron  # names that contain this
python -m benchmarks.torch.stacks --csv stacks.csv
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.torch.table import main, one_line, right
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files.store import load
from shardproof.torch.stacks import Both, installed


@dataclass(frozen=True, slots=True)
class Row:
    """``operators``: of the single side and of all ranks; ``families``: programs that ranks run;
    ``mib``: at most; ``assumptions``: how many the verdict rests on, of them ``stand_ins``."""

    program: str
    ranks: int
    verdict: str
    single_operators: int
    parallel_operators: int
    families: int
    seconds: float
    mib: float
    assumptions: int
    stand_ins: int
    says: str


def _transformers(kind: str = "Llama", fields: Mapping[str, Any] = {}, **options: Any) -> Both:
    import transformers

    from shardproof.torch.transformers import steps

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 64,
        "max_position_embeddings": 64,
    }
    return steps(getattr(transformers, f"{kind}Config")(**{**sizes, **fields}), **options)


def _megatron(fields: Mapping[str, Any] = {}, **options: Any) -> Both:
    from megatron.core.transformer import TransformerConfig

    from shardproof.torch.megatron import steps

    sizes = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 4}
    off = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    return steps(TransformerConfig(**{**sizes, **off, **fields}), vocabulary=32, **options)


def _torchtitan(**options: Any) -> Both:
    from shardproof.torch.torchtitan import steps

    return steps("llama3", "debugmodel", layers=1, **options)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


GROUPED = {
    "num_query_groups": 2,
    "gated_linear_unit": True,
    "activation_func": torch.nn.functional.silu,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
}
AGAIN = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}

#: By package: what makes both sides, and the options of each program.
STACKS: dict[str, tuple[Callable[..., Both], dict[str, dict[str, Any]]]] = {
    "transformers": (
        _transformers,
        {
            "Llama TP2": {"tp": 2},
            "Llama TP8": {"tp": 8},
            "Llama FSDP2": {"fsdp": 2},
            "Llama TP2 x FSDP2 + AdamW": {"tp": 2, "fsdp": 2, "optimizer": _adamw},
            "Qwen3 TP2": {"kind": "Qwen3", "fields": {"head_dim": 4}, "tp": 2},
            "Llama TP2, checkpointing": {"tp": 2, "checkpointing": True},
        },
    ),
    "torchtitan": (
        _torchtitan,
        {
            "Llama 3 FSDP2": {"fsdp": 2},
            "Llama 3 TP2": {"tp": 2},
            "Llama 3 TP2 x FSDP2, clipping": {"tp": 2, "fsdp": 2, "clip": 1.0},
        },
    ),
    "megatron-core": (
        _megatron,
        {
            "GPT TP2": {"tp": 2},
            "GPT TP4 + SP": {"tp": 4, "sequence_parallel": True},
            "GPT TP2 DP2": {"tp": 2, "dp": 2},
            "GPT TP2 + SP, GQA, SwiGLU, RMSNorm": {
                "fields": GROUPED,
                "tp": 2,
                "sequence_parallel": True,
            },
            "GPT PP2, 4 microbatches": {"pp": 2, "microbatches": 4, "batch": 8},
            "GPT PP2 x TP2 + SP, tied": {
                "pp": 2,
                "tp": 2,
                "sequence_parallel": True,
                "tied": True,
                "microbatches": 2,
            },
            "GPT VPP2, interleaved": {
                "fields": {"num_layers": 4},
                "pp": 2,
                "virtual": 2,
                "microbatches": 2,
            },
            "GPT full recompute": {"fields": AGAIN, "tp": 2, "sequence_parallel": True},
            "GPT overlapped reduction": {"dp": 2, "ddp": {"overlap_grad_reduce": True}},
        },
    ),
}


def judged(name: str, make: Callable[..., Both], options: Mapping[str, Any], validate: bool) -> Row:
    """The verdict on a program."""
    start = time.perf_counter()
    both = make(**options)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = both.verify(executor="local", cache=False, validate=validate, out=out)
        stored = out / "plan"
        families = len(load(stored).programs) if stored.exists() else 0
    first = result.findings[0].message if result.findings else ""
    return Row(
        name,
        both.world_size,
        result.verdict,
        result.counts.single_operators,
        result.counts.parallel_operators,
        families,
        round(time.perf_counter() - start, 1),
        round(result.peak_rss_mib),
        len(result.assumptions),
        sum(a.startswith("stand-in") for a in result.assumptions),
        one_line(result.reason or first, 300),
    )


def rows(only: str, validate: bool) -> Iterator[Row]:
    for package, (make, programs) in STACKS.items():
        if not installed(package):
            print(f"{package} is not installed: skipped", file=sys.stderr)
            continue
        for name, options in programs.items():
            full = f"{package} {name}"
            if only in full.lower():
                yield judged(full, make, options, validate)


def line(row: Row) -> str:
    return (
        f"{row.verdict:13} {row.seconds:6.1f} s {row.mib:5.0f} MiB {row.single_operators:5} "
        f"{row.parallel_operators:6} {row.families:3} families {row.assumptions:3} assumptions "
        f"({row.stand_ins} stand-ins)  {row.program}"
    )


TABLE = right(__doc__ or "", Row, rows, line)

if __name__ == "__main__":
    try:
        sys.exit(main(TABLE, sys.argv[1:]))
    except InvalidInput as error:
        sys.exit(f"{error}")
