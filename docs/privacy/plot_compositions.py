"""Draws compositions.png: ε over rounds by basic, advanced, RDP and PLD composition.

Run ``python docs/privacy/plot_compositions.py`` from the repository's root.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from dp_fedmed.privacy import compose_advanced, compose_basic, get_privacy_spent

SIGMA, RATE, DELTA = 4.0, 0.1, 1e-5
ROUNDS = np.unique(np.geomspace(1, 500, 40).astype(int))


def one_round(delta: float) -> float:
    """The best ε that can be stated for a single round."""
    return get_privacy_spent(
        noise_multiplier=SIGMA, sample_rate=RATE, steps=1, delta=delta, accountant="pld"
    )


def curves() -> dict[str, list[float]]:
    """ε at total δ after each number of rounds."""
    result: dict[str, list[float]] = {"basic": [], "advanced": [], "RDP": [], "PLD": []}
    for rounds in ROUNDS.tolist():
        basic = [(one_round(DELTA / rounds), 0.0)] * rounds
        advanced = [(one_round(DELTA / 2 / rounds), 0.0)] * rounds
        result["basic"].append(compose_basic(basic)[0])
        result["advanced"].append(compose_advanced(advanced, slack_delta=DELTA / 2)[0])
        for name in ("RDP", "PLD"):
            result[name].append(
                get_privacy_spent(
                    noise_multiplier=SIGMA,
                    sample_rate=RATE,
                    steps=rounds,
                    delta=DELTA,
                    accountant=name.lower(),  # type: ignore[arg-type]
                )
            )
    return result


def main() -> None:
    """Write the figure beside this script."""
    colours = {"advanced": "#b5483a", "basic": "#d9932f", "RDP": "#2f6f9f", "PLD": "#1b3a57"}
    figure, axes = plt.subplots(figsize=(7.6, 4.4), dpi=160)
    values = curves()
    for name, colour in colours.items():
        axes.plot(ROUNDS, values[name], color=colour, linewidth=2.2)
        end = values[name][-1]
        axes.annotate(
            f"{name}  {end:,.0f}" if end >= 100 else f"{name}  {end:.1f}",
            (ROUNDS[-1], end),
            xytext=(8, {"RDP": 6, "PLD": -6}.get(name, 0)),
            textcoords="offset points",
            color=colour,
            va="center",
            fontsize=10,
            fontweight="bold",
            annotation_clip=False,
        )
    axes.set_yscale("log")
    axes.set_xlim(0, ROUNDS[-1])
    axes.set_yticks([0.3, 1, 3, 10, 30, 100, 300])
    axes.set_yticklabels(["0.3", "1", "3", "10", "30", "100", "300"])
    axes.minorticks_off()
    axes.set_xlabel("rounds")
    axes.set_ylabel("ε (log scale)")
    axes.set_title(
        f"The same noise, four ways to add it up   (σ = {SIGMA:g}, q = {RATE:g}, δ = 10⁻⁵)",
        loc="left",
        fontsize=11,
    )
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    figure.subplots_adjust(left=0.11, right=0.82, top=0.9, bottom=0.13)
    figure.savefig(Path(__file__).with_name("compositions.png"))


if __name__ == "__main__":
    main()
