"""Print what a run would need: `python -m jaxppo.plan env=cartpole target=h200`."""

from jaxppo.extras.chips.plan import Planning, plan
from jaxppo.launch.command_line import attempt, help_of_settings
from jaxppo.runtime.hosts import devices


def main() -> None:
    """Run the command line."""
    devices.prepare()
    attempt(plan, help_of_settings(Planning))


if __name__ == "__main__":
    main()
