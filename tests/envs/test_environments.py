"""`python -m jaxppo.envs`: which environments it lists, and what it says of them."""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import gymnax
import pytest

from jaxppo.config.messages import installing
from jaxppo.envs import PACKAGES, __main__
from jaxppo.launch import environments
from jaxppo.launch.composing import choices, compose

Ask = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """`ask(*words)`: status, standard output and standard error of the command."""

    def call(*words: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["jaxppo.envs", *words])
        status: Any = 0
        try:
            __main__.main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`only("gymnax")`: pretend that these libraries are installed and no others."""

    def call(*libraries: str) -> None:
        monkeypatch.setattr(environments, "is_installed", lambda library: library in libraries)

    return call


def rows(printed: str) -> dict[str, list[str]]:
    """Name -> cells of the tables' rows."""
    lines = [line.strip("│").split("│") for line in printed.splitlines() if line.startswith("│")]
    return {cells[1].strip(): [cell.strip() for cell in cells] for cells in lines}


def test_all_environments_of_gymnax_are_listed_with_their_spaces(ask: Ask, only: Any) -> None:
    only("gymnax")
    status, out, err = ask()
    assert (status, err) == (0, "")
    listed = rows(out)
    assert set(gymnax.registered_envs) | {"jaxppo.envs.t_maze.TMaze"} == set(listed)
    assert listed["CartPole-v1"] == [
        *("gymnax", "CartPole-v1", "float32[4]", "Discrete(2)", "500"),
        "env=cartpole env=cartpole_no_velocity",
    ]
    assert listed["Swimmer-misc"][-3:] == ["float32[2]", "500", "-"]
    assert listed["jaxppo.envs.t_maze.TMaze"][-2:] == ["22", "env=t_maze"]
    for library in set(PACKAGES) - {"gymnax"}:
        assert f"{library}: not installed: {installing(library)}" in out
    assert "tuned settings: env=brax/ant, env=brax/halfcheetah" in out


def test_what_downloads_files_is_not_made(
    ask: Ask, only: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(config: Any) -> Any:
        raise AssertionError(config.name)

    monkeypatch.setattr(environments, "outline", make)
    only("gymnax")
    status, out, _ = ask("mnist")
    assert status == 0
    assert rows(out)["MNISTBandit-bsuite"][2] == "downloads files when it is made"


def test_libraries_list_what_they_register(ask: Ask, only: Any) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    only("gymnax", "gymnasium")
    _, out, _ = ask()
    (line,) = [line for line in out.splitlines() if line.startswith("gymnasium, ")]
    listed = line.partition(": ")[2].split(", ")
    assert f"gymnasium, {len(listed)} environments: " in line
    stems = {name.rpartition("-v")[0] for name in gymnasium.registry}
    assert sorted(name.rpartition("-v")[0] for name in listed) == sorted(
        stems - {"GymV21Environment", "GymV26Environment"}
    )
    assert "CartPole-v1" in listed
    assert "CartPole-v0" not in listed  # an older version


def test_what_a_library_lacks_is_said_in_its_own_words(ask: Ask, only: Any) -> None:
    pytest.importorskip("gymnasium")
    if importlib.util.find_spec("mujoco"):
        pytest.skip("mujoco is installed")
    only("gymnax", "gymnasium")
    _, out, _ = ask("halfcheetah")
    assert 'pip install "gymnasium[mujoco]"' in rows(out)["HalfCheetah-v5"][2]


def test_word_filters_by_name_library_and_file(ask: Ask, only: Any) -> None:
    only("gymnax", "gymnasium")
    status, out, _ = ask("CARTPOLE-v1")
    assert status == 0
    assert [cells[:5] for cells in rows(out).values()][-1][1:] == [
        *("phys2d/CartPole-v1", "float32[4]", "Discrete(2)", "500")
    ]
    assert "not installed, and not searched: brax, " in out
    assert list(rows(ask("no_velocity")[1])) == ["CartPole-v1", "Pendulum-v1"]
    of_brax = rows(ask("brax")[1])
    assert list(of_brax) == ["ant", "halfcheetah", "hopper", "humanoid", "walker2d"]
    missing = f"not installed: {installing('brax')}"
    assert of_brax["ant"][2:] == [missing, "-", "-", "env=brax/ant"]


def test_long_lists_are_cut(ask: Ask, only: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    only("gymnax")
    monkeypatch.setattr(environments, "MAX_BUILT", 2)
    _, out, _ = ask("minatar")
    assert list(rows(out)) == ["Asterix-MinAtar", "Breakout-MinAtar"]
    assert "and 3 more; a longer word shows fewer" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cartpol-v1"], "cartpol-v1: no environment has this in its name; the nearest: CartPole-"),
        (["a", "b"], "a b: give one word, such as cart, or none"),
        (["name=x"], "name=x: give one word"),
        (["--all"], "--all: give one word"),
    ],
)
def test_other_words_are_refused(ask: Ask, only: Any, words: list[str], expected: str) -> None:
    only("gymnax")
    status, out, err = ask(*words)
    assert (status, out) == (2, "")
    assert err.startswith(expected)
    assert len(err.splitlines()) == 1


def test_tuned_settings_are_those_that_hydra_composes() -> None:
    by_file = {file: key for key, files in environments.tuned().items() for file in files}
    assert sorted(by_file) == sorted(set(choices("env")) - {"gymnax", "gymnasium"})
    for file, (library, name) in by_file.items():
        env = compose("ff_ppo", [f"env={file}"]).env
        assert (library, name) == (
            ("jaxppo", env.target) if env.target is not None else (env.library, env.name)
        )
