"""What a round of a crowd counts, however slow passes seem to be."""

from __future__ import annotations

import pytest

from semspec.decoding.crowd import SHORT, Crowd

TOKEN = 0.02  # seconds of a plain token where all write


def unread(crowd: Crowd, now: float, drift: float) -> None:
    """Let all write 8 tokens, since no draft was worth a pass, and lose nine tenths of a token between two rows."""
    for _ in range(crowd.size):
        took = 8.9 * TOKEN
        crowd.closed(8, now, now + took, TOKEN, False, 8 * TOKEN, 0.9 * TOKEN, 1.0, drift, 8.0)


def measured(crowd: Crowd) -> Crowd:
    """Return the crowd with a measured price of a plain token."""
    crowd.plain.rows.add(1000 * TOKEN, 1000)
    return crowd


@pytest.mark.parametrize("drift", [1.0, 1.3])
def test_drafts_that_are_never_read_gain_nothing(drift: float) -> None:
    """However slow passes seem to be, what was written without a draft took as long as plain tokens do."""
    crowd = measured(Crowd(4, "trial"))
    for turn in range(1, 40):
        unread(crowd, turn * 9 * TOKEN, drift)
    assert crowd.gained is False and crowd.state == "writing"


def test_drafts_that_are_not_read_any_more_are_given_up() -> None:
    crowd = measured(Crowd(4, "drafting", True))
    states = []
    for turn in range(1, 200):
        now = turn * 9 * TOKEN
        if crowd.row(now, TOKEN, 1.3):
            crowd.closed(8, now, now + 8 * 1.3 * TOKEN, TOKEN, False, 0.0, 0.0, 1.0, 1.3, 8.0)
        else:
            unread(crowd, now, 1.3)
        states.append(crowd.state)
    assert "trial" in states and crowd.gained is False


def test_a_read_draft_takes_at_least_as_long_as_a_token() -> None:
    """Passes cost twice as much as a plain token, which seems to cost three times as much as it does."""
    crowd = measured(Crowd(16, "trial"))
    for _ in range(5 * 16):
        crowd.closed(1, 1.0, 1.0 + 2 * TOKEN, TOKEN, False, TOKEN, TOKEN, 1.0, 3.0, 1.0)
    assert crowd.gained is False


def test_a_doubt_is_compared_at_the_same_drift() -> None:
    """Drafts lose a tenth. That texts grow, and passes take longer, changes nothing."""
    crowd, size, slow = measured(Crowd(16, "drafting", True)), 16, 1.5
    for _ in range(4 * size):
        crowd.closed(4, 1.0, 1.0 + 4.4 * TOKEN, TOKEN, False)
    now = 2.0
    rows = [crowd.row(now, TOKEN) for _ in range(size)]
    assert crowd.state == "gathering"
    for row in rows:
        crowd.closed(row, now, now + row * slow * TOKEN, TOKEN, False, drift=slow)
    now += 2 * SHORT * slow * TOKEN
    assert crowd.row(now, TOKEN, slow) == 0
    for _ in range(5):
        for _ in range(size):
            crowd.closed(4, now, now + 4.4 * slow * TOKEN, TOKEN, False, drift=slow)
        now += 4.4 * slow * TOKEN
    assert crowd.gained is False
