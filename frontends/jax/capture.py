"""The lowering of a step in a child process that has as many host devices as the mesh.

XLA fixes the number of devices when it starts, so a child that has not started it is forked, which
needs that the caller has not either: then any function gets there, closures too.  Where XLA has
been started with enough devices, the step is lowered where it is.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.graphs.graph import Placement
from shardproof.frontends.jax.step import Step

#: Texts with more bytes than this are refused.
MOST_BYTES = 1 << 30
#: Letters of what an error says that are told.
MOST_TOLD = 1000
HOW = (
    "call shardproof.jax.verify before anything makes an array or asks for devices, or start "
    "Python with XLA_FLAGS=--xla_force_host_platform_device_count={count} JAX_PLATFORMS=cpu"
)


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured step: HLO text of both sides, names and placements of inputs and outputs, in
    order.

    Example: of a step ``mlp(p, x)`` the inputs are ``p['a']``, ``p['b']`` and ``x``, the outputs
    ``result[0]`` and so on; ``p['a']`` of [8, 16] begins at columns 0, 4, 8 and 12 of four
    tensor-parallel devices.
    """

    single: str
    parallel: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    placed_inputs: tuple[Placement, ...]
    placed_outputs: tuple[Placement, ...]


def capture(step: Step, seconds: float = 600.0) -> Captured:
    """A step lowered for both sides; raises `InvalidInput` where it cannot be lowered, or not here.

    Example: on a mesh of eight devices, after jax has made an array: "jax has started with 1
    device, the mesh has 8", with what to do.
    """
    from shardproof.frontends.jax import lowering

    started = lowering.started()
    if started >= step.devices:
        try:
            return _captured(lowering.lowered(step))
        except InvalidInput:
            raise
        except Exception as error:  # the user's function
            raise InvalidInput(message(error)) from error
    if started:
        raise InvalidInput(
            f"jax has started with {started} device{'s' * (started > 1)}, the mesh has "
            f"{step.devices}: " + HOW.format(count=step.devices)
        )
    return _captured(_forked(step, seconds))


def message(error: Exception) -> str:
    """What an error of a step that cannot be lowered says, in one line: its first paragraph, and
    the next one where the first announces it.

    Example: "ValueError: the arrays do not fit, but: x has 3 rows"; an `InvalidInput` of our own is
    told without its name.
    """
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", str(error).strip())]
    text = paragraphs[0]
    for more in paragraphs[1:]:
        if not text.endswith(":"):
            break
        text += f" {more}"
    if isinstance(error, InvalidInput):
        return text[:MOST_TOLD]
    return f"{type(error).__name__}: {text}"[:MOST_TOLD]


def _captured(data: Mapping[str, Any]) -> Captured:
    def places(key: str) -> tuple[Placement, ...]:
        return tuple(
            Placement(tuple(full), tuple(tuple(s) for s in starts)) for full, starts in data[key]
        )

    return Captured(
        data["single"],
        data["parallel"],
        tuple(data["inputs"]),
        tuple(data["outputs"]),
        places("placed_inputs"),
        places("placed_outputs"),
    )


def _forked(step: Step, seconds: float) -> Mapping[str, Any]:
    """What the child says, as JSON through a pipe: the texts, or what is wrong."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_child(step, writing)
    os.close(writing)
    try:
        data = _all(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
        if _still_runs(child):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if data is None:
        raise InvalidInput(f"the step was not lowered within {seconds:g} s")
    try:
        document = json.loads(data)
    except ValueError:
        raise InvalidInput("the process that lowers the step ended early") from None
    if "error" in document:
        raise InvalidInput(document["error"])
    return document  # type: ignore[no-any-return]


def _still_runs(child: int) -> bool:
    """Whether the child still runs."""
    ended, _ = os.waitpid(child, os.WNOHANG)
    return ended == 0


def _all(reading: int, until: float) -> bytes | None:
    """Everything up to the end; None: the time is over."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(reading, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
        if sum(map(len, parts)) > MOST_BYTES:
            raise InvalidInput(f"the lowered step has more than {MOST_BYTES} bytes of text")


def _in_child(step: Step, writing: int) -> None:
    """Lower, write, and end: nothing of the parent's exit handlers runs here."""
    code = 1
    try:
        from shardproof.frontends.jax import lowering

        lowering.devices(step.devices)
        try:
            data: Mapping[str, Any] = lowering.lowered(step)
        except Exception as error:  # noqa: BLE001 - the user's function: told to the parent
            data = {"error": message(error)}
        with os.fdopen(writing, "wb") as file:
            file.write(json.dumps(data).encode())
        code = 0
    finally:
        os._exit(code)
