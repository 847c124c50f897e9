"""All cases by name."""

from __future__ import annotations

import aggregator_cases
import bipartite_cases
import conv_cases_a_f
import conv_cases_g_m
import conv_cases_n_z
import own_cases
from conformance_case import Case

ALL: list[Case] = [
    *conv_cases_a_f.CASES,
    *conv_cases_g_m.CASES,
    *conv_cases_n_z.CASES,
    *aggregator_cases.CASES,
    *bipartite_cases.CASES,
    *own_cases.CASES,
]

CASES: dict[str, Case] = {case.name: case for case in ALL}

CHECKS: dict[str, Case] = {case.name: case for case in own_cases.CHECKS}
"""Cases that must not come out exact: what tells that a run can fail."""
