"""The pages: what they show runs, what they name exists, what is generated is current.

A fenced block of `python FILE` or `yaml FILE` is a file that the reader makes, one of `python` is
run where the page's run has left its directory, and one of `bash` holds commands, of which the
first that trains is that run, made small; the others that train are composed, planned and built.
Commands that play, film, export, report and list are run too.
"""

import importlib
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from jaxppo import envs
from jaxppo.config.parse import RENAMED, known_keys, parse_as
from jaxppo.config.plan import plan
from jaxppo.config.schema import Config
from jaxppo.extras.chips.plan import Planning
from jaxppo.extras.tuning import split
from jaxppo.launch.composing import compose, split_settings
from jaxppo.runtime.run.jobs import prepare
from jaxppo.runtime.run.loop import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BY_HAND = [page for page in PAGES if page.name != "settings.md"]
TINY = [
    *("arch.total_num_envs=4", "arch.num_updates=2", "arch.num_evaluation=1"),
    *("arch.num_eval_episodes=2", "arch.max_eval_steps=8", "arch.compile_cache=null"),
    *("system.rollout_length=8", "system.num_minibatches=2", "system.epochs=1"),
    *("logger.console=false", "logger.plot=false"),
    "arch.fused=null",  # its kernels are for GPUs
]
TRAINING = ("ff_ppo", "rec_ppo", "ff_pqn", "rec_pqn", "ff_reppo", "rec_reppo")
SMALLER = {  # commands that do not train -> what makes them small
    "check_env": ["steps=8"],
    "envs": [],
    "evaluate": ["episodes=3"],
    "export": [],
    "render": ["episodes=3", "max_frames=4"],
    "report": [],
}
PLACES = {"report", "tournament"}  # commands that take directories without a key
BUILT: set[str] = set()  # commands that train, by their settings
GROUPS = "arch|system|env|network|population|checkpoint|logger"
FILES = "py|md|yaml|png|svg|csv|json|jsonl"


class Block(typing.NamedTuple):
    """What stands between two fences."""

    language: str
    file: str  # that the reader makes of it, if any
    text: str


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w*) ?(\S*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [Block(*parts) for parts in found]


def commands(page: Path) -> list[list[str]]:
    """Words of the command lines in blocks of bash, and of README's indented ones."""
    texts = [block.text for block in blocks(page) if block.language == "bash"]
    texts += re.findall(r"^    (python -m (?:.*\\\n)*.*)$", page.read_text(), re.MULTILINE)
    lines = "\n".join(texts).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("python -m ")]


def generator() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "settings.py"))


def config_of(words: list[str], *more: str) -> Config:
    """The settings of a command that trains; of a sweep, of its first job."""
    executable = words[2].removeprefix("jaxppo.")
    given = [word for word in words[3:] if word not in ("-m",) and "resume=" not in word]
    extra = [word.partition("=")[2] for word in given if word.startswith("--config-dir=")]
    overrides = []
    for override in OverridesParser.create().parse_overrides(
        [word for word in given if not word.startswith(("--", "hydra"))]
    ):
        assert not override.is_sweep_override() or "-m" in words, words
        if override.is_discrete_sweep():
            first = next(iter(override.sweep_string_iterator()))
            overrides.append(f"{override.get_key_element()}={first}")
        elif not override.is_sweep_override():
            overrides.append(override.input_line or "")
    overrides += [f"hydra.searchpath=[file://{Path(folder).absolute()}]" for folder in extra]
    return compose(executable, [*overrides, *more])


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`made(page)`: a directory with the files that the page has the reader make."""

    def make(page: Path) -> Path:
        for block in blocks(page):
            if block.file:
                file = tmp_path / block.file
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text)
        return tmp_path

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:  # of the page's own files
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


SHOWN = {  # pages with Python, or with commands that do not train
    page.name: page
    for page in PAGES
    if any(b.language == "python" and not b.file for b in blocks(page))
    or any(words[2].removeprefix("jaxppo.") in SMALLER for words in commands(page))
}
LONG = ("python.md", "performance.md")  # programs of their own that tests/deploy has too
RUNS: dict[str, Path] = {}  # settings -> a run that pages share


def train(config: Config, folder: Path, shared: Path) -> None:
    key = repr((config, [file.name for file in Path().glob("*.py")]))
    if key not in RUNS:
        RUNS[key] = shared / str(len(RUNS))
        RUNS[key].mkdir(parents=True)
        run(config, RUNS[key])
    shutil.copytree(RUNS[key], folder, dirs_exist_ok=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SHOWN]
)
def test_what_a_page_shows_runs(
    name: str, made: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any
) -> None:
    page = SHOWN[name]
    folder, shared = made(page), tmp_path_factory.getbasetemp() / "runs_of_pages"
    training = [words for words in commands(page) if words[2].partition(".")[2] in TRAINING]
    first = training[0] if training else ["python", "-m", "jaxppo.ff_ppo", "env=cartpole"]
    others = [w for w in commands(page) if w[2].removeprefix("jaxppo.") in SMALLER]
    found = [w for w in first if w.startswith("hydra.run.dir=")]
    found += [w for words in others for w in words if w.startswith("run=")]
    found += [w for words in others if words[2] == "jaxppo.report" for w in words[3:]]
    for directory in dict.fromkeys(w.rpartition("=")[2] for w in found):
        train(config_of(first, *TINY), folder / directory, shared)
    for words in others:
        monkeypatch.setattr("sys.argv", words[2:] + SMALLER[words[2].removeprefix("jaxppo.")])
        module = "jaxppo.envs.__main__" if words[2] == "jaxppo.envs" else words[2]
        importlib.import_module(module).main()
    namespace = {"__name__": "__main__"}  # of all blocks of a page, as in a reader's session
    for number, block in enumerate(blocks(page)):
        if block.language == "python" and not block.file:
            exec(compile(block.text, f"{named(page)}, block {number}", "exec"), namespace)


def test_completion_completes() -> None:
    """The lines for ~/.bashrc, in bash, where the Tab key would complete a key."""
    (block,) = [b for b in blocks(ROOT / "docs" / "quickstart.md") if b.language == "sh"]
    line = "python -m jaxppo.ff_ppo arch.num_se"
    typed = f"COMP_LINE={shlex.quote(line)}; _jaxppo python arch.num_se; echo ${{COMPREPLY[@]}}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment, script = {**os.environ, "PATH": path}, f"{block.text}\n{typed}"
    told = subprocess.check_output(["bash", "-c", script], text=True, env=environment)
    assert told.split() == ["arch.num_seeds="]


OF_CLASSES = {
    "jaxppo.envs.jaxmarl.JaxMARL": "jaxmarl",
    "jaxppo.simulators.pettingzoo.Parallel": "mpe2",
}


def is_here(config: Config) -> bool:
    """Whether the libraries of a command are installed, and its class is on the page."""
    env = config.env
    if env.target == "my_package.OldEnv":
        return False
    own = OF_CLASSES.get(str(env.target))
    library = envs.PACKAGES[env.library] if env.target is None else None
    simulator = "mujoco" if env.name == "HalfCheetah-v5" else None
    return all(importlib.util.find_spec(x) for x in (library, env.module, simulator, own) if x)


@pytest.mark.long_but(3)
@pytest.mark.parametrize("page", [page for page in BY_HAND if commands(page)], ids=named)
def test_commands_are_taken(page: Path, made: Any) -> None:
    """Those that train are built, once for each environment, network and kind of learning."""
    made(page)
    others = generator()["COMMANDS"]
    for words in commands(page):
        package, _, module = words[2].partition(".")
        if package != "jaxppo":
            assert importlib.util.find_spec(words[2]) is not None, words
        elif module in TRAINING:
            config = config_of(words)
            plan(config, 1)
            names = ("algorithm", "objective", "optimizer")
            own = [getattr(config.system, name, None) for name in names]
            key = repr((config.env, config.network, own))
            if key not in BUILT and is_here(config) and config.init_from is None:
                BUILT.add(key)
                prepare(config_of(words, *TINY))
        elif module == "check_env":  # takes the settings of training
            config_of([*words[:2], "jaxppo.ff_ppo", *words[3:]])
        elif module == "envs":  # at most one word
            assert len(words) <= 4, words
        elif module in ("tune", "plan"):  # its own, and those of training
            settings, typed = (
                split(words[3:]) if module == "tune" else split_settings(Planning, words[3:])
            )
            config_of([*words[:2], settings.command, *typed])
        else:
            named_keys = [word for word in words[3:] if "=" in word or module not in PLACES]
            given = OmegaConf.to_container(OmegaConf.from_dotlist(named_keys))
            parse_as(others[words[2]], typing.cast(dict[str, Any], given))


def test_every_setting_that_is_named_exists() -> None:
    keys = {*known_keys(), *RENAMED}
    for page in BY_HAND:
        prose = re.sub(r"^```(python|yaml).*?^```$", "", page.read_text(), flags=re.DOTALL | re.M)
        prose = re.sub(r"^    .*: no such key; .*$", "", prose, flags=re.M)
        if page.name == "migration.md":  # in whose tables others' names follow
            prose = re.sub(r"^(\|[^|]*\|).*$", r"\1", prose, flags=re.M)
        dotted = rf"(?<![\w./@])((?:{GROUPS})\.(?!(?:{FILES})\b)[a-z]\w*)(?![\w(])"
        # Settings of a reader's own algorithm or objective: `test_commands_are_taken` parses them
        words = [word for command in commands(page) for word in command]
        of_readers = [word.partition("=")[0] for word in words if word.startswith("system.")]
        assert set(re.findall(dotted, prose)) - keys - set(of_readers) == set(), page


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
            if target.startswith(("http://", "https://")):
                continue
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{named(page)} links to {target}, which is not there"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                plain = [re.sub(r"[^\w -]", "", heading).strip().lower() for heading in headings]
                anchors = [heading.replace(" ", "-") for heading in plain]
                assert anchor in anchors, f"{named(page)} links to {target}#{anchor}"


def test_tests_and_modules_that_are_named_exist() -> None:
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    for page in BY_HAND:
        found = re.findall(r"`(test_\w+)`", page.read_text())
        assert [name for name in found if f"def {name}(" not in tests] == []
        folders = "jaxppo|tests|configs|benchmarks"
        files = re.findall(rf"`((?:{folders})/[\w/]+(?:\.\w+)?)`", page.read_text())
        assert [file for file in files if not (ROOT / file).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.name for page in PAGES if page.parent.name == "docs" and page.name != "README.md"]
    assert [name for name in pages if f"]({name})" not in index] == []


def test_every_picture_of_a_page_is_made_by_a_command() -> None:
    pytest.importorskip("nbclient")
    names = runpy.run_path(str(ROOT / "docs" / "pictures.py"))["NAMES"]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"([\w]+\.png)\)", page.read_text())}
    assert shown == {name for name in names if name.endswith(".png")}


def test_the_reference_of_settings_is_current() -> None:
    written = (ROOT / "docs" / "settings.md").read_text()
    assert generator()["settings"]() == written, "run `make docs` (python docs/settings.py)"


def test_the_types_of_keywords_are_current() -> None:
    made = generator()
    assert made["keywords"]() == made["KEYWORDS"].read_text(), "run `make docs`"
