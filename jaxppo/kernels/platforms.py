"""Which form of a computation is fast on which platform: the one table of all such choices.

A form is chosen while a program is traced, by the platform that the program is compiled for, which
need not be that of this machine. Every form gives the same result up to the order of its sums.
"""

import dataclasses
from contextlib import AbstractContextManager

import jax


@dataclasses.dataclass(frozen=True)
class Forms:
    """The choices for one platform. What is left out of the table is XLA's and JAX's own form."""

    # Convolutions as one matrix product of shifted images (`convolutions.of_patches`)
    patches: bool = False
    # The gradient of a dense kernel as a product whose factors' rows lie in memory (`products`)
    rows_in_memory: bool = False
    # The rounds of JAX's random hash as one kernel (`random_bits`)
    hash_in_one_kernel: bool = False
    # The most steps of a linear recurrence that are computed one after another (`recurrences`)
    recurrence_block: int = 16
    # Bytes of activations that stay in a cache near the processor, to which minibatches are cut
    # (`runtime.microbatches`); None: minibatches are not cut
    cached_activations: int | None = None


# Measured on CPUs: the gradient of XLA's convolution takes 6 to 20 times as long as that of the
# patches in a vmapped scan, and its product of activations and gradients up to twice as long as
# that of rows. JAX's hash is a loop of several kernels, started at every step of a rollout. Blocks
# of 128 are the fastest of 8 to 1,024. benchmarks/speed.py times more and fewer cached bytes.
FORMS = {
    "cpu": Forms(
        patches=True,
        rows_in_memory=True,
        hash_in_one_kernel=True,
        recurrence_block=128,
        cached_activations=6_000_000,
    )
}
_UNMEASURED = Forms()

# JAX traces anew where its value differs, so that no program is made of another platform's forms.
_platform = jax.make_user_context(default_value=None)


def compiling_for(platform: str) -> AbstractContextManager[None]:
    """Programs traced inside take the forms of `platform`: cpu, gpu, cuda, rocm, tpu."""
    context: AbstractContextManager[None] = _platform(platform)
    return context


def forms() -> Forms:
    """Of the platform that is compiled for; outside of `compiling_for`, of JAX's default one."""
    return FORMS.get(_platform.value or jax.default_backend(), _UNMEASURED)
