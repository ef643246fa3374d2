"""Layers and their composition."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYERS, MLP, NETWORK, small_config

from jaxppo import envs, system
from jaxppo.config import ConfigError, NetworkConfig, parse


def compose(target: str = "envs.Clock", **changes: Any) -> Any:
    settings = small_config(env__target=target)
    network = NetworkConfig(**{**NETWORK, **changes})
    return system.build_actor_critic(network, envs.make(settings.env))


def shapes(params: Any) -> Any:
    return jax.tree.map(jnp.shape, params)


def test_separate_networks_share_nothing() -> None:
    params = compose().init(jax.random.key(0))
    assert set(params) == {"actor", "critic"}
    kernels = [shapes(params[part])["layers_0"]["Dense_0"]["kernel"] for part in params]
    assert kernels == [(2, 16), (2, 16)]


def test_a_shared_torso_feeds_both_heads() -> None:
    actor_critic = compose(shared_torso=MLP, actor_torso=None, critic_torso=None)
    params = actor_critic.init(jax.random.key(0))
    assert set(params) == {"shared", "actor", "critic"}
    obs, reset = jnp.ones((1, 3, 2)), jnp.zeros((1, 3), bool)

    def outputs(params: Any) -> Any:
        _, policy, value = actor_critic.unroll(params, (), obs, reset)
        return policy.logits, value

    moved = {**params, "shared": jax.tree.map(lambda x: x + 0.1, params["shared"])}
    for one, other in zip(outputs(params), outputs(moved), strict=True):
        assert not np.allclose(one, other)


def test_layer_sizes_activation_and_layer_norm_are_settings() -> None:
    torso = {**MLP, "layer_sizes": [8, 4, 2], "layer_norm": True}
    params = compose(actor_torso=torso).init(jax.random.key(0))["actor"]["layers_0"]
    assert sorted(params) == [f"Dense_{i}" for i in range(3)] + [f"LayerNorm_{i}" for i in range(3)]
    assert params["Dense_2"]["kernel"].shape == (4, 2)
    x = jnp.array([[[-1.0, 2.0]]])
    for name, function in (("relu", jax.nn.relu), ("gelu", jax.nn.gelu), ("silu", jax.nn.silu)):
        from jaxppo.networks.torsos import MLP as Torso

        torso_params = {"params": {"Dense_0": {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}}}
        output = Torso(layer_sizes=[2], activation=name).apply(torso_params, x)
        np.testing.assert_allclose(output, function(x), rtol=1e-6)


def test_initial_policy_is_near_uniform_and_weights_orthogonal() -> None:
    actor_critic = compose()
    params = actor_critic.init(jax.random.key(0))
    _, policy, _ = actor_critic.unroll(
        params, (), jax.random.normal(jax.random.key(1), (1, 50, 2)), jnp.zeros((1, 50), bool)
    )
    np.testing.assert_allclose(policy.probs, 0.5, atol=0.01)
    kernel = params["critic"]["layers_0"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(kernel @ kernel.T, 2.0 * jnp.eye(2), atol=1e-5)


def test_steps_are_independent_of_sequence_layout() -> None:
    actor_critic = compose()
    params = actor_critic.init(jax.random.key(0))
    obs = jax.random.normal(jax.random.key(1), (3, 4, 2))
    value = actor_critic.unroll(params, (), obs, jnp.zeros((3, 4), bool))[2]
    flat = actor_critic.unroll(params, (), obs.reshape(1, 12, 2), jnp.zeros((1, 12), bool))[2]
    np.testing.assert_allclose(value.reshape(-1), flat[0], rtol=1e-5, atol=1e-6)


def test_dict_observations_concatenate_with_discrete_leaves_one_hot() -> None:
    actor_critic = compose("envs.Echo")
    params = actor_critic.init(jax.random.key(0))
    assert params["actor"]["layers_0"]["Dense_0"]["kernel"].shape == (2 + 3, 16)


def test_one_entry_of_a_dict_can_be_chosen() -> None:
    select = {"_target_": f"{LAYERS}.inputs.Select", "key": "shown"}
    params = compose("envs.Echo", input_layer=select).init(jax.random.key(0))
    assert params["actor"]["layers_0"]["Dense_0"]["kernel"].shape == (3, 16)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"actor_torso": {**MLP, "activation": "swishy"}}, ["actor_torso", "swishy", "tanh"]),
        ({"critic_torso": {**MLP, "layer_sizes": [4, -1]}}, ["critic_torso", "[4, -1]"]),
        ({"actor_torso": {**MLP, "depth": 3}}, ["actor_torso", "depth"]),
        ({"actor_torso": {"_target_": "no.such.Layer"}}, ["actor_torso", "no.such.Layer"]),
        ({"actor_torso": {"layer_sizes": [4]}}, ["actor_torso", "_target_"]),
        ({"input_layer": None}, ["input_layer"]),
        ({"critic_head": None}, ["critic_head"]),
        (
            {"input_layer": {"_target_": f"{LAYERS}.inputs.Select", "key": "x"}},
            ["input_layer", "'x'"],
        ),
    ],
)
def test_what_cannot_be_composed_is_refused_in_one_line(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        compose(**changes)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_continuous_actions_are_refused_with_the_space() -> None:
    settings = parse({"env": {"name": "Pendulum-v1"}})
    with pytest.raises(ConfigError, match=r"actor_head.*Box"):
        system.build_actor_critic(NetworkConfig(**NETWORK), envs.make(settings.env))
