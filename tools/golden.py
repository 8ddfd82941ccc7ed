"""Golden runs: every style and task with public noise, whose bytes a rebuilding must not change.

`python -m tools.golden record FILE` before, `python -m tools.golden check FILE` after, on one
machine: models are compared with the same processor and versions only.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import secrets
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

COMMON = ("privacy.noise_seed=7", "federation.num_rounds=3")
SMALL = ("task=breast_cancer", "federation.num_clients=6", "training.batch_size=32")
CELLS = ("task=cells", "data.num_records=48", "data.image_size=16", "federation.num_clients=3")
DIABETES = ("task=diabetes", "federation.num_clients=4")
DIGITS = ("task=digits", "federation.num_clients=5")
TEXTURES = (
    *("task=textures", "data.num_records=60", "data.image_size=32", "anomaly.backbone=tiny"),
    *("anomaly.grid=8", "anomaly.dimension=6", "federation.num_clients=4"),
    "data.partition.min_records=1",
)
STYLES = ("none", "sample", "user", "hybrid")
CNN = ("model._target_=dp_fedmed.models.SmallCNN",)

RUNS: dict[str, tuple[str, ...]] = {
    **{f"table_{s}": (*SMALL, f"privacy={s}", *COMMON) for s in STYLES},
    **{f"digits_{s}": (*DIGITS, f"privacy={s}", *COMMON) for s in STYLES},
    **{f"cells_{s}": (*CELLS, f"privacy={s}", *COMMON) for s in STYLES},
    **{f"diabetes_{s}": (*DIABETES, f"privacy={s}", *COMMON) for s in STYLES},
    **{f"textures_{s}": (*TEXTURES, f"privacy={s}", COMMON[0]) for s in STYLES},
    "prototypes": (*TEXTURES, "privacy=sample", "anomaly.mechanism=dp_prototypes", COMMON[0]),
    "noisy_rows": (*TEXTURES, "privacy=sample", "anomaly.mechanism=noisy_rows", COMMON[0]),
    "trusted": (*TEXTURES, "privacy=sample", "privacy.noise=server", COMMON[0]),
    "server_noise": (*DIGITS, "privacy=sample", "privacy.noise=server", *COMMON),
    "one_noise": (
        *(*DIGITS, "privacy=hybrid", "privacy.noise=server", "privacy.user.max_grad_norm=5"),
        *("federation.num_clients=8", *COMMON),
    ),
    "adaptive": (
        *("task=breast_cancer", "federation.num_clients=60", "federation.sample_rate=0.5"),
        *("privacy=user", "federation.sampler=poisson", "privacy.user.clipping=adaptive"),
        *("privacy.user.noise_multiplier=0.8", *COMMON),
    ),
    "fixed_adam": (
        *(*SMALL, "privacy=user", "federation.sampler=fixed", "federation.sample_rate=0.5"),
        *("federation.server_optimizer=fedadam", *COMMON),
    ),
    "momentum": (*DIGITS, "privacy=sample", "federation.server_optimizer=fedavgm", *COMMON),
    "local_only": (*SMALL, "privacy=sample", "federation.topology=local_only", *COMMON),
    "centralized": (*SMALL, "privacy=sample", "federation.topology=centralized", *COMMON),
    "cnn": (*DIGITS, *CNN, "privacy=sample", "privacy.sample.noise_multiplier=1", *COMMON),
    "functorch": (
        *(*DIGITS, *CNN, "privacy=sample", "privacy.sample.grad_mode=functorch"),
        *("privacy.sample.noise_multiplier=1", *COMMON),
    ),
    "poisson_hybrid": (
        *("task=breast_cancer", "federation.num_clients=12", "federation.sample_rate=0.5"),
        *("federation.sampler=poisson", "privacy=hybrid", "training.batch_size=16", *COMMON),
    ),
}
FILES = ("model.safetensors", "private/ledger.jsonl", "privacy_report.json")
#: `run_dir` is in the ledger, so it is a fixed one; two checks at a time need a folder each.
_ROOT = Path(os.environ.get("GOLDEN_RUNS", Path(tempfile.gettempdir()) / "dp_fedmed_golden"))


def _without_chance() -> None:
    """Keys and ids that are the same each time."""
    counter = itertools.count()

    def urandom(size: int) -> bytes:
        return hashlib.shake_256(str(next(counter)).encode()).digest(size)

    os.urandom = urandom  # type: ignore[assignment]
    secrets.token_hex = lambda size=8: "0" * 2 * int(size or 8)  # type: ignore[assignment]


def fingerprint(name: str) -> dict[str, str]:
    """Run one of them in this process; the hashes of what it leaves."""
    from dp_fedmed.cli import main

    _without_chance()
    folder = _ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        settings = [
            word for word in RUNS[name] if "privacy=none" not in RUNS[name] or word != COMMON[0]
        ]
        code = main(["run", *settings, f"run_dir={folder}", "engine.workers=1"])
    if code != 0:
        raise RuntimeError(f"{name} exited with {code}\n{said.getvalue()}")
    found = {}
    ledgers = sorted((folder / "private" / "clients").glob("*.jsonl"))
    for file in [folder / each for each in FILES] + ledgers:
        found[str(file.relative_to(folder))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _in_child(name: str) -> dict[str, str]:
    """In a forked process: patches, caches and torch's generator are each run's own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            content = json.dumps(fingerprint(name))
        except BaseException as error:
            content = json.dumps({"failed": repr(error)[-3000:]})
        with os.fdopen(write, "w") as file:
            file.write(content)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        found: dict[str, str] = json.loads(file.read())
    os.waitpid(child, 0)
    return found


def main(words: list[str]) -> int:
    """Record, or check against a record."""
    verb, file, *names = words
    import torch

    import dp_fedmed.cli  # noqa: F401 (loaded once, before the forks)

    torch.set_num_threads(1)
    wanted = names or list(RUNS)
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(wanted, pool.map(_in_child, wanted), strict=True))
    failed = {name: each["failed"] for name, each in found.items() if "failed" in each}
    for name, why in failed.items():
        print(f"{name} failed: {why}")
    if verb == "record":
        Path(file).write_text(json.dumps(found, indent=1))
        print(f"{len(found)} runs recorded in {file}")
        return bool(failed)
    known = json.loads(Path(file).read_text())
    changed = [
        f"{name}: {path}"
        for name, each in found.items()
        for path in sorted({*each, *known[name]})
        if each.get(path) != known[name].get(path)
    ]
    print("\n".join(changed) or f"{len(found)} runs are byte for byte what they were")
    return bool(changed or failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
