"""What a sweep has spent, in sentences: the same on the terminal and on the page."""

from __future__ import annotations

from dp_fedmed.reporting.words import ONE_UNIT, epsilon_of
from dp_fedmed.sweeps.summary import SweepSummary

TUNING = (
    "Every run used the same data, so together they have spent more than each one says, and to "
    "choose among them is one more look that no ε here covers. Choose by the validation metric, "
    "and report how many runs there were."
)
NOT_PRIVATE = (
    "Some runs are not private, since their noise seed is public: their ε counts for nothing."
)


def spending(summary: SweepSummary) -> list[str]:
    """What publishing all runs of a task costs one record or client, and what is not counted."""
    found = []
    for total in summary.together:
        unit = ONE_UNIT[total.level]
        spent = epsilon_of({"epsilon": total.epsilon, "delta": total.delta})
        found.append(
            f"Publishing all {total.runs} runs of {total.task} that protect {unit} costs it at "
            f"most {spent}"
            + (f"; the other {total.others} promise {unit} nothing." if total.others else ".")
        )
    if summary.broke_off:
        names = ", ".join(f"{job.number:03d}" for job in summary.broke_off)
        found.append(
            f"What the jobs spent that broke off ({names}) is in their ledgers, not in these sums."
        )
    return found
