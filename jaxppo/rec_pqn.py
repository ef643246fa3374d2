"""Recurrent PQN: `python -m jaxppo.rec_pqn env=memory_chain network=gru`."""

from functools import partial

from jaxppo.launch.door import train

main = partial(train, "rec_pqn")

if __name__ == "__main__":
    main()
