"""Which errors are meant for a person, what each says, and how a command ends with it."""

from __future__ import annotations

import inspect

import pytest

from dp_fedmed import errors
from dp_fedmed.errors import ConfigError, DPFedMedError, SiteRefused, sentence_of

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, DPFedMedError) and kind is not DPFedMedError
]
CODES = {
    **dict.fromkeys(("ConfigError", "NodeError", "SiteRefused"), errors.EXIT_USAGE),
    "RunFinished": 0,
    "Interrupted": errors.EXIT_INTERRUPTED,
}


def made(kind: type[DPFedMedError]) -> DPFedMedError:
    return kind("what happened", "what is told") if kind is SiteRefused else kind("what happened")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", ALL)
def test_each_has_its_sentence_and_exit_code(kind: type[DPFedMedError]) -> None:
    error = made(kind)
    assert sentence_of(error) == error.sentence() == "what happened"
    assert error.exit_code == CODES.get(kind.__name__, errors.EXIT_STOPPED)
    assert isinstance(error, ValueError | RuntimeError), "as callers without us expect"


@pytest.mark.parametrize("bug", [KeyError("w"), ValueError("x"), RuntimeError("y"), OSError("z")])
def test_a_bug_has_no_sentence(bug: Exception) -> None:
    assert sentence_of(bug) is None


def test_a_file_that_the_user_named_is_told() -> None:
    assert "no/such/file" in str(sentence_of(FileNotFoundError(2, "missing", "no/such/file")))


@pytest.mark.parametrize(
    ("said", "path", "sentence"),
    [
        ("data.path=scans is bad", None, "data.path=scans is bad"),
        ("data.path=scans is bad", "/home/ann/scans", "data.path=/home/ann/scans is bad"),
        ("/home/ann/scans is bad", "/home/ann/scans", "/home/ann/scans is bad"),
        ("nothing there", "/home/ann/scans", "nothing there (/home/ann/scans)"),
        ("a=scans and b=scans", "/x/scans", "a=/x/scans and b=scans"),
    ],
)
def test_paths_are_whole_for_the_person_at_the_terminal(
    said: str, path: str | None, sentence: str
) -> None:
    error = ConfigError(said)
    error.path = path
    assert error.sentence() == sentence
    assert str(error) == said, "others read no more"


def test_a_site_has_one_reason_for_itself_and_another_for_the_server() -> None:
    error = SiteRefused("/mnt/keys has mode 0777", "its state-dir is open to others")
    assert (str(error), error.told) == (
        "/mnt/keys has mode 0777",
        "its state-dir is open to others",
    )
