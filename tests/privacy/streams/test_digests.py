"""Digests: of stable bytes alone, and keyed where they are private."""

import numpy as np
import pytest

from dp_fedmed.privacy import NoiseKey, public_digest
from tests.privacy.streams.inputs import KEY, SUM


def test_digests_refuse_what_has_no_stable_bytes():
    with pytest.raises(TypeError, match="objects"):
        public_digest(arrays=[np.array([object()])])
    with pytest.raises(ValueError, match="JSON"):
        public_digest(config={"lr": float("nan")})


def test_the_private_digest_is_keyed():
    assert KEY.private_digest(SUM) != NoiseKey.from_public_seed(2).private_digest(SUM)
