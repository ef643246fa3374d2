"""Whole episodes of a policy: those of its evaluation, with what led to each action."""

import dataclasses
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import envs
import jax
import jax.numpy as jnp
import numpy as np
import own_heads
import pytest
from conftest import NETWORK
from runs import fresh, pqn, some

from jaxppo import evaluate
from jaxppo.algorithms.acting import unroll
from jaxppo.algorithms.actor_critic import ActorCritic
from jaxppo.algorithms.algorithm import Algorithm
from jaxppo.config.fields import ConfigError
from jaxppo.deploy import episodes
from jaxppo.deploy.episodes import Episode
from jaxppo.deploy.policy import TrainedPolicy, load
from jaxppo.extras import drawings
from jaxppo.ops.action_values import epsilon_greedy_log_prob
from jaxppo.ops.actions import parameters
from jaxppo.runtime.run import loop

OF_PQN: dict[str, Any] = {
    "arch": {"num_eval_episodes": 5},
    "system": {"normalize_observations": True},
    "env": {"target": "envs.Masked"},
}
KINDS = {
    "statistics": some("envs.Clock"),
    "memory": some("envs.Masked", memory=True),
    "continuous": some("envs.Aim"),
    "product": some("envs.Mixed"),
    "random_lengths": some("envs.Coin"),
    "pqn": pqn(**OF_PQN),
}
GREEDY = ("product",)


def policy_of(kind: str) -> TrainedPolicy:
    """A policy whose actions depend on what it sees; that of the product is greedy."""
    policy = fresh(KINDS[kind])
    params = {**policy.policy.params}
    head = "q_head" if "q_head" in params else "actor_head"
    params[head] = jax.tree.map(lambda x: 30 * x, params[head])
    system = dataclasses.replace(policy.system, evaluation_greedy=kind in GREEDY)
    exploration = jnp.float32(0.3) if head == "q_head" else policy.policy.exploration
    acting = dataclasses.replace(policy.policy, params=params, exploration=exploration)
    return dataclasses.replace(policy, policy=acting, system=system)


@cache
def recorded(kind: str) -> list[Episode]:
    return policy_of(kind).play(episodes=7)  # five at once


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes span several chunks."""
    monkeypatch.setattr(episodes, "CHUNK", 2)


@pytest.mark.parametrize(
    "kind",
    [
        *("statistics", "random_lengths"),
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("memory", "product", "pqn")),
    ],
)
def test_they_are_the_episodes_of_the_evaluation(kind: str) -> None:
    found = recorded(kind)
    wanted = policy_of(kind).evaluate(7)
    np.testing.assert_array_equal([e.episode_return for e in found], wanted.returns)
    np.testing.assert_array_equal([e.length for e in found], wanted.lengths)
    np.testing.assert_array_equal([e.finished for e in found], wanted.finished)
    for each in found:
        assert np.sum(each.rewards, dtype=np.float64) == pytest.approx(each.episode_return)
        ends = each.terminated | each.truncated
        np.testing.assert_array_equal(ends, np.arange(each.length) == each.length - 1)


def test_observations_are_those_before_the_actions_and_the_last_one_is_kept() -> None:
    for each in recorded("statistics"):
        start = each.observations[0, 1]
        np.testing.assert_array_equal(each.observations[:, 0], np.arange(5))
        np.testing.assert_array_equal(each.observations[:, 1], start)
        np.testing.assert_array_equal(each.final_observation, [5.0, start])
        np.testing.assert_array_equal(each.rewards, np.arange(1, 6))
        np.testing.assert_array_equal(each.truncated, [False] * 4 + [True])
        assert not each.terminated.any()
    assert len({each.observations[0, 1] for each in recorded("statistics")}) == 7


def test_unfinished_episodes_end_at_the_bound() -> None:
    policy = policy_of("statistics")
    system = dataclasses.replace(policy.system, max_eval_steps=3)
    for each in dataclasses.replace(policy, system=system).play(episodes=2):
        assert (each.length, each.finished, each.episode_return) == (3, False, 6.0)
        assert not (each.terminated | each.truncated).any()
        assert each.final_observation[0] == 3.0


# What the policy computed


def log_softmax(logits: Any) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


def chosen(logits: Any, actions: Any) -> np.ndarray:
    """Log-probabilities of components, summed: `[T]`."""
    each = np.take_along_axis(log_softmax(logits), np.asarray(actions)[..., None], -1)
    return each.reshape(len(each), -1).sum(-1)


def tanh_normal(loc: Any, scale: Any, u: Any) -> tuple[np.ndarray, np.ndarray]:
    """Log-densities `[T]` and actions of `envs.Aim`, from the definition."""
    loc, scale, u = (np.asarray(x, np.float64) for x in (loc, scale, u))
    low, high = np.array(envs.Aim.low), np.array(envs.Aim.high)
    density = -0.5 * ((u - loc) / scale) ** 2 - np.log(scale * np.sqrt(2 * np.pi))
    slope = (high - low) / 2 / np.cosh(u) ** 2
    return (density - np.log(slope)).sum(-1), low + (high - low) * (np.tanh(u) + 1) / 2


@pytest.mark.parametrize("kind", ["statistics", pytest.param("memory", marks=pytest.mark.long)])
def test_log_probs_are_those_of_the_recorded_logits(kind: str) -> None:
    for each in recorded(kind):
        assert each.raw_actions is None
        logits = each.distribution["logits"]
        np.testing.assert_allclose(each.log_probs, chosen(logits, each.actions), 1e-5, 1e-6)
        log_p = log_softmax(logits)
        entropy = -(np.exp(log_p) * log_p).reshape(each.length, -1).sum(-1)
        np.testing.assert_allclose(each.entropies, entropy, 1e-5, 1e-6)
        if kind == "memory":
            legal = each.observations["action_mask"]
            assert (np.exp(log_p)[~legal] == 0).all()


@pytest.mark.long
def test_parts_of_a_product_have_their_own_parameters() -> None:
    for each in recorded("product"):
        parts, raw = each.distribution, each.raw_actions
        log_prob = chosen(parts["move"]["logits"], raw["move"])
        density, aimed = tanh_normal(parts["aim"]["loc"], parts["aim"]["scale"], raw["aim"])
        log_prob += density
        np.testing.assert_allclose(each.actions["aim"], aimed, 1e-5, 1e-5)
        np.testing.assert_array_equal(raw["aim"], parts["aim"]["loc"])  # greedy
        np.testing.assert_array_equal(raw["move"], parts["move"]["logits"].argmax(-1))
        log_prob += chosen(parts["more"]["0"]["logits"], raw["more"][0])
        log_prob += chosen(parts["more"]["1"]["logits"], raw["more"][1])
        np.testing.assert_allclose(each.log_probs, log_prob, 1e-4, 1e-5)


@pytest.mark.long
def test_pqn_has_its_q_values() -> None:
    policy = policy_of("pqn")
    for each in recorded("pqn"):
        obs = jax.tree.map(lambda x: x[:, None], each.observations)
        reset = jnp.zeros((each.length, 1), bool)
        _, output = unroll(policy.system, policy.policy, policy.initial_carry(1), obs, reset)
        q, legal = each.distribution["q_values"], each.observations["action_mask"]
        np.testing.assert_allclose(q[legal], output.estimate.mean()[:, 0, 0][legal], 1e-5, 1e-6)
        assert (q[~legal] == -np.inf).all()
        np.testing.assert_array_equal(each.values, q.max(-1))
        is_best = each.actions == q.argmax(-1)
        wanted = np.log(0.3 / legal.sum(-1) + 0.7 * is_best)
        np.testing.assert_allclose(each.log_probs, wanted, 1e-5, 1e-6)


def test_epsilon_greedy_log_probs_of_all_actions_sum_to_one() -> None:
    q = jnp.asarray(np.random.default_rng(0).normal(size=(6, 1, 4)), jnp.float32)
    legal = jnp.asarray([[[True, True, False, True]]] * 6)
    each = [
        epsilon_greedy_log_prob(q, legal, jnp.float32(0.3), jnp.full((6, 1), a)) for a in range(4)
    ]
    np.testing.assert_allclose(np.exp(each).sum(0), 1.0, rtol=1e-6)
    assert np.isneginf(each[2]).all()
    np.testing.assert_allclose(np.exp(each).max(0), 0.7 + 0.3 / 3, rtol=1e-6)


@pytest.mark.parametrize("kind", ["statistics", pytest.param("memory", marks=pytest.mark.long)])
def test_values_are_those_of_the_critic(kind: str) -> None:
    """Applied to the whole episode, with its memory and the statistics of training."""
    policy = policy_of(kind)
    for each in recorded(kind):
        obs = jax.tree.map(lambda x: x[:, None], each.observations)
        reset = jnp.arange(each.length)[:, None] == 0
        _, output = unroll(policy.system, policy.policy, policy.initial_carry(1), obs, reset)
        np.testing.assert_allclose(each.values, output.value.mean()[:, 0], 1e-4, 1e-5)
        logits = output.distribution.logits[:, 0]
        np.testing.assert_allclose(each.distribution["logits"], logits, 1e-4, 1e-5)


def test_describing_observations_gives_what_was_recorded() -> None:
    policy, each = policy_of("statistics"), recorded("statistics")[0]
    for found, wanted in (
        (policy.describe(each.observations), lambda x: x),
        (policy.describe(each.observations[3]), lambda x: x[3]),
    ):
        np.testing.assert_allclose(found.values, wanted(each.values), 1e-4, 1e-5)
        logits = found.distribution["logits"]
        np.testing.assert_allclose(logits, wanted(each.distribution["logits"]), 1e-4, 1e-5)


@pytest.mark.parametrize(
    "head, names",
    [
        (own_heads.Normal(None, broadcast=False), {"loc", "scale"}),
        (own_heads.Multivariate(None), {"loc", "scale_diag"}),
        (own_heads.Squashed(None), {"loc", "scale_diag"}),
    ],
)
def test_distributions_of_distrax_have_their_parameters(head: Any, names: set[str]) -> None:
    head = head.clone(action_space=envs.Aim().action_space(envs.Params()))
    found, _ = head.init_with_output(jax.random.key(0), jnp.ones((2, 3, 4)))
    arrays = parameters(found, (2, 3))
    assert names <= set(arrays)
    assert {x.shape for name, x in arrays.items() if name in names} == {(2, 3, 2)}


def test_an_algorithm_that_describes_nothing_is_recorded_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ActorCritic, "describe", Algorithm.describe)
    found = policy_of("statistics").play(episodes=2)
    assert found[0].values is None
    assert found[0].distribution == {}
    episodes.write(tmp_path / "e.npz", found)
    with np.load(tmp_path / "e.npz") as file:
        assert set(file) == {
            *("observations", "final_observations", "actions", "rewards", "terminated"),
            *("truncated", "returns", "lengths", "starts", "finished"),
        }


# Another environment


@pytest.mark.long
def test_another_environment_is_given_as_settings_or_as_an_object() -> None:
    policy = policy_of("statistics")
    (longer,) = policy.play({"params": {"max_steps_in_episode": 8}}, episodes=1)
    assert longer.length == 8
    (other,) = policy.play((envs.Clock(), envs.Params(max_steps_in_episode=3)), episodes=1)
    assert other.length == 3
    assert policy.play(episodes=1)[0].length == 5


@pytest.mark.parametrize(
    "call, words",
    [
        ({"episodes": 0}, "^episodes=0: "),
        ({"env": "cartpole"}, "^env=cartpole: "),
        ({"env": {"parms": {}}}, r"^env\.parms: "),
        ({"env": envs.Copy()}, r"^env=.*observation_space"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(call: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        policy_of("statistics").play(**call)
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_actions_with_other_bounds_are_stretched_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="actions are stretched"):
        (far,) = policy_of("continuous").play(envs.FarAim(), episodes=1)
    (near,) = policy_of("continuous").play(envs.Aim(), episodes=1)
    np.testing.assert_allclose(far.actions[0], near.actions[0] * [1, 2], rtol=1e-5)


# The file


def test_file_holds_the_episodes_one_after_another(tmp_path: Path) -> None:
    found = recorded("random_lengths")
    episodes.write(tmp_path / "e.npz", found)
    with np.load(tmp_path / "e.npz") as file:
        assert file["observations"].shape == (sum(e.length for e in found), 1)
        assert file["distribution/logits"].shape == (len(file["observations"]), 2)
        for i, each in enumerate(found):
            rows = slice(file["starts"][i], file["starts"][i] + file["lengths"][i])
            for name in ("observations", "actions", "rewards", "values", "log_probs", "terminated"):
                np.testing.assert_array_equal(file[name][rows], getattr(each, name))
            np.testing.assert_array_equal(file["final_observations"][i], each.final_observation)
            assert file["returns"][i] == each.episode_return
    assert [path.name for path in tmp_path.iterdir()] == ["e.npz"]


def test_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e.npz").write_text("before")
    monkeypatch.setattr(np.lib.format, "write_array", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        episodes.write(tmp_path / "e.npz", recorded("statistics"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with several seeds and nested observations."""
    folder = tmp_path_factory.mktemp("run")
    arch = {"num_seeds": 2, "num_updates": 2, "num_evaluation": 1, "absolute_metric": False}
    config = some("envs.Echo", arch=arch, system={"num_minibatches": 1}, network=NETWORK)
    loop.run(config, folder)
    return folder


@pytest.mark.long
def test_command_records_what_it_prints(
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "e.npz"
    arguments = [f"run={run_dir}", "seed=43", "episodes=12", "trust=[envs]", "greedy=true"]
    told = []
    for more in ([], [f"record={file}"]):
        monkeypatch.setattr(sys, "argv", ["evaluate", *arguments, *more])
        evaluate.main()
        told.append(capsys.readouterr().out.splitlines())
    assert told[1] == [*told[0], f"{file}: 12 steps"]
    with np.load(file) as arrays:
        assert {"observations/count", "observations/shown", "final_observations/shown"} <= set(
            arrays
        )
        assert arrays["observations/count"].shape == (12, 2)
        match = re.search(r"return (\S+) \(", told[0][1])
        assert match is not None
        assert f"{arrays['returns'].mean():.2f}" == match[1]
        policy = load(run_dir, seed=43, trust=["envs"])
        system = dataclasses.replace(policy.system, evaluation_greedy=True)
        wanted = dataclasses.replace(policy, system=system).evaluate(12)
        np.testing.assert_array_equal(arrays["returns"], wanted.returns)


def test_a_file_that_cannot_be_written_is_refused_before_playing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npz").mkdir()
    for record in ("episodes", "none/e.npz", "folder.npz"):
        monkeypatch.setattr(sys, "argv", ["evaluate", "run=run", f"record={record}"])
        (tmp_path / "run").mkdir(exist_ok=True)
        with pytest.raises(SystemExit) as caught:
            evaluate.main()
        assert caught.value.code == 2
        assert capsys.readouterr().err.startswith(f"record={record}: ")


# The pictures beside a film


def some_episode(num_steps: int, **changes: Any) -> Episode:
    blank = np.zeros(num_steps, np.float32)
    nothing = dict.fromkeys(("raw_actions", "values", "log_probs", "entropies"))
    given: dict[str, Any] = {
        **nothing,
        "observations": blank,
        "final_observation": blank[0],
        "actions": np.zeros(num_steps, np.int32),
        "rewards": blank,
        "terminated": blank > 0,
        "truncated": blank > 0,
        "distribution": {},
        "episode_return": 0.0,
        "finished": True,
    }
    return Episode(**{**given, **changes})


def test_a_panel_is_drawn_beside_a_frame() -> None:
    panel = drawings.Panel.of(some_episode(101, values=np.linspace(0, 1, 101)), 120)
    assert panel is not None
    frame = np.full((120, 50, 3), 7, np.uint8)
    pictures = [panel.beside(frame, step) for step in (0, 100, 101)]
    for picture in pictures:
        assert picture.shape == (120, 50 + drawings.PANEL, 3)
        np.testing.assert_array_equal(picture[:, :50], frame)
    assert not np.array_equal(pictures[0], pictures[1])
    np.testing.assert_array_equal(pictures[1], pictures[2])  # after the last action it stays


@pytest.mark.parametrize(
    "distribution, num_plots",
    [
        ({"loc": np.zeros((9, 2)), "scale": np.ones((9, 2))}, 2),
        ({"loc": np.zeros((9, 30)), "scale": np.ones((9, 30))}, 1),  # too many to tell apart
        ({"q_values": np.where(np.arange(6) == 4, -np.inf, 1.0) * np.ones((9, 1))}, 2),
        ({"logits": np.zeros((9, 500))}, 1),
        ({"move": {"logits": np.zeros((9, 2))}, "more": {"0": {"logits": np.ones((9, 3, 2))}}}, 3),
    ],
)
def test_what_is_drawn(distribution: Any, num_plots: int) -> None:
    parts = {"move": np.zeros(9, int), "more": (np.ones((9, 3), int),)}
    changes = {"actions": parts} if "move" in distribution else {}
    episode = some_episode(9, values=np.zeros(9), distribution=distribution, **changes)
    panel = drawings.Panel.of(episode, 100)
    assert panel is not None
    assert len(panel.rows) == num_plots
