"""PatchCore: normal patches in a memory bank, and its differentially private relatives."""

from dp_fedmed.learning.anomaly.bank import MemoryBank
from dp_fedmed.learning.anomaly.coreset import coreset_size, greedy_k_center, merge_banks
from dp_fedmed.learning.anomaly.features import PatchFeatures
from dp_fedmed.learning.anomaly.maps import pixel_maps, power_mean

__all__ = [
    "MemoryBank",
    "PatchFeatures",
    "coreset_size",
    "greedy_k_center",
    "merge_banks",
    "pixel_maps",
    "power_mean",
]
