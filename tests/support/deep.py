"""How much the tests do: everything with SEMSPEC_DEEP=1 (``make test-deep``), else enough to check a change.

    SAMPLES = samples(quick=1_500, deep=6_000)

    @pytest.mark.deep                 a test of the deep run only
    @pytest.mark.deep(quick=True)     a test of both runs that does more in the deep one

``tests/conftest.py`` skips the first kind in a quick run; ``-m deep`` selects both kinds, that is everything that a
quick run leaves out. A module of the second kind declares ``pytestmark = pytest.mark.deep(quick=True)``.
"""

from __future__ import annotations

import os

DEEP = os.environ.get("SEMSPEC_DEEP") == "1"


def samples(*, quick: int, deep: int) -> int:
    """Return the number of cases for this kind of run."""
    assert quick < deep, (quick, deep)
    return deep if DEEP else quick
