"""Prometheus metrics, with the names that vLLM's and SGLang's dashboards and benchmarks read, and with our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from semspec.serve.figures import Speculation, Usage
from semspec.types import Role

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """The server's counters since its start."""

    def __init__(
        self,
        model: str,
        running: Callable[[], int],
        waiting: Callable[[], int],
        positions: Callable[[], int] = lambda: 0,
        away: Callable[[Role], int] = lambda role: 0,
    ) -> None:
        """``positions`` returns how many positions a draft may have, as far as known; ``away`` how many servers are lost."""
        self.registry = CollectorRegistry()
        self._model, self._foreseen = model, positions
        self._known = 0  # positions that have counters
        self._totals = 0, 0  # judged drafts, and their accepted tokens
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Drafts that were judged.")
        self._drafted = self._counter("vllm:spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted = self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."
        )
        self._positions = self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by position in their draft.",
            "position",
        )
        self._length = self._gauge(
            "sglang:spec_accept_length",
            "Mean tokens per verification in the last choice: 1 plus the accepted ones.",
        )
        self._rate = self._gauge(
            "sglang:spec_accept_rate",
            "Share of the last choice's drafted tokens that were accepted.",
        )
        self._requests = self._counter("semspec:requests", "Requests by how they ended.", "outcome")
        self._steps = self._counter("semspec:steps", "Drafted steps by verdict.", "verdict")
        self._tokens = self._counter(
            "semspec:generation_tokens", "Tokens of answers by author.", "author"
        )
        self._nested = self._counter(
            "semspec:nested_tokens", "Tokens of the target that a nested drafter proposed."
        )
        self._thinking = self._counter("semspec:reasoning_tokens", "Tokens of thinking.")
        self._prompt = self._counter("semspec:prompt_tokens", "Tokens of prompts.")
        self._cached = self._counter(
            "semspec:cached_tokens", "Tokens of prompts that were in the KV cache."
        )
        self._without = self._counter(
            "semspec:choices_without_drafts", "Choices whose drafter was lost."
        )
        self._first = self._histogram(
            "semspec:time_to_first_token_seconds", "Seconds until the first text."
        )
        self._whole = self._histogram(
            "semspec:request_seconds", "Seconds until the end of the answer."
        )
        for name, count, text in (
            ("semspec:running", running, "Running choices."),
            ("semspec:waiting", waiting, "Waiting choices."),
        ):
            gauge = Gauge(name, text, ["model_name"], registry=self.registry)
            gauge.labels(model).set_function(count)
        lost = Gauge(
            "semspec:servers_away",
            "SGLang servers that were lost and have not answered since, by role.",
            ["model_name", "role"],
            registry=self.registry,
        )
        for role in ("target", "draft"):
            lost.labels(model, role).set_function(partial(away, role))
        counters = (self._drafts, self._drafted, self._accepted, self._thinking, self._prompt)
        for counter in (*counters, self._cached, self._without, self._nested):
            counter.labels(model)  # create them now, at 0
        for author in ("draft", "target", "server"):
            self._tokens.labels(model, author)
        for verdict in ("accepted", "rejected"):
            self._steps.labels(model, verdict)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ["model_name", *labels], registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, ["model_name"], registry=self.registry, buckets=SECONDS)

    def speculated(self, found: Speculation) -> None:
        """Count the drafts of a choice."""
        model = self._model
        drafts, accepted = self._totals
        self._totals = drafts + len(found.drafts), accepted + found.accepted
        self._drafts.labels(model).inc(len(found.drafts))
        self._drafted.labels(model).inc(found.drafted)
        self._accepted.labels(model).inc(found.accepted)
        self._expect(found.depth)
        for position, count in found.positions().items():
            self._positions.labels(model, str(position)).inc(count)
        self._steps.labels(model, "accepted").inc(found.accepted_steps)
        self._steps.labels(model, "rejected").inc(found.drafted_steps - found.accepted_steps)
        self._tokens.labels(model, "draft").inc(found.by_draft)
        self._tokens.labels(model, "target").inc(found.by_target)
        self._tokens.labels(model, "server").inc(found.by_server)
        self._nested.labels(model).inc(found.nested)
        if found.drafts:
            self._length.labels(model).set(1 + found.accepted / len(found.drafts))
            self._rate.labels(model).set(found.accepted / max(found.drafted, 1))

    def _expect(self, positions: int) -> None:
        """Create counters for so many positions at 0, so that their first increase shows."""
        for position in range(self._known, positions):
            self._positions.labels(self._model, str(position))
        self._known = max(self._known, positions)

    @property
    def mean_length(self) -> float | None:
        """Mean tokens per verification since the start, 1 plus the accepted ones; None before the first."""
        drafts, accepted = self._totals
        return 1 + accepted / drafts if drafts else None

    def answered(self, usage: Usage, degraded: int, first: float | None, seconds: float) -> None:
        """Count an answered request; ``first`` and ``seconds``: until its first text and its end."""
        self._prompt.labels(self._model).inc(usage.prompt)
        self._cached.labels(self._model).inc(usage.cached)
        self._thinking.labels(self._model).inc(usage.reasoning)
        self._without.labels(self._model).inc(degraded)
        self._whole.labels(self._model).observe(seconds)
        if first is not None:
            self._first.labels(self._model).observe(first)

    def ended(self, outcome: str) -> None:
        """Count a request by its outcome: ok, cancelled, or the status of its error."""
        self._requests.labels(self._model, outcome).inc()

    def text(self) -> bytes:
        self._expect(self._foreseen())
        return generate_latest(_Timeless(self.registry))


class _Timeless(Collector):
    """A registry without the ``_created`` samples of its counters.

    Benchmarks sum all lines that begin with a counter's name, and would add those timestamps to the counts.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
            yield metric
