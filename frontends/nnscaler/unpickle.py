"""The allow-list unpickler: a plan file to inert records, running nothing of the file.

The interpreter's own (C) unpickler does the parsing; it can only reach what `stand_in` gives it.
It is safe against code in the file, not against every way of wasting memory or stack: an index
of the memo may ask for gigabytes, and a key nested a million deep overflows the stack.  Untrusted
files are therefore read in a bounded child (`frontends.nnscaler.read.read_bounded`).
"""

from __future__ import annotations

import pickle
import pickletools

from shardproof.engine.storage.garbage import no_collector
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.allowed import stand_in
from shardproof.frontends.nnscaler.source import Source
from shardproof.frontends.untrusted.inert import Record, printable

_NAMING = frozenset({"GLOBAL", "STACK_GLOBAL", "INST"})


class PlanUnpickler(pickle.Unpickler):
    """Resolves names through the allow-list; persistent ids and extensions are left refused.

    Example: ``os.system`` in a file is refused by name, at its byte.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._source = source
        self._block = -1
        self._named_in_block = 0
        self._known: dict[tuple[str, str], object] = {}

    def find_class(self, module: str, name: str) -> object:
        """The inert object for ``module.name``; raises `UnreadablePlan` if it is not allowed."""
        if self._source.block_start != self._block:
            self._block = self._source.block_start
            self._named_in_block = 0
        self._named_in_block += 1
        stand_in_ = self._known.get((module, name))
        if stand_in_ is None:
            stand_in_ = stand_in(module, name)
            if stand_in_ is None:
                raise UnreadablePlan(
                    "expected a name that nnScaler plans use, found "
                    f"{printable(f'{module}.{name}')} (nothing of the file was run)",
                    self._place(),
                )
            self._known[module, name] = stand_in_
        return stand_in_

    def _place(self) -> str:
        """Where the name being resolved stands: its byte where a scan of the block finds it."""
        start, data = self._source.block_start, self._source.block
        left = self._named_in_block
        try:
            for opcode, _argument, position in pickletools.genops(data):
                left -= opcode.name in _NAMING
                if left == 0:
                    return f"byte {start + (position or 0)}"
        except ValueError:  # the block ends, or is wrong, inside an opcode: where it was read to
            pass
        return f"byte {self._source.position}"


def load(source: Source) -> Record:
    """The root record of a plan; raises `UnreadablePlan` for everything that is not one.

    Example: a pickle of a list is refused, as is a plan with a byte behind its end.
    """
    with no_collector():
        try:
            root = PlanUnpickler(source).load()
            end = source.position
            # Reading on also makes gzip compare its checksum.
            if source.read(1):
                raise UnreadablePlan("expected the end of the file after the plan", f"byte {end}")
        except UnreadablePlan as error:
            raise error if error.where else UnreadablePlan(error.message, _span(source)) from None
        except MemoryError as error:
            raise UnreadablePlan(
                "expected a plan, found one that asks for more memory than there is here",
                _span(source),
            ) from error
        # Anything: a file may send the unpickler into any of its error paths, and the type of
        # the exception says nothing that the message does not.
        except Exception as error:
            reason = printable(f"{type(error).__name__}: {error}", 160)
            raise UnreadablePlan(
                f"expected a pickled nnScaler plan, found {reason}", _span(source)
            ) from error
    if not isinstance(root, Record) or root.kind != "ModuleCodeGen":
        raise UnreadablePlan(
            f"expected a plan (ModuleCodeGen) as the file's content, found {type(root).__name__}"
        )
    return root


def _span(source: Source) -> str:
    """The bytes read last: the unpickler does not tell where in them it stopped."""
    if source.position - source.block_start <= 1:
        return f"byte {source.block_start}"
    return f"bytes {source.block_start} to {source.position}"
