"""A run's host loop: what is kept, what is written, when it stops."""

import dataclasses
import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from conftest import small_config

import jaxppo
from jaxppo.algorithms.evaluation import Episodes
from jaxppo.algorithms.report import Metrics
from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.runtime import sinks
from jaxppo.runtime.programs import evaluating
from jaxppo.runtime.programs.build import streams
from jaxppo.runtime.programs.evaluating import score
from jaxppo.runtime.programs.placement import Layout
from jaxppo.runtime.run import blocks, evaluations, loop
from jaxppo.runtime.run.jobs import TrainingError, prepare
from jaxppo.runtime.run.profiling import phase_of
from jaxppo.runtime.store.progress import Pace
from jaxppo.types import Policy

pytestmark = pytest.mark.usefixtures("share_programs")

RATES = {"actor_lr": 1e30, "critic_lr": 1e30, "decay_learning_rates": False}


def tiny(num_evaluation: int = 2, **changes: Any) -> Config:
    """Ten updates of 32 steps; most tests share the program."""
    arch = {"num_updates": 10, "num_evaluation": num_evaluation, "num_eval_episodes": 5}
    system = {"normalize_observations": True, **changes.pop("system", {})}
    given = {"arch": {**arch, **changes.pop("arch", {})}, "system": system}
    return small_config(**given, **changes)


def poison(monkeypatch: pytest.MonkeyPatch, calls: Any, part: str, **values: Any) -> None:
    """Change what the host reads of blocks' metrics: in these `calls`, in one part of them."""
    real, numbers = Layout.gather_agents, itertools.count()

    def gather_agents(layout: Layout, tree: Any) -> Any:
        found = real(layout, tree)
        if not isinstance(found, Metrics) or next(numbers) not in calls:
            return found
        if not part:
            return dataclasses.replace(found, **values)
        return dataclasses.replace(
            found, **{part: dataclasses.replace(getattr(found, part), **values)}
        )

    monkeypatch.setattr(Layout, "gather_agents", gather_agents)


class Recorder:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.closed = 0

    def write(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(sinks, "make", lambda *_: [recorder])
    return recorder


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`scripted([...])`: evaluations return these; gives the policies that were evaluated.

    Of several members each evaluation is a list.
    """

    def install(returns: list[Any]) -> list[Policy]:
        seen: list[Policy] = []

        def evaluate(
            layout: Any, program: Any, policy: Policy, seeds: Any, number: int | None, num: int
        ) -> Episodes:
            score = returns[len(seen)] if len(seen) < len(returns) else 77.0
            seen.append(jax.tree.map(np.array, dataclasses.replace(policy, noise_key=None)))
            shape = (len(seeds), num if number is not None else 10 * num)
            return Episodes(
                returns=np.broadcast_to(np.reshape(score, (-1, 1)), shape),
                lengths=np.ones(shape),
                finished=np.ones(shape, bool),
                empty_masks=np.zeros(shape, int),
            )

        monkeypatch.setattr(evaluations, "evaluate", evaluate)
        return seen

    return install


@pytest.mark.long
@pytest.mark.parametrize("returns, best", [([9.0, 1.0, 9.0], 0), ([math.inf, -9, -3], 2)])
def test_absolute_metric_is_of_the_very_policy_that_evaluated_best(
    recorder: Recorder, scripted: Any, tmp_path: Path, returns: list[float], best: int
) -> None:
    seen = scripted(returns)
    assert loop.run(tiny(3), tmp_path) == 77.0  # of the absolute evaluation
    for one, other in zip(jax.tree.leaves(seen[best]), jax.tree.leaves(seen[3]), strict=True):
        np.testing.assert_array_equal(one, other)
    for i in {0, 1, 2} - {best}:
        pairs = zip(jax.tree.leaves(seen[i]), jax.tree.leaves(seen[3]), strict=True)
        assert not all(np.array_equal(one, other) for one, other in pairs)
    (absolute,) = recorder.of("absolute")
    assert absolute["steps"] == recorder.of("eval")[best]["steps"]
    assert absolute["episodes"] == 10 * 5


@pytest.mark.long
def test_each_of_two_members_keeps_the_policy_of_its_own_best_evaluation(
    recorder: Recorder, scripted: Any, tmp_path: Path
) -> None:
    seen = scripted([[9.0, 1.0], [1.0, 9.0]])
    loop.run(tiny(arch={"num_seeds": 2}), tmp_path)
    first, last, best = seen
    for member, evaluated in ((0, first), (1, last)):
        for one, other in zip(jax.tree.leaves(evaluated), jax.tree.leaves(best), strict=True):
            # [D, P, ...]: both on one device, or each on its own
            np.testing.assert_array_equal(*(x.reshape(2, -1)[member] for x in (one, other)))


def test_training_evaluation_and_absolute_metric_draw_from_streams_apart() -> None:
    keys = [jax.random.key_data(key).tolist() for key in streams(np.uint32([3]))]
    assert len({tuple(key[0]) for key in keys}) == 4


def test_without_a_finite_evaluation_there_is_no_result(
    recorder: Recorder, scripted: Any, tmp_path: Path
) -> None:
    scripted([math.nan, math.nan])
    with pytest.raises(TrainingError, match="no evaluation"):
        loop.run(tiny(), tmp_path)
    assert not recorder.of("absolute")
    assert recorder.of("end")[0]["absolute_metric"] is None
    assert recorder.of("end")[0]["status"] != "finished"
    with pytest.raises(ConfigError, match=r"which=best: no .* was finite.*which=latest"):
        jaxppo.load(tmp_path, trust=["envs"])  # not the untrained policy
    assert jaxppo.load(tmp_path, "latest", trust=["envs"]).steps == 320
    begun = dataclasses.replace(tiny(), init_from=str(tmp_path))
    with pytest.raises(ConfigError, match=r"^init_which=best: no .* was finite.*init_which=latest"):
        prepare(begun)
    prepare(dataclasses.replace(begun, init_which="latest"))


def test_blocks_spread_updates_and_count_every_step(recorder: Recorder, tmp_path: Path) -> None:
    result = loop.run(tiny(3), tmp_path)
    assert [event["steps"] for event in recorder.of("eval")] == [96, 192, 320]
    assert [event["updates"] for event in recorder.of("train")] == [3, 6, 10]
    assert {event["episodes"] for event in recorder.of("eval")} == {5}
    assert {event["unfinished"] for event in recorder.of("eval")} == {0}
    assert recorder.of("absolute")[0]["episodes"] == 50
    assert result == 15.0  # every episode of the clock
    assert all(event["episode_return"] == 15.0 for event in recorder.of("train"))
    assert recorder.closed == 1


@pytest.mark.long
def test_a_profile_leaves_a_trace_by_phase_and_the_run_as_it_was(
    recorder: Recorder, tmp_path: Path
) -> None:
    results = []
    for folder in (None, str(tmp_path / "trace")):
        run_dir = tmp_path / f"run{len(results)}"
        run_dir.mkdir()
        results.append(loop.run(tiny(arch={"profile": folder}), run_dir))
    assert results[0] == results[1]
    assert len(recorder.of("train")) == 4
    (trace,) = tmp_path.rglob("*.xplane.pb")
    assert b"gradients" in trace.read_bytes()
    (profile,) = recorder.of("profile")
    assert {"act", "environment", "gradients", "optimizer"} <= set(profile["phases"])
    assert all(0 < seconds < 10 for seconds in profile["phases"].values())
    assert phase_of("jit(f)/epochs/while/body/gradients/transpose(jvp())/mul") == "gradients"
    assert phase_of("jit(f)/collect/while/body/act/dot") == "act"
    assert phase_of("jit(f)/epochs/while/body/add") == "other"


def test_an_alarm_is_written_once_while_the_loss_is_too_high(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At the call that met it, with the metrics so far; a NaN is too high as well."""
    monkeypatch.setattr(Pace, "updates", lambda *_: 1)
    found = iter([1.0, 1.0, 5.0, 6.0, 2.0, math.nan, math.nan, 1.0])  # mean losses of eight calls
    sums, seen = [0.0], []

    def losses(run: Any, total: Metrics) -> dict[int, float]:
        """The sum before a call, then that after it."""
        seen.append(total)
        if len(seen) % 2 == 0:
            sums.append(next(found, 1.0))
        return {0: 0.0 if len(seen) % 2 else sums[-1]}

    monkeypatch.setattr(blocks, "_losses", losses)
    loop.run(tiny(logger={"alarm_loss": 3.0}), tmp_path)
    assert [alarm["steps"] for alarm in recorder.of("alarm")] == [3 * 32, 6 * 32]
    assert recorder.of("alarm")[0]["loss"] == 5.0
    monkeypatch.undo()


def test_an_alarm_has_the_metrics_so_far(recorder: Recorder, tmp_path: Path) -> None:
    loop.run(tiny(logger={"alarm_loss": 1e-6}), tmp_path)
    alarm = recorder.of("alarm")[0]
    assert alarm["updates"] == alarm["steps"] / 32
    assert alarm["loss"] == pytest.approx(alarm["total_loss"])
    assert alarm["alarm_loss"] == 1e-6
    (tmp_path / "calm").mkdir()
    loop.run(tiny(logger={"alarm_loss": 1e6}), tmp_path / "calm")
    assert len(recorder.of("alarm")) == 1


@pytest.mark.long
def test_details_are_in_the_events(recorder: Recorder, tmp_path: Path) -> None:
    loop.run(tiny(arch={"num_seeds": 2}, logger={"details": True}), tmp_path)
    *_, event = (event for event in recorder.of("train") if "members" in event)
    assert event["process_peak_bytes"] > 1e7
    assert sum(event["advantage_histogram"]) == 2 * 5 * 32  # members, updates, steps
    assert event["advantage_min"] < 0 < event["advantage_max"]
    assert recorder.of("eval")[0]["evaluation_steps_per_second"] > 0


def test_the_score_of_episodes() -> None:
    returns = np.array([[9.0, 9.0, 9.0], [1.0, 2.0, 6.0]])
    finished = np.array([[True] * 3, [True, False, False]])
    episodes = Episodes(
        returns=returns, lengths=2 * returns, finished=finished, empty_masks=0 * returns
    )
    assert score(episodes, 1) == {
        "episodes": 3,
        "episode_return": 3.0,
        "episode_return_std": pytest.approx(np.sqrt(14 / 3)),
        "episode_return_min": 1.0,
        "episode_return_max": 6.0,
        "episode_length": 6.0,
        "unfinished": 2,
    }


def test_the_absolute_metric_plays_ten_times_as_many_episodes_and_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def played(_: Any, numbers: Any) -> Episodes:
        zeros = np.zeros(numbers.shape)
        return Episodes(returns=numbers, lengths=zeros, finished=zeros > 0, empty_masks=zeros)

    keys = lambda _, seeds, number, first: first + np.arange(6).reshape(1, 2, 3)  # noqa: E731
    monkeypatch.setattr(evaluating, "place_keys", keys)
    layout: Any = SimpleNamespace(gather_split=lambda x: x)
    given: Any = layout, SimpleNamespace(call=played), None, [0]
    for number, total in ((0, 5), (None, 50)):  # five of the six that devices play
        found = evaluating.evaluate(*given, number, 5)
        np.testing.assert_array_equal(found.returns, [np.arange(total)])


@pytest.mark.long
def test_warm_up_moves_the_statistics_before_anything_is_learnt(
    recorder: Recorder, scripted: Any, tmp_path: Path
) -> None:
    seen = scripted([1.0, 2.0])
    loop.run(tiny(system={"obs_norm_warmup_steps": 33}), tmp_path)
    assert recorder.of("start")[0]["warmup_steps"] == 64  # two rollouts of 32 steps
    assert seen[0].obs_statistics.count[0] == 64 + 5 * 32
    assert recorder.of("eval")[0]["steps"] == 5 * 32  # of training alone


@pytest.mark.parametrize(
    "part, poisoned, way_out",
    [
        ("rollout", "nonfinite_reward", "environment's rewards"),
        ("rollout", "nonfinite_observation", "environment's observations"),
        ("learn", "nonfinite_loss", "lower learning rates"),
        ("", "nonfinite_parameter", "lower learning rates"),
    ],
)
def test_nonfinite_training_stops_at_the_blocks_end(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    part: str,
    poisoned: str,
    way_out: str,
) -> None:
    poison(monkeypatch, range(1, 9), part, **{poisoned: np.full(1, 3)})
    with pytest.raises(TrainingError, match=poisoned.partition("_")[2]) as error:
        loop.run(tiny(), tmp_path)
    assert "\n" not in str(error.value)
    assert "step 320" in str(error.value)
    assert str(error.value).endswith(way_out)
    assert [event["event"] for event in recorder.events][-4:] == ["train", "eval", "train", "end"]
    assert recorder.of("end")[0]["status"] != "finished"
    assert recorder.closed == 1


@pytest.mark.parametrize(
    "on_nonfinite, words",
    [
        pytest.param("skip", "and skipped; stopped; try lower", marks=pytest.mark.long),
        ("stop", "loss"),
    ],
)
def test_a_diverging_learning_rate_is_reported_not_trained_through(
    recorder: Recorder, tmp_path: Path, on_nonfinite: str, words: str
) -> None:
    with pytest.raises(TrainingError, match=words):
        loop.run(tiny(system=RATES, arch={"on_nonfinite": on_nonfinite}), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("where", ["training", "evaluation"])
def test_a_mask_without_a_legal_action_stops_the_run(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    if where == "evaluation":  # training looks away
        poison(monkeypatch, range(9), "rollout", empty_mask=np.zeros(1, int))
    settings = tiny(env={"target": "envs.Masked", "params": {"empty": True}})
    with pytest.raises(TrainingError, match=r"no legal action.*action_mask") as error:
        loop.run(settings, tmp_path)
    assert "\n" not in str(error.value)
    assert recorder.of("end")[0]["status"] == str(error.value)
    assert len(recorder.of("eval")) == 0


def test_the_untrained_policy_is_evaluated_and_never_the_best(
    recorder: Recorder, scripted: Any, tmp_path: Path
) -> None:
    seen = scripted([9.0, 3.0, 2.0])
    settings = tiny(arch={"evaluate_first": True, "absolute_metric": False})
    assert loop.run(settings, tmp_path) == 3.0
    evaluations = [(e["steps"], e["episode_return"]) for e in recorder.of("eval")]
    assert evaluations == [(0, 9.0), (160, 3.0), (320, 2.0)]
    assert [event["last"] for event in recorder.of("eval")] == [False, False, True]
    first = jax.tree.leaves(seen[0].params)
    assert any((x != y).any() for x, y in zip(first, jax.tree.leaves(seen[1].params), strict=True))


@pytest.mark.long
def test_the_first_evaluation_leaves_the_others_as_they_were(
    recorder: Recorder, tmp_path: Path
) -> None:
    found = []
    for first in (False, True):
        folder = tmp_path / str(first)
        folder.mkdir()
        loop.run(tiny(arch={"evaluate_first": first}, env={"target": "envs.Coin"}), folder)
        found.append([e for e in recorder.events if e["event"] in ("train", "eval", "absolute")])
        recorder.events.clear()
    without, with_first = found
    assert [e["steps"] for e in with_first if e["event"] == "eval"] == [0, 160, 320]
    changing = {"seconds", "steps_per_second"}
    for one, other in zip(without, with_first[1:], strict=True):
        assert {k: one[k] for k in one.keys() - changing} == {
            k: other[k] for k in other.keys() - changing
        }


@pytest.mark.long
def test_train_events_within_a_block_part_its_metrics(recorder: Recorder, tmp_path: Path) -> None:
    events = {}
    for every in (None, 2, 1):
        folder = tmp_path / str(every)
        folder.mkdir()
        loop.run(tiny(logger={"every": every}), folder)
        events[every] = recorder.of("train")
        assert [event["steps"] for event in recorder.of("eval")] == [160, 320]
        recorder.events.clear()
    assert [event["updates"] for event in events[None]] == [5, 10]
    assert [event["updates"] for event in events[2]] == [2, 4, 5, 7, 9, 10]  # of each block
    assert [event["updates"] for event in events[1]] == list(range(1, 11))
    of_updates = {name: [e[name] for e in events[1]] for name in events[1][0]}
    for name in ("total_loss", "entropy", "parameter_norm", "gradient_steps"):
        first, last = of_updates[name][:5], of_updates[name][5:]
        np.testing.assert_allclose(events[None][0][name], np.mean(first), rtol=1e-5)
        np.testing.assert_allclose(events[None][1][name], np.mean(last), rtol=1e-5)
        pairs = [np.mean(first[:2]), np.mean(first[2:4]), first[4]]
        np.testing.assert_allclose([e[name] for e in events[2][:3]], pairs, rtol=1e-5)
    assert events[None][0]["ratio_max"] == max(of_updates["ratio_max"][:5])
    assert events[2][1]["ratio_min"] == min(of_updates["ratio_min"][2:4])
    assert sum(e["episodes"] for e in events[1]) == sum(e["episodes"] for e in events[None])


def test_a_block_with_train_events_within_is_diagnosed_as_a_whole(
    recorder: Recorder, tmp_path: Path
) -> None:
    """What was not finite in the first update of a block still ends the run at its end."""
    env = {"target": "envs.Lapse", "params": {"max_steps_in_episode": 20}}
    with pytest.raises(TrainingError, match=r"reward \(4\).*step 64"):  # one in each environment
        loop.run(tiny(5, env=env, logger={"every": 1}), tmp_path)
    assert [event["updates"] for event in recorder.of("train")] == [1, 2]


def test_screens_are_shown_progress_between_events(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ticks: list[tuple[int, float]] = []

    class Screen(Recorder):
        def tick(self, steps: int, speed: float) -> None:
            ticks.append((steps, speed))

    screen = Screen()
    monkeypatch.setattr(sinks, "make", lambda *_: [screen])
    monkeypatch.setattr(Pace, "updates", lambda _, left: 1)
    loop.run(tiny(5), tmp_path)
    assert [steps for steps, _ in ticks] == [32, 96, 160, 224, 288]  # at 64 a block ends
    assert all(speed > 0 for _, speed in ticks)
    assert {event["event"] for event in screen.events} >= {"train", "eval"}
