"""Types, constants and attributes of StableHLO, in HLO's words.

For example, ``window_dimensions = array<i64: 1, 2>, padding = dense<0> : tensor<2x2xi64>`` of a
``reduce_window`` is ``window={size=1x2 pad=0_0x0_0}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.hlo.literals import array_type, numbers
from shardproof.frontends.hlo.module import DTYPES, Array, Type

#: A value as it is read: of several results, with its number.
VALUE = r"%[\w.]+(?:#\d+)?"
_TENSOR = re.compile(r"tensor<((?:\d+x)*)([a-z]\w*|complex<f(?:32|64)>)>")
_ELEMENTS = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}
_ELEMENTS |= {f"{u}i{n}": f"{u or 's'}{n}" for u in ("", "u") for n in (2, 4, 8, 16, 32, 64)}
_LISTS = re.compile(r"\b(\w++) = (?:array<i64(?:: )?)?\[?([\d, ]*)[\]>]")
#: Characters of a line that is no constant.
MOST_OF_A_LINE = 1 << 22
#: Operators of other names in HLO.
RENAMED = {"optimization_barrier": "opt-barrier", "broadcast_in_dim": "broadcast", "top_k": "topk"}
#: Operators that are no elementwise ones, and whose operands say all of them.
_PLAIN = frozenset(
    [
        *("opt-barrier", "reshape", "dynamic-update-slice", "tuple", "real", "imag", "complex"),
        *("partition-id", "replica-id", "convert"),
    ]
)


def tensor(text: str) -> Type:
    """The type that MLIR writes as ``tensor<4x8xf32>``.

    Example: that is float32 of shape (4, 8); ``tensor<?x8xf32>`` is refused.
    """
    match = _TENSOR.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"type {text.strip()[:60]!r} is not understood")
    dims, element = match.groups()
    return array_type(_ELEMENTS.get(element, element.lower()), ",".join(dims.split("x")[:-1]))


def bare(line: str) -> str:
    """A line without where it comes from.  Raises `InvalidInput` for one that is very long, and no
    constant.

    Example: ``return %0 : tensor<f32> loc(#loc1)`` is ``return %0 : tensor<f32>``.
    """
    if len(line) > MOST_OF_A_LINE and " stablehlo.constant " not in line[:200]:
        raise InvalidInput(f"a line of {len(line)} characters")
    line = line.strip()
    place = line.find(" loc(")
    return line[:place] if place >= 0 and line.endswith(")") else line


def types(text: str) -> list[Type]:
    """All types in a text, in order; tokens are empty tuples.

    Example: of ``(tensor<4xf32>, !stablehlo.token)``, float32 of shape (4) and an empty tuple.
    """
    written = re.findall(r"tensor<(?:[^<>]|<[^<>]*>)*>|!stablehlo\.token", text)
    return [tensor(t) if t.startswith("tensor") else Type(parts=()) for t in written]


def _numbers(text: str) -> str:
    return "{" + text.replace(" ", "") + "}"


def attributes(
    word: str, body: str, given: Sequence[Type], regions: Sequence[str]
) -> tuple[str, dict[str, str]]:
    """The operator in HLO's words, with its attributes; ``body``: what stands before the types;
    ``given``: of its operands; ``regions``: the computations that its regions are.

    Example: ``transpose``, ``%0, dims = [1, 0]`` is ``transpose`` with ``dimensions={1,0}``; an
    operator that is in no table keeps its name, which no rule says.
    """
    opcode = RENAMED.get(word, word.replace("_", "-"))
    lists = {key: _numbers(value) for key, value in _LISTS.findall(body)}
    if regions or word in _JOINING:
        made = _of_regions(word, body, lists, given, regions)
        if made is not None:
            return opcode if word not in ("case", "if") else "conditional", made
    match word:
        case "broadcast_in_dim" | "transpose" | "reverse":
            return opcode, {"dimensions": lists.get("dims", "{}")}
        case "dot_general":
            return "dot", _dot(body)
        case "dynamic_slice":
            return opcode, {"dynamic_slice_sizes": lists.get("sizes", "{}")}
        case "gather":
            return opcode, _rows(body, lists)
        case "convolution" if _CONVOLUTION.search(body):
            return opcode, _convolution(body, given)
    if word in _BODIES:
        return opcode, _BODIES[word](body)
    return opcode if opcode in _PLAIN else f"stablehlo.{word}", {}


def _of_regions(
    word: str,
    body: str,
    lists: Mapping[str, str],
    given: Sequence[Type],
    regions: Sequence[str],
) -> dict[str, str] | None:
    """Attributes of an operator that has regions, or joins ranks; None: its words are others."""
    if word in _JOINING:
        return _joining(word, body, regions)
    match word, len(regions):
        case "reduce", 1:
            return {"to_apply": regions[0], "dimensions": lists.get("dimensions", "{}")}
        case "scatter", 1:
            return {**_rows(body, lists), "to_apply": regions[0]}
        case "sort", 1:
            stable = re.search(r"is_stable = (true|false)", body)
            dim = "{" + _number(body, "dimension") + "}"
            more = {"is_stable": stable.group(1)} if stable else {}
            return {"dimensions": dim, "to_apply": regions[0], **more}
        case "reduce_window", 1 if given:
            return {"to_apply": regions[0], "window": _window(body, lists, len(given[0].shape))}
        case "select_and_scatter", 2 if given:
            window = _window(body, lists, len(given[0].shape))
            return {"select": regions[0], "scatter": regions[1], "window": window}
        case "case", _:
            return {"branch_computations": "{" + ", ".join(regions) + "}"}
        case "if", 2:
            return {"true_computation": regions[0], "false_computation": regions[1]}
    return None


# -- operators that join ranks ---------------------------------------------------------------------

#: The attribute that says along which dimension an operator joins ranks.
_JOINING: Mapping[str, str] = {
    "all_reduce": "",
    "all_gather": "all_gather_dim",
    "reduce_scatter": "scatter_dimension",
    "all_to_all": "split_dimension",
    "collective_permute": "",
}


def _joining(word: str, body: str, regions: Sequence[str]) -> dict[str, str]:
    """Groups of ranks, and how their numbers are meant: see `groups.joined`."""
    attrs = {}
    channel = re.search(r"channel_handle<handle = (\d+), type = \d+>", body)
    if channel is not None and int(channel.group(1)) > 0:
        attrs["channel_id"] = channel.group(1)
    if re.search(r"\buse_global_device_ids\b", body):
        attrs["use_global_device_ids"] = "true"
    key = "source_target_pairs" if word == "collective_permute" else "replica_groups"
    attrs[key] = "{" + ",".join(_numbers(row) for row in _table(body, key)) + "}"
    if _JOINING[word]:
        attrs["dimensions"] = "{" + _number(body, _JOINING[word]) + "}"
    if len(regions) == 1:
        attrs["to_apply"] = regions[0]
    return attrs


def _table(body: str, key: str) -> list[str]:
    """The rows of ``key = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>``."""
    match = re.search(rf"\b{key} = dense<([^<>]*)> : tensor<(\d+)x(\d+)xi64>", body)
    if match is None:
        raise InvalidInput(f"no {key} = dense<...>, the one form of it that is read")
    written, rows, columns = match.group(1), int(match.group(2)), int(match.group(3))
    if not written.startswith("["):
        if not re.fullmatch(r"-?\d+", written) or rows * columns > _MOST_SPLAT:
            raise InvalidInput(f"{key} = dense<{written[:60]}>")
        return [", ".join([written] * columns)] * rows
    listed = re.findall(r"\[([-\d, ]*)\]", written[1:-1])
    plain = "[" + ", ".join(f"[{row}]" for row in listed) + "]"
    if plain != written or len(listed) != rows or any(r.count(",") != columns - 1 for r in listed):
        raise InvalidInput(f"{key} = dense<{written[:60]}> is not of {rows} rows of {columns}")
    return listed


#: A table of one number has no more rows and columns than tensors have dimensions, and devices.
_MOST_SPLAT = 1 << 16


def exchanged(body: str, given: Type) -> tuple[int, int, int]:
    """Of an ``all_to_all``, the dimension that is cut, into how many parts, and the one along which
    parts are joined; raises `InvalidInput`.

    Example: ``concat_dimension = 1, split_count = 2, split_dimension = 0`` is ``(0, 2, 1)``.
    """
    split, count, concat = (
        int(_number(body, key)) for key in ("split_dimension", "split_count", "concat_dimension")
    )
    rank = len(given.shape)
    if max(split, concat) >= rank or count < 1 or given.shape[split] % count:
        raise InvalidInput(f"an all_to_all of {given} along {split}, in {count} parts")
    return split, count, concat


def decomposition(body: str) -> dict[str, str]:
    """A composite operator is, by its definition, the function that decomposes it.

    Example: ``stablehlo.composite "my.op" %x {decomposition = @f}`` is a call of ``f``.
    """
    match = re.search(r"\bdecomposition = @([\w.$-]+)", body)
    if match is None:
        raise InvalidInput("a composite operator without a decomposition")
    return {"to_apply": match.group(1)}


# -- windows ---------------------------------------------------------------------------------------


def _window(body: str, lists: Mapping[str, str], rank: int) -> str:
    """The window of a reduce_window or a select_and_scatter."""
    parts = {
        "size": lists.get("window_dimensions"),
        "stride": lists.get("window_strides"),
        "lhs_dilate": lists.get("base_dilations"),
        "rhs_dilate": lists.get("window_dilations"),
    }
    words = [f"{k}={'x'.join(v[1:-1].split(','))}" for k, v in parts.items() if v]
    if re.search(r"\bpadding = ", body):
        rows = _table(body, "padding")
        if len(rows) != rank:
            raise InvalidInput(f"padding of {len(rows)} dimensions, expected {rank}")
        words.append("pad=" + "x".join("_".join(r.replace(" ", "").split(",")) for r in rows))
    return "{" + " ".join(words) + "}"


_CONVOLUTION = re.compile(
    r"dim_numbers = \[([\w, ]*)\]x\[([\w, ]*)\]->\[([\w, ]*)\], window = \{([^{}]*)\}"
)


def _convolution(body: str, given: Sequence[Type]) -> dict[str, str]:
    """``dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], ...} {...}``."""
    labels = _CONVOLUTION.search(body)
    if labels is None or len(given) != 2:
        raise InvalidInput("a convolution of other than two operands")
    left, kernel, out = (x.replace(" ", "").replace(",", "") for x in labels.groups()[:3])
    if len(kernel) != len(given[1].shape):
        raise InvalidInput("dim_numbers of another number of dimensions")
    spatial = sorted((c, d) for d, c in enumerate(kernel) if c.isdigit())
    words = ["size=" + "x".join(str(given[1].shape[d]) for _, d in spatial)] if spatial else []
    inner = labels.group(4)
    ours = {"stride": "stride", "lhs_dilate": "lhs_dilate", "rhs_dilate": "rhs_dilate"}
    for key in ours:
        numbered = re.search(rf"\b{key} = \[([\d, ]*)\]", inner)
        if numbered is not None and spatial:
            words.append(f"{key}=" + "x".join(numbered.group(1).replace(" ", "").split(",")))
    pad = re.search(r"\bpad = \[((?:\[-?\d+, -?\d+\](?:, )?)*)\]", inner)
    if pad is not None and spatial:
        rows = re.findall(r"\[(-?\d+), (-?\d+)\]", pad.group(1))
        words.append("pad=" + "x".join("_".join(r) for r in rows))
    turned = re.search(r"\breverse = \[([a-z, ]*)\]", inner)
    if turned is not None and spatial:
        bits = [str(int(w == "true")) for w in turned.group(1).replace(" ", "").split(",")]
        words.append("rhs_reversal=" + "x".join(bits))
    unknown = set(re.findall(r"(\w+) = ", inner)) - {*ours, "pad", "reverse"}
    if unknown:
        raise Unsupported(f"a convolution with {min(unknown)}")
    return {
        "window": "{" + " ".join(words) + "}",
        "dim_labels": f"{left}_{kernel}->{out}",
        "feature_group_count": _number(body, "feature_group_count"),
        "batch_group_count": _number(body, "batch_group_count"),
    }


# -- what stands before the types ------------------------------------------------------------------


def _top(body: str) -> dict[str, str]:
    return {"k": _number(body, "k"), "largest": "true"}


def _box(body: str) -> dict[str, str]:
    parts = re.findall(r"[\d:]+", body[body.index("[") :] if "[" in body else "")
    return {"slice": "{" + ", ".join(f"[{p}]" for p in parts) + "}"}


def _target(body: str) -> dict[str, str]:
    target = re.match(r"\s*@([\w.$-]+)", body)
    config = re.search(r'backend_config = (?:"((?:[^"\\]|\\.)*)"|\{([^}]*)\})', body)
    written = (config.group(1) or config.group(2) or "") if config else ""
    attrs = {"custom_call_target": target.group(1) if target else "", "backend_config": written}
    sharding = re.search(r'mhlo\.sharding = "([^"\\]*)"', body)
    return attrs if sharding is None else {**attrs, "sharding": sharding.group(1)}


def _padding(body: str) -> dict[str, str]:
    matches = [re.search(rf"{k} = \[([-\d, ]*)\]", body) for k in ("low", "high", "interior")]
    if any(f is None for f in matches):
        raise InvalidInput("padding without low, high and interior")
    columns = [f.group(1).split(",") for f in matches if f is not None]
    if len({len(column) for column in columns}) > 1:
        raise InvalidInput("padding of unlike numbers of dimensions")
    rows = ("_".join(x.strip() for x in row) for row in zip(*columns, strict=True))
    return {"padding": "x".join(rows)}


def _concatenation(body: str) -> dict[str, str]:
    return {"dimensions": "{" + _number(body, "dim") + "}"}


def _counted(body: str) -> dict[str, str]:
    return {"iota_dimension": _number(body, "dim")}


def _comparison(body: str) -> dict[str, str]:
    direction, *rest = [p.strip() for p in body.split(",")]
    return {"direction": direction, "type": rest[-1]}


def _precision(body: str) -> dict[str, str]:
    bits = re.search(r"format = e(\d+)m(\d+)", body)
    if bits is None:
        raise InvalidInput("no format = eNUMBERmNUMBER")
    return {"exponent_bits": bits.group(1), "mantissa_bits": bits.group(2)}


#: Attributes of operators, from what stands before the types.
def _transform(body: str) -> dict[str, str]:
    kind = re.search(r"\btype = +(\w+)", body)
    lengths = re.search(r"\blength = \[([\d, ]*)\]", body)
    if kind is None or lengths is None:
        raise InvalidInput("no type = NAME, length = [NUMBERS]")
    return {"fft_type": kind.group(1), "fft_length": _numbers(lengths.group(1))}


_BODIES: Mapping[str, Callable[[str], dict[str, str]]] = {
    "slice": _box,
    "custom_call": _target,
    "reduce_precision": _precision,
    "top_k": _top,
    "concatenate": _concatenation,
    "iota": _counted,
    "compare": _comparison,
    "pad": _padding,
    "fft": _transform,
}


def close(text: str) -> int:
    """Where the bracket that is open at the beginning closes.  Example: of ``a(b)) c``, 4."""
    depth = 1
    for at, c in enumerate(text):
        depth += (c in "({[") - (c in ")}]")
        if not depth:
            return at
    raise InvalidInput("a bracket that does not close")


def signature(rest: str) -> tuple[str, str]:
    """What stands before the types, and the types: behind the last colon outside of brackets.

    Example: of ``%0, dims = [1] : (T) -> U``, ``%0, dims = [1]`` and ``(T) -> U``.
    """
    depth, last = 0, -1
    for at, c in enumerate(rest):
        if c in "({[":
            depth += 1
        elif c in ")}]":
            depth -= 1
        elif c == ":" and not depth and rest[at - 1 : at + 2] == " : ":
            last = at
    if last < 0:
        raise InvalidInput("a statement without types")
    return rest[: last - 1], rest[last + 1 :]


def dense(body: str, type: Type) -> Array:
    """The values of a constant: one number, all of them, a float's bits, or all bytes.

    Example: ``dense<1.0>``, ``dense<[1, 2]>``, ``dense<0xFF800000>`` (minus infinity).
    """
    match = re.fullmatch(r"\s*dense<(.*)>\s*", body)
    if match is None:
        raise InvalidInput(f"constant {body.strip()[:60]!r}, expected dense<...>")
    if type.parts is not None:
        raise InvalidInput("a constant that is no tensor")
    if match.group(1).startswith('"'):
        return _bytes(match.group(1), type)
    words = re.findall(r"[^\s\[\],]+", match.group(1))
    paired = type.dtype.startswith("complex")
    words = words if paired else [_bits(w, type) for w in words]
    count = int(np.prod(type.shape, dtype=np.int64))
    if len(words) == 1 + paired and count != 1:
        one = numbers(words, Type((1,), type.dtype))
        return np.broadcast_to(one, type.shape) if type.shape else one.reshape(())
    if len(words) != count * (1 + paired):
        raise InvalidInput(f"a constant of {type} with {len(words)} values")
    return numbers(words, type)


def _bytes(word: str, type: Type) -> Array:
    """A constant that is printed as its bytes, the lowest first: ``"0x0000803F00000040"`` is 1 and
    2.  Of predicates each has a byte, or (as older versions print them) a bit."""
    digits = re.fullmatch(r'"0x((?:[0-9A-Fa-f]{2})*)"', word)
    count = int(np.prod(type.shape, dtype=np.int64))
    if digits is None or type.dtype not in DTYPES.values():
        raise InvalidInput(f"a constant of {type} that is printed as {word[:20]}")
    data = np.frombuffer(bytes.fromhex(digits.group(1)), dtype=np.uint8)
    if type.dtype == "bool" and data.size == -(-count // 8) < count:
        data = np.unpackbits(data, bitorder="little")[:count]
    width = {"bool": 1, "bfloat16": 2}.get(type.dtype) or np.dtype(type.dtype).itemsize
    if data.size != width * count:
        raise InvalidInput(f"a constant of {type} that is printed as {data.size} bytes")
    if type.dtype == "bfloat16":
        values: Array = (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif type.dtype == "bool":
        values = data.astype(np.bool_)
    else:
        values = data.view(np.dtype(type.dtype).newbyteorder("<")).astype(type.dtype)
    return values.reshape(type.shape)


def _bits(word: str, type: Type) -> str:
    """A float that is written as its bits, as a decimal."""
    width = {"float64": 16, "float32": 8, "float16": 4, "bfloat16": 4}.get(type.dtype)
    if width is None or not re.fullmatch(rf"0x[0-9A-Fa-f]{{{width}}}", word):
        return word
    number = int(word, 16)
    if type.dtype == "bfloat16":
        return repr(float(np.array(number << 16, dtype=np.uint32).view(np.float32)))
    kind = {16: np.uint64, 8: np.uint32, 4: np.uint16}[width]
    return repr(float(np.array(number, dtype=kind).view(type.dtype)))


def _number(body: str, key: str) -> str:
    match = re.search(rf"\b{key} = (\d+)", body)
    if match is None:
        raise InvalidInput(f"no {key} = NUMBER")
    return match.group(1)


def _dot(body: str) -> dict[str, str]:
    attrs = {}
    for key, ours in (("batching_dims", "batch_dims"), ("contracting_dims", "contracting_dims")):
        match = re.search(rf"{key} = \[([\d, ]*)\] x \[([\d, ]*)\]", body)
        if match is not None:
            attrs[f"lhs_{ours}"], attrs[f"rhs_{ours}"] = map(_numbers, match.groups())
    return attrs


def _rows(body: str, lists: Mapping[str, str]) -> dict[str, str]:
    """Dimension numbers of gathers and scatters; those that are not printed are empty."""
    kept = {k: v for k, v in lists.items() if not k.startswith(("indices", "unique"))}
    if "gather" in body:
        kept.setdefault("offset_dims", "{}")
    kept["index_vector_dim"] = _number(body, "index_vector_dim") if "index_vector" in body else "0"
    return kept
