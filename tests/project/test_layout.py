"""The architecture as rules: which wing may import which, and what may stand where."""

import ast
import importlib.metadata
import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from jaxppo.config.messages import installing
from jaxppo.envs import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jaxppo"

# Bottom to top: a wing -> the wings that its modules may import.
NUMERICS = {"types", "kernels", "ops"}
LEARNER = {*NUMERICS, "config", "networks", "envs", "algorithms"}
WINGS: dict[str, set[str]] = {
    "config": set(),
    "types": set(),
    "kernels": {"types"},
    "ops": {"types", "kernels"},
    "simulators": {"config"},
    "networks": {*NUMERICS, "config"},
    "envs": {*NUMERICS, "config", "simulators"},
    "algorithms": {*NUMERICS, "config", "networks"},
    "runtime": {*LEARNER, "simulators"},
    "deploy": {*LEARNER, "runtime", "simulators"},
    "analysis": {"config", "ops", "runtime"},
    "launch": {"config", "envs", "runtime", "analysis", "simulators"},
    "extras": {*LEARNER, "runtime", "simulators", "deploy", "analysis", "launch"},
}
# The rooms of a wing, bottom to top: each imports only from those before it
ROOMS = {"runtime": ("hosts", "store", "programs", "sinks", "simulated", "run")}
DOORS = {("deploy.result", "extras.films")}  # methods that say so: `result.film`
TRAINING = {f"{kind}_{name}" for kind in ("ff", "rec") for name in ("ppo", "pqn", "reppo")}
COMMANDS = {*TRAINING, "evaluate", "export", "render", "report", "check_env", "tune", "__main__"}
COMMANDS |= {"clear_cache", "hub", "plan", "tournament", "envs.__main__"}
DOOR = "api"  # of Python, beside the commands
# The spine, which serves every algorithm, and what is of one algorithm or of some.
SPINE = {
    *("spine", "acting", "algorithm", "axes", "evaluation", "guards", "memory", "metrics"),
    *("contract", "gradient_steps", "opponents", "report", "schedules", "stepwise", "whole"),
}
OF_SOME = {"ppo", "ppo_data", "ppo_settings", "adaptation", "pqn", "reppo", "objectives"}
OF_SOME |= {"actor_critic", "distributional_ppo"}

USED_EXTRAS = ("gymnasium", "hub", "jaxmarl", "onnx", "ray", "tensorboard", "wandb")
NOWHERE = set[str]()
LIBRARIES = {  # a library -> the wings and modules that may import it
    "jax": {*WINGS, *COMMANDS, DOOR} - {"config", "simulators"},
    "flax": {"networks", "kernels.norms", "kernels.products", "envs.t_maze"},
    "optax": {
        *("algorithms.optimizers", "algorithms.gradient_steps", "kernels.reductions"),
        "ops.losses",
    },
    "distrax": {"ops.products"},
    "rlax": {"ops.returns", "ops.distributional"},
    "tensorflow_probability": NOWHERE,
    "hydra": {"launch", "networks.building"},
    "hydra_plugins": NOWHERE,
    "omegaconf": {"launch", "config.stored", "analysis.runs"},
    "gymnax": {"envs.gymnax", "envs.as_gymnax", "envs.t_maze"},
    "gymnasium": {
        *("envs.batch", "envs.gymnasium"),
        *("simulators.batch", "simulators.making", "simulators.pettingzoo", "simulators.spaces"),
    },
    "huggingface_hub": {"extras.hub"},
    **{x: {"deploy.onnx"} for x in ("jax2onnx", "onnxruntime")},
    "cloudpickle": {"simulators.pool"},  # a dependency of gymnasium
    "ray": {"runtime.simulated.remote"},
    "mujoco_playground": {"envs.playground"},
    **{
        x: {f"envs.{x}"}
        for x in ("brax", "craftax", "envpool", "jaxmarl", "jumanji", "navix", "pgx")
    },
    "xminigrid": {"envs.xminigrid"},
    "orbax": {"runtime.store.checkpoint"},
    "matplotlib": {"analysis.charts", "extras.drawings", "runtime.sinks.plot"},
    "PIL": {"extras.drawings"},
    "rich": {"runtime.sinks.console", "runtime.sinks.bars"},
    "tensorboardX": {"runtime.sinks.tensorboard"},
    "wandb": {"runtime.sinks.wandb"},
    "tests": NOWHERE,
}
COLLECTIVES = {  # over mapped axes
    *("all_gather", "all_to_all", "pbroadcast", "pmax", "pmean", "pmin", "ppermute", "pshuffle"),
    *("psum", "psum_scatter"),
}
CALLS = {  # names -> the modules that may speak them
    frozenset({"pmap", "shard_map", "xmap"}): {"runtime.hosts.devices"},
    frozenset({"Mesh", "NamedSharding", "PartitionSpec"}): {"runtime.hosts.devices"},
    frozenset(COLLECTIVES): {"ops.collectives"},
    frozenset({"default_backend"}): {"kernels.platforms"},
    frozenset({"print"}): {"runtime.sinks.console", "runtime.sinks.bars", "launch.door"},
    frozenset({"breakpoint", "exec", "eval", "input"}): NOWHERE,
}


def name_of(path: Path) -> str:
    """`envs.gymnax` of jaxppo/envs/gymnax.py, `envs` of its __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(), str(path)) for name, path in FILES.items()}
MODULES = [name for name in FILES if name]  # without jaxppo/__init__ itself


def wing_of(name: str) -> str:
    """`envs` of `envs.gymnax`; of a module at the top, its name."""
    return name.partition(".")[0]


def imports(tree: ast.AST) -> Iterator[str]:
    """Every name that is imported, at the top or inside a function, in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_on_reading(tree: ast.Module) -> Iterator[str]:
    """The same, without those that wait inside a function."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)


def ours(imported: str) -> str | None:
    """The module of this package that an import reaches; None for other packages."""
    top, _, rest = imported.partition(".")
    if top != "jaxppo":
        return None
    while rest and rest not in FILES:
        rest = rest.rpartition(".")[0]  # a name inside the module
    return rest


def names_used(tree: ast.AST) -> set[str]:
    """Bare names and attributes, wherever they are read, and what is imported by name."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    bare = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return attributes | bare | {imported.rpartition(".")[2] for imported in imports(tree)}


REACHED = [  # every import of a module of ours, also inside functions
    (name, module) for name in MODULES for module in map(ours, imports(TREES[name])) if module
]
USED = {name: names_used(tree) for name, tree in TREES.items()}


def test_every_module_is_in_a_wing_or_is_a_command() -> None:
    others = [name for name in MODULES if name not in COMMANDS]
    assert {wing_of(name) for name in others} == {*WINGS, DOOR}
    assert set(MODULES) >= COMMANDS
    assert [name for name in others if name.endswith("__main__")] == []
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "core", "base", "tools"}
    assert [name for name in FILES if vague & set(name.split("."))] == []


def test_imports_point_down() -> None:
    """Between wings, and between the rooms of a wing; nothing imports a command."""
    assert [pair for pair in REACHED if pair[1] in COMMANDS] == []
    assert [
        f"{name} imports {module}"
        for name, module in REACHED
        if name not in COMMANDS
        and wing_of(name) in WINGS
        and wing_of(module) not in {wing_of(name), *WINGS[wing_of(name)]}
        and (name, module) not in DOORS
    ] == []
    for wing, rooms in ROOMS.items():
        inside = [name for name in MODULES if name.startswith(f"{wing}.")]
        assert {name.split(".")[1] for name in inside} == {*rooms}
        assert [
            f"{name} imports {module}"
            for name, module in REACHED
            if wing_of(name) == wing_of(module) == wing != module
            and rooms.index(module.split(".")[1]) > rooms.index(name.split(".")[1])
        ] == []


def test_spine_knows_no_algorithm_by_name() -> None:
    spine, own = ({f"algorithms.{name}" for name in names} for names in (SPINE, OF_SOME))
    assert spine | own <= set(MODULES)
    assert [pair for pair in REACHED if pair[0] in spine and pair[1] in own] == []


def test_commands_are_thin() -> None:
    long = {name: len(FILES[name].read_text().splitlines()) for name in COMMANDS}
    assert max(long.values()) <= 50, long


def test_no_module_waits_for_itself() -> None:
    """No circle among the imports that run when a module is first read."""
    edges = {
        name: {ours(imported) or "" for imported in imports_on_reading(tree)} - {"", name}
        for name, tree in TREES.items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle of imports: {' -> '.join((*path, name))}"
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_library_is_imported_where_it_belongs() -> None:
    wrong = [
        f"{name} imports {library}"
        for name, tree in TREES.items()
        for library in {imported.split(".")[0] for imported in imports(tree)} & set(LIBRARIES)
        if not {name, wing_of(name)} & LIBRARIES[library]
    ]
    assert wrong == []


def test_jax_is_used_by_its_public_names() -> None:
    wrong = []
    for name, tree in TREES.items():
        for imported in imports(tree):
            library, *parts = imported.split(".")
            if library in ("jax", "flax", "optax", "chex", "distrax", "rlax"):
                wrong += [f"{name}: {imported}" for part in parts if part.startswith("_")]
        wrong += [f"{name}: {private}" for private in USED[name] & {"_src", "_jax"}]
    assert wrong == []


def test_name_is_spoken_in_its_modules_only() -> None:
    assert [
        f"{name} speaks of {', '.join(names & used)}"
        for names, allowed in CALLS.items()
        for name, used in USED.items()
        if names & used and name not in allowed
    ] == []


def test_standard_output_belongs_to_the_console() -> None:
    """Writing to the streams behind `print`'s back; an error's line goes to stderr."""
    allowed = {
        "runtime.sinks.console": {"stdout"},
        "runtime.sinks.bars": {"stdout", "stderr"},
        "runtime.hosts.processes": {"stdout", "stderr"},  # are flushed before it ends at once
        "launch.door": {"stdout"},
        **{name: {"stderr"} for name in ("config.messages", "runtime.hosts.signals", "launch")},
    }
    wrong = {}
    for name, tree in TREES.items():
        streams = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "sys"
        } & {"stdout", "stderr", "__stdout__", "__stderr__"}
        wrong[name] = streams - allowed.get(name, allowed.get(wing_of(name), set()))
    assert {name: streams for name, streams in wrong.items() if streams} == {}


@pytest.mark.long
def test_commands_start_without_slow_libraries() -> None:
    """Some take as long to import as JAX: networks, sinks and products bring their own."""
    ask = "import sys, jaxppo.launch.command_line, jaxppo.runtime.run.loop; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    slow = {"distrax", "rlax", "matplotlib", "rich", "orbax", "gymnax", "tensorflow_probability"}
    assert not slow & {name.partition(".")[0] for name in told.stdout.split()}


def test_package_imports_what_it_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][name] for name in USED_EXTRAS)
    needed = [*project["dependencies"], *itertools.chain(*extras)]
    declared = {re.split(r"\W", dependency)[0] for dependency in needed}
    declared |= {PACKAGES[extra] for extra in project["optional-dependencies"] if extra in PACKAGES}
    imported = {name.split(".")[0] for tree in TREES.values() for name in imports(tree)}
    imported -= {"PIL"}  # of pillow, which matplotlib brings
    assert imported - set(sys.stdlib_module_names) - {"jaxppo"} <= declared


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_an_extra_is_installed_by_the_packages_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever registers the name jaxppo must not be installed by our words."""
    for extra, needed in EXTRAS.items():
        pip, install, *packages = shlex.split(installing(extra))
        assert (pip, install) == ("pip", "install")
        wanted = [Requirement(each.partition(";")[0]) for each in needed]
        assert {*map(Requirement, packages)} == {*wanted}

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert installing("brax").startswith("pip install '.[brax]'")


def test_nothing_says_to_install_jaxppo_by_its_name() -> None:
    """Until an index has it."""
    folders = ("README.md", "jaxppo", "configs", "docs", "benchmarks", "hydra_plugins")
    texts = [
        file for name in folders for file in [ROOT / name, *(ROOT / name).rglob("*")]
        if file.suffix in (".md", ".py", ".yaml", ".ipynb")
    ]  # fmt: skip
    assert len(texts) > 300
    assert not [x for x in texts if re.search(r"jaxppo\[|pip install jaxppo", x.read_text())]
