"""Delete the compiled programs: `python -m jaxppo.clear_cache`."""

import dataclasses
from pathlib import Path

from jaxppo.config.fields import setting
from jaxppo.config.schema import ArchConfig
from jaxppo.launch.command_line import command
from jaxppo.runtime.programs import program_cache
from jaxppo.runtime.sinks.console import print_lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clearing:
    """Delete the compiled programs that runs have cached: python -m jaxppo.clear_cache

    Later runs compile them again. Runs in progress are not disturbed.
    """

    folder: str = setting(ArchConfig.compile_cache, "arch.compile_cache of the runs")


def main() -> None:
    """Run the command line."""
    command(Clearing, clear, bare=True)


def clear(settings: Clearing) -> None:
    """Clear the folder and print what was there."""
    folder = Path(program_cache.path_of(settings.folder)).expanduser()
    count, size = program_cache.clear(folder)
    print_lines(f"{folder}: {count} programs of {size / 1e6:.1f} MB deleted")


if __name__ == "__main__":
    main()
