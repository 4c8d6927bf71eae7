"""Small tensors that depend on no input, computed beside the fake ones: Python may read these.

A *shadow* is the real storage of a fake one.  It is there as long as everything that was written to
the storage was computed of shadows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import ProcessGroup
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.distributed_c10d import ReduceOp
from torch.utils._python_dispatch import _disable_current_modes

from shardproof.engine.errors import InvalidInput
from shardproof.frontends.torch.refusals import refuse

#: Tensors of more elements have no shadow, and are no constants.
MOST_SHADOW = 1 << 16
#: Elements of what is computed of smaller ones (rotary tables of all positions): nothing else that
#: is as large has a shadow.
MOST_COMPUTED = 1 << 21

#: Why a step is refused whose arrays of NumPy are not as they were given.
WRITTEN = "NumPy writes an array that is a tensor's memory (that of .numpy() at {})"

#: Operators whose result is memory that nothing has written, and those that write all of a tensor.
ALLOCATES = ("aten.empty", "aten.new_empty")
FILLS = frozenset(
    {
        *("aten.fill_.Scalar", "aten.fill_.Tensor", "aten.zero_.default", "aten.copy_.default"),
        *("aten.random_.default", "aten.random_.to", "aten.random_.from", "aten.normal_.default"),
        *("aten.uniform_.default", "aten.bernoulli_.float", "aten.exponential_.default"),
    }
)
#: Operators that make a tensor of one number in the shape of another one, with that number; None:
#: it is the second operand.
_LIKE = {
    "aten.zeros_like.default": 0.0,
    "aten.ones_like.default": 1.0,
    "aten.full_like.default": None,
}


def flat(x: Any) -> Iterable[Any]:
    """What nested lists hold, in order.

    Example: of ``[1, (2, [3])]`` it is 1, 2, 3.
    """
    if isinstance(x, (list, tuple)):
        for item in x:
            yield from flat(item)
    else:
        yield x


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterable[torch.Tensor]:
    """The tensors that an operator's schema says are written, in its order, however they are given.

    Example: of ``torch.mul(x, 2, out=y)`` it is ``y``.
    """
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (x for x in flat(value) if isinstance(x, torch.Tensor))


def _bytes(storage: torch.UntypedStorage) -> bytes:
    """What is in real memory."""
    with _disable_current_modes():
        return bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())


def _in_memory_of(x: torch.Tensor, others: Sequence[Any]) -> bool:
    """Whether a tensor among others lies in the memory of ``x``: what is read there is not blank,
    as of ``x[:] += 1``, which writes ``x[:]`` over itself in the end."""
    key = x.untyped_storage()._cdata
    return any(isinstance(y, torch.Tensor) and y.untyped_storage()._cdata == key for y in others)


class Shadows:
    """Real storages by the address of the fake ones.

    Example: ``torch.arange(4)`` has one, so that ``.tolist()`` can be answered; a batch tensor has
    none.
    """

    def __init__(self) -> None:
        self.storages: MutableMapping[int, Any] = {}
        #: Arrays that are tensors' memory, and what they had when they became it.
        self.lent: list[tuple[Any, bytes]] = []
        #: Those that NumPy has an array of, what is there, and who asked for it: what is written
        #: has to be known.
        self.shown: dict[int, tuple[bytes, str]] = {}
        #: Arrays that NumPy has of other memory, and what they were given with.
        self.given: list[tuple[Any, Any, str]] = []
        #: Of whole numbers that ranks add up: the sums, if all ranks have the same.
        self.sums: dict[int, Any] = {}
        #: Of memory without a shadow that was made like other memory: the number in all places.
        self.alike: dict[int, float] = {}

    def known(self, x: torch.Tensor) -> bool:
        """Whether the memory of a tensor has real numbers beside its fake ones."""
        return x.untyped_storage()._cdata in self.storages

    def real(self, x: Any) -> Any:
        """The real tensor beside a fake one; raises `KeyError` if there is none."""
        if isinstance(x, (list, tuple)):
            return type(x)(self.real(i) for i in x)
        if not isinstance(x, torch.Tensor) or not isinstance(x, FakeTensor):
            return x
        storage = self.storages[x.untyped_storage()._cdata]
        empty = torch.empty(0, dtype=x.dtype)
        return empty.set_(storage, x.storage_offset(), tuple(x.shape), tuple(x.stride()))

    def one_number(self, x: torch.Tensor) -> float | None:
        """The number that a tensor has in all places; None where it has others, or is not known."""
        if not x.numel() or (isinstance(x, FakeTensor) and not self.known(x)):
            return self.alike.get(x.untyped_storage()._cdata)
        with _disable_current_modes(), torch.no_grad():
            real = self.real(x).double().flatten()
            return float(real[0]) if bool((real == real[0]).all()) else None

    def lend(self, array: Any) -> None:
        """Note an array that is the memory of a tensor from here on."""
        plain = isinstance(array, np.ndarray) and array.dtype != object
        if plain and array.size <= MOST_SHADOW:
            self.lent.append((array, array.tobytes()))

    def show(self, x: torch.Tensor, where: str) -> None:
        """Note memory that has a shadow, of which NumPy gets an array at this place."""
        key = x.untyped_storage()._cdata
        self.shown[key] = _bytes(self.storages[key]), where

    def give(self, array: Any, where: str) -> None:
        """Note an array of numbers that stand for memory without a shadow."""
        self.given.append((array, array.copy(), where))

    def is_given(self, array: Any) -> bool:
        """Whether an array is memory of a tensor without a shadow, or a view of such an array.

        Example: ``x.numpy()`` and ``x.numpy()[1:]`` are, ``x.numpy().copy()`` is not.
        """
        return any(np.shares_memory(array, given) for given, _, _ in self.given)

    def check_arrays(self) -> None:
        """Raises `InvalidInput` where NumPy has written an array that is a tensor's memory, also
        where the step would catch an error at once."""
        if any(array.tobytes() != before for array, before in self.lent):
            raise InvalidInput("an array that a tensor was made of is written by NumPy later on")
        for key in self.shown:
            self._check_shown(key)
        for array, before, where in self.given:
            if array.tobytes() != before.tobytes():
                refuse(WRITTEN.format(where))

    def _check_shown(self, key: int) -> None:
        before, where = self.shown[key]
        if _bytes(self.storages[key]) != before:
            refuse(WRITTEN.format(where))

    def follow(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> bool:
        """Compute the operator on shadows too; False if what it reads that has a shadow meets what
        has none."""
        results = [x for x in flat(out) if isinstance(x, torch.Tensor)]
        if str(func).startswith(ALLOCATES):
            self.forget(func, args, kwargs)
            return True
        if str(func) in _LIKE:
            number = _LIKE[str(func)]
            self.alike[results[0].untyped_storage()._cdata] = float(
                args[1] if number is None else number
            )
        most = self._most(func, args, kwargs, out)
        if sum(x.numel() for x in results) > most or any(x.is_meta for x in results):
            return False
        plain = func.namespace == "aten" and self._is_fixed(func)
        return plain and self._computed(func, args, kwargs, results)

    def _most(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> int:
        """How many elements an operator's results may have."""
        given = any(isinstance(x, torch.Tensor) for x in flat((args, tuple(kwargs.values()))))
        return MOST_COMPUTED if given else MOST_SHADOW

    def _is_fixed(self, func: Any) -> bool:
        """Whether an operator gives the same again."""
        return torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ())

    def _computed(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], results: Sequence[torch.Tensor]
    ) -> bool:
        if str(func) in FILLS and not _in_memory_of(args[0], args[1:]):
            self._blank(args[0])
        shown = self.shown.keys() & {
            x.untyped_storage()._cdata for x in written_by(func, args, kwargs)
        }
        for key in shown:
            self._check_shown(key)
        try:
            with _disable_current_modes(), torch.no_grad():
                real = func(*self.real(args), **{k: self.real(v) for k, v in kwargs.items()})
        except (KeyError, RuntimeError, IndexError):
            return False
        tensors = [x for x in flat(real) if isinstance(x, torch.Tensor)]
        for x, y in zip(results, tensors, strict=False):
            self.storages[x.untyped_storage()._cdata] = y.untyped_storage()
        for key in shown:
            self.shown[key] = _bytes(self.storages[key]), self.shown[key][1]
        return True

    def _blank(self, x: torch.Tensor) -> None:
        """Memory that nothing has written is about to be written as a whole: it gets a shadow."""
        storage = x.untyped_storage()
        whole = x.is_contiguous() and x.numel() * x.element_size() == storage.nbytes()
        if whole and isinstance(x, FakeTensor) and x.numel() <= MOST_SHADOW:
            with _disable_current_modes():
                fresh = torch.zeros(x.numel(), dtype=x.dtype)
            self.storages.setdefault(storage._cdata, fresh.untyped_storage())

    def forget(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """What an operator without shadows writes has none any more; a sum over ranks of whole
        numbers that have, and a copy of it, are kept as `sums`."""
        gone = list(written_by(func, args, kwargs))
        sums = {}
        if func.namespace == "c10d":
            gone = [x for x in flat((args, tuple(kwargs.values()))) if isinstance(x, torch.Tensor)]
            if str(func) == "c10d.allreduce_.default":
                sums = self._summed(gone, args)
        elif str(func) == "aten.copy_.default":
            (written, source), key = args[:2], args[0].untyped_storage()._cdata
            if written.shape == source.shape:
                sums = {key: self.sums.get(source.untyped_storage()._cdata)}
        for x in gone:
            key = x.untyped_storage()._cdata
            if key in self.shown:
                refuse(f"{func} writes memory of which NumPy has an array")
            for known in (self.storages, self.sums, self.alike):
                known.pop(key, None)
        self.sums |= {key: total for key, total in sums.items() if total is not None}

    def _summed(self, tensors: Sequence[torch.Tensor], args: Any) -> dict[int, Any]:
        ranks = ProcessGroup.unbox(args[1]).size()
        if args[2].op() != ReduceOp.SUM:
            return {}
        whole = [x for x in tensors if self.known(x) and not x.is_floating_point()]
        with _disable_current_modes(), torch.no_grad():
            return {x.untyped_storage()._cdata: self.real(x) * ranks for x in whole}

    def sum_read(self, x: torch.Tensor) -> tuple[Any, list[Any]] | None:
        """An entry of a sum over ranks, and all of them, if every rank has the same numbers; None:
        it is no such entry.

        Example: of the map [1, 0] of used parameters on two ranks, entry 1 is 0 of [2, 0].
        """
        total = self.sums.get(x.untyped_storage()._cdata)
        if total is None or x.numel() != 1:
            return None
        with _disable_current_modes():
            entries = total.flatten().tolist()
        return entries[x.storage_offset()], entries
