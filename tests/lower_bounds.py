"""Print constraints that hold each dependency, and each tool of tests, at its lower bound."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lower_bounds() -> list[str]:
    """The lines of a constraints file: `name==version` for each `name>=version`."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["dev"]
    return [re.sub(r"^([\w.-]+)>=([^,;]+).*$", r"\1==\2", each) for each in requirements]


if __name__ == "__main__":
    print("\n".join(lower_bounds()))
