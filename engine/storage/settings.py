"""Settings that people write (TOML, YAML), decoded strictly into msgspec structs.

`decoded` gives a value of a struct, or says of the first place that does not fit what was expected
and what was found: ``verify.wrkers: not a key here, near is workers; known are timeout, workers``.
A struct forbids unknown keys; what its types cannot say, its ``__post_init__`` says as a
``ValueError``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from shardproof.engine.errors import InvalidInput
from shardproof.engine.storage import files

T = TypeVar("T")

#: An integer of at least 1.
Count = Annotated[int, msgspec.Meta(ge=1)]
#: An integer of at least 0.
Natural = Annotated[int, msgspec.Meta(ge=0)]
#: A text that says something.
Text = Annotated[str, msgspec.Meta(min_length=1)]

_WORDS: Final = {
    int: "an integer",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "keys and values",
    Fraction: "a positive decimal in quotes",
    type(None): "nothing",
}


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data; raises `InvalidInput`.

    Example: of ``[expect]`` and ``parameters = ["norm.weight"]``,
    ``{"expect": {"parameters": ["norm.weight"]}}``.
    """
    try:
        return tomllib.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is no TOML: {error}", str(path)) from error


def read_yaml(path: Path) -> Any:
    """A YAML file as plain data; raises `InvalidInput`.

    Example: of ``a: [1``, which does not end, "a.yaml: expected YAML: while parsing a flow sequence
    ...".
    """
    import yaml

    try:
        return yaml.safe_load(_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        message = " ".join(str(error).split())
        raise InvalidInput(f"expected YAML: {message}", str(path)) from error


def _text(path: Path) -> str:
    try:
        return files.contents(path, files.SETTINGS_BYTES).decode()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", str(path)) from error


def decoded(data: object, kind: type[T], where: str = "", key: str = "") -> T:
    """Plain data as a ``kind``; raises `InvalidInput` naming ``where`` and the place.

    Example: of ``{"workers": "two"}`` under the key "verify" of conf.toml, "conf.toml,
    verify.workers: expected an integer, found 'two'".

    ``key``: where the data lies in what is read.
    """
    try:
        value: T = _converted(data, kind)
        return value
    except msgspec.ValidationError:
        place, message = _misfit(data, kind, key)
    error = InvalidInput(message, place)
    raise error.within(where) if where else error


def given(settings: msgspec.Struct) -> dict[str, Any]:
    """The settings that a file gives, of a struct whose defaults are ``UNSET``.

    Example: of a file that says ``workers = 2`` and nothing else, ``{"workers": 2}``.
    """
    values = msgspec.structs.asdict(settings)
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def unknown(name: str, known: Iterable[str]) -> str:
    """Why a key is refused, with those that are near it and all that are known.

    Example: "not a key here, near is workers; known are timeout, workers".
    """
    names = list(known)
    near = " or ".join(get_close_matches(name, names, n=3))
    listed = ", ".join(names) or "none"
    return f"not a key here{near and f', near is {near}'}; known are {listed}"


def _converted(data: object, kind: Any) -> Any:
    return msgspec.convert(data, kind, strict=True, dec_hook=_exact)


def _exact(kind: type, value: object) -> Fraction:
    """A decimal or a fraction, exactly."""
    if kind is not Fraction or isinstance(value, bool):
        raise TypeError(f"expected {expectation(kind)}")
    try:
        exact = Fraction(value) if isinstance(value, (str, int, Fraction)) else Fraction(0)
    except ZeroDivisionError:
        exact = Fraction(0)
    if exact <= 0:
        raise ValueError(f"expected {expectation(kind)}")
    return exact


def _misfit(data: object, kind: Any, place: str) -> tuple[str, str]:
    """The innermost place where ``data`` is no ``kind``, and what is wrong there."""
    kind = _fitting(data, kind)
    if _is_struct(kind) and isinstance(data, dict):
        known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for key in data:
            if key not in known:
                return _joined(place, key), unknown(str(key), known)
        for name, field in known.items():
            if field.required and name not in data:
                return _joined(place, name), f"is missing, expected {expectation(field.type)}"
    for key, value, inner in _parts(data, kind):
        try:
            _converted(value, inner)
        except msgspec.ValidationError:
            return _misfit(value, inner, _joined(place, key))
    if _is_struct(kind) and isinstance(data, dict):
        try:
            _converted(data, kind)
        except msgspec.ValidationError as error:
            return place, str(error)
    return place, f"expected {expectation(kind)}, found {_short(data)}"


def _parts(data: object, kind: Any) -> Iterator[tuple[str, object, Any]]:
    """(key, value, type) of what ``data`` holds, where ``kind`` says what that is."""
    plain = _bare(kind)
    arguments = get_args(plain)
    if isinstance(data, dict):
        if _is_struct(plain):
            for field in msgspec.structs.fields(plain):
                if field.encode_name in data:
                    yield field.encode_name, data[field.encode_name], field.type
        elif get_origin(plain) is dict:
            for key, value in data.items():
                yield str(key), key, arguments[0]
                yield str(key), value, arguments[1]
    elif isinstance(data, (list, tuple)) and get_origin(plain) in (list, tuple):
        for number, value in enumerate(data):
            yield f"[{number}]", value, arguments[0]


def _fitting(data: object, kind: Any) -> Any:
    """The member of a union that is a mapping or a list as ``data`` is; else ``kind`` itself."""
    for member in _members(kind):
        plain = _bare(member)
        origin = get_origin(plain) or plain
        if isinstance(data, dict) and (_is_struct(plain) or origin is dict):
            return member
        if isinstance(data, list) and origin in (list, tuple):
            return member
    return kind


def expectation(kind: Any) -> str:
    """What a type wants, in words: "an integer of at least 1".

    Example: "an integer of at least 1", "one of mean, sum".
    """
    metas = [m for m in getattr(kind, "__metadata__", ()) if isinstance(m, msgspec.Meta)]
    for meta in metas:
        if meta.description:
            return meta.description
    plain = _bare(kind)
    if get_origin(plain) is Literal:
        return f"one of {', '.join(sorted(map(str, get_args(plain))))}"
    if (members := _members(plain)) != (plain,):
        wanted = [expectation(m) for m in members if m not in (type(None), msgspec.UnsetType)]
        if float in members and int in members:
            wanted.remove(_WORDS[int])
        return " or ".join(wanted)
    words = "keys and values" if _is_struct(plain) else _WORDS[get_origin(plain) or plain]
    for meta in metas:
        if meta.ge is not None:
            words += f" of at least {meta.ge:g}"
        if meta.min_length:
            words += " of at least one value" if words == "a list" else " that is not empty"
    return words


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _members(kind: Any) -> tuple[Any, ...]:
    plain = _bare(kind)
    return get_args(plain) if get_origin(plain) in (Union, UnionType) else (kind,)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _joined(place: str, key: object) -> str:
    return f"{place}{key}" if str(key).startswith("[") or not place else f"{place}.{key}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
