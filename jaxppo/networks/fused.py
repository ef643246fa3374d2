"""Networks of which GPUs compute large parts as one kernel: those of `arch.fused`.

Actor-critics of plain MLPs are computed with their heads by `jaxppo.kernels.mlp`, all steps of an
LSTM or GRU by `jaxppo.kernels.cells`. Modules, parameters and checkpoints stay as they are: where
the kernels run, their results replace those of the modules.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxppo.config.fields import ConfigError
from jaxppo.config.schema import Config
from jaxppo.kernels import cells, mlp
from jaxppo.kernels.platforms import forms
from jaxppo.networks import heads
from jaxppo.networks.memory import Recurrent
from jaxppo.networks.torsos import MLP
from jaxppo.types import PyTree

Path = tuple[str, ...]  # the name of a module after those of the modules that contain it


@dataclasses.dataclass(frozen=True)
class Tower:
    """An MLP and the dense layers of the heads that read it."""

    torso: str
    module: MLP
    num_inputs: int
    outputs: dict[Path, int]  # dense layer -> size

    @classmethod
    def of(cls, network: Any, torso: str, names: tuple[str, ...], params: PyTree) -> "Tower":
        """Return the tower of `torso` and of the heads `names`."""
        sizes = {
            path: layer["bias"].size for name in names for path, layer in _dense(params[name], name)
        }
        num_inputs = params[torso]["Dense_0"]["kernel"].shape[0]
        return cls(torso, getattr(network, torso), num_inputs, sizes)

    def layers(self, params: PyTree) -> list[mlp.Layer]:
        """Return the kernel and bias of each layer, and those of the heads side by side."""
        torso = params[self.torso]
        found = [torso[f"Dense_{i}"] for i in range(len(self.module.layer_sizes))]
        last = [_at(params, path) for path in self.outputs]
        head = tuple(jnp.concatenate([x[key] for x in last], -1) for key in ("kernel", "bias"))
        return [*((layer["kernel"], layer["bias"]) for layer in found), head]


@dataclasses.dataclass(frozen=True)
class Fused:
    """What one kernel computes: MLPs of equal layers that have the same input."""

    towers: tuple[Tower, ...]
    bfloat16: bool

    @property
    def shape(self) -> mlp.Towers:
        """The shapes of the MLPs."""
        first = self.towers[0]
        return mlp.Towers(
            num_inputs=first.num_inputs,
            hidden=tuple(first.module.layer_sizes),
            outputs=tuple(sum(tower.outputs.values()) for tower in self.towers),
            activation=first.module.activation,
            bfloat16=self.bfloat16,
        )

    def __call__(self, params: PyTree, x: jax.Array) -> dict[Path, jax.Array]:
        """Map features `[L, S, F]` to the outputs `[L, S, K]` of the heads' dense layers."""
        layers = [tower.layers(params) for tower in self.towers]
        found: dict[Path, jax.Array] = {}
        for tower, y in zip(self.towers, mlp.apply(self.shape, layers, x), strict=True):
            ends = [sum(list(tower.outputs.values())[: i + 1]) for i in range(len(tower.outputs))]
            found |= dict(zip(tower.outputs, jnp.split(y, ends[:-1], -1), strict=True))
        return found


def find(network: Any, params: PyTree) -> tuple[Fused, ...]:
    """Return what kernels compute of an actor-critic's layers; nothing if they do not fit.

    `params` are its parameters or their shapes. The kernels take MLPs of `mlp.ACTIVATIONS`, with
    biases and without layer norm, between an input layer and this package's heads.
    """
    readers = _readers(network)
    if not readers or not all(_is_plain(getattr(network, torso)) for torso in readers):
        return ()
    towers = [Tower.of(network, torso, names, params) for torso, names in readers.items()]
    in_bfloat16 = network.dtype == jnp.bfloat16
    alike = len({(t.num_inputs, *t.module.layer_sizes, t.module.activation) for t in towers}) == 1
    groups = [towers] if alike and network.critic_input is None else [[t] for t in towers]
    found = tuple(Fused(tuple(group), in_bfloat16) for group in groups)
    return found if all(fused.shape.fits() for fused in found) else ()


def check(config: Config, network: Any, params: PyTree) -> None:
    """Raise `ConfigError` if kernels are asked for that do not exist; `params` may be shapes."""
    if config.arch.precision == "highest":
        raise ConfigError(
            "arch.fused=true: multiplies in TF32 or bfloat16, but arch.precision=highest asks for "
            "float32; leave one of them out"
        )
    if not find(network, params) and not any(_has_kernel(x) for x in _memories(network)):
        most = ", or ".join(f"{num} of at most {units}" for units, num in mlp.MOST_LAYERS.items())
        raise ConfigError(
            f"arch.fused=true: needs PPO with an actor and a critic of up to {most} units (as few "
            f"inputs and outputs), activation {', '.join(mlp.ACTIVATIONS)}, biases, heads of "
            "jaxppo, no layer norm and no memory; or a memory with cells lstm or gru of at most "
            f"{cells.MOST_UNITS} units; leave it out"
        )


def replacing(
    asked: bool | None, precision: str, network: Any, params: PyTree
) -> AbstractContextManager[Any]:
    """Context in which `network.apply` takes the results of the kernels, if they are to run.

    If there is no kernel for the network's MLPs, its LSTM or GRU takes one.

    `asked` is `arch.fused`; None: as the table of platforms says. `precision` is one of
    `arch.precision`; the kernels do not have `highest`.
    """
    wanted = forms().fused if asked is None else asked
    if not wanted or forms().kernels is None or precision == "highest":
        return nullcontext()
    found = find(network, params)
    if not found:
        return cells.fused()
    torsos = {(tower.torso,): fused for fused in found for tower in fused.towers}
    layers = {path for fused in found for tower in fused.towers for path in tower.outputs}
    outputs: dict[Path, jax.Array] = {}

    def call(method: Callable[..., Any], args: Any, given: Any, context: Any) -> Any:
        path = context.module.path
        if context.method_name == "__call__" and path in torsos:
            if not torsos[path].towers[0].outputs.keys() <= outputs.keys():
                outputs.update(torsos[path](params, args[0]))
            return args[0]  # not used, since the heads' dense layers are replaced
        if context.method_name == "__call__" and path in layers:
            return outputs[path]
        return method(*args, **given)

    return nn.intercept_methods(call)


def _memories(network: Any) -> list[Any]:
    """Return the memories of a network."""
    fields = dataclasses.fields(network)
    return [getattr(network, field.name) for field in fields if field.name.endswith("_memory")]


def _has_kernel(memory: Any) -> bool:
    """Return whether `cells.fused` changes how a memory is computed."""
    if type(memory) is not Recurrent or memory.size > cells.MOST_UNITS:
        return False
    return memory.cell.removeprefix("optimized_") in cells.CELLS


def _readers(network: Any) -> Mapping[str, tuple[str, ...]]:
    """Return torsos with the heads that read them; none if other layers are in between."""
    from jaxppo.networks.actor_critic import Layers

    both = ("actor_head", "critic_head")
    # Heads of others may do more with features than their dense layers do
    if not isinstance(network, Layers) or any(
        type(getattr(network, head)).__module__ != heads.__name__ for head in both
    ):
        return {}
    layers = {
        field.name
        for field in dataclasses.fields(Layers)
        if field.name.endswith(("_torso", "_memory")) and getattr(network, field.name) is not None
    }
    if layers == {"shared_torso"} and network.critic_input is None:
        return {"shared_torso": both}
    if layers == {"actor_torso", "critic_torso"}:
        return {"actor_torso": both[:1], "critic_torso": both[1:]}
    return {}


def _is_plain(torso: Any) -> bool:
    is_mlp = type(torso) is MLP and torso.activation in mlp.ACTIVATIONS
    return is_mlp and torso.bias and torso.activate_final and not torso.layer_norm


def _dense(params: PyTree, *path: str) -> Iterator[tuple[Path, PyTree]]:
    """Yield the parameters of the dense layers of a module, with their paths."""
    if not isinstance(params, Mapping):
        return
    if params.keys() == {"kernel", "bias"}:
        yield path, params
        return
    for name, inner in params.items():
        yield from _dense(inner, *path, name)


def _at(params: PyTree, path: Path) -> PyTree:
    for name in path:
        params = params[name]
    return params
