from tests.runs.pictures import with_sheets, without_pictures

__all__ = ["with_sheets", "without_pictures"]
