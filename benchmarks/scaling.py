"""Speed and memory against environments, members, width and devices: part of `make bench`.

Prints a table and draws benchmarks/results/scaling.png (ignored by git).
"""

import argparse
import json
from typing import Any

from benchmarks.speed import RESULTS, in_a_process

LAYERS = ("network.actor_torso.layer_sizes", "network.critic_torso.layer_sizes")
POINTS: dict[str, tuple[str, dict[int, tuple[list[str], dict[str, str]]]]] = {
    "environments": (
        "L",
        {
            n: ([f"arch.total_num_envs={n}", "arch.total_timesteps=1e9"], {})
            for n in (64, 256, 1024, 4096, 16_384, 65_536)
        },
    ),
    "members (on a core each)": (
        "S",
        {n: ([f"arch.num_seeds={n}"], {}) for n in (1, 4, 16, 64, 256)},
    ),
    "width of both layers": (
        "L",
        {n: ([f"{key}=[{n},{n}]" for key in LAYERS], {}) for n in (16, 32, 64, 128, 256, 512)},
    ),
    "forced devices": (
        "L",
        {
            n: ([], {"XLA_FLAGS": f"--xla_force_host_platform_device_count={n}"})
            for n in (1, 2, 4, 8)
        },
    ),
}


def draw(found: dict[str, list[dict[str, Any]]]) -> None:
    """A panel of speed each, and one of memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    for axis, (name, rows) in zip(axes, found.items(), strict=False):
        axis.plot(
            [row["value"] for row in rows], [row["steps_per_second"] / 1e3 for row in rows], "o-"
        )
        axis.set(xscale="log", xlabel=name, ylabel="thousand steps/s", ylim=(0, None))
        axis.set_xticks([row["value"] for row in rows], [f"{row['value']:,}" for row in rows])
        axis.tick_params(axis="x", rotation=30)
        axis.minorticks_off()
    memory = [row for rows in found.values() for row in rows if row["growth_mib"] is not None]
    axis = axes[len(found)]
    limits = [1, max(max(r["estimated_growth_mib"], r["growth_mib"]) for r in memory) * 1.5]
    axis.plot(limits, limits, color="0.7")
    axis.plot(
        [row["estimated_growth_mib"] for row in memory], [row["growth_mib"] for row in memory], "o"
    )
    axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    axis.set(xlabel="MiB by the compiler's account", ylabel="MiB that the process grew by")
    for axis in axes[len(found) + 1 :]:
        axis.set_axis_off()
    figure.savefig(RESULTS / "scaling.png", dpi=100)


def main() -> None:
    """Measure every point in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=3, help="timed blocks of each point")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    for name, (setting, points) in POINTS.items():
        for value, (more, environment) in points.items():
            row = in_a_process(setting, arguments.blocks, more, environment)
            found.setdefault(name, []).append({"value": value, **row})
            grown = "-" if row["growth_mib"] is None else f"{row['growth_mib']:,.0f}"
            print(
                f"{name:<25} {value:>6,}  {row['steps_per_second']:>9,.0f} steps/s   memory "
                f"{row['estimated_growth_mib']:>6,.0f} MiB estimated, {grown:>6} seen",
                flush=True,
            )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "scaling.json").write_text(json.dumps(found, indent=2) + "\n")
    draw(found)


if __name__ == "__main__":
    main()
