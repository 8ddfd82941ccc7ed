"""Names that are imported on first use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dp_fedmed.lazy import lazily

INIT = """
from dp_fedmed.lazy import lazily
__getattr__, __dir__, __all__ = lazily(__name__, {"heavy": ["Second", "first"]})
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of one heavy module."""
    folder = tmp_path / "a_lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "heavy.py").write_text("first = 1\nclass Second: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (folder.name, f"{folder.name}.heavy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder.name


def test_a_module_is_imported_when_one_of_its_names_is_used(package: str) -> None:
    made = __import__(package)
    assert f"{package}.heavy" not in sys.modules
    assert (made.__all__, dir(made)) == (["Second", "first"], ["Second", "first"])
    assert f"{package}.heavy" not in sys.modules, "to list names imports nothing"
    assert made.first == 1
    assert made.Second is sys.modules[f"{package}.heavy"].Second


def test_a_name_that_is_not_there_fails_as_in_any_module(package: str) -> None:
    made = __import__(package)
    assert not hasattr(made, "third")
    with pytest.raises(ImportError, match="third"):
        exec(f"from {package} import third")
    assert f"{package}.heavy" not in sys.modules


def test_a_name_that_its_module_does_not_have_is_an_error() -> None:
    get, _, names = lazily("dp_fedmed", {"version": ["missing"]})
    assert names == ["missing"]
    with pytest.raises(AttributeError, match="missing"):
        get("missing")
