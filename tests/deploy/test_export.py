"""Exported policies act as they did, in a process that has jax and flatbuffers."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import LAYERS, refused, small_config
from runs import events_of, fresh

from jaxppo import export as command
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.config.stored import keep_config
from jaxppo.deploy import onnx
from jaxppo.deploy.export import Export
from jaxppo.deploy.policy import TrainedPolicy
from jaxppo.export import export
from jaxppo.runtime.run import loop
from jaxppo.types import PyTree

GRU = {"_target_": f"{LAYERS}.memory.Recurrent", "cell": "gru", "size": 8}
CONFIGS = {
    "continuous": small_config(
        env__target="envs.Aim", system={"rollout_length": 8, "normalize_observations": True}
    ),
    "recurrent": small_config(
        env__target="envs.Masked", network__actor_memory=GRU, system__sequence_length=4
    ),
}
BATCHES, STEPS = (1, 7), 3

# Plays every file of inputs in the folders it is given, and the example of their README.md.
ALONE = """
import os, re, sys
from pathlib import Path

ours = "jaxppo flax distrax optax chex gymnax orbax hydra omegaconf".split()
sys.modules.update(dict.fromkeys(ours))  # importing one of them raises ImportError

import jax
import jax.export
import numpy as np

def play(program, data):
    arguments, _ = jax.tree.unflatten(program.in_tree, program.in_avals)
    form = jax.tree.structure(arguments[0])
    call, memory, carry = jax.jit(program.call), len(arguments) > 2, ()
    if memory:
        b = data["reset"].shape[1]
        carry = jax.tree.map(lambda x: np.zeros((b, *x.shape[1:]), x.dtype), arguments[-2])
    actions = []
    for step, reset in enumerate(data["reset"]):
        leaves = [data[f"observation{i}"][step] for i in range(form.num_leaves)]
        given = [jax.tree.unflatten(form, leaves)]
        given += [data["key"][step]] * (len(arguments) % 2 == 0)
        given += [carry, reset] * memory
        action, carry = call(*given) if memory else (call(*given), ())
        actions.append(action)
    return jax.tree.leaves((actions, carry))

for folder in map(Path, sys.argv[1:]):
    for name in ("greedy", "sampled"):
        program = jax.export.deserialize(bytearray((folder / f"{name}.stablehlo").read_bytes()))
        for inputs in folder.glob("inputs*.npz"):
            np.savez(folder / f"{name}-{inputs.name}", *play(program, np.load(inputs)))
    os.chdir(folder)
    (example,) = re.findall("```python\\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    exec(example, {})
"""


def untrained(config: Config) -> TrainedPolicy:
    """A policy that depends on everything it sees."""
    made = fresh(config)
    params = jax.tree.map(
        lambda x: x + 0.5 * jax.random.normal(jax.random.key(x.size), x.shape), made.policy.params
    )
    return dataclasses.replace(
        made, steps=123, policy=dataclasses.replace(made.policy, params=params)
    )


def inputs(policy: TrainedPolicy, num: int) -> tuple[PyTree, jax.Array, jax.Array]:
    """Observations `[STEPS, num, O...]`, keys `[STEPS]` and resets `[STEPS, num]`."""
    keys = jax.random.split(jax.random.key(num), STEPS)
    rows = jax.vmap(lambda key: jax.random.split(key, num))(keys)
    observation = jax.vmap(lambda row: policy.system.env.reset(row)[1])(rows)
    opens = jax.random.bernoulli(jax.random.key(num), 0.4, (STEPS, num)).at[0].set(True)
    return observation, keys, opens


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `Clock` of two seeds and two blocks, after a warm-up."""
    path: Path = tmp_path_factory.mktemp("run")
    config = small_config(
        arch={"num_seeds": 2, "num_updates": 4, "num_evaluation": 2},
        system={"normalize_observations": True, "obs_norm_warmup_steps": 64},
        logger={"console": False, "plot": False},
    )
    loop.run(config, path)
    return path


@pytest.fixture(scope="module")
def policies() -> dict[str, TrainedPolicy]:
    return {name: untrained(config) for name, config in CONFIGS.items()}


@pytest.fixture(scope="module")
def exported(policies: dict[str, TrainedPolicy], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each policy, where a process without jaxppo has played."""
    parent = tmp_path_factory.mktemp("exported")
    for name, policy in policies.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Export, "load", lambda _, policy=policy: policy)
            export(Export(run="run", out=str(parent / name), platforms=["cpu", "tpu"]))
        for num in BATCHES:
            observation, keys, opens = inputs(policy, num)
            leaves = {f"observation{i}": x for i, x in enumerate(jax.tree.leaves(observation))}
            data = dict(key=jax.random.key_data(keys), reset=opens, **leaves)
            np.savez(parent / name / f"inputs{num}.npz", **data)
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, *(str(parent / name) for name in policies)],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env={**environment, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return parent


@pytest.mark.long
@pytest.mark.parametrize("function", ["greedy", "sampled"])
@pytest.mark.parametrize("name", CONFIGS)
def test_program_acts_as_the_policy_does(
    exported: Path, policies: dict[str, TrainedPolicy], name: str, function: str
) -> None:
    policy = policies[name]
    for num in BATCHES:
        observation, keys, opens = inputs(policy, num)
        actions, carry = [], policy.initial_carry(num)
        for step in range(STEPS):
            action, carry = policy.act(
                jax.tree.map(lambda x, step=step: x[step], observation),
                keys[step] if function == "sampled" else None,
                carry=carry,
                reset=opens[step],
            )
            actions.append(action)
        found = np.load(exported / name / f"{function}-inputs{num}.npz")
        for i, wanted in enumerate(jax.tree.leaves((actions, carry))):
            np.testing.assert_allclose(found[f"arr_{i}"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_facts_name_every_array(exported: Path) -> None:
    facts = json.loads((exported / "recurrent" / "policy.json").read_text())
    assert (facts["steps"], facts["platforms"]) == (123, ["cpu", "tpu"])
    sampled = facts["functions"]["sampled"]
    assert sampled["inputs"][:3] == [
        dict(name="observation['action_mask']", shape=["b", 5], dtype="bool", low=0, high=1),
        dict(name="observation['observation']", shape=["b", 5], dtype="float32", low=0, high=1),
        dict(name="key", shape=[2], dtype="uint32", low=None, high=None),
    ]
    assert [row["name"] for row in sampled["inputs"][3:]] == ["carry['actor_memory'][0]", "reset"]
    assert sampled["outputs"][0] == dict(name="action", shape=["b"], dtype="int32", low=0, high=4)
    assert facts["initial_carry"] == "zeros"
    facts = json.loads((exported / "continuous" / "policy.json").read_text())
    (action,) = facts["functions"]["greedy"]["outputs"]
    assert (action["low"], action["high"]) == ([-1, 0], [3, 10])
    assert facts["initial_carry"] is None


@pytest.mark.long
def test_command_exports_the_best_policy(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [f"run={run_dir}", "trust=[envs]", "platforms=[cpu,cpu,rocm]"]
    monkeypatch.setattr(sys, "argv", ["export", *arguments])
    for _ in range(2):  # again into the same folder
        command.main()
    facts = json.loads((run_dir / "export" / "policy.json").read_text())
    assert facts["platforms"] == ["cpu", "rocm"]
    assert facts["steps"] in (64, 128)
    assert sorted(path.name for path in (run_dir / "export").iterdir()) == [
        *("README.md", "greedy.stablehlo", "policy.json", "sampled.stablehlo")
    ]


@pytest.mark.long
def test_executables_train_as_the_run_did(run_dir: Path, tmp_path: Path) -> None:
    """In a process that has jax alone; of two seeds, and two blocks."""
    evaluations = [event for event in events_of(run_dir, "eval") if event["steps"]]
    export(Export(run=str(run_dir), what="executable", trust=["envs"], out=str(tmp_path)))
    blocked = "['jaxppo', 'flax', 'optax', 'flatbuffers']"
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); "
    code += "import runpy; runpy.run_path('load.py')"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    expected = [
        f"{event['steps']:,} steps: mean return {event['episode_return']:.2f}"
        for event in evaluations
    ]
    assert len(expected) == 2
    assert done.stdout.decode().splitlines() == expected


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"env__target": "simulators.Known", "arch__max_eval_steps": 8}, "what=executable"),
        (
            {"population": {
                "size": 2, "selection": "halving", "hyperparameters": {"actor_lr": [1e-4, 1e-3]}
            }},
            r"population\.selection=halving",
        ),
        ({}, "init_from=here"),
    ],
)  # fmt: skip
def test_runs_that_have_no_executables(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    config = small_config(**changes)
    begun = dataclasses.replace(config, init_from="here") if not changes else config
    keep_config(begun, tmp_path)
    with pytest.raises(ConfigError, match=f"^{key}"):
        export(Export(run=str(tmp_path), what="executable", trust=["simulators", "envs"]))


REFUSED = {
    "run=:": Export(),
    r"platforms=\[gpu\]:": Export(run="RUN", platforms=["gpu"]),
    r"platforms=\[\]:": Export(run="RUN", platforms=[]),
    "out=RUN:": Export(run="RUN", out="RUN"),
    "out=TAKEN:": Export(run="RUN", out="TAKEN"),
    "which=latest: .*what=policy": Export(run="RUN", what="executable", which="latest"),
    "platforms=.*what=policy": Export(run="RUN", what="executable", platforms=["tpu"]),
    "target=h200: .*what=executable": Export(run="RUN", target="h200"),
    "target=h300:": Export(run="RUN", what="executable", target="h300", trust=["envs"]),
    "run=TAKEN:": Export(run="TAKEN", what="executable"),
    r"env.target=envs.Clock:.*trust=\[envs\]": Export(run="RUN", what="executable"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_mistake_is_one_line(
    key: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "TAKEN").mkdir()
    (tmp_path / "TAKEN" / "README.md").touch()
    (tmp_path / "RUN").symlink_to(run_dir)
    monkeypatch.chdir(tmp_path)
    with refused(key):
        export(REFUSED[key])


def test_missing_library_is_named(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="flatbuffers"):
        export(Export(run=str(run_dir)))


LSTM = {"_target_": f"{LAYERS}.memory.Recurrent", "cell": "lstm", "size": 8}
ONNX = {
    **CONFIGS,
    "lstm": small_config(
        env__target="envs.Aim", network__actor_memory=LSTM, system__sequence_length=4
    ),
}


@pytest.mark.parametrize("name", ONNX)
def test_onnx_acts_as_the_policy(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In onnxruntime, for any batch size; and the policy itself still acts afterwards."""
    for package in ("onnxruntime", "jax2onnx"):
        pytest.importorskip(package, reason="pip install '.[onnx]'")
    from onnxruntime import InferenceSession

    policy = untrained(ONNX[name])
    monkeypatch.setattr(Export, "load", lambda _: policy)
    export(Export(run="run", out=str(tmp_path), what="onnx"))
    session = InferenceSession(tmp_path / "greedy.onnx")
    for num in BATCHES:
        observation, _, opens = inputs(policy, num)
        carry = policy.initial_carry(num)
        for step in range(STEPS):
            now = jax.tree.map(lambda x, step=step: np.asarray(x[step]), observation)
            given = {"observation": now}
            if jax.tree.leaves(carry):
                given |= {"carry": carry, "reset": np.asarray(opens[step])}
            leaves = dict(
                zip(onnx.names(given), map(np.asarray, jax.tree.leaves(given)), strict=True)
            )
            found = session.run(None, leaves)
            action, carry = policy.act(now, carry=carry, reset=opens[step])
            for x, y in zip(found, jax.tree.leaves((action, carry)), strict=True):
                assert x.dtype == y.dtype
                np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_onnx_names_what_it_cannot_convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complex numbers, which ONNX has not."""
    for package in ("onnxruntime", "jax2onnx"):
        pytest.importorskip(package, reason="pip install '.[onnx]'")
    lru = {"_target_": f"{LAYERS}.memory.LRU", "size": 8}
    config = small_config(
        env__target="envs.Aim", network__actor_memory=lru, system__sequence_length=4
    )
    monkeypatch.setattr(Export, "load", lambda _: fresh(config))
    with pytest.raises(ConfigError, match=r"what=onnx: acting in envs\.Aim"):
        export(Export(run="run", out=str(tmp_path), what="onnx"))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
@pytest.mark.parametrize("low, high", [(-np.inf, np.inf), (0, np.inf), (-np.inf, 1), ([0, 1], 1)])
def test_onnx_is_checked_with_integers_of_any_bounds(dtype: str, low: Any, high: Any) -> None:
    """Such as those of Jumanji, whose arrays have none."""
    ends = np.asarray(low, np.float64), np.asarray(high, np.float64)
    drawn = onnx.draw(np.random.default_rng(0), (64, 2), np.dtype(dtype), *ends)
    assert (drawn.dtype, drawn.shape) == (dtype, (64, 2))
    assert ((ends[0] <= drawn) & (drawn <= ends[1])).all()
    assert len(np.unique(drawn[:, 0])) > 1
    assert (drawn > 0).any()


def test_onnx_is_refused_where_it_would_be_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = np.linspace(-1, 1, 64, dtype=np.float32)
    assert onnx.compare(actions + 1e-5, actions) == ("floats", pytest.approx(1e-5, rel=0.01))
    few = np.arange(64) // 62  # two of them are 1
    assert onnx.compare(few, np.zeros(64, int)) == ("integers", 2 / 64)  # not "no difference"
    for found, wanted in (
        (actions + 0.01, actions),
        (actions * np.nan, actions),
        (np.arange(64) % 2, np.zeros(64, int)),
    ):
        with pytest.raises(ConfigError, match="what=onnx"):
            onnx.compare(found, wanted)
    monkeypatch.setattr(onnx, "is_installed", lambda module: False)
    with pytest.raises(ConfigError, match="jax2onnx"):
        onnx.export_onnx(fresh(CONFIGS["continuous"]), {}, tmp_path)
