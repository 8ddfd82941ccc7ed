"""Words are completed in the shell."""

from __future__ import annotations

import pytest

from dp_fedmed.cli import main


def test_words_are_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def completed(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        assert main(["-sc", "query=bash"]) == 0
        return capsys.readouterr().out.split()

    assert completed("dp-fedmed re") == ["resume", "report", "reconstruct"]
    assert completed("dp-fedmed run task=di") == ["task=diabetes", "task=digits"]
    assert completed("dp-fedmed plan federation.num_r") == ["federation.num_rounds="]
    assert main(["run", "--shell-completion", "install=bash"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("hydra_bash_completion dp-fedmed")
