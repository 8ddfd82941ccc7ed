"""Keys, keyed streams and digests: secret and reproducible randomness."""

from typing import TYPE_CHECKING

from dp_fedmed.lazy import lazily

if TYPE_CHECKING:
    from dp_fedmed.privacy.streams.keys import LEDGER_KEY_FILE as LEDGER_KEY_FILE
    from dp_fedmed.privacy.streams.keys import NOISE_KEYS as NOISE_KEYS
    from dp_fedmed.privacy.streams.keys import SECRET_FOLDER as SECRET_FOLDER
    from dp_fedmed.privacy.streams.keys import MacKey as MacKey
    from dp_fedmed.privacy.streams.keys import key_file as key_file
    from dp_fedmed.privacy.streams.noise import NoiseKey as NoiseKey
    from dp_fedmed.privacy.streams.noise import NoiseStream as NoiseStream
    from dp_fedmed.privacy.streams.noise import Purpose as Purpose
    from dp_fedmed.privacy.streams.noise import StreamId as StreamId
    from dp_fedmed.privacy.streams.noise import public_digest as public_digest
    from dp_fedmed.privacy.streams.reproducible import stream as stream
    from dp_fedmed.privacy.streams.rounds import RoundStreams as RoundStreams
    from dp_fedmed.privacy.streams.rounds import round_digest as round_digest

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "keys": ("LEDGER_KEY_FILE", "NOISE_KEYS", "SECRET_FOLDER", "MacKey", "key_file"),
        "noise": ("NoiseKey", "NoiseStream", "Purpose", "StreamId", "public_digest"),
        "reproducible": ("stream",),
        "rounds": ("RoundStreams", "round_digest"),
    },
)
