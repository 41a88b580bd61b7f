"""Read a live server's counters from /metrics, and compare them with rounds.jsonl for the same questions."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.serving import QUESTION, Live

QUESTIONS = (QUESTION, "Modulo 100, let y=8, m is y + 5. Find m.")
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
TOKENS = "semspec:generation_tokens_total"
LIMIT = 160

Samples = dict[str, float]  # a line of /metrics without its value -> the value


# ---- reading -------------------------------------------------------------------------------------


def read(live: Live) -> Samples:
    text = live.ask("/metrics")[2].decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def answered(live: Live) -> float:
    return live.metric("semspec:requests_total", outcome="ok")


def settled(live: Live) -> Samples:
    """Return the samples once they stop changing: answers are counted only after they are sent."""
    before, found = None, read(live)
    while before != found:
        time.sleep(0.1)
        before, found = found, read(live)
    return found


class Delta:
    """The increase of the counters since its creation."""

    def __init__(self, live: Live) -> None:
        self.live, self.before = live, settled(live)
        self.began = of(self.before, "semspec:requests_total", outcome="ok")

    def after(self, requests: int = 1) -> Samples:
        """Return the increase once ``requests`` more are counted, which happens after their answers are sent."""
        self.live.wait(lambda: answered(self.live) >= self.began + requests, "they are counted")
        return {line: now - self.before.get(line, 0) for line, now in read(self.live).items()}


def of(found: Samples, name: str, **labels: str) -> int:
    """Sum a counter over the labels that are not given."""
    lines = [line for line in found if line.startswith(f"{name}{{")]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return int(sum(found[line] for line in lines if all(part in line for part in wanted)))


def by_position(accepted: list[int]) -> dict[int, int]:
    """Count the accepted tokens at each position, given the number accepted of each draft."""
    return {at: sum(count > at for count in accepted) for at in range(max(accepted, default=0))}


def told(live: Live, question: str, **fields: Any) -> dict[str, Any]:
    return live.chat(messages=[{"role": "user", "content": question}], max_tokens=LIMIT, **fields)


# ---- rounds.jsonl --------------------------------------------------------------------------------


def rounds_of(folder: Path, question: str, seed: int, options: tuple[str, ...]) -> list[Any]:
    """Solve a question with ``semspec.run`` and return its rounds.jsonl."""
    same = ("adaptive=false", "plain=false", "transcript=false", f"hydra.run.dir={folder}")
    command = [sys.executable, "-m", "semspec.run", f"prompt={question}", f"seed={seed}", *same]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def hold_against_rounds(live: Live, options: tuple[str, ...], folder: Path) -> None:
    """Ask a server questions, solve the same ones by ``semspec.run``, and assert that all counts agree exactly."""
    delta, rounds = Delta(live), []
    for number, question in enumerate(QUESTIONS):
        of_run = rounds_of(folder / str(number), question, 5 + number, options)
        drafts = [one for one in of_run if one["drafted"]]
        answer = told(live, question, seed=5 + number)
        own = answer["metrics"]["speculative_decoding"]
        assert own["per_step_drafted"] == [len(one["drafted"]) for one in drafts]
        assert own["per_step_accepted"] == [len(one["kept"]) for one in drafts]
        assert own["num_spec_steps"] == len(drafts)
        written = sum(len(one[part]) for one in of_run for part in ("kept", "written", "handed"))
        assert answer["usage"]["completion_tokens"] == written
        rounds += of_run
    found, drafts = delta.after(len(QUESTIONS)), [one for one in rounds if one["drafted"]]
    assert of(found, "semspec:requests_total", outcome="ok") == len(QUESTIONS)
    assert of(found, "semspec:requests_total") == len(QUESTIONS)
    assert of(found, DRAFTS) == len(drafts) > 10
    assert of(found, DRAFTED) == sum(len(one["drafted"]) for one in drafts)
    assert of(found, ACCEPTED) == sum(len(one["kept"]) for one in drafts) > 0
    positions = by_position([len(one["kept"]) for one in drafts])
    assert len(positions) > 1
    for at in range(max(positions) + 2):
        assert of(found, BY_POSITION, position=str(at)) == positions.get(at, 0)
    assert of(found, BY_POSITION) == of(found, ACCEPTED)
    kept_steps = sum(one["units_kept"] for one in drafts)
    steps = sum(len(one["ends"]) for one in drafts)
    assert of(found, "semspec:steps_total", verdict="accepted") == kept_steps
    assert of(found, "semspec:steps_total", verdict="rejected") == steps - kept_steps > 0
    by_draft = sum(len(one["kept"]) for one in rounds)
    by_target = sum(len(one["written"]) + len(one["handed"]) for one in rounds)
    assert of(found, TOKENS, author="draft") == by_draft
    assert of(found, TOKENS, author="target") == by_target
    assert of(found, TOKENS) == by_draft + by_target
    nested = sum(one["nested_kept"] for one in rounds)
    assert of(found, "semspec:nested_tokens_total") == nested
    assert (nested > 0) == ("nested=lm" in options)
