"""Manual computations between custom calls: HLO text before the partitioner, and GSPMD's StableHLO.

The program is ``x @ w`` on 2 by 2 ranks: rows of ``x`` along one axis, the dimension that is summed
over along the other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardproof.engine.errors import InvalidInput, Unsupported
from shardproof.frontends.hlo import evaluate, read
from shardproof.frontends.hlo.manual import Mesh
from tests.frontends.hlo.verdicts import verified

SINGLE = """HloModule one
ENTRY main {
  x = f32[8,6]{1,0} parameter(0)
  w = f32[6,4]{1,0} parameter(1)
  ROOT r = f32[8,4]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
ADD = "add {\n p = f32[] parameter(0)\n q = f32[] parameter(1)\n ROOT s = f32[] add(p, q)\n}\n"
#: What every rank runs; its groups follow.
OWN = (
    "a = f32[4,3]{1,0} parameter(0)\nb = f32[3,4]{1,0} parameter(1)\n"
    "d = f32[4,4]{1,0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "ROOT s = f32[4,4]{1,0} all-reduce(d), channel_id=1, use_global_device_ids=true, to_apply=add"
)
ALONG_Y, ALONG_X = "{{0,1},{2,3}}", "{{0,2},{1,3}}"
MESH = '<["x"=2, "y"=2]>'
BOTH = "{devices=[2,2]<=[4]}"
OF_W = "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}"
OF_R = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"


def shardy(groups: str, mesh: str = MESH, axes: str = '\\"x\\", \\"y\\"') -> str:
    """As JAX prints it with Shardy: borders of several values."""
    quoted = [
        [d.replace('"', '\\"') for d in v] for v in (('"x"', '"y"'), ('"y"', ""), ('"x"', ""))
    ]
    x, w, r = (f"<@mesh, [{{{a}}}, {{{b}}}]>" for a, b in quoted)
    lies = "#sdy.sharding_per_value<[{}]>"
    manual_axes = f'xla.sdy.manual_axes="#sdy<manual_axes{{{axes}}}>"'
    ins = f'xla.sdy.in_shardings="{lies.format(f"{x}, {w}")}"'
    outs = f'xla.sdy.out_shardings="{lies.format(r)}"'
    body = "xla.sdy.manual_computation_body.1"
    return f"""HloModule m, frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh{mesh}}}}}
{ADD}{body} {{
{OWN}, replica_groups={groups}
ROOT t = (f32[4,4]{{1,0}}) tuple(s)
}}
ENTRY main {{
  x = f32[8,6]{{1,0}} parameter(0)
  w = f32[6,4]{{1,0}} parameter(1)
  in = (f32[4,3]{{1,0}}, f32[3,4]{{1,0}}) custom-call(x, w), custom_call_target="xla.sdy.GlobalToLocalShape", custom_call_has_side_effect=true, frontend_attributes={{{ins},{manual_axes}}}
  a = f32[4,3]{{1,0}} get-tuple-element(in), index=0
  b = f32[3,4]{{1,0}} get-tuple-element(in), index=1
  c = (f32[4,4]{{1,0}}) call(a, b), to_apply={body}, frontend_attributes={{inlineable="false"}}
  s = f32[4,4]{{1,0}} get-tuple-element(c), index=0
  ROOT r = f32[8,4]{{1,0}} custom-call(s), custom_call_target="xla.sdy.LocalToGlobalShape", custom_call_has_side_effect=true, frontend_attributes={{{manual_axes},{outs}}}
}}
""".replace("ROOT s = f32[4,4]", "s = f32[4,4]", 1)


def gspmd(groups: str, of_x: str = BOTH, of_w: str = OF_W, more: str = "") -> str:
    """As JAX prints it with GSPMD: each value is annotated, and crosses by itself."""
    return f"""HloModule m
{ADD}shmap_body.1 {{
{OWN}, replica_groups={groups}
}}
ENTRY main {{
  x = f32[8,6]{{1,0}} parameter(0)
  x1 = f32[8,6]{{1,0}} custom-call(x), custom_call_target="Sharding", sharding={of_x}
  a = f32[4,3]{{1,0}} custom-call(x1), custom_call_target="SPMDFullToShardShape", sharding={{manual}}
  w = f32[6,4]{{1,0}} parameter(1)
  w1 = f32[6,4]{{1,0}} custom-call(w), custom_call_target="Sharding", sharding={of_w}
  b = f32[3,4]{{1,0}} custom-call(w1), custom_call_target="SPMDFullToShardShape", sharding={{manual}}
  c = f32[4,4]{{1,0}} call(a, b), to_apply=shmap_body.1{more}
  s = f32[4,4]{{1,0}} custom-call(c), custom_call_target="Sharding", sharding={{manual}}
  ROOT r = f32[8,4]{{1,0}} custom-call(s), custom_call_target="SPMDShardToFullShape", sharding={OF_R}
}}
"""


def stable(groups: str) -> str:
    """The same in StableHLO."""
    rows = groups.translate(str.maketrans("{}", "[]")).replace(",", ", ")
    call = "stablehlo.custom_call"
    return f"""module @m attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
func.func public @main(%x: tensor<8x6xf32>, %w: tensor<6x4xf32>) -> (tensor<8x4xf32>) {{
%0 = {call} @Sharding(%x) {{backend_config = "", mhlo.sharding = "{BOTH}"}} : (tensor<8x6xf32>) -> tensor<8x6xf32>
%1 = {call} @SPMDFullToShardShape(%0) {{backend_config = "", mhlo.sharding = "{{manual}}"}} : (tensor<8x6xf32>) -> tensor<4x3xf32>
%2 = {call} @Sharding(%w) {{backend_config = "", mhlo.sharding = "{OF_W}"}} : (tensor<6x4xf32>) -> tensor<6x4xf32>
%3 = {call} @SPMDFullToShardShape(%2) {{backend_config = "", mhlo.sharding = "{{manual}}"}} : (tensor<6x4xf32>) -> tensor<3x4xf32>
%4 = call @shmap_body(%1, %3) : (tensor<4x3xf32>, tensor<3x4xf32>) -> tensor<4x4xf32>
%5 = {call} @Sharding(%4) {{backend_config = "", mhlo.sharding = "{{manual}}"}} : (tensor<4x4xf32>) -> tensor<4x4xf32>
%6 = {call} @SPMDShardToFullShape(%5) {{backend_config = "", mhlo.sharding = "{OF_R}"}} : (tensor<4x4xf32>) -> tensor<8x4xf32>
return %6 : tensor<8x4xf32>
}}
func.func private @shmap_body(%a: tensor<4x3xf32>, %b: tensor<3x4xf32>) -> (tensor<4x4xf32>) {{
%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x3xf32>, tensor<3x4xf32>) -> tensor<4x4xf32>
%1 = "stablehlo.all_reduce"(%0) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<{rows}> : tensor<2x2xi64>, use_global_device_ids}}> ({{
^bb0(%p: tensor<f32>, %q: tensor<f32>):
%s = stablehlo.add %p, %q : tensor<f32>
stablehlo.return %s : tensor<f32>
}}) : (tensor<4x4xf32>) -> tensor<4x4xf32>
return %1 : tensor<4x4xf32>
}}
}}
"""


FORMS = {"shardy": shardy, "gspmd": gspmd, "stable": stable}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_proved_and_its_wrong_twin_refuted(form: str, tmp_path: Path) -> None:
    for groups, verdict in ((ALONG_Y, "proved"), (ALONG_X, "refuted")):
        folder = tmp_path / verdict
        folder.mkdir()
        verified(SINGLE, FORMS[form](groups), folder, verdict)


@pytest.mark.parametrize("form", FORMS)
def test_ranks_have_the_parts_that_the_text_says(form: str) -> None:
    graph = read.parsed(FORMS[form](ALONG_Y), partitioned=True)
    x, w = (item.placement for item in graph.inputs)
    assert graph.ranks == 4
    assert x is not None
    assert x.starts == ((0, 0), (0, 3), (4, 0), (4, 3))
    assert w is not None
    assert w.starts == ((0, 0), (3, 0), (0, 0), (3, 0))
    r = graph.outputs[0].placement
    assert r is not None
    assert r.starts == ((0, 0), (0, 0), (4, 0), (4, 0))


def test_devices_may_stand_in_another_order(tmp_path: Path) -> None:
    """On a mesh of devices 3, 2, 1, 0 the first rows are on devices 3 and 2."""
    other = '<["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>'
    graph = read.parsed(shardy(ALONG_Y, other), partitioned=True)
    x = graph.inputs[0].placement
    assert x is not None
    assert x.starts == ((4, 3), (4, 0), (0, 3), (0, 0))
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(8, 6)), rng.normal(size=(6, 4))
    places = [item.placement for item in graph.inputs]
    shapes = [graph.values[item.value].shape for item in graph.inputs]
    own = [
        [
            full[tuple(slice(s, s + n) for s, n in zip(place.starts[rank], shape, strict=True))]
            for full, place, shape in zip(whole, places, shapes, strict=True)
            if place is not None
        ]
        for rank in range(4)
    ]
    expected = whole[0] @ whole[1]
    for rank, (found,) in enumerate(evaluate.run(graph, own)):
        rows = slice(4, 8) if rank < 2 else slice(0, 4)
        np.testing.assert_allclose(found, expected[rows], rtol=1e-6)
    verified(SINGLE, shardy(ALONG_Y, other), tmp_path, "proved")


def test_ranks_of_a_mesh_in_another_order() -> None:
    """Source: ``sdy.mesh``, whose ``device_ids`` name the device at every place."""
    mesh = Mesh({"x": 2, "y": 2}, (2, 3, 0, 1))
    assert mesh.along(["x"]) == [1, 1, 0, 0]
    assert mesh.groups("y") == "{{2,3},{0,1}}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (gspmd(ALONG_Y, of_x="{maximal device=1}"), "maximal"),
        (gspmd(ALONG_Y, of_x="{devices=[2,1,2]<=[4] last_tile_dim_replicate}"), "not manual"),
        (gspmd(ALONG_Y, of_x="{devices=[2,2]<=[2,2] last_tile_dims={manual}}"), "last_tile_dims"),
        (gspmd(ALONG_Y, of_w="{devices=[2,1,4]<=[8] last_tile_dim_replicate}"), "4 and 8"),
        (shardy(ALONG_Y, '<["x"=2, "y"=2], device_ids=[0, 1, 2, 2]>'), "device_ids"),
        (shardy(ALONG_Y, axes='\\"z\\"'), "mesh @mesh"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, reason: str) -> None:
    with pytest.raises((InvalidInput, Unsupported), match=reason):
        read.parsed(text, partitioned=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("f32[4,3]{1,0}, f32[3,4]{1,0}) custom-call", "f32[4,3]{1,0}) custom-call"),
        ("custom-call(x, w)", "custom-call(x)"),
        ("custom-call(s)", "custom-call()"),
    ],
)
def test_borders_of_other_numbers_of_values_are_refused(old: str, new: str) -> None:
    text = shardy(ALONG_Y)
    assert old in text
    with pytest.raises((InvalidInput, Unsupported)):
        read.parsed(text.replace(old, new), partitioned=True)


@pytest.mark.parametrize("tiles", ["[2,]<=[2]", "[2,2]", "[2,2]0,1,2", "[0,2]<=[0]"])
def test_shardings_of_no_devices_are_refused(tiles: str) -> None:
    with pytest.raises((InvalidInput, Unsupported)):
        read.parsed(gspmd(ALONG_Y, of_x=f"{{devices={tiles}}}"), partitioned=True)


def test_ranks_are_joined_within_alone() -> None:
    """An all-reduce of what is whole on every rank is none of the program that is written."""
    text = gspmd(ALONG_Y).replace(
        "x1 = f32[8,6]{1,0} custom-call(x)",
        "x0 = f32[8,6]{1,0} all-reduce(x), channel_id=1, use_global_device_ids=true, "
        f"to_apply=add, replica_groups={ALONG_Y}\n  x1 = f32[8,6]{{1,0}} custom-call(x0)",
    )
    with pytest.raises((InvalidInput, Unsupported), match="in and outside"):
        read.parsed(text, partitioned=True)


def test_a_program_before_the_partitioner_is_none_of_ranks() -> None:
    """Parameters that are to be divided: what ranks run is not written yet."""
    text = SINGLE.replace("parameter(0)", f"parameter(0), sharding={BOTH}")
    with pytest.raises(InvalidInput, match="before XLA's partitioner"):
        read.parsed(text, partitioned=True)
    assert read.parsed(text).ranks == 1
