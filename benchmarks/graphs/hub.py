"""Models of transformers, exported by torch.export and verified: the rows of a batch on two ranks.

    make .venv-stacks/.created          # transformers is in no other environment
    .venv-stacks/bin/python -m benchmarks.graphs.hub FOLDER [NAME,...]

Every model is a small configuration of its class, as the package has it: a single side of four rows
and two ranks of two, without a relations file.  Each is verified by the command of this tree, and
one row per model is printed and kept in ``FOLDER/hub.csv``.  A model that torch.export does not
take is named as such.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
ROWS, TOKENS, VOCABULARY = 4, 6, 32
#: What language models have, by the names that most configurations give it.
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
GROUPED = {"num_key_value_heads": 2}
SMALL_HEADS = {**GROUPED, "head_dim": 4}
PADDED = {"pad_token_id": 0}
#: Causal models: the stem of their classes, and what is theirs alone.
CAUSAL: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "Qwen2": GROUPED,
    "Qwen3": SMALL_HEADS,
    "Gemma": SMALL_HEADS,
    "Gemma2": {**SMALL_HEADS, "sliding_window": 4},
    "Mistral": {**GROUPED, "sliding_window": 4},
    "Phi": {},
    "Phi3": {**GROUPED, **PADDED},
    "Olmo": {},
    "Olmo2": {},
    "Olmo3": GROUPED,
    "StableLm": GROUPED,
    "GPTNeoX": {},
    "Granite": GROUPED,
    "Cohere": GROUPED,
    "Cohere2": GROUPED,
    "Falcon": {},
    "Starcoder2": GROUPED,
    "Persimmon": {},
    "Nemotron": GROUPED,
    "Glm": {**SMALL_HEADS, **PADDED},
    "Glm4": {**SMALL_HEADS, **PADDED},
    "Helium": SMALL_HEADS,
    "SmolLM3": {**GROUPED, **PADDED},
    "Exaone4": GROUPED,
    "Ernie4_5": GROUPED,
    "Arcee": GROUPED,
    "Lfm2": GROUPED,
    "DiffLlama": GROUPED,
    "Apertus": GROUPED,
    "BitNet": GROUPED,
    "OPT": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "Mixtral": {**GROUPED, "num_local_experts": 4},
    "Qwen2Moe": {
        **GROUPED,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
}
MASKED: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {},
    "Albert": {"embedding_size": 8},
    "ModernBert": PADDED,
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "ConvBert": {"embedding_size": 16},
    "MegatronBert": {},
    "SqueezeBert": {"embedding_size": 16},
    "RemBert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "MobileBert": {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "Camembert": {},
    "XLMRoberta": {},
    "MPNet": {},
    "RoFormer": {"embedding_size": 16},
    "Esm": {**PADDED, "position_embedding_type": "rotary"},
    "FNet": {},
}
PATCHES = {**{k: v for k, v in TEXT.items() if "size" in k or "num" in k}, "image_size": 8}
PATCHES = {**PATCHES, "patch_size": 4, "num_hidden_layers": 1}
IMAGES: dict[str, tuple[dict[str, Any], int]] = {
    "ViT": (PATCHES, 8),
    "DeiT": (PATCHES, 8),
    "Beit": (PATCHES, 8),
    "Dinov2": (PATCHES, 8),
    "Swin": (
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2], "num_heads": [2],
         "window_size": 4},
        16,
    ),
    "ConvNext": ({"hidden_sizes": [8, 8], "depths": [1, 1], "num_stages": 2, "patch_size": 2}, 8),
    "ConvNextV2": ({"hidden_sizes": [8, 8], "depths": [1, 1], "num_stages": 2, "patch_size": 2}, 8),
    "RegNet": (
        {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "groups_width": 4}, 16,
    ),
    "PoolFormer": (
        {"hidden_sizes": [8, 8], "depths": [1, 1], "num_encoder_blocks": 2, "patch_sizes": [3, 3],
         "strides": [2, 2], "padding": [1, 1]},
        16,
    ),
    "Levit": (
        {"image_size": 32, "hidden_sizes": [8, 8, 8], "num_attention_heads": [1, 1, 1],
         "depths": [1, 1, 1], "key_dim": [4, 4, 4]},
        32,
    ),
}  # fmt: skip
SPEECH = {
    **{k: v for k, v in TEXT.items() if not k.startswith("max")},
    "num_hidden_layers": 1,
    "conv_dim": (8, 8),
    "conv_stride": (4, 2),
    "conv_kernel": (4, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
}
BOTH = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    **{f"{side}_{what}": n for side in ("encoder", "decoder")
       for what, n in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 24))},
    "max_position_embeddings": 32,
    **PADDED,
}  # fmt: skip
T5 = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1,
      "num_heads": 4}  # fmt: skip
#: A model and what it is called with, for a number of rows.
Made = tuple[Any, Callable[[int], dict[str, torch.Tensor]]]


def ids(rows: int, tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (rows, tokens))


def _made(stem: str, suffix: str, options: dict[str, Any]) -> Any:
    config = getattr(transformers, f"{stem}Config")(**options)
    return getattr(transformers, f"{stem}{suffix}")(config)


def models() -> dict[str, Callable[[], Made]]:
    """All models, by name, made when they are asked for."""
    made: dict[str, Callable[[], Made]] = {}
    for table, suffix in ((CAUSAL, "ForCausalLM"), (MASKED, "ForMaskedLM")):
        for stem, own in table.items():
            made[stem] = lambda stem=stem, own=own, suffix=suffix: (
                _made(stem, suffix, {**TEXT, **own}),
                lambda n: {"input_ids": ids(n)},
            )
    for stem, (own, side) in IMAGES.items():
        made[stem] = lambda stem=stem, own=own, side=side: (
            _made(stem, "ForImageClassification", own),
            lambda n: {"pixel_values": torch.randn(n, 3, side, side)},
        )
    for stem in ("Wav2Vec2", "Hubert", "WavLM", "UniSpeech", "SEW"):
        made[stem] = lambda stem=stem: (
            _made(stem, "ForCTC", SPEECH),
            lambda n: {"input_values": torch.randn(n, 64)},
        )
    for stem, own in (("Bart", BOTH), ("MBart", BOTH), ("Pegasus", BOTH), ("T5", T5), ("UMT5", T5)):
        made[stem] = lambda stem=stem, own=own: (
            _made(stem, "ForConditionalGeneration", own),
            lambda n: {"input_ids": ids(n), "decoder_input_ids": ids(n, 5)},
        )
    return made


class Scores(nn.Module):
    """What a model gives as scores, of tensors in the order of their names."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.model(**dict(zip(self.names, given, strict=True))).logits
        return scores


def export(name: str, folder: Path) -> None:
    """Both sides' files of a model in a folder."""
    torch.manual_seed(0)
    model, given = models()[name]()
    model.eval()
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    files = {folder / "single.pt2": ROWS}
    files |= {folder / "ranks" / f"r{rank}.pt2": ROWS // 2 for rank in range(2)}
    for file, rows in files.items():
        named = given(rows)
        own = Scores(model, list(named))
        program = torch.export.export(own, tuple(named.values()), strict=False)
        torch.export.save(program, file)


def _ran(arguments: list[str], folder: Path) -> int:
    """How a command of this tree's Python ends, in a folder that keeps what it says."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("a") as log:
        done = subprocess.run(
            ["timeout", "300", sys.executable, *arguments],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            check=False,
        )
    return done.returncode


def verdict_of(name: str, folder: Path) -> tuple[str, float]:
    """The verdict of a model, and the seconds of its verification."""
    folder.mkdir(parents=True, exist_ok=True)
    if _ran(["-m", "benchmarks.graphs.hub", "--export", name], folder):
        return "not exported", 0.0
    start = time.perf_counter()
    ended = _ran(["-m", "shardproof", "verify", "single.pt2", "ranks", "--no-cache"], folder)
    verdicts = {0: "proved", 1: "refuted", 2: "inconclusive", 3: "invalid input", 124: "none"}
    return verdicts.get(ended, f"exit {ended}"), time.perf_counter() - start


def main() -> None:
    if sys.argv[1] == "--export":
        warnings.simplefilter("ignore")
        export(sys.argv[2], Path())
        return
    folder = Path(sys.argv[1]).resolve()
    names = sys.argv[2].split(",") if len(sys.argv) > 2 else list(models())
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "hub.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("model", "verdict", "s"))
        for name in names:
            verdict, seconds = verdict_of(name, folder / name)
            table.writerow((name, verdict, f"{seconds:.1f}"))
            print(f"{name:14} {verdict:14} {seconds:5.1f}", flush=True)


if __name__ == "__main__":
    main()
