"""Builders that tests share."""

import contextlib
import copy
import dataclasses
import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from cli import command, cwd, home, launch, shell  # noqa: F401  fixtures
from killing import kill  # noqa: F401  a fixture
from programs import share_programs  # noqa: F401  a fixture

from jaxppo.config.fields import ConfigError
from jaxppo.config.parse import parse
from jaxppo.config.plan import Plan, plan
from jaxppo.config.schema import Config
from jaxppo.kernels.platforms import FORMS, forms
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.programs import build as building
from jaxppo.runtime.programs import compile
from jaxppo.runtime.programs.placement import Layout
from jaxppo.types import LearnerState, System

# Compiling is most of the time here: the commands that tests run compile with arch.compiler=quick's
# options, what tests compile themselves with fewer optimisations still.
jax.config.update("jax_disable_most_optimizations", True)
gc.set_threshold(200_000, 20, 100)  # tracing makes many objects; a sixth of the time was collecting
if not os.environ.get("JAX_PLATFORMS"):  # though compilers of accelerators may be installed
    jax.config.update("jax_platforms", "cpu")
XLA_FLAGS = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        *(f"--{key}={value}".lower() for key, value in compile.COMPILERS["quick"].items()),
        f"--xla_disable_hlo_passes={compile.UNUSED_PASS}",
    )
)
os.environ["XLA_FLAGS"] = XLA_FLAGS  # read when the first array is made
os.environ["XDG_STATE_HOME"] = os.devnull  # so that no run is trusted because a test trained it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a test with `long_but(number)` as long, but for so many."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long_but") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for each in cases.values():
        (number,) = each[0].get_closest_marker("long_but").args  # type: ignore[union-attr]
        last = len(each) - 1  # both ends, so that all parameters of a product have changed
        kept = {last, *(round(i * last / max(number - 1, 1)) for i in range(number - 1))}
        for i, item in enumerate(each):
            if i not in kept:
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", autouse=True)
def compile_once(pytestconfig: pytest.Config) -> None:
    """Programs that did not change are compiled once, for all processes and later sessions.

    They are in .pytest_cache, also without pytest's cache plugin. A program is found by what it is,
    the flags and the versions.
    """
    folder = pytestconfig.rootpath / ".pytest_cache" / "d" / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """Programs that a process holds take memory maps, of which Linux gives it 65,530.

    Those of single operations, such as `jnp.ones`, serve other modules too.
    """
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > 8_000:
        jax.clear_caches()
    gc.collect()


LAYERS = "jaxppo.networks"
MLP = {"_target_": f"{LAYERS}.torsos.MLP", "layer_sizes": [16], "activation": "tanh"}
NETWORK = {
    "input_layer": {"_target_": f"{LAYERS}.inputs.Flatten"},
    "actor_torso": MLP,
    "critic_torso": MLP,
    "critic_head": {"_target_": f"{LAYERS}.heads.ScalarHead"},
}
SMALL: dict[str, dict[str, Any]] = {
    "arch": {
        "total_num_envs": 4,
        "num_updates": 4,
        "num_evaluation": 2,
        "compile_cache": None,
        "evaluate_first": False,
    },
    "system": {
        **{"rollout_length": 8, "epochs": 2, "num_minibatches": 4},
        **{"normalize_rewards": False, "normalize_observations": False, "obs_norm_share": 1.0},
    },
    "env": {"name": None, "target": "envs.Clock"},
    "network": NETWORK,
}


def small_config(**changes: Any) -> Config:
    """A tiny run in `envs.Clock`; `changes` are `group={key: value}` or `group__key=value`."""
    raw = copy.deepcopy(SMALL)
    for name, value in changes.items():
        group, _, key = name.partition("__")
        raw.setdefault(group, {})
        raw[group] = {**raw[group], key: value} if key else {**raw[group], **value}
    return parse(raw)


def build(settings: Config) -> tuple[System, LearnerState, Plan]:
    """System, first state `[D=1, P=1, ...]` and plan of one device."""
    planned = plan(settings, 1)
    built = building.build(settings, planned)
    layout = Layout(planned, built, (0,))
    return built, layout.place(building.begin(built, [settings], planned)), planned


def alone(built: System, state: LearnerState) -> tuple[System, LearnerState]:
    """The phases' view: no mapped axes, one device, member and update batch."""
    return dataclasses.replace(built, axes=()), LearnerState(
        agent=jax.tree.map(lambda x: x[0, 0], state.agent),
        acting=jax.tree.map(lambda x: x[0, 0, 0], state.acting),
    )


def on_devices(num: int, script: str, *arguments: str) -> str:
    """What a script prints in a process of its own with `num` devices."""
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={
            **os.environ,
            "XLA_FLAGS": f"{XLA_FLAGS} --xla_force_host_platform_device_count={num}",
            "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}",
            "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels of GPUs on this CPU."""
    monkeypatch.setitem(FORMS, "cpu", dataclasses.replace(forms(), kernels="interpreted"))


@pytest.fixture
def small() -> Any:
    """`small(**changes)` to (system without axes, unmapped state)."""

    def make(**changes: Any) -> tuple[System, LearnerState]:
        built, state, _ = build(small_config(**changes))
        return alone(built, state)

    return make


def close(one: Any, other: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Assert that the leaves of two trees are equal, or so near; those of keys by their data."""
    pairs = zip(*map(jax.tree.leaves_with_path, (one, other)), strict=True)
    for (path, x), (other_path, y) in pairs:
        assert path == other_path
        x, y = (devices.data(leaf) if isinstance(leaf, jax.Array) else leaf for leaf in (x, y))
        assert np.shape(x) == np.shape(y), path
        np.testing.assert_allclose(x, y, rtol, atol, err_msg=jax.tree_util.keystr(path))


@contextlib.contextmanager
def refused(words: str, error: Any = ConfigError) -> Iterator[None]:
    """Expect an error of one line in which the regular expression is found."""
    with pytest.raises(error, match=words) as caught:
        yield
    assert "\n" not in str(caught.value)


def products_by_type(function: Callable[..., Any], *args: Any) -> dict[str, int]:
    """How many matrix products `function(*args)` computes, by the type of their factors."""
    jaxpr, found = jax.make_jaxpr(function)(*args).jaxpr, Counter[str]()

    def note(product: Any) -> int:
        found[product.invars[0].aval.dtype.name] += 1
        return 1

    compile.count_products(jaxpr, note)
    return dict(found)
