"""The gallery of docs/examples: some scripts run at a small size; as they are, all are `slow`."""

import ast
import contextlib
import itertools
import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from cli import ROOT, run_python

from jaxppo import api

GALLERY = ROOT / "docs" / "examples"
SCRIPTS = sorted(path.stem for path in GALLERY.glob("*.py"))
NOTEBOOK = GALLERY / "notebook.ipynb"
REINFORCE = GALLERY / "reinforce.ipynb"
TUTORIAL = GALLERY.parent / "tutorial.ipynb"
LIMIT = 400  # [s] for a script on a machine that does other things too


def numbers(pattern: str, text: str) -> list[float]:
    """All numbers that `(#)` stands for in a pattern."""
    found = re.findall(pattern.replace("#", r"[-+]?[\d,]+(?:\.\d+)?"), text, re.MULTILINE)
    return [float(each.replace(",", "")) for each in found]


NEEDS = {"optuna_pruning": "optuna", "gymnasium_loop": "gymnasium"}
SMALL = [
    *("arch.total_num_envs=4", "arch.num_eval_episodes=2", "arch.compiler=quick"),
    *("arch.compile_cache=null", "system.rollout_length=8", "system.num_minibatches=2"),
    "system.epochs=1",
]
TRAINED = {  # script -> lines with numbers that it prints, and how many of them
    "seeds": (r"^ *[\d,]+ +(#) ", 6),
    "transfer": (r"^ *(#) steps:", 6),
}


class Composed(Exception):
    """The settings are composed."""


@pytest.fixture
def small(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of Python that compose are made small: 32 steps an update, 250 times fewer steps.

    Of scripts whose program is like another's nothing is trained.
    """

    def composed(command: str, given: list[str]) -> Any:
        config = compose(command, given)
        if request.node.callspec.params["name"] not in TRAINED:
            raise Composed
        (steps,) = [x.partition("=")[2] for x in given if x.startswith("arch.total_timesteps=")]
        less = [] if config.resume else SMALL
        return compose(command, [*given, *less, f"arch.total_timesteps={float(steps) / 250}"])

    compose = api.compose_run
    monkeypatch.setattr(api, "compose_run", composed)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in TRAINED)) for name in SCRIPTS]
)
def test_a_script_runs_at_a_small_size(
    name: str, cwd: Path, small: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(cwd)
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    with contextlib.nullcontext() if name in TRAINED else pytest.raises(Composed):
        runpy.run_path(str(GALLERY / f"{name}.py"), run_name="__main__")
    if name in TRAINED:
        pattern, num = TRAINED[name]
        printed = capsys.readouterr().out
        shown = numbers(pattern, printed)
        assert len(shown) == num
    if name == "transfer":
        before, after = numbers(r" after (#) steps", printed)
        assert max(before, after) <= shown[-1] == 320
        assert shown == sorted(shown)
    assert not list(cwd.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_shows_what_it_says(name: str, cwd: Path, shell: dict[str, str]) -> None:
    """Run as a user runs it, from an empty directory."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    done = run_python(str(GALLERY / f"{name}.py"), cwd=cwd, env=shell, limit=LIMIT)
    assert done.status == 0, done.err
    assert not list(cwd.iterdir())
    assert numbers(r" (#)", done.out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file, pictures, film", [(NOTEBOOK, 1, 1), (REINFORCE, 1, 0), (TUTORIAL, 7, 0)]
)
def test_a_notebook_shows_what_it_says(
    file: Path, pictures: int, film: int, cwd: Path, shell: dict[str, str], monkeypatch: Any
) -> None:
    """Run from an empty directory."""
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
    data = [output.data for output in outputs if "data" in output]
    assert len([x for x in data if "image/png" in x]) == pictures
    pages = [x["text/html"] for x in data if "text/html" in x]
    assert len([page for page in pages if 'src="data:image/gif;base64,R0lGOD' in page]) == film
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    for pattern, least in ((r"IQM (#)", 250), (r"expert (#)$", 450), (r"return (#)$", 450)):
        assert all(score > least for score in numbers(pattern, printed))
    for found in re.findall(r"largest difference: (\S+)", printed):
        assert float(found) < 1e-3


def cells_of_code(file: Path) -> list[Any]:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(file, 4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_notebooks_import_what_is_there() -> None:
    for cell in itertools.chain(*map(cells_of_code, (NOTEBOOK, REINFORCE, TUTORIAL))):
        lines = [node for node in ast.parse(cell.source).body if "import" in ast.unparse(node)]
        exec("\n".join(ast.unparse(node) for node in lines), {})


def test_notebooks_are_stored_without_outputs_or_as_run_from_top_to_bottom() -> None:
    for file in (NOTEBOOK, REINFORCE):
        assert [c for c in cells_of_code(file) if c.outputs or c.execution_count] == []
    cells = cells_of_code(TUTORIAL)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [output for cell in cells for output in cell.outputs]
    assert len([output for output in shown if "image/png" in output.get("data", {})]) == 7


def test_every_example_is_short_tested_and_in_the_index() -> None:
    index = (ROOT / "docs" / "examples.md").read_text()
    files = [path.name for path in GALLERY.iterdir() if path.suffix in (".py", ".ipynb")]
    assert [name for name in files if f"](examples/{name})" not in index] == []
    for name in SCRIPTS:
        text = (GALLERY / f"{name}.py").read_text()
        assert len(text.splitlines()) <= 60
        assert ast.get_docstring(ast.parse(text))
