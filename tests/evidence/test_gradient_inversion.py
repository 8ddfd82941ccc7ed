"""What an update gives away of labels and images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dp_fedmed.assemble import make_work
from dp_fedmed.evidence.curious_server import observe
from dp_fedmed.evidence.gradient_inversion import inferred_labels, total_variation
from dp_fedmed.evidence.reconstruction import (
    compose_for,
    sized_for_attack,
)
from dp_fedmed.learning.networks.learner import NetworkWork


def test_labels_are_read_off_the_last_bias(caplog: pytest.LogCaptureFixture) -> None:
    config = sized_for_attack(compose_for((), ("privacy=none",)), ())
    seen = observe(config)
    assert "nobody asked for" not in caplog.text, "every reply belongs to a message"
    work = make_work(config)
    assert isinstance(work, NetworkWork)
    work.build((1, 8, 8), 10)
    work.state.load(seen.sent)
    found = inferred_labels(
        work.model, seen.answers[0], records=8, num_classes=10, input_shape=(1, 8, 8), lr=0.1
    )
    assert found is not None
    assert found.tolist() == sorted(seen.records.y.tolist())


def test_a_flat_image_has_no_variation_and_a_step_has_its_height() -> None:
    flat = torch.full((1, 1, 4, 4), 0.3)
    assert total_variation(flat).item() == 0.0
    step = torch.zeros(1, 1, 4, 4)
    step[..., 2:] = 1.0
    assert total_variation(step).item() == pytest.approx(1 / 3)


def test_without_a_bias_no_labels_are_read() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    update = {name: p.detach().numpy() for name, p in model.named_parameters()}
    found = inferred_labels(model, update, records=5, num_classes=3, input_shape=(1, 2, 2), lr=0.1)
    assert found is None
