"""Feed-forward REPPO: `python -m jaxppo.ff_reppo env=pendulum`."""

from functools import partial

from jaxppo.launch.door import train

main = partial(train, "ff_reppo")

if __name__ == "__main__":
    main()
