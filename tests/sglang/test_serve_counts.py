"""The counters of ``semspec.serve`` over real SGLang servers agree with rounds.jsonl of the same questions, to the token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.serving import serving
from tests.support.serving_counts import LIMIT, hold_against_rounds
from tests.support.sglang_servers import Pair

pytestmark = pytest.mark.deep

# greedily: above temperature 0 SGLang draws by itself, and a second text is another one
WAYS = {
    "steps": ("accept=logprob", "draft_length=2"),
    "tokens": ("accept=greedy", "split=token", "draft_length=4"),
}


@pytest.mark.parametrize("way", WAYS)
def test_counters_and_answers_are_the_sums_of_rounds_jsonl(
    servers: Pair, way: str, tmp_path: Path
) -> None:
    own = ("temperature=0", f"max_new_tokens={LIMIT}", *WAYS[way])
    options = (*servers.overrides, *own)
    with serving(*options, "adaptive=false") as live:
        hold_against_rounds(live, options, tmp_path)
