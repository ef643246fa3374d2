"""Blocks of a peer that shows its state and one update of it as a function."""

import time
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.blocks import Size, serve


def block(size: Size, state: Any, update: Callable[[Any], Any]) -> tuple[Callable[[], None], float]:
    """Return a function that trains on for a block, and the seconds that it took to compile.

    `update` maps the state before to the state after `size.steps_per_update` steps.
    """

    def updates(state: Any) -> Any:
        return jax.lax.fori_loop(0, size.updates_per_block, lambda _, x: update(x), state)

    start = time.perf_counter()
    program = jax.jit(updates, donate_argnums=0).lower(state).compile()
    seconds = time.perf_counter() - start

    def train_on() -> None:
        nonlocal state
        state = jax.block_until_ready(program(state))

    return train_on, seconds


def serve_updates(size: Size, state: Any, update: Callable[[Any], Any]) -> None:
    """Answer `benchmarks.peers`."""
    train_on, seconds = block(size, state, update)
    serve(train_on, size.steps_per_block, seconds)
