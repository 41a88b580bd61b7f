"""The accepted length of every drafter with every rule, compared with results/acceptance.json; only a decrease fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from semspec.storage.files import read_json
from tests.support.deep import DEEP

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import acceptance

KNOWN = read_json(acceptance.FILE)["accepted"]
FEW = ["token/lm, chain of 5/lossless", "token/suffix/lossless", "step/lm/logprob"]


@pytest.mark.deep(quick=True)
def test_nothing_is_accepted_less_than_it_was() -> None:
    held = sorted(KNOWN) if DEEP else FEW
    found = dict(acceptance.measure_all(() if DEEP else FEW))
    fallen = [n for n in held if acceptance.fallen(KNOWN[n], found.get(n))]
    assert not fallen, {name: (KNOWN[name], found.get(name)) for name in fallen}


def test_a_fall_is_a_fault_and_a_rise_is_none() -> None:
    known = {"tau": 3.0, "interval": [2.8, 3.2]}
    assert acceptance.fallen(known, {"tau": 2.79})
    assert acceptance.fallen(known, None)
    assert not acceptance.fallen(known, {"tau": 2.81})
    assert not acceptance.fallen(known, {"tau": 9.0})
