"""PatchCore: normal patches in a memory bank, and its differentially private relatives."""

from dp_fedmed.tasks.patchcore.bank import MemoryBank
from dp_fedmed.tasks.patchcore.coreset import coreset_size, greedy_k_center, merge_banks
from dp_fedmed.tasks.patchcore.features import PatchFeatures
from dp_fedmed.tasks.patchcore.maps import pixel_maps, power_mean

__all__ = [
    "MemoryBank",
    "PatchFeatures",
    "coreset_size",
    "greedy_k_center",
    "merge_banks",
    "pixel_maps",
    "power_mean",
]
