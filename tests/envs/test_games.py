"""Games of two players: seats, signs, opponents, random starts, and what is learnt."""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import own_games
import pytest
from conftest import LAYERS, NETWORK, alone, build, on_devices, small_config
from gymnax.environments import spaces
from runs import EACH_TIME, MEMORY, QUIET, fresh

import jaxppo
from benchmarks import games
from jaxppo import envs
from jaxppo.algorithms.acting import act, collect, with_opponents
from jaxppo.algorithms.opponents import update_pool
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import EnvConfig
from jaxppo.launch.composing import compose
from jaxppo.ops.aggregates import share_interval
from jaxppo.runtime.programs import opponents as of_runs
from jaxppo.runtime.programs.build import build_alone
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.run.loop import run
from jaxppo.runtime.run.selection import Selection

TOLD = ["win:share", "draw:share", "loss:share"]


def make(target: str = "TicTacToe", **settings: Any) -> Any:
    return envs.make(EnvConfig(target=f"own_games.{target}", metrics=TOLD, **settings))


def play(env: Any, num: int, steps: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Random legal actions; states, actions and time steps, `[T, B, ...]`, in NumPy."""

    def advance(carry: Any, key: jax.Array) -> Any:
        state, obs = carry
        keys = jax.random.split(key, num + 1)
        action = jax.random.categorical(keys[0], jnp.where(obs["action_mask"], 0.0, -jnp.inf))
        after, step = env.step(keys[1:], state, action)
        return (after, step.obs), (state, obs, action, step)

    def whole(key: jax.Array) -> Any:
        start = env.reset(jax.random.split(key, num))
        return jax.lax.scan(advance, start, jax.random.split(key, steps))[1]

    states, obs, actions, steps_ = jax.jit(whole)(jax.random.key(seed))
    return jax.tree.map(np.asarray, ((states, obs), actions, steps_))


def test_with_both_seats_a_step_is_a_move_of_the_player_who_sees_it() -> None:
    (states, obs), actions, steps = play(make(opponent="self"), num=16, steps=40)
    assert steps.terminated.sum() > 50
    for b in range(16):
        board, player = np.zeros(9, int), 0
        for t in range(40):
            own = 1 - 2 * player
            seen = np.concatenate([board == own, board == -own])
            np.testing.assert_array_equal(obs["stones"][t, b], seen)
            assert states.seat[t, b] == -1
            board[actions[t, b]] = own
            wins = any(board[line].sum() == 3 * own for line in own_games.LINES)
            assert steps.reward[t, b] == (1.0 if wins else 0.0)
            assert steps.terminated[t, b] == (wins or bool(board.all()))
            assert steps.sign[t, b] == -1.0
            player = 1 - player
            if steps.terminated[t, b]:
                board, player = np.zeros(9, int), 0
    assert all(np.isnan(x).all() for x in steps.metrics.values())


def test_the_sign_follows_who_moves_next_and_not_the_number_of_moves() -> None:
    env = make("Nim", kwargs={"twice": True}, opponent="self")
    (states, _), actions, steps = play(env, num=8, steps=40)
    goes_on = ~steps.terminated
    assert set(steps.sign[goes_on]) == {1.0, -1.0}
    np.testing.assert_array_equal(steps.sign[goes_on] == 1.0, actions[goes_on] == 1)
    np.testing.assert_array_equal(steps.reward, steps.terminated.astype(np.float32))
    after = states.inner[1][1:][goes_on[:-1]]
    same = after == states.inner[1][:-1][goes_on[:-1]]
    np.testing.assert_array_equal(same, steps.sign[:-1][goes_on[:-1]] == 1.0)


def test_rewards_are_normalised_by_sums_of_the_player_who_moves(small: Any) -> None:
    system, state = small(
        env={"target": "own_games.Paid", "kwargs": {"twice": True}, "opponent": "self"},
        arch={"max_eval_steps": 12},
        system={"normalize_rewards": True, "rollout_length": 24, "gamma": 0.9},
    )
    _, rollout = jax.jit(partial(collect, system))(state.agent, state.acting)
    steps = jax.tree.map(np.asarray, rollout.steps)
    assert {*steps.sign.flat} == {1.0, -1.0}
    for b in range(4):
        player, gains = 0, [0.0, 0.0]  # discounted sums of both players, who play for the same sum
        for t in range(24):
            reward = steps.reward[t, b] * np.asarray([1, -1])[[player, 1 - player]]
            gains = reward + 0.9 * np.asarray(gains)
            np.testing.assert_allclose(steps.discounted_return[t, b], gains[player], rtol=1e-5)
            player = player if steps.sign[t, b] > 0 else 1 - player
            if steps.terminated[t, b]:
                player, gains = 0, [0.0, 0.0]


@pytest.mark.parametrize("target, twice", [("TicTacToe", False), ("Nim", True)])
def test_against_an_opponent_the_learner_keeps_its_seat_and_its_result(
    target: str, twice: bool
) -> None:
    kwargs = {"twice": True, "heap": 9} if twice else {}
    (states, _), _, steps = play(make(target, kwargs=kwargs), num=64, steps=40)
    assert steps.sign is None
    player = states.inner[1]
    np.testing.assert_array_equal(player, states.seat)  # it is always the learner's turn
    over = steps.terminated
    assert 0.4 < states.seat[1:][over[:-1]].mean() < 0.6  # drawn for each game
    kept = ~over[:-1]
    np.testing.assert_array_equal(states.seat[1:][kept], states.seat[:-1][kept])
    for name, sign in (("win", 1), ("draw", 0), ("loss", -1)):
        told = steps.metrics[name]
        np.testing.assert_array_equal(np.isnan(told), ~over)
        np.testing.assert_array_equal(told[over] == 1.0, np.sign(steps.reward[over]) == sign)
    assert {*np.unique(steps.reward)} == ({-1.0, 0.0, 1.0})
    if not twice:  # the stones after each step are those of one move and one answer
        board, after = states.inner[0][:-1], states.inner[0][1:]
        changed = (board != after).sum(-1)[kept]
        assert (changed == 2).all()


@pytest.mark.long_but(1)
@pytest.mark.parametrize("target, reward", [("TicTacToe", 0.0), ("Nim", -1.0)])
def test_recorded_actions_played_again_lead_to_the_recorded_results(
    target: str, reward: float
) -> None:
    """An answer is not recorded: it is the move that leads to the next observation."""
    arch = {"max_eval_steps": 20, "num_eval_episodes": 16, "evaluation_greedy": False}
    policy = fresh(game_config(env={"target": f"own_games.{target}"}, arch=arch))
    game, none = getattr(own_games, target)(), jax.random.key(0)
    reset, step = jax.jit(game.reset), jax.jit(game.step)
    results, seats = [], []
    for each in policy.play(episodes=32):
        state, seen = reset(none)
        if not alike(seen, row(each.observations, 0)):  # the opponent began
            state, seen = answer(step, state, seen, row(each.observations, 0))[:2]
        seats.append(int(state[1]))
        for t in range(each.length):
            assert alike(seen, row(each.observations, t))
            assert seen["action_mask"][each.actions[t]]
            assert int(state[1]) == seats[-1]
            state, seen, rewards, over, _ = step(none, state, each.actions[t])
            gained = rewards[seats[-1]]
            if not over:
                last = t == each.length - 1
                after = each.final_observation if last else row(each.observations, t + 1)
                state, seen, rewards, over = answer(step, state, seen, after)
                gained += rewards[seats[-1]]
            assert each.rewards[t] == gained
            assert each.terminated[t] == over == (t == each.length - 1)
        assert alike(seen, each.final_observation)
        results.append(each.episode_return)
        assert [each.metrics[name] for name in ("win", "draw", "loss")] == [
            each.episode_return == result for result in (1, 0, -1)
        ]
    assert {*results} >= {1.0, reward}
    assert {*seats} == {0, 1}


def row(tree: Any, number: int) -> Any:
    return jax.tree.map(lambda x: x[number], tree)


def alike(one: Any, other: Any) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def answer(step: Any, state: Any, seen: Any, wanted: Any) -> Any:
    """The state, observation, rewards and end after the only legal move to this observation."""
    moves = np.flatnonzero(seen["action_mask"])
    every = [step(jax.random.key(0), state, move)[:4] for move in moves]
    (found,) = [each for each in every if alike(each[1], wanted)]
    return found


class Versions:
    """Opponents of a pool, whose versions say how they play: they take 1 + version % 2."""

    def __init__(self, versions: Any) -> None:
        self.versions = jnp.asarray(versions)

    def __call__(self, obs: Any, key: jax.Array) -> jax.Array:
        each = jnp.repeat(self.versions, len(key) // len(self.versions))
        return jnp.minimum(each % 2, obs["action_mask"][:, 1])


def test_a_games_opponent_never_changes_within_it() -> None:
    """Where its policy is replaced, the game ends after the learner's move, without an answer."""
    games = make("Nim", kwargs={"heap": 20}, opponent="pool", num_opponents=2)
    num, versions, rng = 16, np.zeros(2, int), np.random.default_rng(0)
    keys = partial(jax.random.split, num=num)
    advance = jax.jit(
        lambda key, state, action, versions: games.seated(Versions(versions), versions).step(
            key, state, action
        )
    )
    env = games.seated(Versions(versions), jnp.asarray(versions))
    state, _ = jax.jit(env.reset)(keys(jax.random.key(0)))
    assert games.num_against(num) == 8
    own = np.where(np.arange(8) < 4, 0, 1)  # the slot of each game
    begun, cut = versions[own].copy(), 0
    for t in range(120):
        if t % 7 == 6:
            versions[rng.integers(2)] = t
        action = jnp.asarray(rng.integers(0, 2, num))
        before = np.asarray(state.inner[0])
        state, step = advance(keys(jax.random.key(t)), state, action, jnp.asarray(versions))
        state, step = jax.tree.map(np.asarray, (state, step))
        replaced = versions[own] != begun
        goes_on = ~(step.terminated | step.truncated)
        np.testing.assert_array_equal(step.truncated[:8], replaced & ~step.terminated[:8])
        assert not step.truncated[8:].any()
        # What is left where a game goes on: the learner's move, and one answer of the first version
        left = np.maximum(before - 1 - np.asarray(action), 0)
        now = np.argmax(step.final_observation["heap"], axis=1)
        answered = left[:8] - 1 - np.minimum(begun % 2, left[:8] > 1)
        np.testing.assert_array_equal(now[:8][goes_on[:8]], answered[goes_on[:8]])
        was_cut = step.truncated[:8]
        cut += was_cut.sum()
        np.testing.assert_array_equal(now[:8][was_cut], left[:8][was_cut])
        # The successor of a cut game is seen by the other player
        np.testing.assert_array_equal(step.sign[:8][was_cut], -1.0)
        np.testing.assert_array_equal(step.sign[:8][goes_on[:8]], 1.0)
        np.testing.assert_array_equal(np.isnan(step.metrics["win"][:8]), ~step.terminated[:8])
        begun = np.where(goes_on[:8], begun, versions[own])
        np.testing.assert_array_equal(state.since[:8], begun)
    assert cut > 10


def test_a_game_with_both_seats_in_a_row_of_an_opponent_has_no_answers() -> None:
    """As after a resume on other devices, which spread rows otherwise."""
    games = make(opponent="pool", num_opponents=2)
    env = games.seated(lambda obs, key: jnp.argmax(obs["action_mask"], axis=1), jnp.zeros(2, int))
    state, _ = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 8))
    state = dataclasses.replace(state, seat=jnp.full(8, -1))
    for move in (0, 3, 1, 4, 2):  # player 0 has a row
        before = np.asarray(state.inner[0])
        keys = jax.random.split(jax.random.key(move), 8)
        state, step = jax.jit(env.step)(keys, state, jnp.full(8, move))
        if move != 2:
            assert ((np.asarray(state.inner[0]) != before).sum(1) == 1).all()
            np.testing.assert_array_equal(step.sign, -1.0)
    np.testing.assert_array_equal(step.terminated, True)
    np.testing.assert_array_equal(step.reward, 1.0)


@pytest.mark.parametrize("opponent", ["self", "random"])
def test_random_moves_start_games_and_never_end_them(opponent: str) -> None:
    games = make(opponent=opponent, random_moves=9)
    state, obs = jax.jit(games.reset)(jax.random.split(jax.random.key(0), 512))
    board, player = map(np.asarray, state.inner)
    stones = np.abs(board).sum(1)
    for line in own_games.LINES:
        assert not (np.abs(board[:, line].sum(1)) == 3).any()
    assert stones.max() < 9
    assert np.asarray(obs["action_mask"]).any(1).all()
    counts = np.bincount(stones, minlength=9)
    assert (counts[:7] > 10).all()  # 0 to 9 moves alike, as far as none ends the game
    if opponent == "self":
        np.testing.assert_array_equal(player, stones % 2)
        assert 25 < counts[0] < 85  # of 512, a tenth
    else:
        np.testing.assert_array_equal(player, state.seat)


def test_against_a_perfect_player_a_lost_position_stays_lost() -> None:
    """Of Nim: where 3 divides what is left to the learner."""
    games = make("Nim", opponent="own_games.perfect")
    (states, _), _, steps = play(games, num=64, steps=40)
    left, over = states.inner[0], steps.terminated
    lost = left % 3 == 0
    assert (steps.reward[lost & over] == -1).all()
    assert lost[1:][(lost & ~over)[:-1]].all()
    assert lost[left == 6].all()  # where the learner moves first
    assert (steps.reward[~lost] == 1).any()


def test_a_function_is_the_opponent_where_it_is_named() -> None:
    built = build_alone(game_config(env={"evaluation_opponent": "own_games.perfect"}))
    both: Any = built.env, built.evaluation_env
    assert [each._choose is None for each in both] == [True, False]
    built = build_alone(game_config(env={"opponent": "own_games.perfect"}))
    assert built.evaluation_env is built.env


def game_config(**changes: Any) -> Any:
    env = {"name": None, "target": "own_games.Nim", "metrics": TOLD, **changes.pop("env", {})}
    arch = {"total_num_envs": 16, "max_eval_steps": 20, "num_eval_episodes": 8}
    arch |= changes.pop("arch", {})
    return small_config(env=env, arch=arch, logger=QUIET, **{"network": NETWORK, **changes})


def test_the_pool_holds_the_policies_of_evaluations_and_its_games_are_played_by_them() -> None:
    config = game_config(
        env={"opponent": "pool", "num_opponents": 2}, arch={"num_updates": 6, "num_evaluation": 3}
    )
    system, state = alone(*build(config)[:2])
    from jaxppo.algorithms import spine

    step = jax.jit(partial(spine.update, system))
    policies = [state.agent.policy]
    for _ in range(6):
        state, _ = step(state)
        policies.append(state.agent.policy)
    pool = state.agent.opponents
    np.testing.assert_array_equal(pool.since, [6, 4])
    for slot, update in enumerate([6, 4]):
        found = jax.tree.map(lambda x, slot=slot: x[slot], pool.policies)
        kept = dataclasses.replace(policies[update], noise_key=None)
        jax.tree.map(np.testing.assert_array_equal, found, kept)
    # Running games of the last rollout are played against policies of the pool
    assert {*np.asarray(state.acting.env_state.since[:8]).tolist()} <= {2, 4}
    # Each of the two policies answers its own half of the games
    num = 8
    games: Any = system.env
    seen = jax.vmap(games.one.reset)(jax.random.split(jax.random.key(0), num))[1]
    keys = jax.random.split(jax.random.key(1), num)
    env: Any = with_opponents(system, state.agent).env
    chosen = env._choose(seen, keys)
    for slot, update in enumerate([6, 4]):
        rows = slice(4 * slot, 4 * slot + 4)
        part = jax.tree.map(lambda x, rows=rows: x[rows], seen)
        carry = system.algorithm.network.initial_carry(4)
        _, acted = act(system, policies[update], carry, part, jnp.zeros(4, bool), keys[rows])
        np.testing.assert_array_equal(chosen[rows], acted.env_action)


ON_DEVICES = """
import sys
from pathlib import Path
import jax, numpy as np
from conftest import NETWORK, small_config
from killing import asked
from programs import share_programs
from runs import EACH_TIME, QUIET
from jaxppo.runtime.hosts import devices
from jaxppo.runtime.run import loop
from jaxppo.runtime.store.progress import Progress

folder, num_batches = Path(sys.argv[1]), int(sys.argv[2])
shared, real, left = share_programs._get_wrapped_function()(), loop.end_block, Progress.left
next(shared)
devices.count = lambda members: 2
# In the 6 updates of 8 steps no game ends by its rules
config = small_config(
    env={"target": "own_games.Nim", "kwargs": {"heap": 250}, "opponent": "pool",
         "num_opponents": 2},
    arch={"total_num_envs": 8 * num_batches, "update_batch_size": num_batches,
          "max_eval_steps": 20, "num_eval_episodes": 8, "num_updates": 6, "num_evaluation": 6},
    network=NETWORK, logger=QUIET, checkpoint=EACH_TIME,
)

def end(run, state):
    print(run.progress.block)
    agent, games = state.learner.agent, state.learner.acting.env_state
    policies = {"new": agent.policy, "pool": agent.opponents.policies}
    params = {
        f"{name}/{i}": x for name, policy in policies.items()
        for i, x in enumerate(jax.tree.leaves((policy.params, policy.obs_statistics)))
    }
    found = {"since": agent.opponents.since, "games": games.since, "seat": games.seat}
    found |= {"stones": games.inner[0], **params}
    np.savez(name / f"{run.progress.block}.npz", **jax.tree.map(np.asarray, found))
    return real(run, state)

def stop(block):
    if block == 3:
        raise KeyboardInterrupt

loop.end_block = end
for name, acts in ((folder / "whole", [None]), (folder / "parts", [stop, None])):
    name.mkdir()
    for act in acts:
        Progress.left = asked(act) if act else left
        try:
            loop.run(config, name, resume=(name / "config.yaml").exists())
        except KeyboardInterrupt:
            print("stopped")
"""


@pytest.mark.long
@pytest.mark.parametrize("num_batches", [1, 2])
def test_a_pool_over_two_devices_is_one_pool(num_batches: int, tmp_path: Path) -> None:
    """In all learners games are against its policies, and only new games against new ones."""
    told = on_devices(2, ON_DEVICES, str(tmp_path), str(num_batches)).split()
    assert told == [*"012345", *"012", "stopped", *"345"]
    blocks = [dict(np.load(path)) for path in sorted((tmp_path / "whole").glob("*.npz"))]
    resumed = [dict(np.load(path)) for path in sorted((tmp_path / "parts").glob("*.npz"))]
    assert len(blocks) == len(resumed) == 6
    for one, other in zip(blocks, resumed, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)
    pool = np.zeros(2, int)  # since when each policy has been in it, in the block's games
    before, begun = np.full((2, 1, num_batches, 4), 250), np.zeros((2, 1, num_batches, 4), int)
    for number, found in enumerate(blocks, 1):
        # Each device has the new policy in place of the oldest
        after = pool.copy()
        after[np.argmin(pool)] = number
        np.testing.assert_array_equal(found["since"], np.broadcast_to(after, (2, 1, 2)))
        for name in [name for name in found if name.startswith("pool/")]:
            for slot, since in enumerate(after):
                if since:
                    wanted = blocks[since - 1][name.replace("pool", "new")]
                    np.testing.assert_array_equal(found[name][:, :, slot], wanted)
                    np.testing.assert_array_equal(wanted[0], wanted[1])
        # Of four games two are against the pool, one of them against each policy
        assert found["games"].shape == before.shape
        np.testing.assert_array_equal(found["seat"][..., 2:], -1)
        assert (found["seat"][..., :2] >= 0).all()
        np.testing.assert_array_equal(found["games"][..., :2] - pool, 0)
        # A move takes 1 or 2: with answers that is 16 to 32 in 8 steps, else 8 to 16
        taken = before - found["stones"]
        goes_on = found["games"] == begun
        assert goes_on[..., 2:].all()
        assert goes_on[..., :2].any() or number > 2
        low, high = np.array([16, 16, 8, 8]), np.array([32, 32, 16, 16])
        assert ((low <= taken) & (taken <= high))[goes_on].all()
        anew = 250 - found["stones"][~goes_on]  # one step was for the cut
        assert ((anew >= 14) & (anew <= 30)).all()
        pool, before, begun = after, found["stones"], found["games"]
    assert len({*blocks[-1]["stones"].ravel()}) > 1


def test_the_oldest_policy_leaves_the_pool_also_if_its_interval_has_changed() -> None:
    config = game_config(env={"opponent": "pool", "num_opponents": 3, "opponent_share": 0.6})
    system, state = alone(*build(config)[:2])
    system = dataclasses.replace(system, opponent_every=5)
    pool = dataclasses.replace(state.agent.opponents, since=jnp.array([8, 4, 6]))
    agent = dataclasses.replace(state.agent, opponents=pool, update=jnp.int32(15))
    np.testing.assert_array_equal(update_pool(system, agent).opponents.since, [8, 15, 6])


@pytest.mark.long
def test_a_copied_member_ends_its_games_against_the_pool_that_it_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Population-based training copies the pool, and not the environments."""
    seen = []
    real = Selection.exploit

    def exploit(self: Selection, layout: Layout, state: Any, *rest: Any) -> Any:
        after, chosen = real(self, layout, state, *rest)
        pools = [layout.gather_agents(x.agent.opponents).since for x in (state, after)]
        running = layout.gather_split(after.acting.env_state.since)
        seen.append((*pools, running.reshape(len(pools[0]), -1)[:, :8]))
        return after, chosen

    monkeypatch.setattr(Selection, "exploit", exploit)
    monkeypatch.setattr("jaxppo.runtime.run.selection.sources", lambda *_: [0, 1, 1, 0])
    population = {"size": 4, "selection": "pbt", "hyperparameters": {"actor_lr": [1e-4, 1e-2]}}
    config = game_config(
        env={"opponent": "pool", "num_opponents": 2},
        arch={"num_updates": 4, "num_evaluation": 2},
        population=population,
    )
    run(config, tmp_path)
    ((before, after, running),) = seen
    np.testing.assert_array_equal(after[:2], before[:2])
    own = np.repeat(after[2:], 4, axis=1)  # the slot of each of the 8 games of a member
    assert (running[2:] != own).all()


@pytest.mark.long
def test_a_policy_of_another_run_is_an_opponent(tmp_path: Path) -> None:
    other, against = tmp_path / "other", tmp_path / "against"
    other.mkdir()
    against.mkdir()
    judged = {"num_updates": 2, "num_evaluation": 2, "eval_metric": "win"}
    run(game_config(env={"opponent": "self"}, arch=judged, checkpoint=EACH_TIME), other)
    env = {"opponent": str(other), "evaluation_opponent": "random", "metrics": []}
    config = game_config(env=env)
    trained = jaxppo.load(other, trust=["own_games"])
    config = dataclasses.replace(config, trust=["own_games"])
    _, policy = of_runs.read(str(other), config, build_alone_with_shapes)
    jax.tree.map(np.testing.assert_array_equal, policy.params, trained.policy.params)
    built = build_alone(config)
    both: Any = built.env, built.evaluation_env
    assert [each._choose is None for each in both] == [False, True]
    run(dataclasses.replace(config, trust=["own_games", "evil"]), against)
    # What a stored run trusts does not count, also for the run that it plays against
    assert jaxppo.load(against, "latest", trust=["own_games"]).config.trust == ["own_games"]
    with pytest.raises(ConfigError, match=r"^env\.opponent=.*: its policy is not one of this game"):
        build_alone(
            dataclasses.replace(
                config, env=EnvConfig(**{**vars(config.env), "target": "own_games.TicTacToe"})
            )
        )


def build_alone_with_shapes(config: Any) -> Any:
    from jaxppo.runtime.programs import build as building

    return building._alone(config)


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"env": {"target": "envs.Clock", "metrics": [], "opponent": "self"}},
         r"^env\.opponent=self: is for games of two players, and envs\.Clock is none"),
        ({"env": {"target": "envs.Clock", "metrics": [], "random_moves": 3}},
         r"^env\.random_moves=3: is for games"),
        ({"env": {"opponent": "nobody"}}, r"^env\.opponent=nobody: must be one of random, self"),
        ({"env": {"evaluation_opponent": "self"}}, r"^env\.evaluation_opponent=self: must be one"),
        ({"env": {"opponent": "own_games.nobody"}},
         r"^env\.opponent=own_games\.nobody: module own_games has no function nobody"),
        ({"env": {"evaluation_opponent": "nowhere.player"}},
         r"^env\.evaluation_opponent=nowhere\.player: nowhere cannot be imported"),
        ({"env": {"evaluation_opponent": "own_games.of_board"}},
         r"^env\.evaluation_opponent=own_games\.of_board: its action is float32\[9\], "),
        ({"env": {"opponent": "baseline"}}, r"^env\.opponent=baseline: is for games of Pgx"),
        ({"env": {"opponent": "self", "extras": ["step"]}}, r"^env\.extras=\['step'\]: changes"),
        ({"env": {"opponent": "self", "resets": "cached"}}, r"^env\.resets=cached: "),
        ({"env": {"opponent": "self"}, "network": MEMORY, "system__sequence_length": 4},
         r"^network\.actor_memory: with env\.opponent=self one memory"),
        ({"env": {"opponent": "pool", "num_opponents": 16}},
         r"^env\.num_opponents=16: .*take at least 32 games"),
    ],
)  # fmt: skip
def test_what_games_do_not_have_is_refused_in_one_line(changes: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        build_alone(game_config(**changes))


@pytest.mark.parametrize("steps", ["", "@128"])
def test_the_directory_of_an_opponent_is_taken_as_it_is_typed(tmp_path: Path, steps: str) -> None:
    folder = tmp_path / "system.gamma=0.9,arch.seed=1"
    folder.mkdir()
    typed = [f"{key}={folder}{steps}" for key in ("env.opponent", "env.evaluation_opponent")]
    found = compose("ff_ppo", typed).env
    assert found.opponent == found.evaluation_opponent == f"{folder}{steps}"


@pytest.mark.parametrize("changed", [{"extras": ["step"]}, {"frame_stack": 2}])
def test_what_a_learner_sees_may_change_if_opponents_are_random(changed: dict[str, Any]) -> None:
    build_alone(game_config(env={"evaluation_opponent": "random", **changed}))


def test_a_games_class_is_checked_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_games.Nim, "time_limit", 3, raising=False)
    with pytest.raises(ConfigError, match=r"own_games\.Nim: time_limit=3: games end"):
        make("Nim")
    monkeypatch.undo()
    monkeypatch.setattr(own_games.Nim, "action_space", spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"own_games\.Nim: action_space is .*of jaxppo\.types"):
        make("Nim")


def test_algorithms_without_signs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxppo.algorithms.ppo import PPO

    monkeypatch.setattr(PPO, "signs", False)
    with pytest.raises(ConfigError, match=r"^system\.algorithm=ppo: with env\.opponent=self"):
        build_alone(game_config(env={"opponent": "self"}))
    build_alone(game_config())


@pytest.mark.parametrize("wins, num", [(0, 20), (7, 20), (20, 20), (999, 1000)])
def test_the_interval_of_a_share_is_wilsons(wins: int, num: int) -> None:
    values = np.asarray([1.0] * wins + [0.0] * (num - wins) + [math.nan] * 3)
    # The p from which the share is as far as 1.96 of its standard deviations sqrt(p (1 - p) / n)
    square, share = 1.959964**2 / num, wins / num
    expected = np.roots([1 + square, -(2 * share + square), share**2])
    np.testing.assert_allclose(share_interval(values), np.sort(expected), atol=1e-6)
    assert np.isnan(share_interval([0.0, 5.0])).all()  # not a share


LEARNS = {
    "arch": {"total_num_envs": 64, "num_updates": 60, "num_evaluation": 3, "max_eval_steps": 20},
    "system": {
        **{"rollout_length": 16, "epochs": 4, "num_minibatches": 4, "gamma": 1.0},
        **{"actor_lr": 1e-2, "critic_lr": 1e-2, "ent_coef": 0.02},
    },
}


@pytest.mark.parametrize("opponent", ["self", pytest.param("pool", marks=pytest.mark.long)])
def test_both_seats_learn_to_win_every_game_that_can_be_won(opponent: str, tmp_path: Path) -> None:
    """Of a heap that 3 does not divide, the winner takes what makes it divisible."""
    env = {"kwargs": {"heap": 11}, "opponent": opponent, "num_opponents": 2, "random_moves": 4}
    run(game_config(env=env, checkpoint=EACH_TIME, **LEARNS), tmp_path)
    policy = jaxppo.load(tmp_path, "latest", trust=["own_games"])
    heaps = np.arange(1, 12)
    obs = {"heap": np.eye(12, dtype=np.float32)[heaps], "action_mask": heaps[:, None] >= [1, 2]}
    action, _ = policy.act(obs)
    won = heaps % 3 > 0
    np.testing.assert_array_equal(np.asarray(action)[won] + 1, (heaps % 3)[won])
    value = np.asarray(policy.describe(obs).values)
    np.testing.assert_array_equal(value > 0, won)


@pytest.mark.slow
def test_in_tic_tac_toe_it_never_loses_against_a_perfect_player(tmp_path: Path) -> None:
    """From both seats, after every opening, and whichever of its best moves that player takes."""
    arch = {"total_num_envs": 256, "num_updates": 1500, "num_evaluation": 2, "max_eval_steps": 9}
    system = {
        **{"rollout_length": 16, "epochs": 4, "num_minibatches": 16, "gamma": 1.0},
        **{"gae_lambda": 0.9, "actor_lr": 2e-3, "critic_lr": 2e-3, "ent_coef": 0.02},
    }
    torso = {"_target_": f"{LAYERS}.torsos.MLP", "layer_sizes": [64, 64], "activation": "tanh"}
    network = {**NETWORK, "actor_torso": torso, "critic_torso": torso}
    env = {"target": "own_games.TicTacToe", "opponent": "self", "random_moves": 4}
    config = game_config(env=env, arch=arch, system=system, network=network, checkpoint=EACH_TIME)
    run(config, tmp_path)
    policy = jaxppo.load(tmp_path, "latest", trust=["own_games"])
    boards = games.boards()  # in the eyes of the player to move
    array = np.asarray(boards)
    stones = np.concatenate([array == 1, array == -1], axis=1).astype(np.float32)
    actions = np.asarray(policy.act({"stones": stones, "action_mask": array == 0})[0])
    chosen = dict(zip(boards, actions.tolist(), strict=True))
    for own in (True, False):
        assert set(games.outcomes(chosen, own, perfect=True)) <= {0, 1}


def test_a_perfect_player_of_tic_tac_toe_only_draws_with_itself() -> None:
    """And with a worse move somewhere it loses to one."""
    boards = games.boards()
    assert len(boards) == 4520
    best = {
        board: max((i for i in range(9) if not board[i]), key=lambda i, b=board: worth(b, i))
        for board in boards
    }
    for own in (True, False):
        assert set(games.outcomes(best, own, perfect=True)) == {0}
        assert -1 not in set(games.outcomes(best, own))
    first = {board: board.index(0) for board in boards}
    assert -1 in set(games.outcomes(first, False, perfect=True))


def worth(board: games.Board, move: int) -> int:
    """What is left of every reply, to the player who moves."""
    return -games.value(games.after(board, move))
