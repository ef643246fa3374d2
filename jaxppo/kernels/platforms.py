"""One table that chooses the fast form of each computation by platform.

The choice is made while a program is traced. It depends on the platform that the program is
compiled for, which may differ from this machine's. All forms give the same result up to the order
of sums and the precision of matrix products.
"""

import dataclasses
from contextlib import AbstractContextManager

import jax


@dataclasses.dataclass(frozen=True)
class Forms:
    """The choices for one platform. The defaults are the forms of XLA and JAX."""

    # Convolve by matrix products (`convolutions.of_products`), of as many images at a time as store
    # about this many bytes in a layer. None: by XLA's convolution
    convolution_bytes: int | None = None
    # Store the factors of a dense kernel's gradient row by row (`products`)
    rows_in_memory: bool = False
    # Flatten `[..., F]` to `[N, F]` before products with dense kernels of at least so many inputs
    # and outputs (`products`). None: never
    matrices_from: int | None = None
    # Compute sums over rows by matrix products (`norms`)
    row_sums_by_products: bool = False
    # Compute all rounds of JAX's random hash in one kernel (`random_bits`)
    hash_in_one_kernel: bool = False
    # The most steps of a linear recurrence that are computed one after another (`recurrences`)
    recurrence_block: int = 16
    # Bytes of activations that fit in the processor's cache; minibatches are cut to fit
    # (`runtime.programs.microbatches`). None: do not cut
    cached_activations: int | None = None
    # Bytes up to which arrays that a scan carries or returns are packed (`packing`), those of all
    # members of a program together. 0: pack none
    packed_bytes: int = 0
    # Steps that a long packed scan computes in a turn of its loop. With 1 its carry is copied at
    # every step; with 2 it is written to two places in turn
    unroll: int = 1
    # Compute several sums in one kernel (`reductions`)
    stack_sums: bool = False
    # Compute decayed sums over time by an associative scan (`ops.advantages`)
    associative_sums: bool = False
    # Compute LSTM and GRU with the gates' products joined (`cells`)
    joined_gates: bool = False
    # Compute cheap resets at every step, without a branch (`envs.episodes`)
    resets_without_branch: bool = False
    # Make as many first states of episodes at a time as have about this many bytes, but four at
    # least (`envs.episodes`). None: all that are wanted
    starts_bytes: int | None = None
    # Initialise the parameters of all members at once
    members_at_once: bool = True
    # Evaluation looks once in this many steps whether all episodes have ended. Each look makes a
    # GPU wait for the host
    steps_per_look: int = 1
    # How Pallas kernels for Triton run: "compiled", or "interpreted" in tests. None: not at all
    kernels: str | None = None
    # Compute an MLP with its heads (`mlp`), and all steps of an LSTM or GRU (`cells`), as one
    # kernel where `arch.fused` is null
    fused: bool = False
    # The precision of networks where `arch.precision` is null (`precisions`)
    precision: str = "float32"


# Up to jax 0.10, the compiler's gradient of a dense kernel takes up to twice as long as that of
# rows. With jax 0.12.0.1 on two cores of a Zen 4, speed with `rows_in_memory` off divided by that
# with it on, timed in turn: S 1.08, S with 16 members 1.09, L 1.29, M 0.98, an LSTM 1.04, an LRU
# 0.98, PQN at L 0.99, a CNN 0.99. With `matrices_from=128` besides: M 1.00, and with layers of 128
# units M 1.03 (without it 0.94) and L 0.99 (1.05). An Intel Xeon with AMX and jax 0.11.2: M 1.13.
_NEEDS_ROWS = jax.__version_info__ < (0, 11)

# Measured on CPUs. In a vmapped scan, the gradient of XLA's convolution takes 6 to 20 times as long
# as that of matrix products. Products of all images at once take up to 2.5 times as long as those
# of images that stay in the cache. JAX's hash is a loop of several kernels, started at every step
# of a rollout. For recurrences, blocks of 128 steps are the fastest of 8 to 1,024.
# benchmarks/speed.py times more and fewer cached bytes. With jax 0.10.2 the batched QR
# decomposition of orthogonal initialisation hangs on CPUs with few cores, so members are
# initialised one after another. 256 first states of Craftax Classic (26 KiB each) take 1.78 s of a
# core at once, 0.51 s with 2**19 bytes at a time, 0.28 s with 2**18 and 0.20 s with 2**17; those of
# Brax's ant (2 KiB each) 1.6 to 2.3 ms in any form.
#
# Timed on an NVIDIA H200 with jax 0.11.2 (benchmarks/measured/h200.json; sizes as in
# docs/accelerators.md), steps/s with a form beside those without it: packing 1.60 at S, 1.20 at M,
# 1.18 at L, 1.27 with an LSTM, 1.15 with 32,768 environments, but 0.87 with 1,024 members, when its
# bound counted the bytes of one. Joined gates 2.24. Stacked sums 1.07, resets without a branch
# 1.06, associative sums 1.02 at L. Blocks of 2 steps 1.20 beside 16, and 128 steps 0.24.
# No GPU has run the kernels of `fused` yet (docs/accelerators.md).
# tests/extras/test_targets.py keeps the number of kernels. TPUs were not timed; on a TPU v5e
# packing raises the number of operations, since it changes how arrays are tiled.
FORMS = {
    "cpu": Forms(
        convolution_bytes=5 * 2**20,
        rows_in_memory=_NEEDS_ROWS,
        matrices_from=None if _NEEDS_ROWS else 128,
        row_sums_by_products=True,
        hash_in_one_kernel=True,
        recurrence_block=128,
        cached_activations=6_000_000,
        starts_bytes=2**17,
        members_at_once=False,
    ),
    "gpu": Forms(
        recurrence_block=2,
        packed_bytes=2**20,
        stack_sums=True,
        associative_sums=True,
        joined_gates=True,
        resets_without_branch=True,
        steps_per_look=16,
        kernels="compiled",
        precision="tf32",
    ),
    "tpu": Forms(
        stack_sums=True,
        associative_sums=True,
        joined_gates=True,
        resets_without_branch=True,
        precision="tf32",
    ),
}
_UNMEASURED = Forms()
_GPUS = ("cuda", "rocm")  # names that JAX has for gpu where it lowers programs

# JAX traces again if the value differs, so a program never uses another platform's forms.
_platform = jax.make_user_context(default_value=None)


def compiling_for(platform: str) -> AbstractContextManager[None]:
    """Trace programs inside with the forms of `platform`: cpu, gpu, cuda, rocm, tpu."""
    return _platform(platform)


def forms() -> Forms:
    """Return the forms of the platform of `compiling_for`, or outside of it of JAX's default."""
    platform = _platform.value or jax.default_backend()
    return FORMS.get("gpu" if platform in _GPUS else platform, _UNMEASURED)
