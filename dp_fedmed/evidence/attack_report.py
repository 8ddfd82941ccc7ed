"""`attack.json` and `attack.png`: what an attack reached, beside what the guarantee allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dp_fedmed.evidence.claim import Claim
from dp_fedmed.evidence.finished_run import UNCHECKED, FinishedRun
from dp_fedmed.evidence.membership import FPRS, Figures, MembershipAttack
from dp_fedmed.evidence.roc import Interval, Roc, clopper_pearson
from dp_fedmed.reporting import drawing

SCHEMA = 1
ATTACK_FILE, ATTACK_PICTURE = "attack.json", "attack.png"
MOST_POINTS = 200

OUTSIDE = (
    "This attack reads the private training records, so it is for the operator. Its figures are "
    "computed from members without noise: they are outside the guarantee, and publishing them "
    "is a release of its own, if a small one."
)


def attack_json(run: FinishedRun, attack: MembershipAttack) -> dict[str, Any]:
    """Everything that `attack.json` holds: figures only, no record and no path."""
    main = attack.per_class
    report = {
        "schema": SCHEMA,
        "attack": f"{attack.name}, calibrated per class",
        "unit": "record",
        "style": str(run.config.privacy.style),
        **_figures(main.roc, main),
        **_sizes(main.roc),
        "one_threshold_for_all_classes": _figures(attack.one_threshold.roc, attack.one_threshold),
        "bound": _bound(attack.claim),
        "exceeds_bound": bool(attack.beyond),
        "exceeds_bound_at": {f"{row['fpr_at_most']:.4f}": row for row in attack.beyond},
        "clients": None,
        "roc": _thinned(main.roc),
        "data_checked": run.data_checked,
        "notes": list(attack.notes),
        "outside_the_guarantee": OUTSIDE,
        "statement": attack_statement(run, attack),
    }
    if attack.clients is not None:
        report["clients"] = {
            "attack": "mean score of a client's records, against equal groups of held-out ones",
            **_figures(attack.clients),
            **_sizes(attack.clients),
            "bound": _bound(attack.client_claim),
        }
    return report


def attack_statement(run: FinishedRun, attack: MembershipAttack) -> str:
    """The result in plain words."""
    roc = attack.per_class.roc
    better = "better" if roc.auc_interval()[0] > 0.5 else "no better"
    said = [
        f"Given one of {len(roc.members)} training records and one of {len(roc.others)} records "
        f"that the model never saw, the attack picks the right one in {roc.auc:.1%} of cases "
        f"(95 % interval {_span(roc.auc_interval())}; guessing is 50 %): {better} than guessing."
    ]
    alarms = "no false alarm" if "0.01" in _too_few(roc) else "one false alarm in a hundred"
    said.append(
        f"With {alarms} it finds {roc.tpr_at(0.01):.1%} of the training "
        f"records (95 % interval {_span(roc.tpr_interval_at(0.01))})."
    )
    if _too_few(roc):
        named = " and ".join(f"{float(fpr):.1%}" for fpr in _too_few(roc))
        said.append(
            f"{len(roc.others)} held-out records are too few to speak of {named} false alarms: "
            "figures there are for no false alarm at all."
        )
    said += _on_the_claim(attack)
    if attack.clients is not None:
        span = _span(attack.clients.auc_interval())
        said.append(
            f"Whole clients: {attack.clients.auc:.1%} (95 % interval {span}), from only "
            f"{len(attack.clients.members)} clients and {len(attack.clients.others)} "
            "groups of held-out records."
        )
    if run.data_checked == UNCHECKED:
        said.append(
            "Whether the data are those of the run could not be checked, since its ledger is not "
            "here."
        )
    said.append("Other attacks may reach more; only the guarantee speaks of all of them.")
    return " ".join(said)


def _on_the_claim(attack: MembershipAttack) -> list[str]:
    claim = attack.claim
    if claim is None:
        return ["The run promises nothing, so nothing bounds what an attack may reach."]
    allowed = (
        f"ε = {claim.epsilon:.3g} and δ = {claim.delta:.2g} for one record ({claim.source}) allow "
        f"at most {float(claim.tpr(0.01)):.1%} at one in a hundred, and an advantage of "
        f"{claim.advantage:.1%}; measured is {attack.per_class.advantage:.1%}."
    )
    if not attack.beyond:
        return [allowed, "The measured curve is within the bound."]
    worst = max(attack.beyond, key=lambda row: row["tpr_at_least"] - row["allowed"])
    return [
        allowed,
        f"THE ATTACK EXCEEDS THE BOUND: it finds at least {worst['tpr_at_least']:.1%} of the "
        f"training records with at most {worst['fpr_at_most']:.1%} false alarms, where "
        f"{worst['allowed']:.1%} is the most (95 % confidence, corrected for all points tested). "
        "Either the guarantee does not hold, or the held-out records are of another population "
        "than the training records. Test the mechanism with dp-fedmed audit before the model is "
        "given to anybody.",
    ]


def _figures(roc: Roc, figures: Figures | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "auc": roc.auc,
        "auc_interval": list(roc.auc_interval()),
        "tpr_at_fpr": {str(fpr): roc.tpr_at(fpr) for fpr in FPRS},
        "tpr_interval_at_fpr": {str(fpr): list(roc.tpr_interval_at(fpr)) for fpr in FPRS},
    }
    if figures is not None:
        found["advantage"] = figures.advantage
        found["advantage_interval"] = list(figures.advantage_interval)
    return found


def _sizes(roc: Roc) -> dict[str, Any]:
    return {
        "members": len(roc.members),
        "non_members": len(roc.others),
        "too_few_non_members_for": _too_few(roc),
    }


def _too_few(roc: Roc) -> list[str]:
    """The FPRs that the others are too few to show: less than one of them."""
    return [str(fpr) for fpr in FPRS if fpr * len(roc.others) < 1.0]


def _bound(claim: Claim | None) -> dict[str, Any]:
    if claim is None:
        return dict.fromkeys(("epsilon", "delta", "tpr_at_fpr", "advantage", "from"))
    return {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "tpr_at_fpr": {str(fpr): float(claim.tpr(fpr)) for fpr in FPRS},
        "advantage": claim.advantage,
        "from": claim.source,
    }


def _thinned(roc: Roc) -> dict[str, list[float]]:
    """The curve in few points, evenly on a logarithmic axis."""
    fpr, tpr = roc.points
    wanted = np.geomspace(1.0 / (2 * len(roc.others)), 1.0, MOST_POINTS)
    at = np.unique(np.searchsorted(fpr, wanted, side="right") - 1)
    return {"fpr": fpr[at].round(6).tolist(), "tpr": tpr[at].round(6).tolist()}


def _span(interval: Interval) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}"


def plot_attack(attack: MembershipAttack, title: str, path: Path) -> None:
    """Draw the ROC with its interval, guessing and the bound, on logarithmic axes."""
    figure = drawing.new_figure(5.6, 5.0)
    axes = figure.subplots()
    roc = attack.per_class.roc
    lowest = min(1e-3, 0.5 / len(roc.others))
    grid = np.geomspace(lowest, 1.0, 400)
    axes.plot(grid, grid, color=drawing.GREY, ls=":", lw=1.2, label="guessing")
    claim = attack.claim
    if claim is not None:
        allowed = claim.tpr(grid)
        label = f"most that ε = {claim.epsilon:.3g}, δ = {claim.delta:.1g} allow"
        axes.plot(grid, allowed, color=drawing.ORANGE, lw=1.8, label=label)
        axes.fill_between(grid, allowed, 1.0, color=drawing.ORANGE, alpha=0.08, lw=0)
    _draw_curve(axes, attack)
    axes.axvspan(lowest, 1.0 / len(roc.others), color=drawing.GREY, alpha=0.12, lw=0)
    axes.annotate(
        "no false\nalarm", (np.sqrt(lowest / len(roc.others)), 0.02), color=drawing.GREY,
        xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=7,
    )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(lowest, 1.0), ylim=(lowest, 1.05))
    axes.set_xlabel("false positive rate: others taken for members")
    axes.set_ylabel("true positive rate: members found")
    drawing.tidy(axes, "both")
    drawing.small_legend(axes, loc="lower right")
    axes.set_title(title, fontsize=10)
    drawing.save_png(figure, path)


def _draw_curve(axes: Any, attack: MembershipAttack) -> None:
    """The attack that knows classes, with its interval, and the one that does not."""
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
