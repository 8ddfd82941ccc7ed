"""What a sweep has spent, in sentences: the same on the terminal and on the page."""

from __future__ import annotations

from dp_fedmed.reporting.words import epsilon_of
from dp_fedmed.sweeps.facts import SweepFacts, spent_together

UNIT_OF = {"sample": "one record", "user": "one client"}
TUNING = (
    "Every run used the same data, so together they have spent more than each one says, and to "
    "choose among them is one more look that no ε here covers. Choose by the validation metric, "
    "and report how many runs there were."
)
NOT_PRIVATE = (
    "Some runs are not private, since their noise seed is public: their ε counts for nothing."
)


def spending(facts: SweepFacts) -> list[str]:
    """What publishing all runs of a task costs one record or client, and what is not counted."""
    found = []
    for task in dict.fromkeys(job.task for job in facts.jobs):
        jobs = [job for job in facts.jobs if job.task == task and not job.broke]
        for level, unit in UNIT_OF.items():
            total = spent_together(jobs, level)
            if total is not None:
                others = len(jobs) - int(total["runs"])
                found.append(
                    f"Publishing all {total['runs']:.0f} runs of {task} that protect {unit} costs "
                    f"it at most {epsilon_of(total)}"
                    + (f"; the other {others} promise {unit} nothing." if others else ".")
                )
    begun = [job for job in facts.jobs if job.broke and job.rounds and job.style != "none"]
    if begun:
        names = ", ".join(f"{job.number:03d}" for job in begun)
        found.append(
            f"What the jobs spent that broke off ({names}) is in their ledgers, not in these sums."
        )
    return found
