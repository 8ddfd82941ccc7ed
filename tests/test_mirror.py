"""Tests mirror the package: `dp_fedmed/a/b/c.py` is tested by `tests/a/b/test_c.py`.

Whole runs are tested in `tests/runs/`. A module whose docstrings have examples is tested by them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, TESTS = ROOT / "dp_fedmed", ROOT / "tests"
#: Modules that whole runs alone exercise: none. Who adds a module adds its tests.
MOST_WITHOUT = 0
#: Folders of tests that mirror no folder of the package.
OTHER_FOLDERS = {"runs", "breaks"}


def only_names_others(tree: ast.Module) -> bool:
    """Whether a module has nothing of its own, but imports and a docstring."""
    return all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.Expr | ast.If) for node in tree.body
    )


def has_example(tree: ast.Module) -> bool:
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, nodes))
    return any(">>> " in text for text in texts if text)


def untested() -> Iterator[str]:
    for module in sorted(PACKAGE.rglob("*.py")):
        place = module.relative_to(PACKAGE)
        tree = ast.parse(module.read_text(encoding="utf-8"))
        if module.name.startswith("__") or only_names_others(tree) or has_example(tree):
            continue
        if not (TESTS / place.parent / f"test_{place.name}").is_file():
            yield str(place)


def test_modules_without_tests_of_their_own_become_fewer() -> None:
    found = list(untested())
    assert len(found) <= MOST_WITHOUT, "\n".join(["tests/…/test_….py is missing for:", *found])


def test_folders_of_tests_are_those_of_the_package() -> None:
    for folder in sorted(path.parent for path in TESTS.rglob("test_*.py")):
        place = folder.relative_to(TESTS)
        if not OTHER_FOLDERS & set(place.parts[:1]):
            assert (PACKAGE / place).is_dir(), f"{place} mirrors no folder of dp_fedmed"


def test_files_of_one_name_in_two_folders_do_not_clash() -> None:
    for folder in {path.parent for path in TESTS.rglob("*.py")}:
        assert (folder / "__init__.py").is_file(), folder


def test_every_module_that_is_imported_exists() -> None:
    """Type checkers that forgive missing stubs forgive a module of our own that is gone, too."""
    for folder in ("dp_fedmed", "tests", "bench", "tools"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    place = ROOT.joinpath(*node.module.split("."))
                    if place.parts[len(ROOT.parts)] in ("dp_fedmed", "tests", "bench", "tools"):
                        is_there = place.with_suffix(".py").is_file() or place.is_dir()
                        assert is_there, f"{file.relative_to(ROOT)} imports {node.module}"
