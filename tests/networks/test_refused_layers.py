"""Settings of layers, masks and weights that are refused: one line, which names the setting."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYERS, MLP, NETWORK, refused, small_config

from jaxppo import envs
from jaxppo.networks import actor_critic, heads, inputs, memory, q_heads, torsos
from jaxppo.networks.transformer import GTrXL
from jaxppo.ops import actions
from jaxppo.types import Box, Discrete, MultiDiscrete

BOX, FREE = Box((2, 3), "float32", -1.0, 3.0), Box((2,), "float32")
SIZES = MultiDiscrete((2, 3), (2,))
PARTS: Any = {"a": Discrete(2), "x": FREE}
OBS = {  # [L=2, S=3, ...]
    "view": np.zeros((2, 3, 4, 5, 2), np.uint8),
    "agents": ({"speed": np.zeros((2, 3))}, {"grid": np.zeros((2, 3, 4, 5), bool)}),
    "place": np.zeros((2, 3, 2), np.int32),
}
LAYER: list[tuple[Callable[[], Any], str]] = [
    (lambda: torsos.NoisyMLP([4], initial_noise=-1.0), "initial_noise=-1.0"),
    (lambda: torsos.NoisyMLP([4], activation="x"), "activation=x"),
    (lambda: torsos.CNN([4, 4]), "kernel_sizes=[3]"),
    (lambda: torsos.CNN([0]), "channels=[0]"),
    (lambda: torsos.CNN(layer_sizes=128), "layer_sizes=128"),
    (lambda: torsos.CNN(padding="same"), "padding=same"),
    (lambda: torsos.CNN(layer_norm=1), "layer_norm=1"),
    (lambda: torsos.Chain([]), "layers=[]"),
    (lambda: torsos.Chain([{"layer_sizes": [1]}]), "layers.0"),
    (lambda: inputs.Fuse({"view": None}), "parts.view=None"),
    (lambda: memory.Recurrent("rnn"), "cell=rnn"),
    (lambda: memory.LRU(max_radius=1.0), "max_radius=1.0"),
    (lambda: GTrXL(window=2.5), "window=2.5"),
    (lambda: GTrXL(size=0), "size=0"),
    (lambda: GTrXL(size=6), "size=6"),
    (lambda: heads.CategoricalHead(FREE), "categorical"),
    (lambda: heads.CategoricalHead({"a": Discrete(2)}), "network/actor_head=auto"),
    (lambda: heads.NormalHead(Box((1,), "int32", 0, 3)), "int32"),
    (lambda: heads.TanhNormalHead(FREE), "finite bounds"),
    (lambda: heads.BetaHead(Box((1,), "float32", 1.0, 1.0)), "finite bounds"),
    (lambda: heads.NormalHead(FREE, initial_std=0.0), "initial_std=0.0"),
    (lambda: heads.NormalHead(FREE, initial_std=np.inf), "initial_std=inf"),
    (lambda: heads.follow(Discrete(2), "gauss"), "continuous=gauss"),
    (lambda: heads.follow(Discrete(2), std=1), "std"),
    (lambda: heads.follow({}), "{}"),
    (lambda: heads.CategoricalCriticHead(num_atoms=1), "num_atoms=1"),
    (lambda: heads.CategoricalCriticHead(low=10.0), "low=10.0"),
    (lambda: q_heads.ScalarQHead(Discrete(2), huber_delta=0.0), "huber_delta=0.0"),
    (lambda: q_heads.ScalarQHead(FREE), "Q-network"),
    (lambda: q_heads.ScalarQHead(Discrete(2), dueling=1), "dueling"),
    (lambda: q_heads.ScalarQHead(Discrete(2), double="yes"), "double"),
    (lambda: q_heads.ScalarQHead(Discrete(2), initial_noise=-1.0), "initial_noise"),
    (lambda: q_heads.ScalarQHead((Discrete(2),)), "tuple"),
    (lambda: heads.flat_mask(Discrete(3), np.ones((1, 1, 4))), "(4,)"),
    (lambda: heads.flat_mask(Discrete(3), np.ones((1, 3))), "(3,)"),
    (lambda: heads.flat_mask(SIZES, np.ones((1, 1, 2, 3))), "(2, 3)"),
    (lambda: heads.flat_mask(SIZES, [np.ones((1, 1, 3)), np.ones((1, 1, 2))]), "[(3,), (2,)]"),
    (lambda: actions.empty_masks(PARTS, {"b": np.ones((1, 1, 2))}), "['b']"),
    (lambda: actions.empty_masks(PARTS, np.ones((1, 1, 2))), "one array"),
    (lambda: actions.empty_masks(PARTS, {"x": np.ones((1, 1, 2))}), "Box"),
    (lambda: actions.empty_masks({}, {}), "no entries"),
]
APPLIED: list[tuple[Callable[[], Any], Any, str]] = [
    (lambda: inputs.Select("agents.2"), OBS, "'agents.2'"),
    (lambda: inputs.Select("x"), np.ones((1, 1)), "'x'"),
    (lambda: inputs.Image(), OBS, "key=null"),
    (lambda: inputs.Image("place"), OBS, "key='place'"),
    (lambda: inputs.Fuse({"view": inputs.Image()}), OBS, "parts.view"),
    (torsos.CNN, jnp.ones((1, 1, 100)), "(1, 1, 100)"),
    (torsos.ResidualCNN, {"a": 1}, "dict"),
    (lambda: torsos.CNN([1, 1], [3, 3], [1, 1]), jnp.ones((1, 1, 4, 3, 1)), "kernel_sizes=[3, 3]"),
]


@pytest.mark.parametrize("make, key", LAYER)
def test_a_layer_that_cannot_be_is_refused_in_one_line(make: Any, key: str) -> None:
    with refused(re.escape(key), ValueError):
        make()


@pytest.mark.parametrize("make, x, key", APPLIED)
def test_what_a_layer_cannot_read_is_refused(make: Any, x: Any, key: str) -> None:
    with pytest.raises(ValueError, match=re.escape(key)):
        jax.eval_shape(make().init, jax.random.key(0), x)


def own_head(name: str, **settings: Any) -> dict[str, Any]:
    return {"_target_": f"own_heads.{name}", **settings}


CONTINUOUS = {"env": {"name": "Pendulum-v1", "target": None}}
COMPOSED: list[tuple[dict[str, Any], str]] = [
    ({"actor_torso": {**MLP, "activation": "swishy"}}, "network.actor_torso"),
    ({"actor_torso": {**MLP, "depth": 3}}, "depth"),
    ({"actor_torso": {"_target_": "no.such.Layer"}}, "no.such.Layer"),
    ({"actor_torso": {"layer_sizes": [4]}}, "_target_"),
    ({"input_layer": None}, "network.input_layer"),
    ({"input_layer": {"_target_": f"{LAYERS}.inputs.Select", "key": "x"}}, "'x'"),
    ({"initialization": {"actor_torsoo": {"gain": 1.0}}}, "network.initialization.actor_torsoo"),
    ({"initialization": {"actor_torso": {"kind": "ortho"}}}, "actor_torso.kind=ortho"),
    ({"initialization": {"actor_torso": {"gain": -1.0}}}, "actor_torso.gain=-1.0"),
    ({"actor_head": own_head("Categorical", more=5)}, "network.actor_head"),
    ({"actor_head": own_head("Categorical", size=3)}, "~network.actor_head.size"),
    ({"actor_head": own_head("Squashed"), **CONTINUOUS}, "network.actor_head"),
]


@pytest.mark.parametrize("changes, key", COMPOSED)
def test_what_cannot_be_composed_is_refused_in_one_line(changes: dict[str, Any], key: str) -> None:
    changes = dict(changes)
    config = small_config(env=changes.pop("env", {}), network={**NETWORK, **changes})
    with refused(re.escape(key)):
        actor_critic.build(config, envs.make(config.env))


def test_a_distribution_that_is_not_of_each_step_has_no_penalty(small: Any) -> None:
    head = own_head("Normal", broadcast=False)
    with refused(r"system\.objective=penalty"):
        small(**CONTINUOUS, network__actor_head=head, system__objective="penalty")
