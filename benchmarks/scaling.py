"""Speed and memory against environments, members, width and devices: part of `make bench`.

Prints a table and draws benchmarks/results/scaling.png (ignored by git).
"""

import argparse
from typing import Any

from benchmarks.blocks import RESULTS, keep
from benchmarks.speed import in_a_process
from jaxppo.runtime.sinks.plot import make_panels, steps_text

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


# How speed would grow with the value: with as many cores as environments or members; where only
# the products of layers took time; where devices that share all cores cost nothing
IDEALS = {
    "environments": (1, "ideal: linear"),
    "members (on a core each)": (1, "ideal: linear"),
    "width of both layers": (-2, "ideal: 1 / width²"),
    "forced devices": (0, "ideal: the same cores, the same speed"),
}


def draw(found: dict[str, list[dict[str, Any]]]) -> None:
    """A panel of speed each, beside its ideal, and one of memory; all axes are logarithmic."""
    figure, axes = make_panels(len(found) + 1, 3, 3.4, 2.9)
    for axis, (name, rows) in zip(axes, found.items(), strict=False):
        values = [row["value"] for row in rows]
        speeds = [row["steps_per_second"] for row in rows]
        exponent, label = IDEALS[name]
        ideal = [speeds[0] * (value / values[0]) ** exponent for value in values]
        axis.plot(values, ideal, color="0.6", linestyle="--", label=label)
        axis.plot(values, speeds, "o-", label="measured")
        axis.set(xscale="log", yscale="log", xlabel=name, ylabel="environment steps per second")
        axis.set_ylim(min(speeds) / 2, max(speeds) * 4)
        axis.set_xticks(values, [f"{value:,}" for value in values])
        axis.tick_params(axis="x", rotation=30)
        axis.minorticks_off()
        _name_speeds(axis)
    memory = [row for rows in found.values() for row in rows if row["growth_mib"] is not None]
    axis = axes[-1]
    limits = [1, max(max(r["estimated_growth_mib"], r["growth_mib"]) for r in memory) * 1.5]
    axis.plot(limits, limits, color="0.6", linestyle="--", label="ideal: as estimated")
    estimated = [row["estimated_growth_mib"] for row in memory]
    axis.plot(estimated, [row["growth_mib"] for row in memory], "o", label="measured")
    axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    axis.set(xlabel="MiB by the compiler's account", ylabel="MiB that the process grew by")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend(loc="best", fontsize=8, frameon=False)
    figure.savefig(RESULTS / "scaling.png", dpi=100)


def _name_speeds(axis: Any) -> None:
    """Ticks at 1, 2 and 5 times powers of ten, such as 50k."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda speed, _: steps_text(speed)))


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
    keep("scaling.json", found)
    draw(found)


if __name__ == "__main__":
    main()
