"""The package as a whole: what it imports, how fast, and that its examples run."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dp_fedmed.privacy as package

DOCS = sorted((Path(__file__).parents[2] / "docs" / "privacy").glob("*.md"))
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules_after(statement):
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    loaded = modules_after("import dp_fedmed.privacy")
    assert not loaded & {"numpy", "scipy", "dp_accounting", "randomgen", "torch"}


def test_rdp_accounting_does_not_load_dp_accounting():
    loaded = modules_after(
        "from dp_fedmed.privacy import compute_noise_multiplier as c;"
        "c(target_epsilon=1, target_delta=1e-5, sample_rate=.1, steps_per_round=1, num_rounds=9)"
    )
    assert "dp_accounting" not in loaded


def test_the_package_knows_nothing_of_torch_flower_or_hydra():
    names = [m.name for m in pkgutil.iter_modules(package.__path__)]
    imports = "; ".join(f"import dp_fedmed.privacy.{n}" for n in names if n not in LATER)
    assert not modules_after(imports) & {"torch", "flwr", "hydra", "opacus", "omegaconf"}


#: Modules of later issues that live in this package and are checked by their own tests.
LATER = {"ledger", "audit"}


@pytest.mark.parametrize("name", package.__all__)
def test_public_names_exist_and_are_documented(name):
    value = getattr(package, name)
    assert value.__doc__
    assert value.__module__.startswith("dp_fedmed.privacy")


def test_unknown_names_are_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018
    assert set(dir(package)) == set(package.__all__)
    importlib.reload(package)


@pytest.mark.parametrize("page", DOCS, ids=lambda p: p.name)
def test_examples_of_the_documentation_run(page):
    # A closing fence directly after expected output would be taken for part of it.
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=FLAGS).run(test).failed == 0
