"""scripts/soak.py with some hundred requests finds nothing wrong, and reports that."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.processes import finished

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("options", [(), ("adaptive=true",)])
def test_a_short_soak_finds_nothing_wrong(options: tuple[str, ...]) -> None:
    """Statuses, fields, streams and log are held against what was asked by the script itself, which ends with 1 otherwise."""
    words = (sys.executable, "scripts/soak.py", "requests=300", "every=100", "workers=8", *options)
    done = finished(words, seconds=900)
    lines = done.stdout.splitlines()
    assert [line.split(" in ")[0] for line in lines[:3]] == [f"{n} requests" for n in (100, 200, 300)]  # fmt: skip
    found = json.loads(lines[3])
    assert lines[4:] == [] and found["wrong"] == 0
    assert found["under_way"] == 0
    assert sum(found["outcomes"].values()) == found["requests"] == 300
    assert {"whole", "stream", "text", "look", "left", "400", "413"} <= set(found["outcomes"])
    assert found["able"] == {"response_format": False, "tools": False, "tool_choice": False}
    assert [requests for requests, _ in found["rss"]] == [100, 200, 300]
    assert all(size > 50_000_000 for _, size in found["rss"])
    assert found["end"] == {"of": 8, "streams": 4, "whole": 8, "code": 0}
