"""Feed-forward PQN: `python -m jaxppo.ff_pqn env=cartpole`."""

from functools import partial

from jaxppo.launch.door import train

main = partial(train, "ff_pqn")

if __name__ == "__main__":
    main()
