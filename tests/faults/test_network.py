"""A rank whose network is cut while it lives: a cable is pulled, or its connections are reset."""

from __future__ import annotations

from pathlib import Path

import cut_network
import pytest
from network_cells import network_outcomes, why_no_networks

SLACK = 20.0  # seconds, on a busy machine


@pytest.mark.bench
def test_a_rank_is_cut_off(tmp_path: Path) -> None:
    reason = why_no_networks()
    if reason:
        pytest.skip(reason)
    outcomes = network_outcomes(tmp_path)
    for (how, _, faulty), found in zip(cut_network.CASES, outcomes, strict=True):
        assert all(code == 1 for code in found['codes']), found
        for rank, end in enumerate(found['ends']):
            assert end['type'] == 'ExchangeError', found
            limit = SLACK + (cut_network.TIMEOUT if how == 'silently' else 0)
            assert end['seconds'] < limit, found
            if rank != faulty:
                words = 'was silent for too long' if how == 'silently' else 'has ended or is cut'
                # In a collective all lose each other, so it is not known which of them is cut off.
                assert end['peer'] in (faulty, None), found
                assert words in end['text'], found
