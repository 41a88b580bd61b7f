"""``python -m semspec.certify check=relaxed`` on real servers of the embedded pair, one of which accepts at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semspec.cli.certify import main
from tests.support.serving import Live, serving

PROBLEMS = 14
ASKED = ["check=relaxed", f"problems={PROBLEMS}", "margin=0.25", "max_tokens=220", "temperature=0.01"]  # fmt: skip
SERVED = ("max_new_tokens=220", "concurrency=8", "queue=32")


def certify(out: Path, server: Live, reference: Live) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit status and certificate.json."""
    status = 0
    try:
        main([f"out={out}", f"url={server.url}", f"reference={reference.url}", *ASKED])
    except SystemExit as ended:
        status = int(ended.code or 0)
    return status, json.loads((out / "certificate.json").read_text())


@pytest.mark.deep
def test_a_lossless_rule_is_equivalent_a_coin_is_not_and_answers_are_asked_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving("draft=none", *SERVED) as plain:
        with serving("accept=lossless", "split=token", *SERVED) as lossless:
            status, found = certify(tmp_path / "lossless", lossless, plain)
            figures = {one["about"]: one for one in found["figures"]}
            assert (status, found["verdict"]) == (0, "equivalent"), found["sentences"]
            assert set(figures) == {"pass@1", "cut off", "thinking", "length", "agreement"}
            assert figures["pass@1"]["n"] == PROBLEMS and figures["pass@1"]["a"] > 0.6
            assert figures["thinking"]["a"] > 100, "the thinking comes apart from the answer"

        with serving("accept=random", "rate=0.9", *SERVED) as coin:
            status, found = certify(tmp_path / "coin", coin, plain)
        figures = {one["about"]: one for one in found["figures"]}
        assert (status, found["verdict"]) == (1, "beyond the margin"), found["sentences"]
        assert figures["agreement"]["verdict"] == "beyond"
        assert figures["pass@1"]["b"] < figures["pass@1"]["a"] - 0.25
        assert "BEYOND THE MARGIN" in capsys.readouterr().out
        page = (tmp_path / "coin" / "report.html").read_text()
        assert "BEYOND THE MARGIN" in page and "pass@1" in page

        lines = (tmp_path / "coin" / "samples.jsonl").read_bytes()
        with serving("accept=random", "rate=0.9", *SERVED) as other:
            # the address is part of what was asked: another one is refused, and nothing is asked again
            with pytest.raises(SystemExit) as refused:
                main([f"out={tmp_path / 'coin'}", f"url={other.url}", f"reference={plain.url}", *ASKED])  # fmt: skip
            assert refused.value.code == 2
        assert (tmp_path / "coin" / "samples.jsonl").read_bytes() == lines


@pytest.mark.parametrize("given", [["path=here"], ["url=http://127.0.0.1:1"], ["url=http://127.0.0.1:1", "reference=here"]])  # fmt: skip
def test_two_servers_are_needed(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["check=relaxed", *given])
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert "check=relaxed compares two servers" in said and said.count("\n") == 1
