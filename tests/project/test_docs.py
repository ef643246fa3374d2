"""The pages: what they show runs, what they name exists, what is generated is current.

A fenced block of `python FILE` or `yaml FILE` is a file that the reader makes, one of `python` is
run where the page's run has left its directory, and one of `bash` holds commands, of which the
first that trains is that run, made small; the others that train are composed and planned, and run
by a test of their own. Commands that play, film, export, report and list are run too.
"""

import dataclasses
import importlib
import importlib.util
import itertools
import os
import re
import runpy
import shlex
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from jaxppo import envs
from jaxppo.config.parse import known_keys, parse_as
from jaxppo.config.plan import plan
from jaxppo.config.schema import Config
from jaxppo.extras.tuning import split
from jaxppo.launch.composing import compose
from jaxppo.runtime.run.loop import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BY_HAND = [page for page in PAGES if page.name != "settings.md"]
TINY = [
    *("arch.total_num_envs=4", "arch.num_updates=2", "arch.num_evaluation=1"),
    *("arch.num_eval_episodes=2", "arch.max_eval_steps=8", "arch.compile_cache=null"),
    *("system.rollout_length=8", "system.num_minibatches=2", "system.epochs=1"),
    *("logger.console=false", "logger.plot=false"),
]
TRAINING = ("ff_ppo", "rec_ppo", "ff_pqn", "rec_pqn")
SMALLER = {  # commands that do not train -> what makes them small
    "check_env": ["steps=8"],
    "envs": [],
    "evaluate": ["episodes=3"],
    "export": [],
    "render": ["episodes=3", "max_frames=4"],
    "report": [],
}
GROUPS = "arch|system|env|network|population|checkpoint|logger"
FILES = "py|md|yaml|png|svg|csv|json|jsonl"


@dataclasses.dataclass(frozen=True)
class Block:
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


def executables() -> dict[str, Any]:
    """The settings of what trains nothing, from the page's generator."""
    return {name.removeprefix("jaxppo."): cls for name, cls in generator()["COMMANDS"].items()}


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


def shows_something(page: Path) -> bool:
    """Whether a page has Python, or a command that does not train."""
    return any(b.language == "python" for b in blocks(page)) or any(
        words[2].removeprefix("jaxppo.") in SMALLER for words in commands(page)
    )


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if shows_something(page)], ids=named)
def test_what_a_page_shows_runs(page: Path, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(page)
    training = [words for words in commands(page) if words[2].partition(".")[2] in TRAINING]
    first = training[0] if training else ["python", "-m", "jaxppo.ff_ppo", "env=cartpole"]
    others = [w for w in commands(page) if w[2].removeprefix("jaxppo.") in SMALLER]
    given = [w.partition("=")[2] for w in first if w.startswith("hydra.run.dir=")]
    given += [w.partition("=")[2] for words in others for w in words if w.startswith("run=")]
    given += [w for words in others if words[2] == "jaxppo.report" for w in words[3:]]
    for directory in dict.fromkeys(given or ["run"] * bool(training)):
        (folder / directory).mkdir(parents=True)
        run(config_of(first, *TINY), folder / directory)
    for words in others:
        monkeypatch.setattr("sys.argv", words[2:] + SMALLER[words[2].removeprefix("jaxppo.")])
        module = "jaxppo.envs.__main__" if words[2] == "jaxppo.envs" else words[2]
        importlib.import_module(module).main()
    namespace = {"__name__": "__main__"}  # of all blocks of a page, as in a reader's session
    for number, block in enumerate(blocks(page)):
        if block.language == "python" and not block.file:
            code = compile(block.text, f"{named(page)}, block {number}", "exec")
            exec(code, namespace)


def test_completion_completes() -> None:
    """The lines for ~/.bashrc, in bash, where the Tab key would complete a key."""
    (block,) = [b for b in blocks(ROOT / "docs" / "quickstart.md") if b.language == "sh"]
    line = "python -m jaxppo.ff_ppo arch.num_se"
    typed = f"COMP_LINE={shlex.quote(line)}; _jaxppo python arch.num_se; echo ${{COMPREPLY[@]}}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    told = subprocess.run(
        ["bash", "-c", f"{block.text}\n{typed}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        check=True,
    )
    assert told.stdout.split() == ["arch.num_seeds="]


@pytest.mark.parametrize("page", [page for page in BY_HAND if commands(page)], ids=named)
def test_commands_are_taken(page: Path, made: Any) -> None:
    made(page)
    others = executables()
    for words in commands(page):
        package, _, module = words[2].partition(".")
        if package != "jaxppo":
            assert importlib.util.find_spec(words[2]) is not None, words
        elif module in TRAINING:
            plan(config_of(words), jax.local_device_count())
        elif module == "check_env":  # takes the settings of training
            config_of([*words[:2], "jaxppo.ff_ppo", *words[3:]])
        elif module == "envs":  # at most one word
            assert len(words) <= 4, words
        elif module == "tune":  # its own, and those of training
            settings, typed = split(words[3:])
            config_of([*words[:2], settings.command, *typed])
        else:
            named_keys = [word for word in words[3:] if "=" in word or module != "report"]
            given = OmegaConf.to_container(OmegaConf.from_dotlist(named_keys))
            parse_as(others[module], typing.cast(dict[str, Any], given))


def that_train() -> list[Any]:
    """The training commands of each page, but for several hosts and `arch.plan_only`."""
    found: dict[str, tuple[Path, list[str]]] = {}
    others = ("arch.distributed", "arch.plan_only")
    for page in BY_HAND:
        for words in commands(page):
            here = not any(word.startswith(others) for word in words)
            if words[2].removeprefix("jaxppo.") in TRAINING and here:
                found.setdefault(" ".join(words[2:]), (page, words))
    return [pytest.param(*pair, id=f"{named(pair[0])}: {words}") for words, pair in found.items()]


@pytest.mark.long
@pytest.mark.parametrize("page, words", that_train())
def test_commands_that_train_do(page: Path, words: list[str], made: Any) -> None:
    folder = made(page)
    config = config_of(words, *TINY)
    env = config.env
    library = envs.PACKAGES[env.library] if env.target is None else None
    simulator = "mujoco" if env.name == "HalfCheetah-v5" else None
    for package in filter(None, (library, env.module, simulator)):
        pytest.importorskip(package)
    run(config, folder)


@pytest.mark.parametrize("page", BY_HAND, ids=named)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    prose = re.sub(r"^```(python|yaml).*?^```$", "", page.read_text(), flags=re.DOTALL | re.M)
    prose = re.sub(r"^    .*: no such key; .*$", "", prose, flags=re.M)
    if page.name == "migration.md":  # in whose tables others' names follow
        prose = re.sub(r"^(\|[^|]*\|).*$", r"\1", prose, flags=re.M)
    found = re.findall(rf"(?<![\w./@])((?:{GROUPS})\.(?!(?:{FILES})\b)[a-z]\w*)(?![\w(])", prose)
    # Settings of a reader's own algorithm or objective: `test_commands_are_taken` parses them.
    words = [word for command in commands(page) for word in command]
    of_readers = [word.partition("=")[0] for word in words if word.startswith("system.")]
    assert set(found) - set(known_keys()) - set(of_readers) == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{named(page)} links to {target}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            anchors = [
                re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings
            ]
            assert anchor in anchors, f"{named(page)} links to {target}#{anchor}"


@pytest.mark.parametrize("page", BY_HAND, ids=named)
def test_tests_and_modules_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    tests = "".join(file.read_text() for file in (ROOT / "tests").glob("*.py"))
    found = re.findall(r"`(test_\w+)`", text)
    assert [name for name in found if f"def {name}(" not in tests] == []
    files = re.findall(r"`((?:jaxppo|tests|configs|benchmarks)/[\w/]+(?:\.\w+)?)`", text)
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
    wanted = generator()["settings"]()
    changed = [
        line
        for line, other in itertools.zip_longest(wanted.splitlines(), written.splitlines())
        if line != other
    ]
    assert wanted == written, f"run `make docs` (python docs/settings.py): {changed[:1]}"
