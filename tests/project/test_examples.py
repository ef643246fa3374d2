"""The gallery of docs/examples: every script and the notebook run, and print what they should."""

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli import ROOT, run_python

from jaxppo.ops.aggregates import iqm

GALLERY = ROOT / "docs" / "examples"
SCRIPTS = sorted(path.stem for path in GALLERY.glob("*.py"))
NOTEBOOK = GALLERY / "notebook.ipynb"
TUTORIAL = GALLERY.parent / "tutorial.ipynb"
LIMIT = 400  # [s] for a script on a machine that does other things too


@pytest.fixture
def example(cwd: Path, shell: dict[str, str]) -> Callable[[str], str]:
    """`example(name)`: what a script prints, run as a user runs it, from an empty directory."""

    def run(name: str) -> str:
        done = run_python(str(GALLERY / f"{name}.py"), cwd=cwd, env=shell, limit=LIMIT)
        assert done.status == 0, done.err
        assert not list(cwd.iterdir())
        return done.out

    return run


def number(pattern: str, text: str) -> float:
    """The only number that `(#)` stands for in a pattern."""
    (found,) = numbers(pattern, text)
    return found


def numbers(pattern: str, text: str) -> list[float]:
    """All numbers that `(#)` stands for in a pattern."""
    found = re.findall(pattern.replace("#", r"[-+]?[\d,]+(?:\.\d+)?"), text, re.MULTILINE)
    return [float(each.replace(",", "")) for each in found]


@pytest.mark.long
def test_seeds_learn_and_the_interval_holds_the_mean(example: Any) -> None:
    printed = example("seeds")
    curve = numbers(r"^ *[\d,]+ +(#) ", printed)
    assert len(curve) == 6
    assert curve[0] < 100 < 350 < curve[-1]
    mean, low, high = (number(rf"IQM {p}", printed) for p in ("(#)", r"# \[(#)", r"# \[#, (#)"))
    assert 350 < low <= mean <= high <= 500


@pytest.mark.long
def test_a_grid_has_a_row_for_each_rate_and_finds_that_low_ones_are_slow(example: Any) -> None:
    printed = example("grid")
    rates = numbers(r"^ +(#) .*\[", printed)
    np.testing.assert_allclose(rates, np.logspace(-4, -2, 8), atol=6e-6)
    means = numbers(r"^ +# +(#) +\[", printed)
    scores = [[float(x) for x in row.split()] for row in re.findall(r"\] +(.*)$", printed, re.M)]
    np.testing.assert_allclose(iqm(scores), means, atol=0.6)
    assert max(means) > 2 * means[0]
    assert number(r"best learning rate: (#)", printed) == rates[int(np.argmax(means))]


@pytest.mark.long
def test_the_learnt_entropy_coefficient_is_lower_and_trains_better(example: Any) -> None:
    printed = example("meta_learning")
    coefficients = numbers(r"^ +\d+ +(#) ", printed)
    returns = numbers(r" (#)$", printed)[:-1]
    assert len(coefficients) == len(returns) == 5
    assert coefficients[0] == 1.0
    assert number(r"learnt ent_coef: (#)", printed) < 0.2
    assert returns[-1] > returns[0] + 0.2


@pytest.mark.long
def test_the_spacecraft_comes_to_rest(example: Any) -> None:
    printed = example("own_environment")
    returns = numbers(r"return +(#)$", printed)
    assert returns[0] < -10 < -5 < returns[-1]
    assert -5 < number(r"absolute metric: (#)", printed) < 0
    positions, speeds = numbers(r"position (#)", printed), numbers(r"velocity (#)", printed)
    assert abs(positions[0]) > 0.2
    assert abs(positions[-1]) < 0.15
    assert abs(speeds[-1]) < 0.1


@pytest.mark.long
def test_a_critic_that_sees_the_state_trains_a_better_actor(example: Any) -> None:
    printed = example("privileged_critic")
    same, state = (numbers(rf"sees the {entry} .* (#)$", printed) for entry in ("camera", "state"))
    assert len(numbers(r"training: +(#) ", printed)) == 2
    assert state[0] > 1.3 * same[0] > 60


@pytest.mark.long
def test_the_network_is_the_one_that_was_given(example: Any) -> None:
    printed = example("own_network")
    block = 2 * 32 + 2 * (32 * 32 + 32)  # a layer norm and two dense layers
    assert number(r"^actor_torso: (#)", printed) == 4 * 32 + 32 + 3 * block
    assert number(r"^critic_torso: (#)", printed) == 4 * 32 + 32 + 2 * block
    assert number(r"absolute metric: (#)", printed) > 250


@pytest.mark.long
def test_optuna_prunes_trials_and_finds_the_best_of_the_others(example: Any) -> None:
    pytest.importorskip("optuna", reason="pip install optuna")
    printed = example("optuna_pruning")
    completed = numbers(r"COMPLETE with return (#)", printed)
    pruned = numbers(r"PRUNED with return (#)", printed)
    assert len(completed) + len(pruned) == 5
    assert completed
    assert pruned
    assert number(r"^best: .* absolute metric (#)", printed) == max(completed) > 300


@pytest.mark.long
def test_the_policy_acts_as_well_in_gymnasium(example: Any) -> None:
    pytest.importorskip("gymnasium", reason="pip install gymnasium")
    printed = example("gymnasium_loop")
    returns = numbers(r"^episode .*return (#)$", printed)
    assert len(returns) == 5
    assert np.mean(returns) > 300
    assert abs(np.mean(returns) - number(r"training: (#)$", printed)) < 150


@pytest.mark.long
def test_a_policy_that_fails_elsewhere_is_trained_on_there(example: Any) -> None:
    printed = example("transfer")
    source, target = numbers(r"^(?:source|target): (#)", printed)
    before = number(r"reversed motor: (#)", printed)
    assert source > 300
    assert target > 300 > 2 * before
    source_steps, target_steps = numbers(r" after (#) steps", printed)
    assert source_steps <= 80_896 < target_steps
    steps = numbers(r"^ *(#) steps:", printed)
    assert steps == sorted(steps)
    assert len(steps) == 10  # in the new environment
    assert steps[0] > 80_896


def executed(
    file: Path, cwd: Path, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """Return the outputs of a notebook's cells, run from an empty directory."""
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(file, 4)
    for name in set(os.environ) - set(shell):
        monkeypatch.delenv(name)
    client = nbclient.NotebookClient(notebook, timeout=LIMIT, kernel_name="python3")
    client.execute(cwd=str(cwd), env=shell)  # raises if a cell does
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [output for output in outputs if output.output_type == "error"] == []
    return outputs


@pytest.mark.long
def test_the_notebook_shows_a_bar_a_curve_and_a_film(
    cwd: Path, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = executed(NOTEBOOK, cwd, shell, monkeypatch)
    shown = [output.data for output in outputs if "data" in output]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    bars = [re.search(r'<progress value="(\d+)" max="(\d+)">', page) for page in pages]
    (done,) = [bar.groups() for bar in bars if bar]
    assert done == ("50176", "50176")  # full at the end
    assert len([page for page in pages if 'src="data:image/gif;base64,R0lGOD' in page]) == 1
    assert len([data for data in shown if "image/png" in data]) == 1
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert number(r"IQM (#)", printed) > 250
    assert re.search(r"^1 \[[01]( [01]){7}\]$", printed, re.MULTILINE)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_says_what_it_shows(name: str) -> None:
    text = (GALLERY / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 60
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.long
def test_the_tutorial_shows_what_it_says(
    cwd: Path, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = executed(TUTORIAL, cwd, shell, monkeypatch)
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert number(r"beginner (#), expert", printed) < 150
    assert number(r"expert (#)$", printed) > 450
    assert "then the pole fell" in printed
    assert float(re.findall(r"largest difference: (\S+)", printed)[0]) < 1e-3
    kept, lost = (number(rf"last targets: {p}$", printed) for p in ("(#) and #", r"# and (#)"))
    assert kept > 30
    assert lost == 1
    assert (
        number(r"without a clip: # to (#)", printed)
        > 2
        > 1.5
        > number(r"with a clip: # to (#)", printed)
    )
    assert len([output for output in outputs if "image/png" in output.get("data", {})]) == 7


def cells_of_code(file: Path) -> list[Any]:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(file, 4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebook_is_stored_without_outputs() -> None:
    assert [c for c in cells_of_code(NOTEBOOK) if c.outputs or c.execution_count] == []


def test_the_tutorial_is_stored_as_it_was_run_from_top_to_bottom() -> None:
    cells = cells_of_code(TUTORIAL)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output for cell in cells for output in cell.outputs]
    assert len([output for output in shown if "image/png" in output.get("data", {})]) == 7


def test_every_example_is_tested_and_in_the_index() -> None:
    index = (ROOT / "docs" / "examples.md").read_text()
    files = [path.name for path in GALLERY.iterdir() if path.suffix in (".py", ".ipynb")]
    assert [name for name in files if f"](examples/{name})" not in index] == []
    tests = Path(__file__).read_text()
    assert [name for name in SCRIPTS if f'example("{name}")' not in tests] == []
