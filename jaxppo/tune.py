"""Search settings for an environment: `python -m jaxppo.tune env=... budget=1e8`."""

from jaxppo.extras.tuning import Tuning, tune
from jaxppo.launch.command_line import attempt, help_of_settings
from jaxppo.runtime.hosts import devices


def main() -> None:
    """Run the command line."""
    devices.prepare()
    attempt(tune, help_of_settings(Tuning))


if __name__ == "__main__":
    main()
