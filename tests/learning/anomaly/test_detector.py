"""A detector's arrays as they travel."""

import numpy as np
import pytest

from dp_fedmed.assemble import detector_settings
from dp_fedmed.config import compose
from dp_fedmed.errors import ConfigError
from dp_fedmed.learning.anomaly.detector import BANK, Detector, packed_state, unpacked_state
from tests.runs.anomaly.runs import TINY

MAP = {"map_offset": np.zeros(2), "map_matrix": np.eye(2)}


def test_a_state_travels_without_scalars_and_comes_back():
    inner = {"mean": np.ones(3), "step": np.array(2)}
    sent = {**MAP, **packed_state(inner)}
    assert all(value.ndim > 0 for value in sent.values())
    back = unpacked_state(sent)
    assert back.keys() == inner.keys()
    assert (int(back["step"]), back["step"].shape) == (2, ())


def test_a_bank_has_the_size_that_is_asked_for_or_a_share():
    for words, size in (
        (["anomaly.coreset_size=7"], 7),
        (["anomaly.coreset_size=null", "anomaly.coreset_ratio=0.5"], None),
    ):
        detector = Detector(detector_settings(compose(["privacy=none", *TINY, *words])))
        state = detector.initial((3, 32, 32), num_images=4)
        patches = detector.features(np.zeros((1, 3, 32, 32), np.uint8)).shape[1]
        assert len(state[BANK]) == (size or 2 * patches)
        assert detector.scorer(state) is None, "nothing is learnt yet"


def test_images_that_are_no_squares_are_refused_and_so_are_too_many_dimensions():
    detector = Detector(detector_settings(compose(["privacy=none", *TINY])))
    for shape in ((3, 32, 16), (4,)):
        with pytest.raises(ConfigError, match="needs square images"):
            detector.initial(shape, num_images=4)
    wide = Detector(detector_settings(compose(["privacy=none", *TINY, "anomaly.dimension=4000"])))
    with pytest.raises(ConfigError, match=r"anomaly\.dimension=4000 is more than the"):
        wide.initial((3, 32, 32), num_images=4)
