"""Where an instruction comes from, and what its user calls an input: metadata of HLO text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shardproof.engine.plan.ir import Source
from shardproof.frontends.hlo.module import Instruction


def source(i: Instruction, frames: Mapping[int, str]) -> Source:
    """Name, module and the user's line; ``frames``: lines by the number of a stack frame.

    Example: of ``metadata={op_name="jit(f)/dot" source_file="m.py" source_line=7}``, the module
    ``jit(f)/dot`` and the place ``m.py:7``.
    """
    metadata = i.attrs.get("metadata", "")
    module = re.search(r'op_name="((?:[^"\\]|\\.)*)"', metadata)
    file = re.search(r'source_file="([^"]*)"', metadata)
    line = re.search(r"source_line=(\d+)", metadata)
    frame = re.search(r"stack_frame_id=(\d+)", metadata)
    location = ""
    if file and line:
        location = f"{file.group(1)}:{line.group(1)}"
    elif frame:
        location = frames.get(int(frame.group(1)), "")
    return Source(i.name, module.group(1) if module else "", location)


def names(parameters: Sequence[Instruction]) -> list[str]:
    """Names of inputs as the user wrote them, where the file says so and they are distinct.

    Example: ``op_name="p['a']"`` of the first of two parameters and none of the second, ``x``, are
    ``p['a']`` and ``x``.
    """
    written = []
    for parameter in parameters:
        name = re.search(r'op_name="((?:[^"\\]|\\.)*)"', parameter.attrs.get("metadata", ""))
        written.append(re.sub(r"\\(.)", r"\1", name.group(1)) if name else parameter.name)
    distinct = len(set(written)) == len(written) and all(written)
    return written if distinct else [f"argument {p.number}" for p in parameters]
