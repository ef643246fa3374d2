"""Find out from the environment which processes a run has, and which devices are this one's."""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxppo.config.fields import ConfigError

KEYS = {  # of arch.distributed, and the form of their values
    "coordinator": r".+:\d+",
    "num_processes": r"\d+",
    "process_id": r"\d+",
}
_NAMES = {"coordinator": "coordinator_address"}  # of jax.distributed
_PORTS = range(61440, 65536)  # of coordinators, where the environment names none

Arguments = dict[str, Any]  # of `jax.distributed.initialize`


def find(distributed: Mapping[str, Any] | None, env: Mapping[str, str]) -> Arguments | None:
    """Return the arguments of `jax.distributed.initialize`; None for a run of one process.

    `distributed` is `arch.distributed`: what it holds goes before what the environment says; None
    means one process. `ConfigError` if something is missing, or GPUs would be left idle.
    """
    if distributed is None:
        return None
    looks = (_slurm, _open_mpi, _torchrun, _kubernetes, _cloud_tpu)
    found: Arguments = next((there for look in looks if (there := look(env)) is not None), {})
    found |= _given(distributed)
    if found.pop("by_jax", False) and "coordinator_address" not in found:
        return {}  # jax.distributed asks the cluster itself
    if not found or found.get("num_processes") == 1:
        return None
    for key in KEYS:
        if _NAMES.get(key, key) not in found:
            raise ConfigError(
                f"arch.distributed.{key}: is missing; set it, for example "
                "arch.distributed.coordinator=HOST:PORT arch.distributed.num_processes=2 "
                "arch.distributed.process_id=0; or train in one process with arch.distributed=null"
            )
    number, total = found["process_id"], found["num_processes"]
    if not 0 <= number < total:
        raise ConfigError(
            f"arch.distributed.process_id={number}: must be from 0 to {total - 1}, below "
            "arch.distributed.num_processes"
        )
    return found


def _given(distributed: Mapping[str, Any]) -> Arguments:
    """Return what `arch.distributed` holds; `ConfigError` if that is wrong."""
    for key, value in distributed.items():
        text = "0" if value is None and key in KEYS else str(value)
        port = text.rpartition(":")[2] if key == "coordinator" and value is not None else "1"
        if (
            key not in KEYS
            or (value is not None and not re.fullmatch(KEYS[key], text))
            or not 0 < int(port) < 2**16
        ):
            raise ConfigError(
                f"arch.distributed.{key}={value}: not one of coordinator=HOST:PORT (of the first "
                "process, with a port from 1 to 65535), num_processes=N and process_id=I"
            )
    given = {key: value for key, value in distributed.items() if value is not None}
    return {
        _NAMES.get(key, key): value if key == "coordinator" else int(value)
        for key, value in given.items()
    }


def _slurm(env: Mapping[str, str]) -> Arguments | None:
    """Find the tasks of an srun step. A batch script without srun is one process."""
    total = _number(env, "SLURM_STEP_NUM_TASKS")
    if total is None or total == 1 or "SLURM_STEP_NODELIST" not in env:
        return None
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", env["SLURM_STEP_NODELIST"])
    node = "".join(part or "" for part in match.groups()) if match else ""
    step = 31 * int(env["SLURM_JOB_ID"]) + int(env.get("SLURM_STEP_ID", 0))
    tasks = _tasks_of_node(env["SLURM_STEP_TASKS_PER_NODE"], int(env["SLURM_NODEID"]))
    shared = _number(env, "SLURM_GPUS_ON_NODE")
    return {
        "coordinator_address": f"{node}:{_PORTS[step % len(_PORTS)]}",
        "num_processes": total,
        "process_id": int(env["SLURM_PROCID"]),
        **own_gpus("SLURM", int(env["SLURM_LOCALID"]), tasks, visible_gpus(env), shared),
    }


def _tasks_of_node(pattern: str, node: int) -> int:
    """Return the tasks on a node of SLURM's list, such as 2(x3),1."""
    counts: list[int] = []
    for part in pattern.split(","):
        number, _, times = part.partition("(x")
        counts += [int(number)] * int(times.rstrip(")") or 1)
    return counts[node]


def _open_mpi(env: Mapping[str, str]) -> Arguments | None:
    total = _number(env, "OMPI_COMM_WORLD_SIZE")
    if total is None or total == 1:
        return None
    rank, tasks = (int(env[f"OMPI_COMM_WORLD_LOCAL_{name}"]) for name in ("RANK", "SIZE"))
    found = {
        "num_processes": total,
        "process_id": int(env["OMPI_COMM_WORLD_RANK"]),
        **own_gpus("Open MPI", rank, tasks, visible_gpus(env), None),
    }
    # Version 4 says where mpirun runs: 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911
    match = re.match(r"(\d+).*?tcp6?://\[?([^,:\]]+)", env.get("OMPI_MCA_orte_hnp_uri", ""))
    if match:
        port = _PORTS[(int(match[1]) >> 12) % len(_PORTS)]
        found["coordinator_address"] = f"{match[2]}:{port}"
    return found


def _torchrun(env: Mapping[str, str]) -> Arguments | None:
    total = _number(env, "WORLD_SIZE")
    if total is None or total == 1 or "RANK" not in env:
        return None
    found: Arguments = {"num_processes": total, "process_id": int(env["RANK"])}
    rank, tasks = _number(env, "LOCAL_RANK"), _number(env, "LOCAL_WORLD_SIZE")
    if rank is not None:
        found |= own_gpus("torchrun", rank, tasks, visible_gpus(env), None)
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        # torchrun itself listens on the port, if its agent has the store
        taken = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        found["coordinator_address"] = f"{env['MASTER_ADDR']}:{int(env['MASTER_PORT']) + taken}"
    return found


def _kubernetes(env: Mapping[str, str]) -> Arguments | None:
    """Find the pods of an indexed job. Only the cluster's API knows how many there are."""
    if "KUBERNETES_SERVICE_HOST" not in env or "JOB_COMPLETION_INDEX" not in env:
        return None
    asks = importlib.util.find_spec("kubernetes") is not None  # JAX asks the API by this package
    return {"process_id": int(env["JOB_COMPLETION_INDEX"]), **({"by_jax": True} if asks else {})}


def _cloud_tpu(env: Mapping[str, str]) -> Arguments | None:
    hosts = env.get("TPU_PROCESS_ADDRESSES") or env.get("TPU_WORKER_HOSTNAMES") or ""
    return {"by_jax": True} if "," in hosts else None


def _number(env: Mapping[str, str], name: str) -> int | None:
    value = env.get(name, "")
    return int(value) if value.isdecimal() else None


def visible_gpus(env: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """Return how many NVIDIA GPUs this process sees."""
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return len([name for name in listed.split(",") if name.strip() not in ("", "-1")])
    return len([file for file in devices.glob("nvidia*") if file.name[6:].isdecimal()])


def own_gpus(
    launcher: str, rank: int, tasks: int | None, visible: int, of_node: int | None
) -> Arguments:
    """Return which of the visible GPUs are this process's.

    `rank` is the number of the process among the `tasks` of its machine, which has `of_node` GPUs,
    if that is known. If a process sees fewer, they are its own; otherwise all processes of the
    machine share them evenly. `ConfigError` if that is not possible. {}: there are no GPUs.
    """
    if not visible:
        return {}
    if tasks == 1 or (of_node is not None and visible < of_node):
        return {"local_device_ids": list(range(visible))}
    if tasks is None:
        return {"local_device_ids": [rank]}
    each = visible // tasks
    if not each or visible % tasks:
        raise ConfigError(
            f"{launcher}: {tasks} processes on a machine with {visible} GPUs would "
            f"{'leave some idle' if each else 'share them'}; start one process for each machine, "
            "or one for each GPU"
        )
    return {"local_device_ids": list(range(rank * each, (rank + 1) * each))}
