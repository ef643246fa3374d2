"""Events of a run that sinks and views are given."""

from jaxppo.runtime.sinks import Event, Sink

START: Event = {
    "event": "start",
    "environment": "CartPole-v1",
    "platform": "cpu",
    "precision": "float32",
    "seed": 3,
    "num_parameters": 9155,
    "num_eval_episodes": 8,
    "max_eval_steps": 500,
    "warmup_steps": 0,
    "num_devices": 1,
    "num_members": 1,
    "devices_per_member": 1,
    "update_batch_size": 2,
    "num_envs": 16,
    "rollout_length": 32,
    "sequence_length": 1,
    "steps_per_update": 1024,
    "minibatch_size": 64,
    "num_updates": 5,
    "updates_per_block": (2, 3),
    "total_steps": 5120,
    "requested_steps": 5000,
    "headlines": {
        "entropy": "entropy {:.3f}",
        "approximate_kl": "kl {:.4f}",
        "value_loss": "value loss {:.3g}",
    },
}

COMPILE: Event = {
    "event": "compile",
    "seconds": 12.0,
    "train_seconds": 10.5,
    "evaluate_seconds": 1.5,
    "gflop_per_update": 0.25,
    "peak_bytes": 7 * 2**20,
    "total_steps": 5120,
}

TRAIN: Event = {
    "event": "train",
    "steps": 2048,
    "updates": 2,
    "seconds": 1.5,
    "steps_per_second": 12345.0,
    "episodes": 4,
    "episode_return": 21.5,
    "episode_length": 21.5,
    "total_loss": 1.0,
    "actor_loss": 0.1,
    "value_loss": 1.25,
    "entropy": 0.693,
    "approximate_kl": 0.0125,
    "clip_fraction": 0.1,
    "actor_gradient_norm": 0.5,
    "explained_variance": 0.5,
    "learning_rate": 1e-3,
    "skipped_steps": 0.0,
}

EVAL: Event = {
    "event": "eval",
    "steps": 2048,
    "seconds": 1.75,
    "episodes": 8,
    "episode_return": 123.456,
    "episode_return_std": 7.5,
    "episode_return_min": 100.0,
    "episode_return_max": 130.0,
    "episode_length": 123.4,
    "unfinished": 0,
    "max_eval_steps": 500,
    "last": False,
}

ABSOLUTE: Event = {**EVAL, "event": "absolute", "episodes": 80, "steps": 5120}


END: Event = {
    "event": "end",
    "status": "finished",
    "environment": "CartPole-v1",
    "seed": 3,
    "absolute_metric": 123.456,
    "best_episode_return": 123.456,
    "best_steps": 5120,
    "steps": 5120,
    "seconds": 3.5,
}

LAST_EVAL: Event = {**EVAL, "steps": 5120, "last": True}


def write(sink: Sink, *events: Event) -> None:
    """All events in order, and the end of the run."""
    for event in events:
        sink.write(event)
    sink.close()


MEMBERS: Event = {
    "members": 3,
    "seeds": [1, 2, 3],
    "episode_return": 2.5,
    "member_returns": [1.0, 2.5, 4.0],
    "member_return_iqm": 2.25,
    "member_return_low": 1.5,
    "member_return_high": 3.75,
    "member_return_min": 1.0,
    "member_return_max": 4.0,
}
