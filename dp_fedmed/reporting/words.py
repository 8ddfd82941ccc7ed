"""Numbers and guarantees in words, rounded so that nothing is under-reported."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dp_fedmed.config import Config, Topology, better
from dp_fedmed.privacy import guess_probability
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.privacy.accounting.odds import percent_up

if TYPE_CHECKING:
    from rich.console import Console

LEVELS: dict[str, str] = {level: level.unit for level in Level}
ONE_UNIT = {level: f"one {unit}" for level, unit in LEVELS.items()}
OBSERVERS = {"server": "The server", "model recipients": "Whoever receives the model"}
_URL_OR_PATH = re.compile(
    r"(?P<url>\b[A-Za-z][\w+.-]*://\S+)|(?<![\w.…~/\\])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\'\",;]+){2,}"
)


def rounded_up(value: float, digits: int = 3) -> str:
    """So many significant digits, rounded up: an ε is never shown smaller than it is.

    >>> rounded_up(2.9951), rounded_up(3.0), rounded_up(0.012345), rounded_up(123.4)
    ('3.00', '3.00', '0.0124', '124')
    >>> rounded_up(0.99999), rounded_up(0.0)
    ('1.00', '0')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    scale = 10.0**decimals
    up = math.ceil(value * scale * (1 - 1e-12)) / scale
    return f"{up:.{max(digits - 1 - math.floor(math.log10(up)), 0)}f}"


def small(value: float) -> str:
    """A number in short notation, for a δ.

    >>> small(1e-05), small(0.00123)
    ('1e-5', '0.00123')
    """
    text = f"{value:.4g}"
    return re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].replace('+', '')}{m[2]}", text)


def figure(value: Any) -> str:
    """A metric, a count or a setting; a dash where there is none.

    >>> figure(0.91234), figure(12), figure(None), figure("sgd"), figure(1.5e-7)
    ('0.912', '12', '–', 'sgd', '1.5e-7')
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e5):
        return small(value)
    return f"{value:.3f}"


def plain(value: Any) -> str:
    """A setting as somebody would type it; a dash where there is none.

    >>> plain(0.3), plain(12.0), plain(None)
    ('0.3', '12', '–')
    """
    if isinstance(value, float):
        return small(value) if value else "0"
    return "–" if value is None else str(value)


def epsilon_of(bound: Mapping[str, Any]) -> str:
    """An ε with its δ."""
    return f"ε = {rounded_up(bound['epsilon'])} at δ = {small(bound['delta'])}"


def odds_of(bound: Mapping[str, Any]) -> str:
    """How often an attacker can be right."""
    return odds(bound["epsilon"], bound["delta"])


def odds(epsilon: float, delta: float) -> str:
    """How sure an attacker with even odds can become.

    >>> odds(1.0, 1e-5)
    '73.2 %'
    """
    return percent_up(guess_probability(epsilon=epsilon, delta=delta))


def capitalized(text: str) -> str:
    """With a capital letter at its beginning; the rest as it is.

    >>> capitalized("test AUROC")
    'Test AUROC'
    """
    return text[:1].upper() + text[1:]


def direction(metric: str) -> str:
    """What to add to a caption, for metrics of which less is better.

    >>> direction("rmse"), direction("accuracy")
    (' Lower is better.', '')
    """
    return " Lower is better." if better(metric) < 0 else ""


def metric_name(name: str) -> str:
    """A metric's name in a text.

    >>> metric_name("balanced_accuracy"), metric_name("auroc"), metric_name("dice")
    ('balanced accuracy', 'AUROC', 'Dice')
    """
    upper = {"auroc": "AUROC", "f1": "F1", "iou": "IoU", "dice": "Dice", "aupro": "AUPRO"}
    upper |= {"rmse": "RMSE", "mae": "MAE", "r2": "R²"}
    return " ".join(upper.get(word, word) for word in name.replace("/", ": ").split("_"))


def without_paths(text: str) -> str:
    """A text with absolute paths cut to their last part, so that it names nobody's machine.

    >>> without_paths("/home/ann/runs/first cannot be written; see https://flower.ai/docs/a")
    '…/first cannot be written; see https://flower.ai/docs/a'
    """

    def last(found: re.Match[str]) -> str:
        return found[0] if found["url"] else "…/" + re.split(r"[/\\]", found[0])[-1]

    return _URL_OR_PATH.sub(last, text)


def shown_setting(value: Any) -> Any:
    """A setting as a page may show it: of an absolute path only its last part.

    >>> shown_setting({"path": "/home/ann smith/data", "rounds": 3})
    {'path': '…/data', 'rounds': 3}
    """
    if isinstance(value, Mapping):
        return {str(key): shown_setting(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [shown_setting(held) for held in value]
    if isinstance(value, str) and re.match(r"(~|[A-Za-z]:)?[/\\]", value):
        return "…/" + (re.split(r"[/\\]", value.rstrip("/\\"))[-1] if len(value) > 1 else "")
    return without_paths(value) if isinstance(value, str) else value


def describe_sites(config: Config) -> str:
    """The clients, or what they are replaced by.

    >>> from dp_fedmed.config import compose
    >>> describe_sites(compose(["federation=centralized"]))
    'one site with the records of 5 clients'
    """
    clients = f"{config.federation.num_clients} clients"
    return {
        Topology.federated: clients,
        Topology.centralized: f"one site with the records of {clients}",
        Topology.local_only: f"{clients}, each alone",
    }[config.federation.topology]


def say(console: Console, text: str, style: str | None = None, *, wrap: bool = False) -> None:
    """Print a line as it is: neither coloured by what it holds nor read as markup."""
    console.print(text, style=style, soft_wrap=not wrap, highlight=False, markup=False)
