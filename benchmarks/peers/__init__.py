"""Other systems on the same work, each run by a script in an environment of its own."""

PEERS: dict[str, list[str]] = {  # what each installs besides JAX
    "plain": [],  # nothing: it runs in our environment
    "rejax": ["rejax==0.1.3"],
    "brax": ["brax==0.14.2", "gymnax==1.0.1", "six"],
    "sb3": ["stable-baselines3==2.9.2"],
}
OF_SIMULATORS = {  # those of benchmarks.simulators
    "sb3_gymnasium": ["stable-baselines3==2.9.2", "gymnasium[mujoco]"],
    "torch_envpool": ["torch", "envpool==1.2.5", "numpy"],
}
