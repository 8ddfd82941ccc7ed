"""The picture of a membership attack: its ROC on logarithmic axes, under what (ε, δ) allows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_fedmed.reporting import drawing

if TYPE_CHECKING:
    from dp_fedmed.evidence.membership import MembershipAttack


def plot_attack(attack: MembershipAttack, title: str, path: Path) -> None:
    """Draw the attack's curve with its interval, guessing, and the bound.

    Args:
        attack: the result.
        title: a line above the picture.
        path: where the PNG goes.
    """
    figure = drawing.new_figure(5.6, 5.0)
    axes = figure.subplots()
    roc = attack.per_class.roc
    lowest = min(1e-3, 0.5 / len(roc.others))
    grid = np.geomspace(lowest, 1.0, 400)
    axes.plot(grid, grid, color=drawing.GREY, ls=":", lw=1.2, label="guessing")
    if attack.claim is not None:
        claim = attack.claim
        allowed = claim.tpr(grid)
        axes.plot(grid, allowed, color=drawing.ORANGE, lw=1.8, label=_bound_label(claim))
        axes.fill_between(grid, allowed, 1.0, color=drawing.ORANGE, alpha=0.08, lw=0)
    _draw_curve(axes, attack)
    axes.axvspan(lowest, 1.0 / len(roc.others), color=drawing.GREY, alpha=0.12, lw=0)
    axes.annotate(
        "no false\nalarm",
        (np.sqrt(lowest / len(roc.others)), 0.02),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="bottom",
        fontsize=7,
        color=drawing.GREY,
    )
    axes.set(xscale="log", yscale="log", xlim=(lowest, 1.0), ylim=(lowest, 1.05))
    axes.set_xlabel("false positive rate: others taken for members")
    axes.set_ylabel("true positive rate: members found")
    drawing.tidy(axes, "both")
    drawing.small_legend(axes, loc="lower right")
    axes.set_title(title, fontsize=10)
    drawing.save_png(figure, path)


def _draw_curve(axes: Any, attack: MembershipAttack) -> None:
    """The attack that knows classes, with its interval, and the one that does not."""
    from dp_fedmed.evidence.roc import clopper_pearson

    plain = attack.one_threshold.roc
    axes.step(
        *plain.points, where="post", color=drawing.BLUE, lw=1.0, ls="--", alpha=0.6,
        label=f"attack, one threshold (AUC {plain.auc:.3f})",
    )  # fmt: skip
    roc = attack.per_class.roc
    fpr, tpr = roc.points
    count = len(roc.members)
    hits = np.rint(tpr * count).astype(int)
    spans = {hit: clopper_pearson(int(hit), count) for hit in np.unique(hits)}
    low, high = np.array([spans[hit] for hit in hits]).T
    axes.fill_between(fpr, low, high, step="post", color=drawing.BLUE, alpha=0.18, lw=0)
    axes.step(
        fpr, tpr, where="post", color=drawing.BLUE, lw=1.8,
        label=f"attack, calibrated per class (AUC {roc.auc:.3f})",
    )  # fmt: skip


def _bound_label(claim: Any) -> str:
    return f"most that ε = {claim.epsilon:.3g}, δ = {claim.delta:.1g} allow"
