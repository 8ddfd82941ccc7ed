from tests.runs.pictures import without_pictures

__all__ = ["without_pictures"]
