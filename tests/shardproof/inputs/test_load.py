"""From files to a plan; whatever a file holds, it is a plan or one line about it."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import shardproof
from shardproof.engine.errors import InvalidInput
from shardproof.engine.plan_files import store
from shardproof.frontends.errors import UnreadablePlan
from shardproof.frontends.nnscaler.frontend import FRONTEND
from shardproof.frontends.untrusted.child import BoundedCall
from shardproof.inputs.assume import Assumptions
from shardproof.inputs.load import load_plan, plan_name
from tests.shardproof.faces import proved, stub_pipeline, tiny

LLAMA = "llama3_default_{}_gbs512_ly{}_h32_hi4096_sq128.pkl"
ONE = "dp1_pp1_tp1_nm1"
DEFAULT = Assumptions()


@pytest.fixture
def llama(shared_plans: Path) -> Callable[..., Path]:
    return lambda degrees, layers=2: shared_plans / LLAMA.format(degrees, layers)


def refusal(single: Path, parallel: Path | None, assumptions: Assumptions = DEFAULT) -> str:
    with pytest.raises(InvalidInput) as caught:
        load_plan(single, parallel, assumptions)
    return str(caught.value)


#: What is assumed of the plan: by nnScaler's default, and of functions known by name.
OF_THE_PLAN = [
    ("framework", "reducers"),
    ("user's word", "genmodel.model.llama3_adpt.model.apply_mask"),
    ("user's word", "genmodel.model.llama3_adpt.model.apply_rotary_emb"),
    ("user's word", "genmodel.model.llama3_adpt.model.create_mask"),
]


def test_two_nnscaler_plans_become_one(llama: Callable[..., Path]) -> None:
    plan = load_plan(llama(ONE), llama("dp2_pp2_tp2_nm2"), DEFAULT)
    assert plan.name == "llama3_default_dp2_pp2_tp2_nm2_gbs512_ly2_h32_hi4096_sq128"
    assert (plan.ranks, plan.microbatches, plan.replica_axes) == (8, 2, ("dp",))
    assert (plan.loss, plan.single.axes) == ("sum", ())
    assert plan.assumed[0] == FRONTEND.assumed({})[0]
    assert sorted((a.kind, a.about) for a in plan.assumed[1:]) == OF_THE_PLAN


def test_a_plan_and_itself(llama: Callable[..., Path]) -> None:
    plan = load_plan(llama(ONE), llama(ONE), DEFAULT)
    assert plan.ranks == 1
    # Only of the parallel side are records kept, to compare with what it computes.
    bodies = tuple(replace(body, claims=()) for body in plan.programs[0].bodies)
    assert bodies == plan.single.bodies


def test_groups_as_recorded_are_another_plan(llama: Callable[..., Path]) -> None:
    paths = llama(ONE), llama("dp2_pp2_tp2_nm2")
    stated = Assumptions(groups="as recorded")
    plan = load_plan(*paths, stated)
    assert plan.assumed[0] == FRONTEND.assumed(stated.of_frontends())[0]
    assert sorted((a.kind, a.about) for a in plan.assumed[1:]) == OF_THE_PLAN
    names = {op.name for p in plan.programs for body in p.bodies for op in body.ops}
    assert "chunk" not in names


def test_a_stated_loss_takes_the_place_of_the_found_one(tmp_path: Path) -> None:
    store.save(tiny(), tmp_path / "plan")
    assert load_plan(tmp_path / "plan", None, Assumptions(loss="mean")).loss == "mean"


def test_a_stored_plan_comes_back(tmp_path: Path) -> None:
    store.save(tiny(), tmp_path / "plan")
    assert load_plan(tmp_path / "plan", None, DEFAULT) == tiny()


def test_a_stored_plan_is_held_to_its_own_pairing(tmp_path: Path) -> None:
    store.save(replace(tiny(ffn=8), single=tiny().single), tmp_path / "plan")
    assert refusal(tmp_path / "plan", None) == (
        f"'{tmp_path / 'plan'}', rank 0: parameter layers.0.feed_forward.w1.weight has full shape "
        "[8, 8], expected [6, 8] as in the single-device plan (2 more differ)"
    )


def test_another_model(llama: Callable[..., Path]) -> None:
    other = llama("dp16_pp4_tp8_nm8", 3)
    assert refusal(llama(ONE), other) == (
        f"'{other}', rank 16: parameter layers.2.attention_norm.weight of full shape [4096] is not "
        "in the single-device plan (9 more differ)"
    )


def test_another_size(llama: Callable[..., Path], shared_plans: Path) -> None:
    moe = next(shared_plans.glob("moe_default_dp1_*_a2_r16.pkl"))
    other = llama("dp2_pp2_tp2_nm2")
    assert refusal(moe, other).startswith(
        f"'{other}', rank 0: parameter tok_embeddings.weight has full shape [51200, 4096], "
        "expected [51200, 512] as in the single-device plan ("
    )


def test_a_parallel_plan_in_the_place_of_the_single_one(llama: Callable[..., Path]) -> None:
    path = llama("dp2_pp2_tp2_nm2")
    assert refusal(path, path) == (
        f"'{path}': expected a single-device plan, found 8 ranks on 4 plan devices"
    )


def test_an_expected_parameter_must_exist(llama: Callable[..., Path]) -> None:
    path = llama(ONE)
    assert refusal(path, path, Assumptions(expected=("norm.weight", "nrom.weight"))) == (
        f"'{path}': the gradient of nrom.weight is expected (--assume), but the single-device plan "
        "has no such parameter"
    )


def test_files_and_folders_in_wrong_places(tmp_path: Path) -> None:
    file, folder, missing = tmp_path / "a.pkl", tmp_path / "folder", tmp_path / "none"
    file.write_bytes(b"")
    folder.mkdir()
    beside = (
        "expected an nnScaler plan (.pkl, .pkl.gz) beside the other one, found a folder; "
        "a plan folder holds both sides and is given alone"
    )
    assert refusal(file, None) == (
        f"{file}: expected a folder with both sides of a plan, found a file; "
        "to verify two files of one format give both: SINGLE PARALLEL"
    )
    assert refusal(missing, None) == f"{missing}: expected a plan folder, found nothing"
    assert refusal(folder, None) == f"{folder}: expected a plan folder, found another one"
    (folder / "result.json").touch()
    assert (
        refusal(folder, None) == f"{folder}: expected a plan folder, found the directory of a run"
    )
    assert refusal(folder, file) == f"{folder}: {beside}"
    assert refusal(file, folder) == f"{folder}: {beside}"
    assert refusal(missing, file) == (
        f"'{missing}': expected a readable file, found: No such file or directory"
    )
    assert (
        refusal(file, file)
        == f"'{file}', byte 0: expected a pickled nnScaler plan, found 'EOFError: Ran out of input'"
    )


def test_groups_of_a_stored_plan_are_what_they_are(tmp_path: Path) -> None:
    store.save(tiny(), tmp_path / "plan")
    assert refusal(tmp_path / "plan", None, Assumptions(groups="as recorded")) == (
        f"{tmp_path / 'plan'}: groups 'as recorded' is about nnScaler plans, this is a stored plan"
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_file_is_named_or_still_a_plan(
    seed: int, llama: Callable[..., Path], tmp_path: Path
) -> None:
    random_ = random.Random(seed)
    data = bytearray(llama("dp2_pp2_tp2_nm2").read_bytes())
    if seed % 2:
        del data[random_.randrange(len(data)) :]
    for _ in range(3):
        data[random_.randrange(len(data))] = random_.randrange(256)
    path = tmp_path / "damaged.pkl"
    path.write_bytes(data)
    said = ""
    try:
        load_plan(llama(ONE), path, DEFAULT)
    except InvalidInput as error:
        said = str(error)
    assert not said or said.startswith(f"'{path}'")
    assert "\n" not in said


def test_the_error_of_the_single_plan_does_not_wait_for_the_other(
    llama: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are read at once; nobody waits for the other one, whose reader is ended."""
    begun: list[BoundedCall] = []
    awaited: list[BoundedCall] = []
    open_, result = BoundedCall.open, BoundedCall.result

    def opened(call: BoundedCall) -> None:
        begun.append(call)
        open_(call)

    def waited(call: BoundedCall) -> bytes:
        awaited.append(call)
        return result(call)

    monkeypatch.setattr(BoundedCall, "open", opened)
    monkeypatch.setattr(BoundedCall, "result", waited)
    garbage = tmp_path / "garbage.pkl"
    garbage.write_bytes(b"garbage")
    with pytest.raises(UnreadablePlan):
        load_plan(garbage, llama("dp2_pp2_tp2_nm2"), DEFAULT)
    assert len(begun) == 2
    assert len(awaited) == 1
    ours = psutil.Process()
    left = ours.children(recursive=True)
    assert not [p for p in left if p.ppid() != ours.pid or "untrusted.child" in str(p.cmdline())]


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/b.pkl", "b"), ("b.pkl.gz", "b"), ("b.pickle", "b.pickle"), ("folder", "folder")],
)
def test_a_plan_is_named_by_its_file(path: str, name: str) -> None:
    assert plan_name(Path(path)) == name


def test_a_bad_file_in_one_thread_is_nothing_to_the_other(
    llama: Callable[..., Path], tmp_path: Path
) -> None:
    """Two verifications in one process: what cannot be read ends its own readers alone."""
    bad = tmp_path / "bad.pkl"
    bad.write_bytes(b"no pickle")
    good = llama(ONE), llama("dp2_pp2_tp2_nm2")
    with ThreadPoolExecutor(2) as threads:
        loaded = threads.submit(load_plan, *good, DEFAULT)
        refused = [threads.submit(refusal, bad, good[1]) for _ in range(4)]
        assert loaded.result().ranks == 8
        assert all("bad.pkl" in one.result() for one in refused)


# -- a plan in memory -----------------------------------------------------------------------------


def test_a_plan_in_memory_is_the_plan_that_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stub_pipeline(monkeypatch, proved())
    shardproof.save(tiny(), tmp_path / "plan")
    assert shardproof.load(tmp_path / "plan") == tiny()
    shardproof.verify(tiny(), out=tmp_path / "memory")
    shardproof.verify(tmp_path / "plan", out=tmp_path / "stored")
    (memory, _), (stored, _) = stub.calls
    assert memory == stored
    plans = [store.load(tmp_path / run / "plan") for run in ("memory", "stored")]
    assert plans == [tiny(), tiny()]


def test_a_plan_in_memory_is_held_to_what_a_stored_one_is(tmp_path: Path) -> None:
    one = tiny()
    body = one.programs[0].bodies[0]
    op = replace(body.ops[1], inputs=(10**6,))
    broken = replace(body, ops=(body.ops[0], op, *body.ops[2:]))
    program = replace(one.programs[0], bodies=(broken, *one.programs[0].bodies[1:]))
    wrong = replace(one, programs=(program,))
    result = shardproof.verify(wrong, out=tmp_path / "run")
    assert (result.verdict, result.run_dir) == ("invalid input", "")
    assert result.reason.startswith(f"'{one.name}', parallel program stage 0, body 0")
    with pytest.raises(InvalidInput, match="1000000"):
        shardproof.save(wrong, tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_a_plan_in_memory_is_given_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="given alone"):
        shardproof.verify(tiny(), tmp_path / "other.pkl")


def test_one_program_in_place_of_a_tuple_of_programs_says_so() -> None:
    plan = tiny()
    wrong = replace(plan, programs=plan.programs[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"tuple of programs, as in \(program,\)"):
        shardproof.verify(wrong)


def test_a_plan_in_memory_has_no_recorded_groups(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[nnscaler]\ngroups = "as recorded"\n')
    result = shardproof.verify(tiny(), assume=tmp_path / "a.toml")
    assert result.verdict == "invalid input"
    assert "is about nnScaler plans" in result.reason
