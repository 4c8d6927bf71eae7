"""The unpickler reads plans, and nothing else happens whatever is in the file."""

from __future__ import annotations

import gzip
import os
import pickle
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler import source as source_module
from shardproof.frontends.nnscaler.allowed import stand_in
from shardproof.frontends.nnscaler.cells import plan
from shardproof.frontends.nnscaler.read import read_records
from shardproof.frontends.untrusted.inert import DType, Opaque, Record, TypeName
from tests.frontends.pickles import Name, Obj, Writer, frame, named, pickled, small_plan, text

SMALL = pickled(small_plan()["root"])


@contextmanager
def little_memory() -> Iterator[None]:
    """At most 1 GiB more address space: a flipped bit may ask for any amount of memory."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def read(tmp_path: Path, data: bytes, limit: int = 1 << 20) -> Record:
    path = tmp_path / "plan.pkl"
    path.write_bytes(data)
    with little_memory():
        return read_records(str(path), limit)


def refused(tmp_path: Path, data: bytes) -> UnreadablePlan:
    """The error for ``data``, checked to be one line that names the file."""
    with pytest.raises(UnreadablePlan) as caught:
        read(tmp_path, data)
    shown = str(caught.value)
    assert "\n" not in shown
    assert len(shown) < 700
    assert str(tmp_path / "plan.pkl") in shown
    return caught.value


def in_a_plan(opcodes: bytes) -> bytes:
    """A plan whose ``comm_groups`` is what ``opcodes`` leave on the stack."""
    root = named("nnscaler.codegen.module.module", "ModuleCodeGen")
    return frame(root + b")\x81}" + text("comm_groups") + opcodes + b"sb.")


def test_a_plan_is_read(tmp_path: Path) -> None:
    root = read(tmp_path, SMALL)
    assert root.kind == "ModuleCodeGen"
    assert plan(root).devices == (0,)


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    assert read(tmp_path, gzip.compress(SMALL, mtime=0)).kind == "ModuleCodeGen"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    unframed = b"\x80" + bytes([protocol]) + SMALL[11:]
    assert read(tmp_path, unframed).kind == "ModuleCodeGen"


# -- nothing runs ------------------------------------------------------------------------------

FORBIDDEN = [
    ("os", "system"), ("posix", "system"), ("nt", "system"), ("builtins", "eval"),
    ("builtins", "exec"), ("builtins", "open"), ("builtins", "__import__"), ("builtins", "range"),
    ("builtins", "bytearray"), ("__builtin__", "eval"), ("subprocess", "Popen"),
    ("importlib", "import_module"), ("runpy", "run_path"), ("shutil", "rmtree"),
    ("pathlib", "Path.write_text"), ("socket", "socket"), ("ctypes", "CDLL"),
    ("operator", "attrgetter"), ("functools", "partial"), ("codecs", "encode"),
    ("_codecs", "encode"), ("pickle", "loads"), ("_pickle", "loads"), ("dill", "loads"),
    ("dill._dill", "_import_module"), ("numpy", "fromfile"), ("numpy", "zeros"),
    ("numpy._core.multiarray", "_reconstruct"), ("torch", "load"), ("torch.hub", "load"),
    ("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor"), ("types", "FunctionType"),
    ("collections", "defaultdict"), ("shardproof.frontends.untrusted.child", "run_bounded"),
    ("tests", "os.system"), ("my.models", "os.system"), ("my.models", "__class__"),
    ("my..models", "Attention"), ("__main__", "Attention"),
    ("nnscaler.graph.function.function", "os.system"), ("nnscaler.ir.tensor", "os"),
    ("nnscaler.ir.adapter.prim", "os.systemPrim"), ("torch", "nn.Module"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name"), FORBIDDEN)
def test_forbidden_names_are_refused_in_every_spelling(
    tmp_path: Path, module: str, name: str
) -> None:
    assert stand_in(module, name) is None
    trace = tmp_path / "trace"
    argument = text(f"touch {trace}")
    line = f"{module}\n{name}\n".encode()
    for opcodes in (
        named(module, name) + b"(" + argument + b"tR",
        b"c" + line + argument + b"\x85R",
        b"(" + argument + b"i" + line,
        b"(c" + line + argument + b"o",
        named(module, name) + argument + b"\x85\x81",
        named(module, name) + argument + b"\x85}\x92",
    ):
        error = refused(tmp_path, in_a_plan(opcodes))
        assert "expected a name that nnScaler plans use" in error.message
    assert not trace.exists()


def test_code_that_pickle_would_run_leaves_no_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    class Runs:
        def __init__(self, call: object, *args: object) -> None:
            self.what = (call, args)

        def __reduce__(self) -> tuple[object, ...]:
            return self.what

    hostile = [
        Runs(os.system, f"touch {trace}"),
        Runs(eval, f"open({str(trace)!r}, 'w')"),
        Runs(exec, f"open({str(trace)!r}, 'w')"),
        Runs(open, str(trace), "w"),
        Runs(os.mkdir, str(trace)),
    ]
    for item in hostile:
        for protocol in (0, 2, 4):
            refused(tmp_path, pickle.dumps(item, protocol))
    assert not trace.exists()
    # The proof that the files are live: without the allow-list one of them does it.
    pickle.loads(pickle.dumps(hostile[-1]))
    assert trace.exists()


def test_opaque_calls_run_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    call = Writer().write(("os", "system"))
    for module, name in (("builtins", "getattr"), ("dill._dill", "_create_function"),
                         ("torch.storage", "_load_from_bytes")):  # fmt: skip
        opcodes = named(module, name) + call + b"R(" + text(f"touch {trace}") + b"tR"
        root = read(tmp_path, in_a_plan(opcodes))
        assert isinstance(root.comm_groups, Opaque)  # type: ignore[attr-defined]
    assert not trace.exists()


def test_the_place_of_a_forbidden_name_is_its_byte(tmp_path: Path) -> None:
    data = in_a_plan(named("torch", "float32") + b"0" + named("os", "system"))
    error = refused(tmp_path, data)
    assert error.where.endswith(f"byte {data.rindex(bytes([0x93]))}")
    assert "'os.system'" in error.message
    assert "nothing of the file was run" in error.message


# -- what a name may be used for ---------------------------------------------------------------

SLOTS = b"N}" + text("__setstate__") + text("changed") + b"s\x86b"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("nnscaler.ir.tensor", "IRSubTensor"), ("torch", "float32"), ("builtins", "set"),
        ("collections", "OrderedDict"), ("my.models", "Attention"), ("numpy", "dtype"),
        ("numpy._core.multiarray", "scalar"), ("builtins", "slice"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("state", [SLOTS, b"}" + text("__setstate__") + text("changed") + b"sb"])
def test_what_names_stand_for_cannot_be_changed(
    tmp_path: Path, module: str, name: str, state: bytes
) -> None:
    refused(tmp_path, in_a_plan(named(module, name) + state))
    assert read(tmp_path, SMALL).kind == "ModuleCodeGen"


def test_user_classes_are_names_only(tmp_path: Path) -> None:
    for module in ("my.models.llama", "Verdict.gen_model.model.moe.model", "genmodel"):
        known = stand_in(module, "Attention")
        assert isinstance(known, TypeName)
        assert known.name == "Attention"
    refused(tmp_path, in_a_plan(named("my.models", "Attention") + b")R"))
    refused(tmp_path, in_a_plan(named("my.models", "Attention") + b")\x81"))


def test_torch_types_are_names(tmp_path: Path) -> None:
    known = stand_in("torch", "bfloat16")
    assert isinstance(known, DType)
    assert repr(known) == "torch.bfloat16"


def test_records_refuse_arguments_and_odd_states(tmp_path: Path) -> None:
    record = named("nnscaler.ir.tensor", "IRSubTensor")
    for opcodes in (
        record + b"K\x01\x85R",
        record + b"K\x01\x85\x81",
        record + b")\x81K\x01b",
        record + b")\x81}b",
        record + b")\x81K\x01K\x02\x86b",
        record + b")\x81NN\x86b",
        record + b")\x81K\x01a",
        record + b")\x81K\x01K\x02s",
    ):
        refused(tmp_path, in_a_plan(opcodes))


def test_both_forms_of_state_are_read(tmp_path: Path) -> None:
    record = named("nnscaler.ir.cten", "IRObject") + b")\x81"
    fields = b"}" + text("_id") + b"K\x07s"
    names = b"}" + text("name") + text("x") + b"s"
    for state in (fields + names + b"\x86b", fields + b"b" + names + b"b"):
        found = read(tmp_path, in_a_plan(record + state)).comm_groups  # type: ignore[attr-defined]
        assert (found._id, found.name) == (7, "x")


def test_a_state_shared_by_two_objects_is_refused(tmp_path: Path) -> None:
    shared = b"}q\x00" + text("_id") + b"K\x07s0"
    record = named("nnscaler.ir.cten", "IRObject") + b")\x81h\x00b"
    assert "shared" in refused(tmp_path, in_a_plan(shared + record + b"0" + record)).message


def numpy_number(code: str, data: bytes, order: bytes = b"") -> bytes:
    kind = named("numpy", "dtype") + text(code) + b"\x89\x88\x87R" + order
    raw = b"C" + bytes([len(data)]) + data
    return named("numpy._core.multiarray", "scalar") + kind + raw + b"\x86R"


@pytest.mark.parametrize(
    ("code", "data", "value"),
    [
        ("i8", struct.pack("<q", -5), -5), ("<i4", struct.pack("<i", 7), 7),
        (">i4", struct.pack(">i", 7), 7), ("u1", b"\xff", 255), ("b1", b"\x01", True),
        ("f8", struct.pack("<d", 0.5), 0.5), ("f2", struct.pack("<e", 0.5), 0.5),
    ],
)  # fmt: skip
def test_numpy_numbers_become_pythons(
    tmp_path: Path, code: str, data: bytes, value: object
) -> None:
    found = read(tmp_path, in_a_plan(numpy_number(code, data))).comm_groups  # type: ignore[attr-defined]
    assert found == value
    assert type(found) is type(value)


def test_numpy_byte_order_may_come_with_the_state(tmp_path: Path) -> None:
    order = Writer().write((3, ">", None, None, None, -1, -1, 0)) + b"b"
    data = in_a_plan(numpy_number("i4", struct.pack(">i", 7), order))
    assert read(tmp_path, data).comm_groups == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "opcodes",
    [
        numpy_number("O8", bytes(8)),
        numpy_number("V99999999", b""),
        numpy_number("i8", bytes(3)),
        numpy_number("i8", bytes(8), b"K\x01b"),
        named("numpy._core.multiarray", "scalar") + text("i8") + b"C\x00\x86R",
        named("numpy._core.multiarray", "scalar") + named("numpy", "dtype") + b")\x81C\x00\x86R",
    ],
)
def test_numpy_beyond_numbers_is_refused(tmp_path: Path, opcodes: bytes) -> None:
    refused(tmp_path, in_a_plan(opcodes))


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80", b"\x80\x04", b"\x80\x63.", b".", b"hello\n", b"\xff" * 100, b"\x1f\x8b",
        b"\x1f\x8bgarbage", gzip.compress(SMALL, mtime=0)[:-9], gzip.compress(SMALL, mtime=0)[:40],
        gzip.compress(SMALL, mtime=0)[:-8] + bytes(8),
        pickle.dumps([1, 2]), pickle.dumps(None), SMALL + b"x", SMALL + SMALL,
        frame(named("torch", "float32") + b"."),
    ],
)  # fmt: skip
def test_files_that_are_no_plans(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path, data)


@pytest.mark.parametrize(
    "opcodes",
    [
        b"\x8e" + struct.pack("<Q", 1 << 62),  # BINBYTES8
        b"\x8e" + struct.pack("<Q", (1 << 64) - 1),
        b"\x8d" + struct.pack("<Q", 1 << 62),  # BINUNICODE8
        b"\x96" + struct.pack("<Q", 1 << 62),  # BYTEARRAY8
        b"B" + struct.pack("<I", (1 << 32) - 1),  # BINBYTES
        b"X" + struct.pack("<I", (1 << 32) - 1),  # BINUNICODE
        b"\x8b" + struct.pack("<i", (1 << 31) - 1),  # LONG4
        b"\x8b" + struct.pack("<i", -1),
        b"\x95" + struct.pack("<Q", 1 << 62),  # FRAME
        b"I" + b"9" * 5000 + b"\n",  # INT
        b"L" + b"9" * 5000 + b"L\n",  # LONG
        b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00",  # EXT1, EXT2, EXT4
        b"P1\n", text("1") + b"Q",  # PERSID, BINPERSID
        b"\x97", b"\x98",  # NEXT_BUFFER, READONLY_BUFFER
        b"h\x63", b"j\x63\x00\x00\x00", b"g99\n",  # memo entries that are not there
        b"R", b"b", b"\x81", b"0" * 40, b"t", b"u", b"e", b"\x93", b"a",  # an empty stack
        b"]q\x00h\x00b", b"\x8f(]\x90", b"}]K\x01s",  # state of a list, lists as keys
        b"V\\ud800\n" + text("x") + b"\x93",  # a lone surrogate as a module
        b"X\x02\x00\x00\x00\xff\xfe",  # not UTF-8
    ],
)  # fmt: skip
def test_hostile_opcodes(tmp_path: Path, opcodes: bytes) -> None:
    refused(tmp_path, in_a_plan(opcodes))
    refused(tmp_path, b"\x80\x04" + in_a_plan(opcodes)[11:])


def test_deep_nesting_is_no_recursion(tmp_path: Path) -> None:
    deep = b"]" * 100_000 + b"a" * 99_999
    root = read(tmp_path, in_a_plan(deep))
    with pytest.raises(UnreadablePlan):
        plan(root)


def test_the_decompressed_size_is_bounded(tmp_path: Path) -> None:
    bomb = in_a_plan(b"B" + struct.pack("<I", 64 << 20) + bytes(64 << 20))
    error = refused(tmp_path, gzip.compress(bomb, 1, mtime=0))
    assert "at most 1048576 bytes" in error.message


def test_the_file_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MAX_FILE_BYTES", 100)
    assert "at most 100 bytes" in refused(tmp_path, SMALL).message


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path), str(tmp_path / "pipe"), "/dev/zero", str(tmp_path / "none"), "\0"):
        with pytest.raises(UnreadablePlan):
            read_records(path)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(SMALL) - 1))
def test_truncated_plans_are_unreadable(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    refused(tmp_path_factory.mktemp("cut", numbered=True), SMALL[:cut])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 7)), min_size=1))
def test_flipped_bits_give_records_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(SMALL)
    for position, bit in flips:
        data[position] ^= 1 << bit
    try:
        found = plan(read(tmp_path_factory.mktemp("flip", numbered=True), bytes(data)))
        for device in found.devices:
            list(found.sequence(device))
    except UnreadablePlan:
        pass


def test_unknown_objects_are_named(tmp_path: Path) -> None:
    error = refused(tmp_path, pickled(Obj("nnscaler.ir.tensor", "IRNewTensor", {"_id": 1})))
    assert "'nnscaler.ir.tensor.IRNewTensor'" in error.message
    error = refused(tmp_path, pickled(Name("os", "x" * 10_000 + "\n\x1b[31m")))
    assert len(str(error)) < 500


def test_a_tensor_takes_over_what_its_state_has_and_no_state_twice() -> None:
    kind: Any = stand_in("nnscaler.ir.tensor", "IRSubTensor")
    whole = {name: name for name in (*kind.__slots__, "something else")}
    tensor, lacking, again = kind(), kind(), kind()
    tensor.__setstate__(whole)
    assert [getattr(tensor, name) for name in kind.__slots__] == list(kind.__slots__)
    lacking.__setstate__({"_id": 1})
    assert lacking._id == 1
    assert not hasattr(lacking, "_valmap")
    for state in (whole, None, [], "_id"):
        with pytest.raises(UnreadablePlan):
            again.__setstate__(state)
