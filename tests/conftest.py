"""Select the tests of a run (deep ones only with SEMSPEC_DEEP=1, see ``tests/support/deep.py``), and give it its own cache."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Generator

import pytest

from tests.support.deep import DEEP

SETTINGS = "_hypothesis_internal_use_settings"
# what runs measure and keep for the next one: a test must not find what another has measured on this machine
_CACHE = tempfile.TemporaryDirectory(prefix="semspec-cache-")
os.environ["SEMSPEC_CACHE"] = _CACHE.name


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are of the deep run alone; with SEMSPEC_DEEP=1 none."""
    marks = {item: item.get_closest_marker("deep") for item in items}
    left_out = [item for item, mark in marks.items() if mark and not mark.kwargs.get("quick")]
    if left_out and not DEEP:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Take back what hypothesis sets at a test for one of its parameters.

    Its plugin for pytest derives the settings of each from those of the one before. Where CI=true they have no database, and
    to see that they ask all of them: the test that had a thousand parameters in one process ended in a RecursionError.
    """
    test = getattr(item, "obj", None)
    before = getattr(test, SETTINGS, None)
    try:
        return (yield)
    finally:
        if before is not None:
            setattr(test, SETTINGS, before)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over modules and tests, which stay: a tenth of the time of what makes many objects."""
    gc.collect()
    gc.freeze()
