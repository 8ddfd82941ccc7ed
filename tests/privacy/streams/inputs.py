"""What a noise stream is derived from, and its first bytes."""

import numpy as np

from dp_fedmed.privacy import NoiseKey, Purpose, StreamId, public_digest

KEY = NoiseKey.from_public_seed(1)
CONFIG = {"sigma": 1.0, "C": 1.0, "q": 0.1, "lr": 0.5}
MODEL = [np.arange(6.0).reshape(2, 3), np.zeros(2, dtype=np.float32)]
SUM = [np.ones(4)]


def noise_id(config=None, model=None, data=None, **changes):
    fields = {
        "run": "run",
        "phase": 0,
        "purpose": Purpose.CLIENT_NOISE,
        "round_num": 3,
        "client": "a",
        "step": 2,
        "public_digest": public_digest(
            arrays=MODEL if model is None else model, config={**CONFIG, **(config or {})}
        ),
        "private_digest": KEY.private_digest(SUM if data is None else data),
    }
    return StreamId(**{**fields, **changes})


def draw(stream_id, key=KEY):
    return key.stream(stream_id).normal(8).tobytes()
