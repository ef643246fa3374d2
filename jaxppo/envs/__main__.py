"""List environments, all or those with a word: `python -m jaxppo.envs cart`."""

from jaxppo.config.fields import ConfigError
from jaxppo.launch.command_line import attempt
from jaxppo.launch.environments import show

HELP = """List the environments that one can train on, with their spaces and episode lengths:
python -m jaxppo.envs
python -m jaxppo.envs cart      those with cart in their name, library or file of settings"""


def main() -> None:
    """Run the command line."""
    attempt(_show, HELP, bare=True)


def _show(arguments: list[str]) -> None:
    if len(arguments) > 1 or any(word.startswith("-") or "=" in word for word in arguments):
        raise ConfigError(f"{' '.join(arguments)}: give one word, such as cart, or none")
    show("".join(arguments))


if __name__ == "__main__":
    main()
