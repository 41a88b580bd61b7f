"""Long measurements resume where they were interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_parts_that_are_there_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    from figures_page import Kept

    measured: list[str] = []

    def part(name: str) -> dict[str, object]:
        measured.append(name)
        return {"rows": (1, 2.5)}

    path, of = tmp_path / "runs" / "some.json", {"digest": "a", "turns": 3}
    first = Kept(path, of).part("16 clients", lambda: part("first"))
    again = Kept(path, of)  # after a kill
    assert again.part("16 clients", lambda: part("second")) == first == {"rows": [1, 2.5]}
    again.part("64 clients", lambda: part("third"))
    assert measured == ["first", "third"]
    assert Kept(path, {**of, "digest": "b"}).part("16 clients", lambda: part("other code"))
    assert measured[-1] == "other code"
    again.over()
    assert not path.exists()
