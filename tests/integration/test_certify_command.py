"""``python -m semspec.certify`` over HTTP, against correct, faulty, broken and missing servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semspec.cli.certify import main
from semspec.engines.toy import Toy
from tests.support.openai_server import serving
from tests.support.pair import DRAFT

TOY = Toy(vocabulary=5, seed=3)
SMALL = ["detect=0.25", "tokens=4", "length=12", "concurrency=4"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("ab\ncd\n")
    return file


def certify(out: Path, prompts: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit status and certificate.json."""
    status = 0
    try:
        main([f"out={out}", f"prompts={prompts}", *SMALL, *options])
    except SystemExit as ended:
        status = int(ended.code or 0)
    file = out / "certificate.json"
    return status, json.loads(file.read_text()) if file.exists() else {}


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "openai"])
def test_an_honest_server_of_every_kind_passes(kind: str, tmp_path: Path, prompts: Path) -> None:
    with serving(TOY, kind=kind) as server:
        status, found = certify(tmp_path / "c", prompts, f"url={server.url}")
    assert (status, found["verdict"]) == (0, "as the model")
    assert found["greedy"]["tokens"] == found["greedy"]["agreed"] == 24
    assert f"({kind})" in found["server"]
    if kind == "llamacpp":
        drafts, requests = found["drafts"], 2 * found["sampled"]["outcomes_per_prefix"]
        assert drafts == {"drafted": 3 * requests, "kept": 2 * requests}
    page = (tmp_path / "c" / "report.html").read_text()
    assert "No fault found" in page and "<script>" in page


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "openai"])
def test_a_fault_is_found_by_the_servers_own_log_probabilities(
    kind: str, tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(TOY, "cache", kind=kind) as server:
        status, found = certify(tmp_path / "c", prompts, f"url={server.url}")
    assert (status, found["verdict"]) == (1, "faulty")
    assert found["greedy"]["faulty"], "the stale cache shows in greedy texts, too"
    said = capsys.readouterr().out
    assert "FAULTY" in said and "is likelier by" in said


@pytest.mark.parametrize("fault", ["", "p over q", "shared seed"])
def test_two_servers_are_compared_by_what_they_write(
    fault: str, tmp_path: Path, prompts: Path
) -> None:
    how = {"kind": "openai", "logprobs": False}  # as little as a server can tell
    with serving(TOY, fault, **how) as server, serving(TOY, **how) as other:
        asked = [f"url={server.url}", f"reference={other.url}", "check=sampled"]
        status, found = certify(tmp_path / "c", prompts, *asked)
    assert status == bool(fault)
    assert found["verdict"] == ("faulty" if fault else "as the model")


def test_another_temperature_than_the_listed_tokens_tell_is_refused(
    tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Toy(vocabulary=8, seed=1), kind="openai") as server:
        status, _ = certify(tmp_path / "c", prompts, f"url={server.url}", "temperature=1.5")
    assert status == 2
    assert "likeliest tokens do not determine" in capsys.readouterr().err


def test_a_killed_certificate_goes_on_where_it_was(tmp_path: Path, prompts: Path) -> None:
    with serving(TOY) as server:
        whole = certify(tmp_path / "whole", prompts, f"url={server.url}")[1]
        server.requests, server.fails_after = 0, 150
        status, found = certify(tmp_path / "c", prompts, f"url={server.url}")
        assert (status, found) == (2, {})
        kept = (tmp_path / "c" / "samples.jsonl").read_text()
        assert kept.count('"round ') > 0
        server.requests, server.fails_after = 0, 10**9
        status, found = certify(tmp_path / "c", prompts, f"url={server.url}")
        assert (status, found["verdict"]) == (0, "as the model")
        assert (tmp_path / "c" / "samples.jsonl").read_text().startswith(kept)
        assert found["sampled"]["tokens"] == whole["sampled"]["tokens"]
        # a third start asks for nothing but who is there
        before = server.requests
        again = certify(tmp_path / "c", prompts, f"url={server.url}")[1]
        greedy = 2 * 12  # its log-probabilities are looked at again
        assert server.requests - before <= 2 + greedy
        assert again == found


@pytest.mark.deep
def test_a_model_in_this_process_goes_on_with_other_random_numbers(
    tmp_path: Path, prompts: Path
) -> None:
    prompts.write_text("Find x.\n")
    asked = (f"path={DRAFT}", "check=sampled", "tokens=2", "detect=0.5", "budget=128")
    certify(tmp_path / "c", prompts, *asked)
    samples = tmp_path / "c" / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:2]))  # a kill after the first round
    certify(tmp_path / "c", prompts, *asked)
    rounds = [json.loads(line)["value"] for line in samples.read_text().splitlines()[1:]]
    assert len(rounds) == len(lines) - 1 > 2
    assert rounds[1] != rounds[0]


def test_the_end_of_a_text_is_a_token_of_the_law(tmp_path: Path, prompts: Path) -> None:
    """llama.cpp's server ends there; a text that stops short without an end is no outcome."""
    ends = Toy(vocabulary=5, seed=3, stop=True)
    with serving(ends, kind="llamacpp") as server:
        status, found = certify(tmp_path / "c", prompts, f"url={server.url}")
    assert (status, found["verdict"]) == (0, "as the model")
    assert found["greedy"]["tokens"] == found["greedy"]["agreed"]
    assert any(cell["text"].endswith("(end)") for cell in found["cells"])


def test_mistakes_end_in_one_line(
    tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    folders = iter(range(100))

    def refused(*options: str) -> str:
        status, found = certify(tmp_path / f"c{next(folders)}", prompts, *options)
        assert (status, found) == (2, {})
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "Traceback" not in said, said
        return said

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("semspec.certify.endpoints.http.PAUSE", 0.0)
    assert "give either url=" in refused()
    assert "not a server's address" in refused("url=ftp://x")
    assert "does not answer" in (said := refused("url=http://ada:secret@127.0.0.1:9"))
    assert "secret" not in said
    assert "unknown option 'speed'" in refused("url=http://127.0.0.1:9", "speed=3")
    assert "belong to path=" in refused("url=http://127.0.0.1:9", "lookup=3")
    assert "contains no model" in refused(f"path={tmp_path}")
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph/openvino_model.xml").touch()
    assert "pip install openvino-genai" in refused(f"path={tmp_path / 'graph'}")
    with serving(TOY, key="k") as server:
        assert "OPENAI_API_KEY" in refused(f"url={server.url}")
    with serving(TOY) as server:
        assert "budget=" in refused(f"url={server.url}", "budget=100", "check=sampled")
        server.garbage = True
        assert "did not answer with JSON" in refused(f"url={server.url}")
    with serving(TOY, logprobs=False) as server:
        assert "reference=" in refused(f"url={server.url}", "kind=openai")


def test_a_folder_of_somebody_else_is_not_written_in(
    tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "report.html").write_text("mine")
    with serving(TOY) as server:
        status, _ = certify(tmp_path / "c", prompts, f"url={server.url}")
        assert status == 2 and "another out=" in capsys.readouterr().err
        assert (tmp_path / "c" / "report.html").read_text() == "mine"
        certify(tmp_path / "d", prompts, f"url={server.url}", "check=greedy")
        capsys.readouterr()
        status, _ = certify(tmp_path / "d", prompts, f"url={server.url}", "tie=0.5")
        assert status == 2 and "begun with other options" in capsys.readouterr().err
