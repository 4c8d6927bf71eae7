"""Where Python reads values of tensors that nobody knows: `Unread` numbers in their place.

Each name is replaced in the recording process, for good.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.lent import unchanged
from shardproof.frontends.torch.places import place
from shardproof.frontends.torch.record import Recorder
from shardproof.frontends.torch.refusals import answered, refuse
from shardproof.frontends.torch.standins import replace
from shardproof.frontends.torch.texts import TEXT, Text, plain
from shardproof.frontends.torch.unread import FUNCTIONS, Unread, in_text, tell, written

#: What is printed where a step asks whether numbers are finite.
FINITE = "stand-in: whether numbers of the step are finite: they are, where it asks"
#: Elements of a tensor that are numbers with a tensor each; of a larger one, nobody can say.
MOST_NUMBERS = 64


def install(note: Callable[[str], None], recorder: Recorder) -> None:
    """Let ``.item()``, ``.tolist()``, ``.numpy()`` and formats give such numbers; ``note`` is told
    where a step asks whether numbers are finite, and what it checks.

    Example: ``print(f"{loss.item():.3f} {loss:.3f}")`` prints "n/a n/a", and
    ``torch.tensor(loss.item())`` is the loss.
    """
    tell(note)
    _tensors(recorder)
    _texts()
    _exports()
    is_memory = recorder.shadows.is_given
    replace(torch, "tensor", _made(torch.tensor, lambda _: None, is_memory))
    for name in ("as_tensor", "from_numpy"):
        made = _made(getattr(torch, name), recorder.lend, is_memory)
        replace(torch, name, _sharing(made, is_memory))
    for name, value in (("isnan", False), ("isinf", False), ("isfinite", True)):
        replace(math, name, _finite(getattr(math, name), value, note))
        for owner in (torch, torch.Tensor):
            replace(owner, name, _all_finite(getattr(owner, name), value, note))
    for name in FUNCTIONS:
        if hasattr(math, name):
            replace(math, name, _function(getattr(math, name)))
    _json()


def _json() -> None:
    """A number is written as a text, and is such a number again where it is read."""
    default, decode = json.JSONEncoder.default, json.JSONDecoder.decode

    def encoded(self: json.JSONEncoder, x: object) -> Any:
        return plain(repr(x)) if isinstance(x, Unread) else default(self, x)

    def decoded(self: json.JSONDecoder, text: str, *args: Any) -> Any:
        if isinstance(text, Text):
            text.refused()
        return _with_numbers(decode(self, text, *args)) if written() else decode(self, text, *args)

    replace(json.JSONEncoder, "default", encoded)
    replace(json.JSONDecoder, "decode", decoded)


def _with_numbers(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _with_numbers(value) for key, value in x.items()}
    if isinstance(x, list):
        return [*map(_with_numbers, x)]
    return Unread(written(), None) if x == TEXT else x


def _tensors(recorder: Recorder) -> None:
    """Methods of tensors that give values."""
    item: Callable[[torch.Tensor], Any] = torch.Tensor.item
    listed: Callable[[torch.Tensor], Any] = torch.Tensor.tolist
    array: Callable[..., Any] = torch.Tensor.numpy

    def read(x: torch.Tensor) -> Any:
        try:
            return item(x)
        except InvalidInput as error:
            if x.dtype is torch.bool:
                raise
            answered(error)
            return Unread(place(sys._getframe(1))[0], _element(x))

    def tolist(x: torch.Tensor) -> Any:
        try:
            counts = recorder.masks.listed(x)
            return _listed(listed, recorder, x) if counts is None else counts
        except InvalidInput as error:
            if x.dtype is torch.bool:
                raise
            answered(error)
            return _numbers(x, place(sys._getframe(1))[0]).tolist()

    def numpy(x: torch.Tensor, *, force: bool = False) -> Any:
        if not isinstance(x, FakeTensor):
            return array(x, force=force)
        where, _ = place(sys._getframe(1))
        real = recorder.shown(x, where)
        if real is not None or (x.requires_grad and not force):
            with _disable_current_modes():
                return array(x if real is None else real, force=force)
        if (sample := recorder.sampled(x, where)) is not None:
            with _disable_current_modes():
                copied = array(sample)
            copied.flags.writeable = False  # It is a copy of the tensor's memory.
            return copied
        made = _numbers(x, where, unchanged(recorder, x))
        one = made.size > MOST_NUMBERS
        recorder.shadows.give(made[(slice(1),) * made.ndim] if one else made, where)
        return made

    for name, by in (
        ("item", read),
        ("tolist", tolist),
        ("numpy", numpy),
    ):
        replace(torch.Tensor, name, by)


def _listed(listed: Callable[[torch.Tensor], Any], recorder: Recorder, x: torch.Tensor) -> Any:
    """A list of all elements, which are asked for one by one where they are no sample."""
    many = isinstance(x, FakeTensor) and x.dim() > 0 and not recorder.is_known(x)
    sample = recorder.sampled(x, place(sys._getframe(2))[0]) if many else None
    if sample is None:
        return listed(x)
    with _disable_current_modes():
        return listed(sample)


def _texts() -> None:
    """Tensors as texts: that of a number, or of what is printed of a tensor."""
    text: Callable[[torch.Tensor, str], str] = torch.Tensor.__format__
    whole: Callable[..., str] = torch.Tensor.__repr__

    def represented(x: torch.Tensor, **kwargs: Any) -> str:
        own = whole(x, **kwargs)
        unknown = isinstance(x, FakeTensor) and not x.is_meta
        return in_text(own, place(sys._getframe(1))[0]) if unknown else own

    def formatted(x: torch.Tensor, spec: str) -> str:
        return format(x.item(), spec) if x.dim() == 0 else text(x, spec)

    replace(torch.Tensor, "__repr__", represented)
    replace(torch.Tensor, "__format__", formatted)


def _exports() -> None:
    """Other libraries get no memory, which they would write unseen."""
    export: Callable[..., Any] = torch.Tensor.__dlpack__

    def exported(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, FakeTensor):
            where, _ = place(sys._getframe(1))
            refuse(f"another library is given the memory of a tensor (__dlpack__ at {where})")
        return export(x, *args, **kwargs)

    replace(torch.Tensor, "__dlpack__", exported)


def _element(x: torch.Tensor) -> torch.Tensor | None:
    """The only element of a tensor, as it is now; None where the tensor is no plain one."""
    plain = isinstance(x, (FakeTensor, torch.nn.Parameter)) or type(x) is torch.Tensor
    return x.detach().reshape(()).clone() if plain else None


def _numbers(x: torch.Tensor, where: str, unchanged_since: Callable[[], bool] | None = None) -> Any:
    """An array of objects: a number for every element, as it is now, or, where the array is the
    tensor's memory (``unchanged_since`` says whether that is as it was), as it is when it is read;
    of many elements one for all, of which nobody can say what it is."""
    if x.numel() > MOST_NUMBERS:
        all_one = np.array([Unread(where, None)], dtype=object)
        return np.lib.stride_tricks.as_strided(all_one, tuple(x.shape), (0,) * x.dim())
    numbers = np.empty(tuple(x.shape), dtype=object)
    for index in np.ndindex(numbers.shape):
        one = x.detach()[index]
        if unchanged_since is None:
            numbers[index] = Unread(where, _element(one))
        else:
            numbers[index] = Unread(where, one, unchanged_since)
    return numbers


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `math`, of such numbers too.

    Example: ``math.exp(loss.item())``, a perplexity.
    """

    @wraps(function)
    def answer(x: Any, *others: Any) -> Any:
        if isinstance(x, Unread):
            return Unread(x.where, None) if others else getattr(x, function.__name__)()
        return function(x, *others)

    return answer


def _made(
    tensor: Callable[..., torch.Tensor],
    lend: Callable[[object], None],
    is_memory: Callable[[object], bool],
) -> Callable[..., torch.Tensor]:
    """``torch.tensor`` of such numbers, alone, in a list or in an array: what they were read of, or
    what is there now where an array ``is_memory`` of a tensor; ``lend`` is told of other arrays."""

    @wraps(tensor)
    def made(data: Any, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        array = isinstance(data, np.ndarray) and data.dtype == object
        several = array or isinstance(data, (list, tuple))
        numbers = list(data.flat) if array else list(data) if several else [data]
        read = [x for x in numbers if isinstance(x, Unread)]
        now = array and is_memory(data)
        elements = [x.element if now else x.tensor for x in read]
        own = [x for x in elements if x is not None]
        if not read or args:
            lend(data)
            return tensor(data, *args, **kwargs, **({} if dtype is None else {"dtype": dtype}))
        if len(own) < len(read):
            next(x for x, one in zip(read, elements, strict=True) if one is None).refused()
        floating = any(x.is_floating_point() for x in own) or len(read) < len(numbers)
        dtype = dtype or (torch.get_default_dtype() if floating else torch.int64)
        left = iter(own)
        parts = [
            next(left).to(dtype).clone()
            if isinstance(x, Unread)
            else torch.full((), x, dtype=dtype)
            for x in numbers
        ]
        result = torch.stack(parts) if several else parts[0]
        result = result.reshape(data.shape) if array else result
        return result.requires_grad_(bool(kwargs.get("requires_grad")))

    return made


def _sharing(
    made: Callable[..., torch.Tensor], is_memory: Callable[[object], bool]
) -> Callable[..., torch.Tensor]:
    """``torch.from_numpy`` or ``as_tensor``: where an array ``is_memory`` of a tensor, what is made
    of it is that memory, too.

    Example: ``torch.from_numpy(x.numpy()[1:]).add_(1)`` writes ``x[1:]``.
    """

    @wraps(made)
    def shared(data: Any, *args: Any, **kwargs: Any) -> Any:
        array = isinstance(data, np.ndarray) and data.dtype == object and data.size > 0
        if not array or not is_memory(data):
            return made(data, *args, **kwargs)
        numbers = list(data.flat)
        if any(not isinstance(x, Unread) or x.element is None for x in numbers):
            return made(data, *args, **kwargs)
        places = np.array([x.element.storage_offset() for x in numbers]).reshape(data.shape)
        first = int(places.flat[0])
        strides = [
            int(places.take(1, d).flat[0]) - first if size > 1 else 1
            for d, size in enumerate(data.shape)
        ]
        return numbers[0].element.as_strided(data.shape, strides, first).to(*args, **kwargs)

    return shared


def _finite(
    function: Callable[[Any], bool], value: bool, note: Callable[[str], None]
) -> Callable[[Any], bool]:
    @wraps(function)
    def answer(x: Any) -> bool:
        if not isinstance(x, Unread):
            return function(x)
        note(FINITE)
        return value

    return answer


def _all_finite(
    function: Callable[..., torch.Tensor], value: bool, note: Callable[[str], None]
) -> Callable[..., torch.Tensor]:
    @wraps(function)
    def answer(x: torch.Tensor) -> torch.Tensor:
        # PyTorch asks for a shape; or scores are asked for, which a mask makes infinite.
        if x.is_meta or x.dim():
            return function(x)
        note(FINITE)
        return torch.full(x.shape, value, dtype=torch.bool, device=x.device)

    return answer
