"""Wrong changes of the parallel side's graphs, made by rule: a number, an operator, an operand, a
collective, a part, an output.

`mutants` goes through a graph in order and takes the kinds in turn, so that every kind is seen in
every part of the program.  Every third change is made on the last rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Graph = dict[str, Any]
#: What is done to a graph; it returns whether it found its place.
Change = Callable[[Graph], None]
Kind = Callable[[Graph, int], "Change | None"]

#: Operators that are taken for others.
OTHERS = {
    "aten.add.Tensor": "aten.sub.Tensor",
    "aten.sub.Tensor": "aten.add.Tensor",
    "aten.exp.default": "aten.sigmoid.default",
    "aten.sin.default": "aten.cos.default",
    "aten.cos.default": "aten.sin.default",
    "aten.gelu.default": "aten.silu.default",
    "aten.log.default": "aten.neg.default",
    "hlo.logistic": "aten.tanh.default",
    "aten.bitwise_or.Tensor": "aten.bitwise_and.Tensor",
    "aten.bitwise_and.Tensor": "aten.bitwise_or.Tensor",
    "aten.lt.Scalar": "aten.le.Scalar",
    "aten.mean.default": "aten.sum.default",
    "aten.sum.default": "aten.mean.default",
    "hlo.reduce_max": "hlo.reduce_min",
}
#: Operators of which a whole number is a power, a factor or a dimension, by its place.
WHOLE = {
    "aten.pow.Tensor_Scalar": 1,
    "aten._softmax.default": 1,
}
#: Operators whose operands are not alike.
ORDERED = frozenset(
    {"aten.sub.Tensor", "aten.div.Tensor", "aten.le.Tensor", "aten.ge.Tensor", "aten.mm.default"}
    | {"aten.bmm.default", "hlo.dot", "hlo.select"}
)
GETITEM = "<built-in function getitem>"


def mutants(graph: Graph, outputs: list[str], count: int) -> Iterator[tuple[str, Change, bool]]:
    """``count`` changes at most, each with its name and whether it is of the last rank alone;
    ``outputs``: what is compared."""
    live = _live(graph, outputs)
    places = {
        name: [
            (i, change)
            for i, node in enumerate(graph["nodes"])
            if node["name"] in live and (change := kind(graph, i)) is not None
        ]
        for name, kind in KINDS.items()
    }
    taken = 0
    share = -(-count // sum(bool(found) for found in places.values()))
    for name, found in places.items():
        step = max(1, len(found) // share)
        for i, change in found[::step][:share]:
            if taken == count:
                return
            alone = taken % 3 == 2
            where = f", {graph['nodes'][i]['name']}" + (" of the last rank" if alone else "")
            taken += 1
            yield name + where, change, alone


def _operand(x: Any) -> str | None:
    return x["n"] if isinstance(x, dict) and set(x) == {"n"} else None


def _read(x: Any) -> Iterator[str]:
    if (name := _operand(x)) is not None:
        yield name
    elif isinstance(x, dict):
        for value in x.values():
            yield from _read(value)
    elif isinstance(x, list):
        for value in x:
            yield from _read(value)


def _live(graph: Graph, outputs: list[str]) -> set[str]:
    found = set(outputs) | {n["name"] for n in graph["nodes"] if n["op"] == "output"}
    last = next(n for n in graph["nodes"] if n["op"] == "output")
    if not outputs:
        found |= set(_read(last["args"]))
    for node in reversed(graph["nodes"]):
        if node["name"] in found and node is not last:
            found |= {*_read(node["args"]), *_read(node["kwargs"])}
    return found


def _shape(graph: Graph, name: str) -> Any:
    return next(n["shape"] for n in graph["nodes"] if n["name"] == name)


def _setting(i: int, key: str, place: Any, value: Any) -> Change:
    """An argument of node ``i`` becomes another."""

    def change(graph: Graph) -> None:
        graph["nodes"][i][key][place] = value

    return change


def _instead(i: int, other: str) -> Change:
    """Whoever reads node ``i`` reads another value."""

    def change(graph: Graph) -> None:
        own = graph["nodes"][i]["name"]
        for node in graph["nodes"][i + 1 :]:
            node["args"] = _renamed(node["args"], own, other)
            node["kwargs"] = _renamed(node["kwargs"], own, other)

    return change


def _renamed(x: Any, old: str, new: str) -> Any:
    if _operand(x) == old:
        return {"n": new}
    if isinstance(x, list):
        return [_renamed(item, old, new) for item in x]
    return {k: _renamed(v, old, new) for k, v in x.items()} if isinstance(x, dict) else x


# -- kinds -----------------------------------------------------------------------------------------


def _number(graph: Graph, i: int) -> Change | None:
    """A number of an operator that computes: a scale, a bound, an epsilon, a mask's value."""
    node = graph["nodes"][i]
    if node["op"] != "call_function":
        return None
    for place, x in enumerate(node["args"]):
        if isinstance(x, float) and x not in (0.0, 1.0):
            return _setting(i, "args", place, x * 3)
        if isinstance(x, int) and ".Scalar" in node["target"] and not isinstance(x, bool):
            return _setting(i, "args", place, x + 3)
    for key, x in node["kwargs"].items():
        if isinstance(x, float):
            return _setting(i, "kwargs", key, x * 2 if x else 1.0)
    return None


def _operator(graph: Graph, i: int) -> Change | None:
    other = OTHERS.get(graph["nodes"][i]["target"])
    if other is None:
        return None

    def change(graph: Graph) -> None:
        graph["nodes"][i]["target"] = other

    return change


def _dropped(graph: Graph, i: int) -> Change | None:
    """A sum or a mask is left out."""
    node = graph["nodes"][i]
    names = [_operand(x) for x in node["args"]]
    wanted = ("aten.add.Tensor", "aten.masked_fill.Scalar", "aten.index_put.default")
    first = names[0] if names and node["target"] in wanted else None
    alike = first is not None and _shape(graph, first) == node["shape"]
    return _instead(i, first) if first is not None and alike else None


def _collective(graph: Graph, i: int) -> Change | None:
    """Nobody waits for the others' part."""
    node = graph["nodes"][i]
    own = _operand(node["args"][0]) if node["args"] else None
    if "all_reduce" not in node["target"] or own is None:
        return None
    if node["target"].startswith("vllm"):
        return _instead(i, own)
    waits = [
        k
        for k, n in enumerate(graph["nodes"])
        if [_operand(x) for x in n["args"]] == [node["name"]]
    ]
    return _instead(waits[0], own) if waits else _instead(i, own)


def _part(graph: Graph, i: int) -> Change | None:
    """A slice one position before its place, or another part of a split."""
    node = graph["nodes"][i]
    if node["target"] == "aten.slice.Tensor" and node["args"][2] > 0:
        x, dim, start, end, *rest = node["args"]

        def change(graph: Graph) -> None:
            graph["nodes"][i]["args"] = [x, dim, start - 1, end - 1, *rest]

        return change
    if node["target"] == GETITEM:
        same = [
            n["args"][1]
            for n in graph["nodes"]
            if n["target"] == GETITEM
            and n["args"][0] == node["args"][0]
            and (n["shape"], n["dtype"]) == (node["shape"], node["dtype"])
            and n["args"][1] != node["args"][1]
        ]
        return _setting(i, "args", 1, same[0]) if same else None
    return None


def _input(graph: Graph, i: int) -> Change | None:
    """Another input of equal shape is read."""
    node = graph["nodes"][i]
    given = [n for n in graph["nodes"] if n["op"] == "placeholder"]
    if node["op"] != "placeholder" or not node["shape"]:
        return None
    kinds = {"int": "int", "boo": "boo"}
    kind = kinds.get(str(node["dtype"])[:3], "real")
    others = [
        n["name"]
        for n in given
        if n["shape"] == node["shape"]
        and n["name"] != node["name"]
        and kinds.get(str(n["dtype"])[:3], "real") == kind
    ]
    return _instead(i, others[0]) if others else None


def _output(graph: Graph, i: int) -> Change | None:
    """An output is the value before it."""
    node = graph["nodes"][i]
    last = next(n for n in graph["nodes"] if n["op"] == "output")
    if node["name"] not in set(_read(last["args"])) or not node["args"]:
        return None
    before = [
        n["name"]
        for n in graph["nodes"][:i]
        if n["shape"] == node["shape"]
        and n["dtype"] == node["dtype"]
        and n["op"] == "call_function"
    ]
    alias = {_operand(x) for x in node["args"]}
    found = [name for name in before if name not in alias]
    if not found:
        return None

    def change(graph: Graph) -> None:
        end = next(n for n in graph["nodes"] if n["op"] == "output")
        end["args"] = _renamed(end["args"], node["name"], found[-1])

    return change


def _whole(graph: Graph, i: int) -> Change | None:
    """Another power, or another dimension of a softmax."""
    node = graph["nodes"][i]
    place = WHOLE.get(node["target"])
    if place is None:
        return None
    x = node["args"][place]
    return _setting(i, "args", place, x + 1 if x >= 0 else x - 1)


def _scaled(graph: Graph, i: int) -> Change | None:
    """A sum counts its second operand twice, or the bias or the product of ``addmm``, ``baddbmm``
    by another factor."""
    node = graph["nodes"][i]
    if node["target"] == "aten.add.Tensor" and _operand(node["args"][1]) is not None:
        return _setting(i, "kwargs", "alpha", 2)
    if node["target"] in ("aten.addmm.default", "aten.baddbmm.default"):
        return _setting(i, "kwargs", "beta" if node["kwargs"].get("beta") == 0 else "alpha", 2)
    return None


def _swapped(graph: Graph, i: int) -> Change | None:
    """Two operands in the other order."""
    node = graph["nodes"][i]
    names = [_operand(x) for x in node["args"]]
    if node["target"] not in ORDERED or len(names) < 2 or None in names[-2:]:
        return None
    a, b = (n for n in names[-2:] if n is not None)
    if a == b or _shape(graph, a) != _shape(graph, b):
        return None

    def change(graph: Graph) -> None:
        own = graph["nodes"][i]
        own["args"] = [*own["args"][:-2], own["args"][-1], own["args"][-2]]

    return change


def _reads(graph: Graph, i: int, place: int) -> Change | None:
    """An operator reads an earlier value of the same shape in place of one of its operands."""
    node = graph["nodes"][i]
    own = _operand(node["args"][place]) if len(node["args"]) > place else None
    if own is None or node["op"] != "call_function" or node["target"] == GETITEM:
        return None
    like = next(n for n in graph["nodes"] if n["name"] == own)
    if like["shape"] is None or str(like["dtype"])[:3] in ("int", "boo"):
        return None
    alias = {own, *_aliases(graph, own)}
    others = [
        n["name"]
        for n in graph["nodes"][:i]
        if (n["shape"], n["dtype"]) == (like["shape"], like["dtype"])
        and n["name"] not in alias
        and own not in _aliases(graph, n["name"])
        and n["op"] in ("call_function", "placeholder")
        and "empty" not in n["target"]
    ]
    return _setting(i, "args", place, {"n": others[-1]}) if others else None


#: What gives its operand again.
SAME = ("aten.detach", "aten.view", "aten.clone", "aten._unsafe_view", "_c10d_functional.wait")


def _aliases(graph: Graph, name: str) -> set[str]:
    """The values that a value is, under other names."""
    found: set[str] = set()
    node = next(n for n in graph["nodes"] if n["name"] == name)
    while node["op"] == "call_function" and node["target"].startswith(SAME):
        source = _operand(node["args"][0])
        if source is None:
            break
        found.add(source)
        node = next(n for n in graph["nodes"] if n["name"] == source)
    return found


def _first_operand(graph: Graph, i: int) -> Change | None:
    return _reads(graph, i, 0)


def _second_operand(graph: Graph, i: int) -> Change | None:
    return _reads(graph, i, 1)


KINDS: dict[str, Kind] = {
    "number": _number,
    "operator": _operator,
    "left out": _dropped,
    "collective left out": _collective,
    "another part": _part,
    "another input": _input,
    "another output": _output,
    "whole number": _whole,
    "factor of a sum": _scaled,
    "operands swapped": _swapped,
    "another first operand": _first_operand,
    "another second operand": _second_operand,
}
