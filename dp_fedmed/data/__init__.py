"""Data sets and how simulated clients share them.

`load_data` gives the records, `partition` says who holds which, `training_parts` who trains on
which. Only numpy is imported here; each loader imports what it needs.
"""

from dp_fedmed.data.clients import client_indices, deployed_records, training_parts
from dp_fedmed.data.partitioning import partition
from dp_fedmed.data.records import DataSet, Records
from dp_fedmed.data.registry import LOADERS, load_data, refuse_other_kind
from dp_fedmed.data.splits import cap_patients, in_proportion, split_client, split_records
from dp_fedmed.data.targets import Target

__all__ = [
    "LOADERS",
    "DataSet",
    "Records",
    "Target",
    "cap_patients",
    "client_indices",
    "deployed_records",
    "in_proportion",
    "load_data",
    "partition",
    "refuse_other_kind",
    "split_client",
    "split_records",
    "training_parts",
]
