"""Search settings for an environment: `python -m jaxppo.tune env=... budget=1e8`."""

import sys

from jaxppo.launch.command_line import attempt
from jaxppo.launch.tuning import help_lines, tune
from jaxppo.runtime import devices
from jaxppo.runtime.sinks.console import print_lines


def main() -> None:
    """Run the command line."""
    arguments = sys.argv[1:]
    if not arguments or {"-h", "--help"} & set(arguments):
        print_lines(*help_lines())
        return
    devices.prepare()
    attempt(lambda: tune(arguments))


if __name__ == "__main__":
    main()
