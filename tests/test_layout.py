"""The architecture as rules that hold: who may import whom, and what may stand where."""

import ast
import itertools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxppo.envs import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxppo"

# Bottom to top. A name with a dot at its end is a subpackage, whose modules import each other.
LAYERS: list[set[str]] = [
    {"types", "config", "devices", "guard", "random_bits"},
    {
        *("aggregates", "advantages", "returns", "losses", "statistics", "distributions"),
        *("sequences", "permutations", "recurrences"),
    },
    {"objectives", "envs.", "networks."},
    {"learner", "evaluation", "drawings", "compile", "pieces", "charts", "page", "contract"},
    {"system", "population", "checkpoint", "facts", "sinks."},
    {"experiment", "launcher", "policy", "sweep", "runs", "comparison"},
    {"ff_ppo", "rec_ppo", "evaluate", "export", "render", "report", "check_env"},
]
# Imports inside a layer: importer -> imported. Everything else in a layer stands alone.
BESIDE = {
    "devices": {"types"},
    "guard": {"config"},
    "returns": {"advantages"},
    "evaluation": {"learner"},
    "pieces": {"compile"},
    "launcher": {"experiment", "sweep"},
    "facts": {"checkpoint"},
    "population": {"system"},
    "comparison": {"runs"},
}

NOWHERE = set[str]()
LIBRARIES = {  # a library -> the modules that may import it
    "hydra": {"launcher", "system", *LAYERS[-1]},
    "hydra_plugins": NOWHERE,
    "omegaconf": {"launcher", "runs", "sweep", "system", *LAYERS[-1]},
    "distrax": NOWHERE,  # half a second and 45 MiB to import; an oracle of the tests
    "tensorflow_probability": NOWHERE,
    "rlax": {"returns"},
    "gymnax": {"envs.gymnax", "envs.t_maze"},
    "brax": {"envs.brax"},
    "craftax": {"envs.craftax"},
    "jumanji": {"envs.jumanji"},
    "mujoco_playground": {"envs.playground"},
    "navix": {"envs.navix"},
    "pgx": {"envs.pgx"},
    "xminigrid": {"envs.xminigrid"},
    "orbax": {"checkpoint"},
    "matplotlib": {"charts", "drawings", "sinks.plot"},
    "PIL": {"drawings"},
    "rich": {"sinks.console"},
    "tensorboardX": {"sinks.tensorboard"},
    "wandb": {"sinks.wandb"},
    "tests": NOWHERE,
}
COLLECTIVES = {  # over mapped axes
    "all_gather",
    "all_to_all",
    "pbroadcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "pshuffle",
    "psum",
    "psum_scatter",
}
CALLS = {  # names -> the modules that may speak them
    frozenset({"pmap", "shard_map", "xmap"}): {"devices"},
    frozenset(COLLECTIVES): {"learner", "statistics"},
    frozenset({"print"}): {"sinks.console"},
    frozenset({"Mesh", "NamedSharding", "PartitionSpec"}): {"devices"},
    frozenset({"breakpoint", "exec", "eval", "input"}): NOWHERE,
}


def name_of(path: Path) -> str:
    """`envs.gymnax` of jaxppo/envs/gymnax.py, `envs` of its __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(), str(path)) for name, path in FILES.items()}
MODULES = [name for name in FILES if name]  # without jaxppo/__init__ itself


def place(name: str) -> tuple[int, str] | None:
    """A module's layer and its entry in the table."""
    for layer, entries in enumerate(LAYERS):
        for entry in entries:
            if name == entry or (entry.endswith(".") and f"{name}.".startswith(entry)):
                return layer, entry
    return None


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


@pytest.mark.parametrize("name", MODULES)
def test_module_has_a_place(name: str) -> None:
    assert place(name) is not None, (
        f"jaxppo/{name.replace('.', '/')}.py is in no layer: add it to LAYERS of this test"
    )


def test_table_names_nothing_that_is_gone() -> None:
    known = set(MODULES) | {f"{name.split('.')[0]}." for name in MODULES if "." in name}
    assert set().union(*LAYERS) <= known
    assert set(BESIDE) <= known
    assert set().union(*BESIDE.values()) <= known


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_down(name: str) -> None:
    layer, entry = place(name) or (0, "")
    for imported in imports(TREES[name]):
        module = ours(imported)
        if not module:  # another package's, or the version of ours
            continue
        other_layer, other_entry = place(module) or (len(LAYERS), "")
        same_package = entry == other_entry and entry.endswith(".")
        beside = module in BESIDE.get(name, set())
        assert other_layer < layer or same_package or beside, (
            f"jaxppo.{name} (layer {layer}) imports jaxppo.{module} (layer {other_layer})"
        )


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


@pytest.mark.parametrize("library", LIBRARIES)
def test_library_has_one_door(library: str) -> None:
    importers = {
        name
        for name, tree in TREES.items()
        if any(imported.split(".")[0] == library for imported in imports(tree))
    }
    assert importers <= LIBRARIES[library]


@pytest.mark.parametrize("name", FILES)
def test_jax_is_used_by_its_public_names(name: str) -> None:
    private = [
        imported
        for imported in imports(TREES[name])
        if imported.split(".")[0] in ("jax", "flax", "optax", "chex")
        and any(part.startswith("_") for part in imported.split("."))
    ]
    assert private == []
    attributes = {node.attr for node in ast.walk(TREES[name]) if isinstance(node, ast.Attribute)}
    assert not attributes & {"_src", "_jax"}


@pytest.mark.parametrize("names", CALLS, ids=lambda names: " ".join(sorted(names))[:30])
def test_name_is_spoken_in_its_modules_only(names: frozenset[str]) -> None:
    speakers = {name for name, tree in TREES.items() if names & names_used(tree)}
    assert speakers <= CALLS[names]


@pytest.mark.parametrize("name", FILES)
def test_standard_output_belongs_to_the_console(name: str) -> None:
    """`print`, and writing to the streams behind its back; an error's line goes to stderr."""
    streams = {
        node.attr
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    } & {"stdout", "stderr", "__stdout__", "__stderr__"}
    allowed = {
        "sinks.console": {"stdout"},
        **{name: {"stderr"} for name in ("guard", "launcher", "sinks")},
    }
    assert streams <= allowed.get(name, set())


@pytest.mark.parametrize("name", FILES)
def test_module_is_named_for_what_it_holds(name: str) -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "core", "base", "tools"}
    assert not vague & set(name.split("."))


def public(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Functions and classes that others may use, and the methods of those classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                for part in node.body:
                    if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                        yield f"{node.name}.{part.name}", part


@pytest.mark.parametrize("name", FILES)
def test_what_is_public_has_a_docstring(name: str) -> None:
    tree = TREES[name]
    assert ast.get_docstring(tree), f"jaxppo/{name.replace('.', '/')}.py begins with none"
    assert [what for what, node in public(tree) if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("name", FILES)
def test_library_is_imported_when_it_is_needed(name: str) -> None:
    """Slow imports stay out of `--help` and of a mistake's answer."""
    slow = {"matplotlib", "rich", "orbax", "tensorboardX", "wandb"}
    at_the_top = {imported.split(".")[0] for imported in imports_on_reading(TREES[name])}
    assert not at_the_top & slow


def test_package_imports_what_it_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][name] for name in ("tensorboard", "wandb"))
    needed = [*project["dependencies"], *itertools.chain(*extras)]
    declared = {re.split(r"\W", dependency)[0] for dependency in needed}
    declared |= {PACKAGES[extra] for extra in project["optional-dependencies"] if extra in PACKAGES}
    imported = {name.split(".")[0] for tree in TREES.values() for name in imports(tree)}
    imported -= {"PIL"}  # of pillow, which matplotlib brings
    assert imported - set(sys.stdlib_module_names) - {"jaxppo"} <= declared
