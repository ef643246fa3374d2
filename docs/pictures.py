"""Makes the pictures of the pages and the tutorial's outputs anew: `make pictures`.

    python docs/pictures.py                         # all that take minutes
    python docs/pictures.py strip.png tutorial.ipynb
    python docs/pictures.py results.png scaling.png

Each picture comes from the command that its page shows, run in a temporary directory; the report's
also needs the six short runs of `_compared`. `results.png` and `scaling.png` take much longer, so
they are only copied, and only if named, from where `make results` and `python -m
benchmarks.scaling` leave them: run these first, to their ends. A web page is
photographed with Chromium. `tutorial.ipynb` is executed, and keeps its outputs.
"""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat
from PIL import Image, ImageOps

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
RUN = ("jaxppo.ff_ppo", "env=cartpole", "hydra.run.dir=run")


@dataclasses.dataclass(frozen=True)
class Picture:
    """Commands, arguments of `python -m`, that leave `file` in the directory where they run."""

    commands: tuple[tuple[str, ...], ...]
    file: str
    border: bool = False  # where a white margin would not be seen as part of the picture


def _compared(env: str, gae_lambda: float) -> tuple[str, ...]:
    """Five short runs of the report."""
    short = ("arch.total_timesteps=4e5", "arch.num_seeds=5", "logger.plot=false")
    where = f"hydra.run.dir=runs/{gae_lambda}/{env}"
    return ("jaxppo.ff_ppo", f"env={env}", f"system.gae_lambda={gae_lambda}", *short, where)


PICTURES = {
    "learning_curve.png": Picture((RUN,), "run/learning_curve.png"),
    "strip.png": Picture(
        (
            ("jaxppo.ff_ppo", "env=acrobot", "hydra.run.dir=acrobot"),
            ("jaxppo.render", "run=acrobot"),
        ),
        "acrobot/strip.png",
        border=True,
    ),
    "sweep.png": Picture(
        (
            (
                *("jaxppo.ff_ppo", "-m", "env=cartpole", "arch.total_timesteps=3e5"),
                *("system.actor_lr=1e-4,3e-4,1e-3", "system.gamma=0.9,0.99", "arch.seed=range(5)"),
                "hydra.sweep.dir=sweep",
            ),
        ),
        "sweep/sweep.png",
    ),
    "population.png": Picture(
        (
            (
                *("jaxppo.ff_ppo", "env=acrobot", "population=pbt", "population.size=16"),
                "hydra.run.dir=run",
            ),
        ),
        "run/population.png",
    ),
    "report.png": Picture(
        (
            *(
                _compared(env, gae_lambda)
                for gae_lambda in (0.0, 0.95)
                for env in ("cartpole", "acrobot", "catch")
            ),
            ("jaxppo.report", "runs"),
        ),
        "report/index.html",
        border=True,
    ),
}
COPIED = {"results.png": RESULTS / "table" / "results.png", "scaling.png": RESULTS / "scaling.png"}
TUTORIAL = "tutorial.ipynb"
NAMES = (*PICTURES, TUTORIAL, *COPIED)


def photograph(page: Path, picture: Path, width: int = 1240, height: int = 1100) -> None:
    """The top of a web page as a browser shows it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"{picture.name}: none of {', '.join(BROWSERS)} is installed")
    flags = ("--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=3000")
    shot = (f"--window-size={width},{height}", f"--screenshot={picture}", page.resolve().as_uri())
    subprocess.run([browser, *flags, *shot], check=True, capture_output=True)


def make(name: str, folder: Path) -> None:
    """Run the commands of a picture, unless an earlier picture did, and put it beside the pages."""
    picture = PICTURES[name]
    for command in picture.commands:
        done = folder / ("." + "".join(c if c.isalnum() else "_" for c in " ".join(command)))
        if not done.exists():
            print(f"{name}: python -m {' '.join(command)}", flush=True)
            env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
            subprocess.run([sys.executable, "-m", *command], cwd=folder, env=env, check=True)
            done.touch()
    made = folder / picture.file
    if made.suffix == ".html":
        made, page = folder / name, made
        photograph(page, made)
    with Image.open(made) as image:  # few colours: a third of the size
        shown = image.convert("RGB")
        if picture.border:
            shown = ImageOps.expand(shown, 2, "#c4c9d2")
        shown.quantize(128).save(HERE / name, optimize=True)


def execute(file: Path, folder: str) -> None:
    """Run the cells of a notebook from an empty directory, and keep their outputs in it."""
    notebook = nbformat.read(file, 4)
    client = nbclient.NotebookClient(notebook, kernel_name="python3", record_timing=False)
    client.execute(cwd=folder)
    notebook.metadata["language_info"] = {"name": "python"}  # not this machine's version
    nbformat.write(notebook, file)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=[*PICTURES, TUTORIAL], metavar="NAME")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"{unknown[0]}: no such picture; of {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if name in PICTURES:
                where = Path(folder) / ("cartpole" if RUN in PICTURES[name].commands else name)
                where.mkdir(exist_ok=True)
                make(name, where)
            elif name == TUTORIAL:
                execute(HERE / name, folder)
            elif COPIED[name].is_file():
                shutil.copy(COPIED[name], HERE / name)
            else:
                raise SystemExit(f"{name}: {COPIED[name]} is not there; its benchmark makes it")


if __name__ == "__main__":
    main()
