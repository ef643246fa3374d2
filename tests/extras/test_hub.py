"""Runs on a hub, of which a folder takes the place."""

import fnmatch
import inspect
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from conftest import close, small_config

import jaxppo
from jaxppo import hub as command
from jaxppo.config.fields import ConfigError
from jaxppo.config.stored import keep_config
from jaxppo.extras import hub
from jaxppo.extras.hub import Pull, Push
from jaxppo.runtime.run import loop


class Hub:
    """A folder for each repository, and how the client was called."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def module(self) -> types.ModuleType:
        module = types.ModuleType("huggingface_hub")
        vars(module).update(HfApi=lambda: self, snapshot_download=self.snapshot_download)
        return module

    def create_repo(self, *args: Any, **named: Any) -> None:
        self.calls.append(("create_repo", args, named))
        (self.place / args[0]).mkdir(parents=True, exist_ok=named["exist_ok"])

    def upload_folder(self, **named: Any) -> None:
        self.calls.append(("upload_folder", (), named))
        source = Path(named["folder_path"])
        for file in (path for path in source.rglob("*") if path.is_file()):
            name = str(file.relative_to(source))
            if not any(fnmatch.fnmatch(name, each) for each in named["ignore_patterns"]):
                target = self.place / named["repo_id"] / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)

    def upload_file(self, **named: Any) -> None:
        self.calls.append(("upload_file", (), named))
        target = self.place / named["repo_id"] / named["path_in_repo"]
        target.write_bytes(named["path_or_fileobj"])

    def snapshot_download(self, *args: Any, **named: Any) -> None:
        self.calls.append(("snapshot_download", args, named))
        if not (self.place / args[0]).is_dir():
            raise OSError(f"404 Client Error: {args[0]}\nof many lines")
        shutil.copytree(self.place / args[0], named["local_dir"], dirs_exist_ok=True)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", made.module())
    monkeypatch.setattr(hub, "is_installed", lambda _: True)
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("run")
    config = small_config(
        env__target="envs.Aim", logger={"console": False, "plot": False},
    )  # fmt: skip
    loop.run(config, folder)
    keep_config(config, folder)
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "hydra.yaml").write_text("cwd: /home/somebody")
    for name in ("wandb", "seed_7/wandb"):
        (folder / name).mkdir(parents=True)
        (folder / name / "run_id").write_text("secret")
    return folder


def test_a_pulled_run_acts_as_the_one_that_was_pushed(
    fake: Hub, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["hub", "push", str(run_dir), "ann/aim"])
    command.main()
    files = {p.relative_to(fake.place).as_posix() for p in fake.place.rglob("*") if p.is_file()}
    assert {"ann/aim/config.yaml", "ann/aim/metrics.jsonl", "ann/aim/README.md"} <= files
    assert [name for name in files if any(x in name for x in (".hydra", ".lock", "wandb"))] == []
    score = json.loads((run_dir / "summary.json").read_text())["absolute_metric"]
    assert str(score) in (fake.place / "ann" / "aim" / "README.md").read_text()
    monkeypatch.setattr(sys, "argv", ["hub", "pull", "ann/aim", "revision=main"])
    command.main()
    mine, other = (jaxppo.load(x, trust=["envs"]) for x in (run_dir, tmp_path / "aim"))
    close(mine.policy.params, other.policy.params)


def test_a_pulled_run_imports_nothing_of_its_own(fake: Hub, run_dir: Path, tmp_path: Path) -> None:
    """Not by the pull, though its folder has the module; and to load it needs trust."""
    hub.push(Push(run=str(run_dir), repo="ann/evil"))
    for name in ("sitecustomize", "jaxppo", "evil"):
        (fake.place / "ann" / "evil" / f"{name}.py").write_text("raise SystemExit('it was run')")
    hub.pull(Pull(repo="ann/evil", out="out"))
    assert "evil" not in sys.modules
    with pytest.raises(ConfigError, match=r"env\.target=envs\.Aim: is not among"):
        jaxppo.load(tmp_path / "out")
    assert jaxppo.load(tmp_path / "out", trust=["envs"]).steps


def test_what_cannot_be_is_one_line(fake: Hub, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (fake.place / "ann" / "other").mkdir(parents=True)
    (fake.place / "ann" / "linked").mkdir()
    (fake.place / "ann" / "linked" / "config.yaml").symlink_to("/etc/passwd")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "config.yaml").write_text("arch: {}")
    (tmp_path / "linked" / "link").symlink_to("/etc/passwd")
    for do, words in (
        (lambda: hub.pull(Pull(repo="ann/other", out="full")), r"out=full: is there already"),
        (lambda: hub.pull(Pull(repo="ann/none")), r"repo=ann/none: .*404 Client Error"),
        (lambda: hub.pull(Pull(repo="ann/other")), r"repo=ann/other: holds no run"),
        (lambda: hub.pull(Pull(repo="other")), r"repo=other: must be"),
        (lambda: hub.push(Push(run="full", repo="ann/x")), r"run=full: is not"),
        (lambda: hub.push(Push(run=str(run_dir), repo="a/b/c")), r"repo=a/b/c: must be"),
        (lambda: hub.push(Push(run="linked", repo="ann/x")), r"link is a link to /etc/passwd"),
    ):
        with pytest.raises(ConfigError, match=words):
            do()
    assert not (tmp_path / "full" / "config.yaml").exists()
    assert [name for name, *_ in fake.calls if name == "upload_folder"] == []


def test_the_client_itself_takes_what_it_is_given(fake: Hub, run_dir: Path) -> None:
    hub.push(Push(run=str(run_dir), repo="ann/aim"))
    hub.pull(Pull(repo="ann/aim"))
    calls = fake.calls
    del sys.modules["huggingface_hub"]
    client = pytest.importorskip("huggingface_hub", reason="pip install '.[hub]'")
    for name, args, named in calls:
        function = getattr(client.HfApi(), name)
        inspect.signature(function).bind(*args, **named)


def test_without_the_client_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "is_installed", lambda _: False)
    with pytest.raises(ConfigError, match="huggingface_hub"):
        hub.pull(Pull(repo="ann/aim"))
