"""Tensors that depend on no input and are sent to ranks that have the same already, such as tables
of positions that DTensor broadcasts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import placement_types
from torch.utils._python_dispatch import _disable_current_modes

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.record import Recorder
from shardproof.frontends.torch.sent import SENT


def install(recorder: Recorder) -> None:
    """DTensor broadcasts what is replicated (`distribute_tensor`): what every rank computes alike
    stays what it is.  `check` compares what ranks have.

    Example: a rotary table on a mesh of ranks 0 and 1 gives the note "... ranks [0, 1] have the
    same, as captured (1d3f...)"; a tensor that depends on an input is broadcast.
    """
    if not hasattr(placement_types, "mesh_broadcast"):
        raise InvalidInput(
            f"torch {torch.__version__} has no {placement_types.__name__}.mesh_broadcast, which "
            "capture replaces"
        )
    before: Callable[..., object] = placement_types.mesh_broadcast
    #: Of all that was sent to these ranks so far, in its order: a digest, and the note of it.
    sent: dict[tuple[int, ...], tuple[bytes, str]] = {}

    def mesh_broadcast(
        tensor: torch.Tensor, mesh: DeviceMesh, mesh_dim: int = 0, *args: object, **kwargs: object
    ) -> object:
        if not recorder.is_known(tensor):
            return before(tensor, mesh, mesh_dim, *args, **kwargs)
        ranks = torch.distributed.get_process_group_ranks(mesh.get_group(mesh_dim))
        if len(ranks) > 1:
            key = tuple(sorted(ranks))
            before_it, text = sent.get(key, (b"", ""))
            recorder.notes.pop(text, None)
            digest = hashlib.sha256(before_it + _contents(recorder, tensor)).digest()
            text = f"{SENT}{list(key)} have the same, as captured ({digest.hex()[:16]})"
            recorder.notes[text] = None
            sent[key] = digest, text
        return None

    placement_types.mesh_broadcast = mesh_broadcast


def _contents(recorder: Recorder, tensor: torch.Tensor) -> bytes:
    with _disable_current_modes(), torch.no_grad():
        real = recorder.shadows.real(tensor) if isinstance(tensor, FakeTensor) else tensor
        raw = bytes(real.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return repr((tuple(tensor.shape), str(tensor.dtype))).encode() + raw
