"""The zoo's plans, run in float64: the single device against PyTorch, all ranks against it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from shardproof.engine.interpreters import FloatInterpreter, Weighted, exact
from shardproof.engine.ops import apply_backward, apply_forward
from shardproof.engine.plan.ir import Plan, Program
from shardproof.engine.schedule.instances import Instance, Unrolled
from shardproof.engine.schedule.unroll import unroll
from shardproof.frontends.zoo import build

CONFIG: dict[str, Any] = {
    "layers": 2,
    "hidden": 16,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 24,
    "vocabulary": 20,
    "sequence": 4,
}
Point = tuple[tuple[str, int], ...]


class Machine:
    """Runs an unrolled side over all ranks and microbatches."""

    def __init__(self, plan: Plan, programs: tuple[Program, ...], tensors: dict[str, Any]) -> None:
        self.plan = plan
        self.programs = programs
        self.tensors = tensors
        self.microbatches = 1 if programs == (plan.single,) else plan.microbatches
        self.values: dict[tuple[int, Point], Any] = {}

    def points(self, program: int) -> Iterator[dict[str, int]]:
        extents = {**self.programs[program].extents, "mb": self.microbatches}
        for place in itertools.product(*(range(n) for n in extents.values())):
            yield dict(zip(extents, place, strict=True))

    def run(self) -> Unrolled:
        unrolled = unroll(self.programs, self.microbatches)
        assert unrolled.symbolic
        assert unrolled.faults == []
        for instance in unrolled.instances:
            for at in self.points(instance.programs[-1]):
                outputs = self.row(instance, at, unrolled)
                for v, x in zip(instance.outputs, outputs, strict=True):
                    self.values[v, tuple(at.items())] = x
        return unrolled

    def get(self, value: int, at: dict[str, int]) -> Any:
        return self.values[value, tuple(at.items())]

    def row(self, instance: Instance, at: dict[str, int], unrolled: Unrolled) -> list[Any]:
        if instance.kind == "shard":
            shard = self.programs[instance.programs[0]].shards[instance.attrs["shard"]]  # type: ignore[index]
            box = tuple(
                slice(o.at(at), o.at(at) + n)
                for o, n in zip(shard.offset, shard.shape, strict=True)
            )
            return [self.tensors[shard.name][box]]
        if instance.kind == "load":
            replica = at.get("dp", 0) * self.microbatches + at["mb"]
            size = unrolled.tensors[instance.outputs[0]].shape[0]
            return [
                self.tensors[n][replica * size : (replica + 1) * size]
                for n in ("tokens", "targets")
            ]
        if instance.kind == "seed":
            return [np.ones(1)]
        if instance.kind == "recv":
            return [self.get(instance.inputs[0], at)]
        if instance.kind in ("op", "slice"):
            return self.operator(instance, at)
        (source, *rest) = instance.inputs
        axes = [a for a, _ in instance.over]
        places = list(itertools.product(*(range(n) for _, n in instance.over)))
        along = [{**at, **dict(zip(axes, place, strict=True))} for place in places]
        parts = [self.get(source, p) for p in along]
        if instance.kind == "accumulate":
            return [sum(parts) + sum(self.get(v, at) for v in rest)]
        if instance.kind == "all_reduce" and rest:
            total = sum(self.get(v, p) for v in instance.inputs for p in along)
            return [total] * len(instance.outputs)
        assert not rest
        if instance.kind == "all_gather":
            return [np.concatenate(parts, axis=int(instance.attrs["dim"]))]  # type: ignore[call-overload]
        total = np.max(parts, axis=0) if instance.attrs.get("op") == "max" else sum(parts)
        if instance.kind == "reduce_scatter":
            place = places.index(tuple(at[a] for a in axes))
            return [np.split(total, len(parts), axis=instance.attrs["dim"])[place]]
        assert instance.kind == "all_reduce"
        return [total]

    def operator(self, instance: Instance, at: dict[str, int]) -> list[Any]:
        interpreter = FloatInterpreter(coordinates=at)
        inputs: list[Weighted | None] = [
            exact(self.get(v, at)) if v >= 0 else None for v in instance.inputs
        ]
        if instance.backward:
            wrt: Any = instance.attrs["wrt"]
            arity: Any = instance.attrs["arity"]
            found = apply_backward(
                interpreter, instance.name, inputs[:arity], inputs[arity:], instance.attrs, wrt
            )
        else:
            found = apply_forward(interpreter, instance.name, inputs, instance.attrs)
        return [x.data for x in found]


def random_tensors(plan: Plan, batch: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {s.name: rng.normal(0, 0.3, s.full_shape) for s in plan.single.shards}
    angles = rng.uniform(0, 6, (CONFIG["sequence"], CONFIG["hidden"] // CONFIG["heads"] // 2))
    tensors["freqs_cis"] = np.stack([np.cos(angles), np.sin(angles)], -1)
    for name in ("tokens", "targets"):
        tensors[name] = rng.integers(0, CONFIG["vocabulary"], (batch, CONFIG["sequence"]))
    return tensors


def torch_llama(tensors: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of Llama 3 as PyTorch computes them, written after the model's papers."""
    p = {k: torch.tensor(v, requires_grad=v.dtype == np.float64) for k, v in tensors.items()}
    tokens, targets = p["tokens"], p["targets"]
    b, s = tokens.shape
    heads, groups = CONFIG["heads"], CONFIG["kv_heads"]
    d = CONFIG["hidden"] // heads
    turn = torch.view_as_complex(p["freqs_cis"].detach().contiguous())[None, :, None]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(3)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], p[f"{name}.weight"], 1e-5)

    x = p["tok_embeddings.weight"][tokens]
    for i in range(CONFIG["layers"]):
        at = f"layers.{i}"
        h = norm(x, f"{at}.attention_norm")
        q, k, v = (
            (h @ p[f"{at}.attention.{n}.weight"].T).view(b, s, -1, d) for n in ("wq", "wk", "wv")
        )
        q, k = rotate(q), rotate(k)
        k, v = (t.repeat_interleave(heads // groups, 2) for t in (k, v))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, scale=1 / math.sqrt(d)
        )
        x = x + mixed.transpose(1, 2).reshape(b, s, -1) @ p[f"{at}.attention.wo.weight"].T
        h = norm(x, f"{at}.ffn_norm")
        w1, w2, w3 = (p[f"{at}.feed_forward.w{n}.weight"] for n in (1, 2, 3))
        x = x + (torch.nn.functional.silu(h @ w1.T) * (h @ w3.T)) @ w2.T
    logits = norm(x, "norm") @ p["output.weight"].T
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {k: t.grad.numpy() for k, t in p.items() if t.grad is not None}


def torch_gpt(tensors: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of GPT as PyTorch computes them, written after the model's papers."""
    p = {k: torch.tensor(v, requires_grad=v.dtype == np.float64) for k, v in tensors.items()}
    tokens, targets = p["tokens"], p["targets"]
    b, s = tokens.shape

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        weights = p[f"{name}.weight"], p[f"{name}.bias"]
        return torch.nn.functional.layer_norm(x, x.shape[-1:], *weights, 1e-5)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    x = p["wte.weight"][tokens] + p["wpe.weight"]
    for i in range(CONFIG["layers"]):
        h = norm(x, f"h.{i}.ln_1")
        q, k, v = (
            linear(h, f"h.{i}.attn.{n}_proj").view(b, s, CONFIG["heads"], -1).transpose(1, 2)
            for n in "qkv"
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(mixed.transpose(1, 2).reshape(b, s, -1), f"h.{i}.attn.c_proj")
        h = torch.nn.functional.gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        x = x + linear(h, f"h.{i}.mlp.c_proj")
    logits = norm(x, "ln_f") @ p["wte.weight"].T
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {k: t.grad.numpy() for k, t in p.items() if t.grad is not None}


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


LLAMA, GPT = "llama3-8b", "gpt3-175b"


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (LLAMA, {"dp": 1, "tp": 1, "pp": 1, "microbatches": 1, "microbatch_size": 2}),
        (LLAMA, {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2}),
        (LLAMA, {"dp": 1, "tp": 2, "pp": 2, "microbatches": 3, "sequence_parallel": True}),
        (LLAMA, {"dp": 2, "cp": 2, "microbatches": 2, "zero": 3}),
        (LLAMA, {"dp": 2, "tp": 2, "microbatches": 2, "zero": 2, "sequence_parallel": True}),
        (LLAMA, {"dp": 1, "pp": 2, "virtual_stages": 2, "microbatches": 2, "layers": 4}),
        (GPT, {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2}),
        (GPT, {"dp": 2, "tp": 2, "cp": 2, "microbatches": 1, "sequence_parallel": True, "zero": 1}),
    ],
    ids=str,
)
def test_both_sides_compute_what_pytorch_computes(
    model: str, layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIG, "layers", layout.get("layers", CONFIG["layers"]))
    without = {"kv_heads"} if model == GPT else set()
    sizes = {k: v for k, v in CONFIG.items() if k not in without}
    plan = build(model, **{**sizes, **layout})
    batch = layout["dp"] * layout["microbatches"] * layout.get("microbatch_size", 1)
    tensors = random_tensors(plan, batch)
    loss, gradients = (torch_llama if model == LLAMA else torch_gpt)(tensors)
    for programs in ((plan.single,), plan.programs):
        machine = Machine(plan, programs, tensors)
        unrolled = machine.run()
        ((last, _, value),) = unrolled.losses
        extents = programs[last].extents
        copies = extents.get("tp", 1) * extents.get("cp", 1)
        total = sum(machine.get(value, at).item() for at in machine.points(last)) / copies
        assert total == pytest.approx(loss, rel=1e-12)
        compared = set()
        for program, number, value in unrolled.gradients:
            shard = programs[program].shards[number]
            for at in machine.points(program):
                box = tuple(
                    slice(o.at(at), o.at(at) + n)
                    for o, n in zip(shard.offset, shard.shape, strict=True)
                )
                np.testing.assert_allclose(
                    machine.get(value, at),
                    gradients[shard.name][box],
                    rtol=1e-9,
                    atol=1e-13,
                    err_msg=f"{shard.name} at {at}",
                )
            compared.add(shard.name)
        assert compared == gradients.keys()
