"""Push runs to the Hugging Face hub, or pull them: `python -m jaxppo.hub push DIR user/name`."""

import sys
from pathlib import Path

from jaxppo.extras.hub import Pull, Push, pull, push
from jaxppo.launch.command_line import attempt, command
from jaxppo.launch.errors import refuse

USAGE = """python -m jaxppo.hub push DIR user/name    upload a run
python -m jaxppo.hub pull user/name [DIR]  download a run into a new directory

Each has --help."""
PLACES = {"push": ("run", "repo"), "pull": ("repo", "out")}  # of words without a key


def main() -> None:
    """Run the command line."""
    what, *words = sys.argv[1:] or [""]
    if what not in PLACES:
        if what and not what.startswith("-"):
            refuse(f"{what}: is neither push nor pull", 2)
        attempt(lambda _: None, USAGE)
        return
    keys = iter(PLACES[what])
    plain = [x for x in words if not x.startswith("-") and ("=" not in x or Path(x).exists())]
    if len(plain) > 2:
        refuse(f"{plain[2]}: {what} takes {' and '.join(PLACES[what])}", 2)
    sys.argv[1:] = [f"{next(keys)}={word}" if word in plain else word for word in words]
    if what == "push":
        command(Push, push)
    else:
        command(Pull, pull)


if __name__ == "__main__":
    main()
