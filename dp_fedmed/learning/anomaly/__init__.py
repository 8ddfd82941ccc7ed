"""PatchCore: normal patches in a memory bank, and its differentially private relatives."""

from dp_fedmed.learning.anomaly.bank import MemoryBank as MemoryBank
from dp_fedmed.learning.anomaly.bank import coreset_size as coreset_size
from dp_fedmed.learning.anomaly.bank import greedy_k_center as greedy_k_center
from dp_fedmed.learning.anomaly.bank import merge_banks as merge_banks
from dp_fedmed.learning.anomaly.features import PatchFeatures as PatchFeatures
from dp_fedmed.learning.anomaly.metrics import pixel_maps as pixel_maps
from dp_fedmed.learning.anomaly.metrics import power_mean as power_mean
