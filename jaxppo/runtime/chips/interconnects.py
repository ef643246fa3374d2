"""Estimate how long devices communicate, from published speeds of links and assumed latencies.

All collectives count as all-reduces. One takes a latency, whatever its size, and sends
2 (n - 1) / n of its bytes from each of n devices, as in a ring.
"""

import dataclasses
import math

# Assumed seconds for a message to the next TPU: "typically around 1us" for each hop
# (https://jax-ml.github.io/scaling-book/sharding)
HOP_SECONDS = 1e-6

# Assumed seconds of an all-reduce of few bytes on GPUs: the latencies with which NCCL chooses
# between its algorithms, of a tree with the protocol LL
# (https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc)
NCCL_SECONDS = 6.8e-6  # once
NVLINK_SECONDS = 0.6e-6  # a step between GPUs of a host
NETWORK_SECONDS = 5e-6  # a step between hosts


@dataclasses.dataclass(frozen=True)
class Torus:
    """Links between neighbouring TPUs of a topology, such as 4x4x4; shapes are its lengths.

    All-reduces run along one axis after another, with another part of the data on each axis at the
    same time: the compiler's programs name this strategy.
    """

    link: float  # bytes a second to one neighbour
    ring: int  # axes are rings if the lengths of all are multiples of this, otherwise lines

    def latency(self, shape: tuple[int, ...]) -> float:
        """Return the seconds of an all-reduce of a few bytes over all devices.

        Data goes both ways, so in a ring to the farthest device and back takes n hops.
        """
        hops = (length if self._has_rings(shape) else 2 * (length - 1) for length in shape)
        return sum(hops) * HOP_SECONDS

    def bandwidth(self, shape: tuple[int, ...]) -> float:
        """Return the bytes that each device sends a second, as the others do."""
        ways = 2 if self._has_rings(shape) else 1
        return sum(length > 1 for length in shape) * ways * self.link

    def _has_rings(self, shape: tuple[int, ...]) -> bool:
        return all(length % self.ring == 0 for length in shape)


@dataclasses.dataclass(frozen=True)
class Hosts:
    """GPUs with NVLink in hosts, and between hosts a network; shapes are (hosts, GPUs of each)."""

    nvlink: float  # bytes a second from one GPU
    network: float  # the same to other hosts: an assumption, since clusters differ

    def latency(self, shape: tuple[int, ...]) -> float:
        """Return the seconds of an all-reduce of a few bytes over all devices."""
        hosts, gpus = shape
        there = (gpus - 1) * NVLINK_SECONDS + math.ceil(math.log2(hosts)) * NETWORK_SECONDS
        return NCCL_SECONDS + 2 * there

    def bandwidth(self, shape: tuple[int, ...]) -> float:
        """Return the bytes that each device sends a second, as the others do.

        Each GPU of a host sends a part of the data to other hosts.
        """
        hosts, gpus = shape
        return self.nvlink if hosts == 1 else min(self.nvlink, gpus * self.network)


def all_reduce_seconds(
    interconnect: Torus | Hosts, shape: tuple[int, ...], number: int, num_bytes: int
) -> float:
    """Return the seconds of `number` all-reduces, one after another, of `num_bytes` together."""
    devices = math.prod(shape)
    if devices == 1:
        return 0.0
    sent = 2 * (devices - 1) / devices * num_bytes
    return number * interconnect.latency(shape) + sent / interconnect.bandwidth(shape)
