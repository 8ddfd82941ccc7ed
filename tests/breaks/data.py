"""Breaks of who trains on which records: patients, sites, cuts and caps."""

from __future__ import annotations

from tests.breaks.base import Break

CLIENTS = "tests/data/test_clients.py"
SPLITS = "tests/data/test_splits.py"
RECORDS = "tests/data/test_records.py"

BREAKS: list[Break] = [
    Break(
        "which records of a patient are used depends on who else is there",
        "data/splits.py",
        'derive_seed(seed, "patient-cap", str(patient), k)',
        'derive_seed(seed, "patient-cap", len(ids), k)',
        f"{CLIENTS}::test_removing_a_patient_changes_nothing_about_the_others",
    ),
    Break(
        "a patient's validation side depends on who else is there",
        "data/splits.py",
        "    is_val = draws[unit] < val_fraction\n",
        "    is_val = (draws <= np.quantile(draws, val_fraction))[unit]\n",
        f"{CLIENTS}::test_removing_a_patient_changes_nothing_about_the_others",
    ),
    Break(
        "a deployed site cuts by position",
        "data/clients.py",
        "    return whole, np.array(digests)\n",
        "    return whole, np.arange(len(digests))\n",
        f"{CLIENTS}::test_a_deployed_site_cuts_each_record_by_itself_where_patients_are_unknown",
    ),
    Break(
        "a patient at two clients is promised what holds at one",
        "data/clients.py",
        "    if spread:\n",
        "    if False:\n",
        f"{CLIENTS}::test_patients_at_two_clients_are_refused_with_both_keys",
    ),
    Break(
        "partitioners deal out records, not patients",
        "data/partitioning.py",
        "    if train.patient is None:\n        return parts\n",
        "    return np.array_split(np.arange(len(train)), num_clients)\n",
        f"{CLIENTS}::test_every_client_has_whole_patients",
    ),
    Break(
        "patients are trained on and tested",
        "data/splits.py",
        "    unit, n = units(records)\n",
        "    unit, n = np.arange(len(records)), len(records)\n",
        f"{SPLITS}::test_a_patient_is_in_one_part_only",
    ),
    Break(
        "a data set may have a patient in two parts",
        "data/records.py",
        "            if shared := len(np.intersect1d(some, others)):\n",
        "            if shared := 0:\n",
        f"{RECORDS}::test_a_patient_in_two_parts_is_refused",
    ),
    Break(
        "a deployed patient counts with all records",
        "data/clients.py",
        "    return whole.subset(_capped(config, whole, train)), whole.subset(val)\n",
        "    return whole.subset(train), whole.subset(val)\n",
        f"{CLIENTS}::test_a_patient_trains_or_validates_and_is_capped",
    ),
]
