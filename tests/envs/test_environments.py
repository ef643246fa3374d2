"""`python -m jaxppo.envs`: which environments it lists, and what it says of them."""

import sys
from collections.abc import Callable
from typing import Any

import gymnax
import pytest

from jaxppo.config.messages import installing
from jaxppo.envs import PACKAGES, __main__
from jaxppo.launch import environments
from jaxppo.launch.composing import compose
from jaxppo.launch.door import choices

Ask = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """`ask(*words)`: status, standard output and standard error of the command.

    Only gymnax and gymnasium count as installed.
    """
    installed = ("gymnax", "gymnasium")
    monkeypatch.setattr(environments, "is_installed", lambda library: library in installed)

    def call(*words: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["jaxppo.envs", *words])
        status: Any = 0
        try:
            __main__.main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def rows(printed: str) -> dict[str, list[str]]:
    """Name -> cells of the tables' rows."""
    lines = [line.strip("│").split("│") for line in printed.splitlines() if line.startswith("│")]
    return {cells[1].strip(): [cell.strip() for cell in cells] for cells in lines}


def test_all_environments_are_listed_with_their_spaces_and_files(ask: Ask) -> None:
    status, out, err = ask()
    assert (status, err) == (0, "")
    listed = rows(out)
    assert set(gymnax.registered_envs) | {
        "jaxppo.envs.t_maze.TMaze",
        "jaxppo.envs.gate.Gate",
    } == set(listed)
    assert listed["CartPole-v1"] == [
        *("gymnax", "CartPole-v1", "float32[4]", "Discrete(2)", "500"),
        "env=cartpole env=cartpole_no_velocity",
    ]
    assert "float32" not in listed["MNISTBandit-bsuite"][2]  # which downloads files if it is made
    for library in set(PACKAGES) - {"gymnax", "gymnasium"}:
        assert f"{library}: not installed: {installing(library)}" in out


def test_a_word_finds_names_libraries_and_files(ask: Ask) -> None:
    assert "phys2d/CartPole-v1" in rows(ask("CARTPOLE-v1")[1])
    assert list(rows(ask("no_velocity")[1])) == ["CartPole-v1", "Pendulum-v1"]
    of_brax = rows(ask("brax")[1])
    assert list(of_brax) == ["ant", "halfcheetah", "hopper", "humanoid", "walker2d"]
    for words in (["cartpol-v1"], ["a", "b"], ["--all"]):
        assert ask(*words)[0] == 2


def test_tuned_settings_are_those_that_hydra_composes() -> None:
    by_file = {file: key for key, files in environments.tuned().items() for file in files}
    assert sorted(by_file) == sorted(set(choices("env")) - {"batch", "gymnax", "gymnasium"})
    for file in ("cartpole_no_velocity", "t_maze"):
        env = compose("ff_ppo", [f"env={file}"]).env
        found = ("jaxppo", env.target) if env.target is not None else (env.library, env.name)
        assert by_file[file] == found
