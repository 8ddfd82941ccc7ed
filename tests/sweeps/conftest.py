from tests.runs.finished import a_sweep, made_sweep

__all__ = ["a_sweep", "made_sweep"]
