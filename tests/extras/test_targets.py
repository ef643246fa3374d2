"""Compiling for accelerators that are not here, and counting what the programs start there."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from cli import CARTPOLE
from conftest import refused

from benchmarks import accelerator
from jaxppo.config.importing import is_installed
from jaxppo.config.schema import Config
from jaxppo.extras.chips import plan as planning
from jaxppo.extras.chips import targets
from jaxppo.extras.chips.launches import Launches, Module
from jaxppo.launch.composing import compose
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs.compile import Program
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.programs.population import members
from jaxppo.runtime.programs.start import compile_start
from jaxppo.runtime.run.compiling import compile_training
from jaxppo.runtime.run.jobs import prepare

MEASURED = Path(accelerator.__file__).parent / "measured/h200.json"

HLO = """HloModule jit_f
%of_a_fusion (p: f32[4]) -> f32[4] {
  ROOT %n = f32[4]{0} negate(%p)
}
%body.1 (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[4]{0} get-tuple-element(%t), index=1
  %y = f32[4]{0} fusion(%x), kind=kLoop, calls=%of_a_fusion, metadata={op_name="f/step"}
  %z = (f32[4]{0}, s8[8]{0}) custom-call(%y), custom_call_target="gemm"
  %g = f32[4]{0} get-tuple-element(%z), index=0
  %s = ((f32[4]{0}), f32[4]{0}) copy-start(%g)
  %d = f32[4]{0} copy-done(%s)
  ROOT %r = (s32[], f32[4]{0}) tuple(%i, %d)
}
%counts (t.1: (s32[], f32[4])) -> pred[] {
  %t.1 = (s32[], f32[4]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%t.1), index=0
  %c = s32[] constant(5)
  ROOT %l = pred[] compare(%i.1, %c), direction=LT
}
%asks (t.2: (s32[], f32[4])) -> pred[] {
  %t.2 = (s32[], f32[4]{0}) parameter(0)
  ROOT %w = pred[] fusion(%t.2), kind=kLoop, calls=%of_a_fusion
}
%few (p.1: f32[4]) -> f32[4] {
  ROOT %m = f32[4]{0} copy(%p.1)
}
%many (p.2: f32[4]) -> f32[4] {
  %p.2 = f32[4]{0} parameter(0)
  %o = f32[4]{0} copy(%p.2)
  ROOT %q = f32[4]{0} sort(%o), to_apply=%few
}
%graph (p.3: f32[4]) -> f32[4] {
  %p.3 = f32[4]{0} parameter(0)
  ROOT %k = f32[4]{0} reduce(%p.3), to_apply=%few
}
ENTRY %main (a: (s32[], f32[4]), b: pred[]) -> f32[4] {
  %a = (s32[], f32[4]{0}) parameter(0)
  %w1 = (s32[], f32[4]{0}) while(%a), condition=%asks, body=%body.1, metadata={op_name="f/known/while"}, backend_config={"known_trip_count":{"n":"7"}}
  %w2 = (s32[], f32[4]{0}) while(%w1), condition=%counts, body=%body.1, metadata={op_name="f/counts/while"}
  %w3 = (s32[], f32[4]{0}) while(%w2), condition=%asks, body=%body.1, metadata={op_name="f/asks/while"}
  %x1 = f32[4]{0} get-tuple-element(%w3), index=1
  %x2 = f32[4]{0} conditional(%b, %x1, %x1), true_computation=%few, false_computation=%many
  %x3 = f32[4]{0} conditional(%b, %x2, %x2), branch_computations={%few, %few}
  ROOT %x4 = f32[4]{0} call(%x3), to_apply=%graph
}
"""  # fmt: skip  # noqa: E501


def test_kernels_of_loops_branches_and_graphs_are_counted() -> None:
    module = Module(HLO)
    loops = {loop.name: (loop.trips, loop.each) for loop in module.loops()}
    moved = (16 + 16) + (16 + 16 + 8) + (16 + 16 + 16)  # bytes read and written by each
    each = Launches(kernels=3, num_bytes=moved)  # the fusion, the product, the copy
    assert loops == {
        "f/known/while": (7, each),
        "f/counts/while": (5, each),
        "f/asks/while": (None, each),
    }
    # A branch costs what the dearer one does, and waits; so does the loop of unknown length
    # `few` copies p.1, whose size the text lacks, so that only what it writes counts
    copies = (32 + 32) + 16 + 32
    assert module.launches == Launches(
        kernels=(7 + 5 + 1) * 3 + 2 + 1 + 1, waits=1 + 2, num_bytes=13 * moved + copies
    )


MOVING = """HloModule jit_f
%parts (p: f32[100,8], q: s32[], r: f32[100,8], n: f32[8]) -> (f32[100,8], f32[8]) {
  %p = f32[100,8]{1,0} parameter(0)
  %q = s32[] parameter(1)
  %r = f32[100,8]{1,0} parameter(2)
  %n = f32[8]{0} parameter(3)
  %z = s32[] constant(0)
  %v = f32[100,8]{1,0} bitcast(%p)
  %s = f32[1,8]{1,0} dynamic-slice(%v, %q, %z), dynamic_slice_sizes={1,8}
  %b = f32[8]{0} bitcast(%s)
  %t = f32[8]{0} tanh(%b)
  %m = f32[8]{0} multiply(%t, %n)
  %w = f32[1,8]{1,0} bitcast(%m)
  %u = f32[100,8]{1,0} dynamic-update-slice(%r, %w, %q, %z)
  ROOT %o = (f32[100,8]{1,0}, f32[8]{0}) tuple(%u, %t)
}
%whole (p.1: f32[100,8]) -> bf16[100] {
  %p.1 = f32[100,8]{1,0} parameter(0)
  %s.1 = f32[1,8]{1,0} slice(%p.1), slice={[0:1], [0:8]}
  %x = f32[100]{0} reduce(%p.1, %s.1), to_apply=%add
  ROOT %y = bf16[100]{0} convert(%x)
}
ENTRY %main (a: f32[100,8], b: f32[100,8], c: s32[], d: f32[8]) -> bf16[100] {
  %a = f32[100,8]{1,0} parameter(0)
  %b = f32[100,8]{1,0} parameter(1)
  %c = s32[] parameter(2)
  %d = f32[8]{0} parameter(3)
  %e = (f32[100,8]{1,0}, f32[8]{0}) fusion(%a, %c, %b, %d), kind=kLoop, calls=%parts
  %f = f32[100,8]{1,0} get-tuple-element(%e), index=0
  ROOT %g = bf16[100]{0} fusion(%f), kind=kInput, calls=%whole
}
"""


def test_slices_and_updates_in_place_move_only_their_bytes() -> None:
    """The first fusion reads a row, an index and `d`, and writes two rows; the second reads all."""
    parts = 32 + 4 + 0 + 32 + (32 + 32)
    whole = 3200 + 200
    assert Module(MOVING).launches == Launches(kernels=2, num_bytes=parts + whole)


def test_estimates_are_right_for_the_measured_rows() -> None:
    """Within a sixth of what an H200 did; the counts are those of its compiler for the rows."""
    measured = json.loads(MEASURED.read_text())
    assert len(measured["counts"]) >= 9
    for row, counts in measured["counts"].items():
        times = targets.durations(targets.CHIPS["h200"], *counts["update"], counts["precision"])
        estimate = counts["steps"] / sum(times.values())
        assert estimate == pytest.approx(counts["steps_per_second"], rel=1 / 6), row


@pytest.mark.slow
@pytest.mark.parametrize("row", ["S", "L"])
def test_counts_of_measured_rows_are_those_of_their_programs(row: str) -> None:
    """Up to what a later version of the program does better."""
    setting = accelerator.rows(small=False)[row].setting
    needs_compiler("h200")
    config = compose(setting.executable, [*setting.overrides, "arch.compile_cache=null"])
    found = Module(compiled_config("h200", config).call.as_text()).update().each
    kernels, num_bytes, _ = json.loads(MEASURED.read_text())["counts"][row]["update"]
    assert 0.5 * kernels < found.kernels < 1.1 * kernels
    assert 0.5 * num_bytes < found.num_bytes < 1.1 * num_bytes


COMMUNICATING = """HloModule jit_f
%add (l: f32[], r: f32[]) -> f32[] {
  ROOT %s = f32[] add(%l, %r)
}
%in_a_fusion (p: f32[4]) -> f32[16] {
  %p = f32[4]{0} parameter(0)
  ROOT %g.1 = f32[16]{0:T(128)S(1)} all-gather(%p), dimensions={0}
}
%minibatch (t: (s32[], f32[2,4])) -> (s32[], f32[2,4]) {
  %t = (s32[], f32[2,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[2,4]{1,0:T(2,128)S(1)} get-tuple-element(%t), index=1
  %b = bf16[3]{0} convert(%i)
  %r = (f32[2,4]{1,0}, /*index=1*/bf16[3]{0}) all-reduce(%x, /*index=1*/%b), to_apply=%add, metadata={op_name="f/while/step/psum"}
  %g = f32[2,4]{1,0} get-tuple-element(%r), index=0
  ROOT %o = (s32[], f32[2,4]{1,0}) tuple(%i, %g)
}
%update (u: (s32[], f32[2,4])) -> (s32[], f32[2,4]) {
  %u = (s32[], f32[2,4]{1,0}) parameter(0)
  %w = (s32[], f32[2,4]{1,0}) while(%u), condition=%asks, body=%minibatch, metadata={op_name="f/while/step"}, backend_config={"known_trip_count":{"n":"3"}}
  %i.1 = s32[] get-tuple-element(%w), index=0
  %q = pred[5]{0} compare(%i.1, %i.1), direction=LT
  %s.1 = (pred[5]{0}, pred[20]{0}) all-gather-start(pred[5]{0} %q), dimensions={0}
  %d.1 = pred[20]{0} all-gather-done(%s.1)
  %v = f32[4]{0} convert(%i.1)
  %f = f32[16]{0} fusion(%v), kind=kCustom, calls=%in_a_fusion
  %a.1 = ((f32[4]{0}), f32[16]{0}, u32[]) async-start(%v), calls=%in_a_fusion
  %a.2 = ((f32[4]{0}), f32[16]{0}, u32[]) async-update(%a.1), calls=%in_a_fusion
  %a.3 = f32[16]{0} async-done(%a.2), calls=%in_a_fusion
  ROOT %k = (s32[], f32[2,4]{1,0}) tuple(%i.1, %f)
}
ENTRY %main (a: (s32[], f32[2,4])) -> (s32[], f32[2,4]) {
  %a = (s32[], f32[2,4]{1,0}) parameter(0)
  ROOT %w.1 = (s32[], f32[2,4]{1,0}) while(%a), condition=%asks, body=%update, metadata={op_name="f/while"}
}
"""  # noqa: E501


def test_collectives_are_counted_once() -> None:
    update = Module(COMMUNICATING).update()
    # One reduces in each of 3 minibatches; one starts, one is fused, and one starts in a fusion
    assert update.each.collectives == 3 + 1 + 2
    assert update.each.kernels == 3 * 2 + 5  # the compared, converted, fused and two that start


def needs_compiler(target: str) -> None:
    platform = targets.chip_of(target).platform
    if not is_installed(devices.COMPILERS[platform]):
        pytest.skip(f"pip install '.[{targets.EXTRAS[platform]}]'")


@pytest.mark.long
@pytest.mark.parametrize("target, num", [("v5e:2x2", 4), ("h100:16", 16)])
def test_collectives_of_compiled_programs_are_counted(target: str, num: int) -> None:
    needs_compiler(target)

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jax.numpy.sin(jax.lax.psum(x, devices.AXIS)), None

    def update(_: int, x: jax.Array) -> jax.Array:
        x = jax.lax.scan(step, x, None, length=5)[0]
        return x / jax.lax.pmax(jax.numpy.sum(x), devices.AXIS)

    def train(x: jax.Array, num_updates: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, num_updates, update, x)

    with targets.compiling(target):
        given = jax.ShapeDtypeStruct((num, 6), "float32"), jax.ShapeDtypeStruct((num,), "int32")
        text = devices.parallel(train, num).lower(*given).compile().as_text()
    assert Module(text).update().each.collectives == 5 + 1


@pytest.mark.parametrize("installed, here, asked", [(True, False, ""), (True, True, ""), (
    False, False, ""), (True, False, "cpu,tpu")])  # fmt: skip
def test_the_platform_is_cpu_where_only_compilers_are(
    installed: bool, here: bool, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(devices, "is_installed", lambda _: installed)
    monkeypatch.setattr(devices, "may_have_accelerator", lambda: here)
    monkeypatch.setenv("JAX_PLATFORMS", asked)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    config = SimpleNamespace(jax_platforms=None, update=told.__setitem__)
    monkeypatch.setattr(devices.jax, "config", config)
    devices.prepare()
    assert told == ({"jax_platforms": "cpu"} if installed and not here and not asked else {})


SETTINGS = {
    "S": ["env=cartpole", "arch.total_num_envs=4", "system.num_minibatches=4"],
    "M": [
        *("env=cartpole", "arch.total_num_envs=1024", "system.num_minibatches=16"),
        *(f"network.{part}.layer_sizes=[256,256]" for part in ("actor_torso", "critic_torso")),
    ],
    "L": ["env=cartpole", "arch.total_num_envs=4096", "system.num_minibatches=16"],
    "L, fused": [
        *("env=cartpole", "arch.total_num_envs=4096", "system.num_minibatches=16"),
        "arch.fused=true",
    ],
    "16 members, fused": [
        *("env=cartpole", "arch.total_num_envs=4", "arch.num_seeds=16", "arch.fused=true")
    ],
    "16 members": ["env=cartpole", "arch.total_num_envs=4", "arch.num_seeds=16"],
    "CNN": ["env=breakout", "arch.total_num_envs=64", "system.num_minibatches=8"],
    "LSTM": ["env=cartpole", "network=lstm", "arch.total_num_envs=512"],
    "LSTM, fused": [
        *("env=cartpole", "network=lstm", "arch.total_num_envs=512", "arch.fused=true")
    ],
    "LRU": ["env=cartpole", "network=lru", "arch.total_num_envs=512"],
    "PQN": ["env=cartpole", "arch.total_num_envs=32"],
}
COMMANDS = {"LSTM": "rec_ppo", "LSTM, fused": "rec_ppo", "LRU": "rec_ppo", "PQN": "ff_pqn"}
MOST = {  # (target, setting) -> the most kernels of an environment step, of a minibatch
    ("h200", "S"): (12, 45),
    ("h200", "M"): (14, 55),
    ("h200", "L"): (14, 50),
    ("h200", "L, fused"): (13, 18),
    ("a100", "L, fused"): (13, 18),
    ("h200", "16 members, fused"): (11, 18),
    ("h200", "16 members"): (12, 45),
    ("h200", "CNN"): (28, 40),
    ("h200", "LSTM"): (20, 1000),
    ("h200", "LSTM, fused"): (20, 90),
    ("h200", "LRU"): (32, 350),
    ("h200", "PQN"): (20, 50),
    ("v5e", "S"): (45, 120),
    ("v5e", "M"): (60, 140),
    ("v5e", "16 members"): (45, 120),
    ("v5e", "CNN"): (100, 150),
    ("v5e", "LSTM"): (80, 3000),
}


def configure(target: str, setting: str) -> Config:
    """The configuration of a setting; skips where the compiler is missing."""
    needs_compiler(target)
    return compose(COMMANDS.get(setting, "ff_ppo"), overrides(setting))


def overrides(setting: str) -> list[str]:
    arch = ("arch.num_evaluation=1", "arch.compile_cache=null")
    return [*SETTINGS[setting], "system.rollout_length=32", *arch]


def compiled(target: str, setting: str, make: Any = compile_training) -> Program:
    return compiled_config(target, configure(target, setting), make)


def compiled_config(target: str, config: Config, make: Any = compile_training) -> Program:
    with targets.compiling(target):
        plan, system = prepare(config)
        assert plan.num_devices == math.prod(targets.shape_of(target))
        layout = Layout(plan, system, tuple(range(plan.num_members)))
        program: Program = make(layout, members(config))
    return program


def launches_few_kernels(
    found: dict[str, Any], step: int, minibatch: int, most_waits: int = 1
) -> None:
    assert 5 <= found["kernels_per_step"] <= step
    assert 12 <= found["kernels_per_minibatch"] <= minibatch
    assert found["kernels_per_update"] > 32 * found["kernels_per_step"]
    assert found["waits_per_update"] <= most_waits  # resets and loops do not wait for the host


@pytest.mark.slow
@pytest.mark.parametrize("target, setting", MOST)
def test_programs_for_accelerators_launch_few_kernels(target: str, setting: str) -> None:
    """Upper bounds, so that a change that would be slow there is seen here."""
    program = compiled(target, setting)
    found = targets.estimate(target, program.call.as_text(), program.matmul_flops, 1)
    launches_few_kernels(found, *MOST[target, setting])
    assert program.peak_bytes is not None
    assert program.peak_bytes < 2**30


@pytest.mark.long
def test_a_plan_for_gpus_that_are_not_here_counts_and_estimates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They exchange once a minibatch; the compiler of TPUs would move metrics out of the loop."""
    needs_compiler("h200")
    kept: list[Any] = []
    lines = planning.lines

    def keep(*given: Any) -> list[str]:
        kept.extend(given)
        return lines(*given)

    monkeypatch.setattr(planning, "lines", keep)
    planning.plan([*overrides("S"), "target=h200:4"])
    (found,) = kept
    launches_few_kernels(found, *MOST["h200", "S"], most_waits=5)  # of one GPU: 1
    assert found["collectives_per_minibatch"] == 1
    system = configure("h200", "S").system
    minibatches = system.epochs * system.num_minibatches
    assert minibatches < found["collectives_per_update"] <= minibatches + 8
    assert found["chip"] == "NVIDIA H200"
    assert found["launch_seconds"] > found["product_seconds"] > 0
    assert found["memory_seconds"] > 0
    assert 1e4 < found["estimated_steps_per_second"] < 1e8
    assert f"{found['kernels_per_update']:,}" in capsys.readouterr().out


@pytest.mark.long
def test_a_plan_says_what_a_run_needs_and_writes_nothing(
    cwd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(cwd)
    planning.plan([*CARTPOLE, "arch.num_updates=null", "arch.total_timesteps=100"])
    assert "128 steps" in capsys.readouterr().out
    assert not list(cwd.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("target", ["v5e:2x2", pytest.param("h100:16", marks=pytest.mark.slow)])
def test_members_on_chips_of_their_own_do_not_communicate(target: str) -> None:
    text = compiled(target, "16 members").call.as_text()
    assert Module(text).launches.collectives == 0
    if target == "v5e:2x2":
        launches_few_kernels(targets.estimate(target, text, None, 1), *MOST["v5e", "S"])


@pytest.mark.long
@pytest.mark.parametrize(
    "target, most", [("h200", 100), pytest.param("v5e", 300, marks=pytest.mark.slow)]
)
def test_accelerators_initialise_all_members_at_once(target: str, most: int) -> None:
    program = compiled(target, "16 members", compile_start)
    assert Module(program.call.as_text()).launches.kernels <= most  # in turn 611, 13,013


@pytest.mark.long
def test_a_program_that_its_compiler_refuses_is_one_line() -> None:
    config = configure("v5e", "L")
    sizes = {"total_num_envs": 2**21, "total_timesteps": None, "num_updates": 2}
    arch = dataclasses.replace(config.arch, **sizes)
    config = dataclasses.replace(
        config, arch=arch, system=dataclasses.replace(config.system, rollout_length=128)
    )

    @targets.compiling("v5e")
    def compile_it() -> None:
        plan, system = prepare(config)
        compile_training(Layout(plan, system, (0,)), members(config))

    with refused(r"^target=v5e"):
        compile_it()


@pytest.mark.long
def test_two_processes_compile_for_tpus_at_once() -> None:
    needs_compiler("v5e")
    asked = "targets.devices_of('v5e:2x2')"
    code = f"from jaxppo.extras.chips import targets; print(len({asked}), flush=True); input()"
    environment = {key: os.environ[key] for key in os.environ if "TPU" not in key}
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    given: dict[str, Any] = {"env": environment, "text": True, **pipes}
    started = [subprocess.Popen([sys.executable, "-c", code], **given) for _ in range(2)]
    assert [each.stdout.readline() for each in started] == 2 * ["4\n"]
    for each in started:
        each.communicate("\n")


def test_an_estimate_adds_launches_memory_and_products() -> None:
    """Of HLO's loop of unknown length: three kernels and 120 bytes."""
    seconds = 3 * 1.4e-6 + 120 / (0.75 * 4.8e12) + 10**12 / 494.7e12
    found = targets.estimate("h200", HLO, 10**12, 100)
    assert found["estimated_steps_per_second"] == pytest.approx(100 / seconds)
    for target, text in (("v5e", HLO), ("h200", HLO.replace("gemm", "__cudnn$convForward"))):
        assert targets.estimate(target, text, None, 100)["estimated_steps_per_second"] is None


@pytest.mark.parametrize("target, shape", [("v5e:2x4", (2, 4)), ("h100:64", (8, 8))])
def test_collectives_between_chips_are_counted(target: str, shape: tuple[int, ...]) -> None:
    assert targets.shape_of(target) == shape
    found = targets.estimate(target, COMMUNICATING, 0, 100)
    assert (found["num_chips"], found["collectives_per_update"]) == (math.prod(shape), 6)
    assert any(f"{math.prod(shape)} chips" in line for line in planning.lines(found))


@pytest.mark.long
def test_compilers_of_accelerators_are_silent_where_there_is_no_accelerator() -> None:
    if not any(map(is_installed, devices.COMPILERS.values())):
        pytest.skip("pip install '.[aot-cuda,aot-tpu]'")
    environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    code = "import jaxppo; jaxppo.compose(); import jax; assert jax.devices()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
