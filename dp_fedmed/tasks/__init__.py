"""What is learned: losses, local training and metrics, one file per task."""

from dp_fedmed.tasks.base import Task, make_task

__all__ = ["Task", "make_task"]
