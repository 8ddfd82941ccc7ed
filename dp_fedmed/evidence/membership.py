"""Membership inference on a finished run: can its model tell whose records it was trained on?

Members are all training records of all clients, whether or not their client was asked in a round:
who is asked is part of the mechanism that the guarantee is about. The others are the server's
validation and test records, which no client had.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from dp_fedmed.config import PartitionName, TaskKind
from dp_fedmed.data import Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence.claim import Claim, client_claim, record_claim
from dp_fedmed.evidence.finished_run import FinishedRun
from dp_fedmed.evidence.roc import CONFIDENCE, Floats, Interval, Roc, clopper_pearson
from dp_fedmed.evidence.scores import (
    Advance,
    Score,
    Scored,
    UsualScores,
    halves,
    make_scorer,
    same_mix,
)

FPRS = (0.001, 0.01)
#: Where the measured curve is held against the bound: fixed beforehand, and corrected for.
TESTED_FPRS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
FEWEST_RECORDS = 10
FEWEST_GROUPS = 10
#: Validation and test records count as one population unless this confidence says otherwise.
SAME_POPULATION = 0.999


@dataclass(frozen=True)
class Fold:
    """One half of the records, judged by what the other half has taught."""

    judged: Roc
    learnt: Roc


@dataclass(frozen=True)
class Figures:
    """What one way to attack reaches."""

    folds: tuple[Fold, ...]

    @property
    def roc(self) -> Roc:
        """Both halves together, each judged by the other."""
        judged = [fold.judged for fold in self.folds]
        return Roc(
            np.concatenate([one.members for one in judged]),
            np.concatenate([one.others for one in judged]),
        )

    @property
    def advantage(self) -> float:
        """TPR − FPR at thresholds that were chosen on the other half."""
        members, others = self._best_rates
        return members[0] / members[1] - others[0] / others[1]

    @property
    def advantage_interval(self) -> Interval:
        """From the two rates' intervals at their outer ends, so rather too wide."""
        members, others = self._best_rates
        confidence = 1.0 - (1.0 - CONFIDENCE) / 2.0
        tpr, fpr = clopper_pearson(*members, confidence), clopper_pearson(*others, confidence)
        return tpr[0] - fpr[1], tpr[1] - fpr[0]

    def beyond(self, claim: Claim) -> list[dict[str, float]]:
        """Where the attack surely reaches more than the claim allows.

        Every threshold is a quantile of the other half's held-out scores. Clopper and Pearson's
        limits of TPR and FPR hold for all of them at once (Bonferroni), at 95 %.
        """
        found, confidence = [], 1.0 - (1.0 - CONFIDENCE) / len(TESTED_FPRS)
        for fpr in TESTED_FPRS:
            cuts = [float(np.quantile(fold.learnt.others, 1.0 - fpr)) for fold in self.folds]
            members, others = self._rates(cuts)
            least = clopper_pearson(*members, confidence)[0]
            most = clopper_pearson(*others, confidence)[1]
            allowed = float(claim.tpr(most))
            if least > allowed:
                found.append({"fpr_at_most": most, "tpr_at_least": least, "allowed": allowed})
        return found

    @property
    def _best_rates(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return self._rates([fold.learnt.best_threshold for fold in self.folds])

    def _rates(self, cuts: list[float]) -> tuple[tuple[int, int], tuple[int, int]]:
        """(hits, trials) of members and of others, each half at its own threshold."""
        pairs = list(zip(self.folds, cuts, strict=True))
        members = sum(int((fold.judged.members >= cut).sum()) for fold, cut in pairs)
        others = sum(int((fold.judged.others >= cut).sum()) for fold, cut in pairs)
        roc = self.roc
        return (members, len(roc.members)), (others, len(roc.others))


@dataclass(frozen=True)
class MembershipAttack:
    """The result of an attack on one run, with the claims that bound it."""

    name: str  # how records were scored
    per_class: Figures  # of the attack that knows what is usual for a class
    one_threshold: Figures  # of the one that does not
    claim: Claim | None
    clients: Roc | None  # against groups of held-out records, where clients are protected
    client_claim: Claim | None
    notes: tuple[str, ...]  # what a reader must know, a sentence each

    @property
    def beyond(self) -> list[dict[str, float]]:
        """Where the attack surely reaches more than is claimed; empty where nothing is."""
        return [] if self.claim is None else self.per_class.beyond(self.claim)


def attack_run(run: FinishedRun, advance: Advance = lambda count: None) -> MembershipAttack:
    """Attack a finished run.

    Args:
        run: the run, opened.
        advance: called with the number of records that were scored since the last call.

    Raises:
        ConfigError: if there are too few records of either kind.
    """
    (name, score), notes = make_scorer(run), list[str]()
    parts = list(run.members())
    by_client = [_scored(run, score, records, advance) for records in parts]
    others = _held_out(run, score, parts, advance, notes)
    kept, compared_to = same_mix(_joined(by_client), others, seed=run.config.seed)
    for found, what in ((kept, "training"), (compared_to, "held-out")):
        if len(found) < FEWEST_RECORDS:
            raise ConfigError(
                f"{run.path} has {len(found)} {what} records of the classes that both kinds have: "
                f"an attack needs at least {FEWEST_RECORDS} of each to say anything"
            )
    clients, of_clients = None, client_claim(run.report)
    if of_clients is not None:
        clients = _client_roc(run, by_client, others, notes)
    if run.report.get("warning"):
        notes.append(f"{run.report['warning']}: the bound holds only for who does not know it.")
    return MembershipAttack(
        name=name,
        per_class=figures(kept, compared_to, per_class=True, seed=run.config.seed),
        one_threshold=figures(kept, compared_to, per_class=False, seed=run.config.seed),
        claim=record_claim(run.report),
        clients=clients,
        client_claim=None if clients is None else of_clients,
        notes=tuple(notes),
    )


def figures(members: Scored, others: Scored, *, per_class: bool, seed: int) -> Figures:
    """Judge each half of the records by what the other half has taught."""
    own = halves(members, seed=seed, purpose="attack-members")
    held_out = halves(others, seed=seed, purpose="attack-others")
    folds = []
    for judged, learnt in ((0, 1), (1, 0)):
        usual = UsualScores(held_out[learnt])

        def values(part: Scored, usual: UsualScores = usual) -> Floats:
            return usual.compared(part) if per_class else part.scores

        folds.append(
            Fold(
                judged=Roc(values(own[judged]), values(held_out[judged])),
                learnt=Roc(values(own[learnt]), values(held_out[learnt])),
            )
        )
    return Figures(tuple(folds))


def _scored(run: FinishedRun, score: Score, records: Records, advance: Advance) -> Scored:
    """Scores, beside what decides how hard a record is: its class, or a normal image's category."""
    if run.config.task.kind is not TaskKind.anomaly:
        classes = records.image_labels
    elif records.site is not None and run.data.site_names:
        classes = records.site
    else:
        classes = np.zeros(len(records))
    return Scored(score(records, advance), np.asarray(classes, dtype=np.int64))


def _joined(parts: list[Scored]) -> Scored:
    return Scored(
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.classes for part in parts]),
    )


def _held_out(
    run: FinishedRun, score: Score, members: list[Records], advance: Advance, notes: list[str]
) -> Scored:
    """The server's records that no client had: both parts, if they are one population."""
    seen = {digest for records in members for digest in _digests(records)}
    scored = []
    for records in (run.data.val, run.data.test):
        fresh = np.array([digest not in seen for digest in _digests(records)], dtype=bool)
        if run.config.task.kind is TaskKind.anomaly:
            fresh &= records.image_labels == 0
        elif not fresh.all():
            notes.append(
                f"{int((~fresh).sum())} held-out records equal a training record; left out."
            )
        scored.append(_scored(run, score, records.subset(np.flatnonzero(fresh)), advance))
    val, test = scored
    if min(len(val), len(test)) < FEWEST_RECORDS:
        return _joined(scored)
    usual = UsualScores(_joined(scored))
    low, high = Roc(usual.compared(val), usual.compared(test)).auc_interval(SAME_POPULATION)
    if low <= 0.5 <= high:
        return _joined(scored)
    notes.append(
        "Test records score differently from validation records, so they come from another "
        "population: only validation records stand for those who were not trained on."
    )
    return val


def _digests(records: Records) -> list[bytes]:
    return [
        hashlib.blake2b(x.tobytes() + y.tobytes(), digest_size=16).digest()
        for x, y in zip(records.x, records.y, strict=True)
    ]


def _client_roc(
    run: FinishedRun, by_client: list[Scored], others: Scored, notes: list[str]
) -> Roc | None:
    """Mean scores of clients against those of groups of held-out records of the same size."""
    if run.config.data.partition.name is not PartitionName.iid:
        notes.append(
            "Whole clients are not attacked: they differ from each other, so groups of held-out "
            "records do not stand for clients that were not there."
        )
        return None
    size = max(1, int(np.median([len(part) for part in by_client])))
    own: list[Floats] = []
    groups: list[float] = []
    parts = halves(others, seed=run.config.seed, purpose="attack-clients")
    for judged, learnt in ((0, 1), (1, 0)):
        usual = UsualScores(parts[learnt])
        own.append(np.array([usual.compared(p).mean() for p in by_client if len(p)]))
        values = usual.compared(parts[judged])
        count = len(values) // size
        groups += values[: count * size].reshape(count, size).mean(axis=1).tolist()
    if len(groups) < FEWEST_GROUPS:
        notes.append(
            f"Whole clients are not attacked: held-out records make only {len(groups)} groups of "
            f"{size}, the size of a client, and at least {FEWEST_GROUPS} are needed."
        )
        return None
    return Roc(np.mean(own, axis=0), np.array(groups))
