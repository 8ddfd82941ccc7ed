from tests.data.conftest import make_dataset
from tests.runs.finished import a_run, made_run

__all__ = ["a_run", "made_run", "make_dataset"]
