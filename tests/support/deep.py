"""How much the tests do: with SEMSPEC_DEEP=1 (``make test-deep``) all that they can, else what settles a change.

    SAMPLES = samples(quick=1_500, deep=6_000)

    @pytest.mark.deep                 a test of the deep run alone
    @pytest.mark.deep(quick=True)     a test of both runs, which does more in the deep one

``tests/conftest.py`` leaves the first kind out of a quick run; ``-m deep`` chooses both, which is all that a
quick run leaves undone. A module of the second kind says so once: ``pytestmark = pytest.mark.deep(quick=True)``.
"""

from __future__ import annotations

import os

DEEP = os.environ.get("SEMSPEC_DEEP") == "1"


def samples(*, quick: int, deep: int) -> int:
    """Return how many cases a test tries in this run."""
    assert quick < deep, (quick, deep)
    return deep if DEEP else quick
