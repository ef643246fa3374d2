"""Costs of programs, and the cache on disk."""

import gc
import hashlib
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config

from jaxppo import clear_cache
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import ArchConfig
from jaxppo.runtime.hosts import cgroups, devices
from jaxppo.runtime.programs import compile, population, program_cache
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.run import compiling, jobs


def loops(x: jax.Array, w: jax.Array) -> jax.Array:
    def inner(x: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return x @ w, None

    def outer(i: jax.Array, x: jax.Array) -> jax.Array:
        x = jax.lax.scan(inner, x, None, length=5)[0]
        return jax.lax.cond(x.sum() > 0, lambda: x @ w @ w, lambda: x)

    return jax.lax.fori_loop(0, jnp.argmax(x), outer, x)


def flops(function: Callable[..., Any], *args: jax.Array) -> int:
    return compile.compile_program(function, *args).matmul_flops


def test_flops_multiply_scans_take_the_costlier_branch_and_unknown_loops_once() -> None:
    x, w = jnp.ones((1, 8, 16)), jnp.ones((1, 16, 16))
    program = compile.compile_program(loops, x, w)
    assert program.matmul_flops == (5 + 2) * 2 * 8 * 16 * 16
    assert program.seconds > 0
    assert program.peak_bytes >= x.nbytes + w.nbytes


def test_flops_of_gradients_and_convolutions_and_of_what_no_result_needs() -> None:
    x, w = jnp.ones((1, 8, 16)), jnp.ones((1, 16, 16))
    once = 2 * 8 * 16 * 16

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum((x @ w) ** 2)

    assert flops(loss, w, x) == once
    assert flops(jax.grad(loss, argnums=(0, 1)), w, x) == 3 * once

    def two(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x @ w, x @ w @ w

    def program(x: jax.Array, w: jax.Array) -> jax.Array:
        def turn(_: Any, x: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, _: (two(x, w)[0], None), x, length=3)[0]

        return jax.lax.fori_loop(0, jnp.argmax(x), turn, x)

    assert flops(program, x, w) == 3 * once

    def convolve(x: jax.Array, k: jax.Array) -> jax.Array:
        names = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=names)

    images, kernel = jnp.ones((1, 2, 10, 10, 4)), jnp.ones((1, 3, 3, 4, 16))
    assert flops(convolve, images, kernel) == 2 * (2 * 8 * 8 * 16) * (3 * 3 * 4)


def test_what_cannot_be_counted_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count reads parts of JAX that may move: no run has to end for it."""

    def moved(*_: Any) -> None:
        raise AttributeError("module 'jax.interpreters.partial_eval' has no attribute")

    monkeypatch.setattr(compile, "count_products", moved)
    x, w = jnp.ones((1, 8, 16)), jnp.ones((1, 16, 16))
    program = compile.compile_program(loops, x, w)
    assert program.matmul_flops is None
    assert program.call(x, w).shape == (1, 8, 16)


CGROUPS = {
    "version 2": ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "3000"}, [3000]),
    "version 1": (
        "4:cpu:/x\n3:memory:/a\n0::/\n",
        {"memory/a/memory.limit_in_bytes": "500", "memory/memory.limit_in_bytes": "9000"},
        [500, 9000],
    ),
    "without limits": ("0::/a\n", {}, []),
}


QUOTAS = {
    "version 2": ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, [1.5]),
    "version 1": (
        "4:cpu,cpuacct:/a\n0::/\n",
        {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "25000"}
        | {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        [2.0],
    ),
}


@pytest.mark.parametrize("case", [*CGROUPS.values(), *QUOTAS.values()])
def test_limits_and_quotas_of_control_groups(tmp_path: Path, case: Any) -> None:
    told, files, expected = case
    (tmp_path / "self").write_text(told)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    limits = cgroups.memory_limits if case in CGROUPS.values() else cgroups.core_limits
    assert limits(tmp_path / "self", tmp_path) == expected


def test_machine_names_the_cores_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cgroups, "core_limits", lambda: [])
    assert devices.machine().startswith("8 cores of ")
    monkeypatch.setattr(cgroups, "core_limits", lambda: [16.0, 2.5])
    assert devices.machine().startswith("3 cores of ")


def test_the_memory_limit_is_shared_by_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    device = jax.local_devices()[0]
    before = compile.memory_limit(device, 1)
    assert before is not None
    assert before > 2**28
    assert compile.memory_limit(device, 2) == before // 2
    monkeypatch.setattr(cgroups, "memory_limits", lambda: [2**20])
    assert compile.memory_limit(device, 1) == 2**20


def test_tracing_is_not_searched_for_garbage() -> None:
    searched = []

    def note(x: jax.Array) -> jax.Array:
        searched.append(gc.isenabled())
        return x

    compile.compile_program(note, jnp.ones(1))
    assert searched == [False]
    assert gc.isenabled()


def entry(folder: Path, name: str, data: bytes, read: float = 0.0) -> Path:
    """An entry that was written, and last read, long ago."""
    path = folder / f"{name}-{hashlib.sha256(name.encode()).hexdigest()}-cache"
    path.write_bytes(data)
    os.utime(path, (1000.0 + read, 1000.0))
    return path


ENTRY = zlib.compress(np.random.default_rng(0).bytes(1000))


def others_files(folder: Path) -> set[str]:
    """What other programs may keep in a folder such as ~/.cache; return the names."""
    (folder / "notes").write_text("of somebody else")
    (folder / "npm-cache").write_text("too")
    (folder / f"jit_f-{'0' * 64}-cache").mkdir()
    os.mkfifo(folder / f"jit_g-{'0' * 64}-cache")  # would never end
    return {path.name for path in folder.iterdir()}


def test_damaged_programs_are_deleted_once_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tend, others = program_cache.tend.__wrapped__, others_files(tmp_path)
    whole = entry(tmp_path, "jit_whole", ENTRY)
    for number, data in enumerate((b"", ENTRY[:-1], ENTRY[:500], bytes(1000))):
        entry(tmp_path, f"jit_damaged_{number}", data)
    with monkeypatch.context() as patch:  # a check that was interrupted is repeated
        patch.setattr(program_cache, "_is_whole", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tend(tmp_path, -1)
    tend(tmp_path, -1)
    assert {path.name for path in tmp_path.iterdir()} == {whole.name, ".checked", *others}
    unchanged = entry(tmp_path, "jit_older", ENTRY[:-1])  # is not read again
    tend(tmp_path, -1)
    assert unchanged.exists()
    unchanged.write_bytes(ENTRY[:-1])
    tend(tmp_path, -1)
    assert not unchanged.exists()


def test_programs_that_were_read_longest_ago_make_room(tmp_path: Path) -> None:
    size = len(ENTRY)
    for number, read in enumerate((5, 1, 4, 2, 3)):
        entry(tmp_path, str(number), ENTRY, read)
    for limit, left in ((5, {"0", "1", "2", "3", "4"}), (4, {"0", "2", "4"}), (0, {"0", "2", "4"})):
        program_cache.tend.__wrapped__(tmp_path, limit * size)
        names = {path.name.partition("-")[0] for path in tmp_path.glob("*-cache")}
        assert names == left


def test_a_folder_is_cleared_of_programs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = others_files(tmp_path)
    for number in range(3):
        entry(tmp_path, str(number), ENTRY)
    program_cache.tend.__wrapped__(tmp_path, -1)
    for folder, count in ((tmp_path, 3), (tmp_path / "nowhere", 0)):
        monkeypatch.setattr(sys, "argv", ["", f"folder={folder}"])
        clear_cache.main()
        assert capsys.readouterr().out.startswith(f"{folder}: {count} programs of 0.0 MB")
    assert {path.name for path in tmp_path.iterdir()} == others


def test_the_folder_of_caches_is_that_of_the_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    for home, folder in (("/big", "/big/jaxppo"), ("", None), ("relative", None)):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        assert program_cache.path_of("~/.cache/jaxppo") == (folder or "~/.cache/jaxppo")
        assert program_cache.path_of("/own") == "/own"


def test_a_cache_that_cannot_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"arch\.compile_cache"):
        program_cache.use(str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/somewhere")
    program_cache.use("/other")


COMPILES = """
import sys, jax
from jaxppo.runtime.programs import program_cache
program_cache.use(sys.argv[1])
jax.jit(lambda x: x + 1)(2)
"""


@pytest.mark.long
def test_a_damaged_program_is_compiled_again_and_kept(tmp_path: Path) -> None:
    """Without a warning; also with a limit, for which JAX's own cache needs another package."""
    environment = {**os.environ, "JAX_COMPILATION_CACHE_MAX_SIZE": "1000000"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-W", "error", "-c", COMPILES, str(tmp_path)]
    sizes = []
    for _ in range(2):
        subprocess.run(command, env=environment, check=True)
        entries = list(tmp_path.glob("*-cache"))
        sizes.append({path.name: path.stat().st_size for path in entries})
        for path in entries:
            os.truncate(path, path.stat().st_size // 2)
    assert sizes[0]
    assert sizes == [sizes[0]] * 2


LEARN = """
import jax, jax.numpy as jnp, numpy as np
from benchmarks.speed import Setting, Timed
from jaxppo.runtime.programs import compile
total, x = lambda x: jnp.sum(jnp.exp(-x) * x), jnp.ones((1, 128))
plain = jax.jit(total).lower(x[0]).compile()
for program in (plain, compile.compile_program(total, x).call):
    print("reduce-window(" in program.as_text())
setting = Setting(["arch.total_num_envs=64", "system.rollout_length=32"], 2048)
learnt = {}
for compiler in ("thorough", "quick"):
    timed = Timed(setting, f"arch.compiler={compiler}")
    before = jax.device_get(timed.state.agent.policy.params)
    timed.block()
    after = jax.device_get(timed.state.agent.policy.params)
    learnt[compiler] = [b - a for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after))]
    print("wrapped_log" in timed.program.call.as_text())
pairs = list(zip(*learnt.values(), strict=True))
print(all(np.allclose(a, b, atol=1e-5) and np.abs(a).max() > 1e-3 for a, b in pairs))
"""


@pytest.mark.long
def test_an_agent_learns_the_same_of_either_compiler() -> None:
    """The one test of the learner that is compiled as users' runs are: see conftest.py.

    A small sum is one kernel: without the option it has a window.
    """
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", LEARN], env=environment, capture_output=True, text=True, check=True
    )
    words = ["True", "False", "True", str(not compile.HAS_OLD_GENERATOR), "True"]
    assert done.stdout.split() == words


def test_passes_that_a_user_disables_are_the_only_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_disable_hlo_passes=cse")
    assert compile.options("thorough", "cpu") == {}
    monkeypatch.setenv("XLA_FLAGS", "")
    assert compile.options("thorough", "cpu") == {"xla_disable_hlo_passes": compile.UNUSED_PASS}


def test_a_quick_compiler_is_refused_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "platform", lambda: "gpu")
    compile.check(ArchConfig())
    assert compile.options("quick", "gpu") == {}
    with pytest.raises(ConfigError, match=r"arch\.compiler=quick"):
        compile.check(ArchConfig(compiler="quick"))


@pytest.mark.long_but(1)
@pytest.mark.parametrize("members, layer", [(2, "GRU"), (1, "GTrXL"), (1, None)])
def test_a_rollout_needs_at_least_what_is_known_before_its_program(
    members: int, layer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where a device has less, nothing is compiled."""
    kind = {"GRU": "memory.Recurrent", "GTrXL": "transformer.GTrXL"}.get(layer or "")
    size = {"cell": "gru", "size": 64} if layer == "GRU" else {"size": 64, "window": 16}
    memory = {"_target_": f"jaxppo.networks.{kind}", **size} if kind else None
    network = {"actor_memory": memory, "critic_memory": memory}
    system = {"sequence_length": None} if memory else {}
    config = small_config(network=network, arch={"num_seeds": members}, system=system)
    planned = jobs.plan_members(config, members)
    layout = Layout(planned, jobs.build.build(config, planned), tuple(range(members)))
    every = population.members(config)
    obs, carry = compiling.rollout_bytes(layout)
    per_env = {None: 0, "GRU": 2 * 64 * 4, "GTrXL": carry // (32 * members)}[layer]
    assert (obs, carry) == (32 * members * 2 * 4, 32 * members * per_env)
    assert (carry > 0) == (layer is not None)
    if layer == "GTrXL":
        assert carry >= 32 * 2 * 2 * 16 * 64 * 4
    monkeypatch.setattr(compile, "memory_limit", lambda *_: obs + carry - 1)
    with monkeypatch.context() as patch:
        patch.setattr(compile, "compile_program", None)
        with pytest.raises(ConfigError, match=r"system\.rollout_length=8"):
            compiling.compile_programs(layout, every)
    program = compiling.compile_training(layout, every)
    assert program.peak_bytes is not None
    assert program.peak_bytes >= obs + carry
