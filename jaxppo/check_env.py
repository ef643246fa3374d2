"""Check an environment against its interface: `python -m jaxppo.check_env env=... steps=256`."""

from jaxppo.config.fields import ConfigError
from jaxppo.envs.contract import check
from jaxppo.launch.checking import trains
from jaxppo.launch.command_line import attempt
from jaxppo.launch.composing import compose
from jaxppo.runtime.sinks.console import print_lines

HELP = """Play an environment with random legal actions and report what is wrong with it:
python -m jaxppo.check_env env=brax/ant
python -m jaxppo.check_env env=gymnasium env.name=CartPole-v1
python -m jaxppo.check_env env=batch env.target=my_package.MyWorlds
python -m jaxppo.check_env env.target=my_package.MyEnv env.kwargs.size=8 steps=1000

Settings are those of jaxppo.ff_ppo, and steps: the steps of each of four environments [256]. The
exit status is 1 if something is WRONG; lines that begin with look do not change it."""


def main() -> None:
    """Run the command line."""
    attempt(report, HELP)


def report(arguments: list[str]) -> None:
    """Print one line per rule of the interface; exit with status 1 if one is broken."""
    steps = "256"
    for argument in arguments:
        if argument.startswith("steps="):
            steps = argument.removeprefix("steps=")
    if not steps.isdecimal() or int(steps) < 1:
        raise ConfigError(f"steps={steps}: must be an integer, at least 1")
    config = compose("ff_ppo", [each for each in arguments if not each.startswith("steps=")])
    checks = check(config.env, int(steps))
    if not any(each.findings for each in checks):
        checks.append(trains(config))
    for each in checks:
        lines = each.findings or each.hints or [each.seen]
        words = "WRONG" if each.findings else "look" if each.hints else "ok"
        print_lines(*(f"{words:<6} {each.name:<12} {' '.join(x.split())}".rstrip() for x in lines))
    if any(each.findings for each in checks):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
