"""Benchmarks of open questions without a gold answer: speed and text, optionally rated by a judge.

The judge is any server with OpenAI's chat completions (``judge=http://127.0.0.1:8000/v1``). It gives
a rating from 1 to 10, which is reported next to pass@1 and does not count towards it.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from dataclasses import dataclass

from semspec.benchmarks._answers import after_thinking
from semspec.benchmarks._data import DataBenchmark
from semspec.errors import UserError, first_line
from semspec.protocols import BenchmarkProblem, Grade

PATIENCE = 300.0  # seconds for one rating
KEY = "OPENAI_API_KEY"  # the environment variable of the server's key
_RATING = re.compile(r"\[\[(\d+(?:\.\d+)?)\]\]")
_ASK = """\
Rate how well the answer below serves the person who asked: helpful, relevant, correct and clear.
Explain in a few sentences, then end with the rating, a number from 1 to 10, in this form: [[5]].

[Question]
{question}
{reference}
[Answer]
{answer}
[End]"""


@dataclass(frozen=True, kw_only=True)
class OpenBenchmark(DataBenchmark):
    """A benchmark of questions without a gold answer."""

    judge: str = ""  # URL of a server with OpenAI's API, up to /v1; empty: no rating
    judge_model: str = "default"

    def grade(self, problem: BenchmarkProblem, text: str) -> Grade:
        answer = after_thinking(text).strip()
        if not self.judge:
            return Grade(None, None, {})
        rating = self.rate(problem, answer) if answer else 1.0
        return Grade(None, None, {"rating": rating} if rating is not None else {"unrated": 1})

    def rate(self, problem: BenchmarkProblem, answer: str) -> float | None:
        """Ask the judge for a rating; return None if its answer holds none."""
        reference = f"\n[Reference]\n{problem.answer}\n" if problem.answer else ""
        asked = _ASK.format(question=problem.question, reference=reference, answer=answer)
        ratings = _RATING.findall(self._ask(asked))
        return min(10.0, max(1.0, float(ratings[-1]))) if ratings else None

    def _ask(self, content: str) -> str:
        url = self.judge.rstrip("/") + "/chat/completions"
        messages = [{"role": "user", "content": content}]
        body = {"model": self.judge_model, "messages": messages, "temperature": 0}
        headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {os.environ[KEY]}"
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"])
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise UserError(
                f"the judge at {url} gave no rating ({first_line(error)}): start it, or"
                " leave out benchmark.judge"
            ) from error
