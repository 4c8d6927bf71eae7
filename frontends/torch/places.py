"""Whose a line of code is: the program's, a library's, or of what records it."""

from __future__ import annotations

import sysconfig
from types import FrameType

import torch

_LIBRARIES = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_PACKAGES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_OURS = tuple(
    f"{__file__.rsplit('/frontends/', 1)[0]}/{floor}/" for floor in ("frontends", "shardproof")
)
_TORCH = torch.__file__.rsplit("/", 1)[0] + "/"
_ENGINE = "torch/autograd/graph.py"
_APPLY = getattr(torch.autograd.Function.apply, "__code__", None)


def is_machinery(path: str) -> bool:
    """Whether a file is Python's, torch's or of what records a step.

    Example: ".../torch/nn/modules/linear.py" and "<string>" are, "/home/me/train.py" is not.
    """
    return path.startswith((_TORCH, *_OURS, "<")) or (
        path.startswith(_LIBRARIES) and not path.startswith(_PACKAGES)
    )


def is_own(path: str) -> bool:
    """Whether a file is the program's: no library's, and not of what records it.

    Example: "/home/me/train.py" is, ".../site-packages/transformers/trainer.py" is not.
    """
    return not (is_machinery(path) or path.startswith(_PACKAGES) or "site-packages" in path)


def place(frame: FrameType | None) -> tuple[str, bool]:
    """The innermost frame of the user's, then the innermost one of a library that she calls, in
    words; and whether it was called by autograd's engine.

    Example: "train.py:9 (__init__)", or "train.py:12 (step),
    .../transformers/models/llama/modeling_llama.py:300 (forward)".
    """
    user = library = ""
    engine = False
    while frame is not None:
        path = frame.f_code.co_filename
        if path.endswith(_ENGINE) and not (user or library):
            engine = True
        if not is_machinery(path):
            text = f"{path}:{frame.f_lineno} ({frame.f_code.co_name})"
            if not path.startswith(_PACKAGES):
                user = text
                break
            library = library or text
        frame = frame.f_back
    if user and library:
        return f"{user}, {library}", engine
    return user or library, engine


def in_function(frame: FrameType | None) -> bool:
    """Whether a frame is inside of the forward of a custom autograd function.

    Example: that of a checkpointed block is, whose forward a function runs without gradients.
    """
    while frame is not None and frame.f_code is not _APPLY:
        frame = frame.f_back
    return frame is not None
