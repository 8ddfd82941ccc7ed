"""Data sets and how simulated clients share them.

`load_data` gives the records, `partition` says who holds which, `split_client` cuts one client's
local validation part. Only numpy is imported here; each loader imports what it needs.
"""

from dp_fedmed.data.partitioning import held_by_sites, partition
from dp_fedmed.data.records import DataSet, Records
from dp_fedmed.data.registry import LOADERS, load_data
from dp_fedmed.data.splits import cap_groups, in_proportion, split_client, split_records

__all__ = [
    "LOADERS",
    "DataSet",
    "Records",
    "cap_groups",
    "held_by_sites",
    "in_proportion",
    "load_data",
    "partition",
    "split_client",
    "split_records",
]
