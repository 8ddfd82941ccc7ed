"""Settings that name code: declared modules, what the user allows, and nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from dp_fedmed.config import DataConfig, ModelConfig, compose
from dp_fedmed.data import load_data
from dp_fedmed.errors import ConfigError
from dp_fedmed.models import build_model

PACKAGE = Path(__file__).resolve().parents[1] / "dp_fedmed"


@pytest.mark.parametrize(
    "word",
    [
        *(f"model._target_={path}" for path in ("os.system", "builtins.eval", "subprocess.Popen")),
        "model._target_=dp_fedmed.run.durable.sweep",
        "model._target_=dp_fedmed.models_of_mine.Net",
        "model._target_=torchvision.modelsx.Net",
        "model._target_=torchvision.io.read_file",
        "model._target_=antigravity.Net",
        "data.name=os.getcwd",
        "data.name=dp_fedmed.commands.run.main",
        "data.name=dp_fedmed.models.MLP",
        "data.name=antigravity.load",
    ],
)
def test_code_that_nobody_allowed_is_refused_before_it_is_imported(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose([word])
    package = word.partition("=")[2].split(".")[0]
    assert str(caught.value).startswith(f"{word} names code outside ")
    assert f"allow_code=[{package}]" in str(caught.value)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "path",
    [
        "dp_fedmed.models.build.import_named",
        "dp_fedmed.models.build.inspect",
        "torchvision.models._api.load_state_dict_from_url",
        "torchvision.models.resnet.partial",
    ],
)
def test_a_declared_module_is_no_way_to_other_code(path: str) -> None:
    with pytest.raises(ConfigError, match=r"model\._target_=.*(is code of|not a class)"):
        build_model(ModelConfig(_target_=path), input_shape=[4], num_classes=2, seed=0)


def test_a_loader_that_is_somebody_elses_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is code of dp_fedmed\.config\.named_code"):
        load_data(DataConfig(name="dp_fedmed.data.registry.import_named"), seed=0)


def test_what_is_declared_or_allowed_passes() -> None:
    for words in (
        ["model._target_=dp_fedmed.models.MLP"],
        ["model._target_=torchvision.models.resnet18"],
        ["data.name=dp_fedmed.data.tabular.load_digits"],
        ["allow_code=[my_package]", "model._target_=my_package.nets.Net"],
        ["allow_code=[my_package.nets]", "model._target_=my_package.nets.Net"],
        ["allow_code=[a,b]", "model._target_=b.Net", "data.name=a.load"],
    ):
        assert compose(words)
    for module in ("my_package.net", "my", "my_package.nets.Net.x"):
        with pytest.raises(ConfigError, match="names code outside"):
            compose([f"allow_code=[{module}]", "model._target_=my_package.nets.Net"])


@pytest.mark.parametrize("value", ["['']", "[my-package]", "['os; import sys']", "[.]"])
def test_what_is_not_a_module_cannot_be_allowed(value: str) -> None:
    with pytest.raises(ConfigError, match="allow_code"):
        compose([f"allow_code={value}"])


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def misuse(tree: ast.AST) -> list[str]:
    """Ways to turn bytes or text into code."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [name for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        options = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called in FORBIDDEN_CALLS or called in ("yaml.load", "yaml.unsafe_load", "os.system"):
            found.append(called)
        if called in (
            "torch.load",
            "torch.hub.load_state_dict_from_url",
            "load_state_dict_from_url",
        ):
            found += [called] if options.get("weights_only") != "True" else []
        if called in ("np.load", "numpy.load"):
            found += [called] if options.get("allow_pickle", "False") != "False" else []
        if options.get("shell") == "True" or called == "torch.hub.load":
            found.append(called)
    return found


def test_no_file_is_ever_run_as_code() -> None:
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) > 80
    assert {f.name: found for f in files if (found := misuse(ast.parse(f.read_text())))} == {}


@pytest.mark.parametrize(
    "code",
    [
        *("import pickle", "from pickle import loads", "eval('1')", "exec(text)"),
        *("yaml.load(text)", "torch.load(file)", "torch.load(file, weights_only=False)"),
        *("np.load(file, allow_pickle=True)", "subprocess.run(x, shell=True)"),
    ],
)
def test_the_search_for_such_code_finds_it(code: str) -> None:
    assert misuse(ast.parse(code))
