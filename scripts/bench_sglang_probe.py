"""Measure the cost of a probe inside SGLang, in bytes and time, beside plain scoring and the naive way.

It needs two running servers of the same model (docs/sglang_plugin.md has the commands): one with the
plugin, and one with --enable-return-hidden-states for the naive way, which sends the last layer's states
token by token and leaves pooling to the client. Kinds of requests take turns; each scores a new
step after the same, cached context. It prints JSON to standard output, a table to standard error.

--direct measures the plugin's own work without a server, at a given shape: reading a pass and scoring it.

python scripts/bench_sglang_probe.py --direct 36x2560 --step 64
python scripts/bench_sglang_probe.py --url http://127.0.0.1:30000 --naive-url http://127.0.0.1:30001 \
    --probe embedded/probe-tiny-target-paper
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import time
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import torch
from script_kit import parser

from semspec.artifacts.probe import Probe
from semspec.models.location import ModelConfig
from semspec.probes.mlp import shapes
from semspec.sglang_plugin.compat_reading import Loaded, Piece
from semspec.sglang_plugin.probe import Options, Probes
from semspec.sglang_plugin.protocol import Ask, pack, reply


class Server:
    """One connection that stays open."""

    def __init__(self, url: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)

    def generate(self, body: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Return the seconds, the bytes of the answer, and the answer."""
        data = json.dumps(body)
        for last in (False, True):
            began = time.perf_counter()
            try:
                kind = {"Content-Type": "application/json"}
                self.connection.request("POST", "/generate", data, kind)
                response = self.connection.getresponse()
                raw = response.read()
                break
            except (BrokenPipeError, http.client.RemoteDisconnected):
                if last:
                    raise
                self.connection.close()  # closed after being idle for too long: open it again
        answer = json.loads(raw)
        seconds = time.perf_counter() - began
        if response.status != 200:
            raise SystemExit(f"the server said {response.status}: {raw[:300]!r}")
        return seconds, len(raw), answer


def direct(layers: int, width: int, step: int, steps: int, repeat: int) -> dict[str, Any]:
    """Return the CPU time of pooling and scoring in one pass, and the bytes sent, beside the naive way's."""
    hidden = (512, 128)
    size = (layers + 1) * width
    tensors = {"mean": torch.zeros(size), "std": torch.ones(size)}
    for name, shape in shapes(size, hidden).items():
        tensors[name] = torch.randn(shape) / shape[-1] ** 0.5
    config = Probe.example().config
    config["model"] |= {"layers": layers, "width": width}
    config["features"] |= {"inputs": size, "hidden": list(hidden)}
    probe = Probe(config, tensors)
    worker = Probes(Options())
    worker.model = Loaded(ModelConfig(path="none"), layers, width, torch.device("cpu"))
    worker.probes = {probe.digest: probe}
    ask = Ask(spans=tuple((i * step, (i + 1) * step) for i in range(steps)), probe=probe.digest)
    rows = steps * step
    x = torch.randn(rows, width)
    seconds = []
    for turn in range(repeat + 3):
        began = time.process_time()
        piece = Piece(0, str(turn), ask.params(), [0] * rows, 0, rows, 0)
        one = worker.begin(1, rows, [piece])
        assert one is not None
        for layer in range(layers + 1):
            one.states(layer, x)
        reply_of = one.replies(None, "")[0].copy()
        seconds.append(time.process_time() - began)
    states = Ask(spans=ask.spans, want="pooled", precision="float16")
    pooled = pack(torch.zeros(steps, 1, layers + 1, width), states.precision)
    return {
        "layers": layers,
        "width": width,
        "tokens": rows,
        "cpu_ms": round(1e3 * median(seconds[3:]), 3),
        "bytes_asked": len(json.dumps(ask.params())),
        "bytes_score": len(json.dumps(reply_of)),
        "bytes_pooled_float16": len(json.dumps(pooled)),
        "bytes_naive_last_layer": len(json.dumps(x.tolist())),
        "bytes_naive_all_layers": (layers + 1) * len(json.dumps(x.tolist())),
    }


def main() -> None:
    known = parser(
        __doc__,
        url=("", "a server with the plugin and the probe"),
        naive_url=("", "a server with --enable-return-hidden-states"),
        probe="embedded/probe-tiny-target-paper",
        context=(256, "tokens that are cached"),
        step=(40, "tokens of a step"),
        steps=(1, "steps judged in one pass"),
        repeat=100,
        vocabulary=(500, "token ids drawn: 3 to this"),
    )
    known.description, known.formatter_class = __doc__, argparse.RawTextHelpFormatter
    known.add_argument("--direct", metavar="LAYERSxWIDTH", help="without a server, at this shape")
    a = known.parse_args()
    if a.direct:
        layers, width = (int(n) for n in a.direct.split("x"))
        print(json.dumps(direct(layers, width, a.step, a.steps, a.repeat), indent=1))
        return
    if not a.url:
        known.error("give --url of a server, or --direct")

    probe = Probe.load(a.probe)
    rng = random.Random(0)
    context = [rng.randrange(3, a.vocabulary) for _ in range(a.context)]
    ends = [a.context + i * a.step for i in range(a.steps + 1)]
    spans = tuple(zip(ends, ends[1:], strict=False))
    ask = Ask(spans=spans, probe=probe.digest)
    logprobs = {"return_logprob": True, "logprob_start_len": a.context - 1}
    pool = Ask(spans=spans, want="pooled", precision="float16")
    with_plugin = Server(a.url)
    kinds: dict[str, tuple[Server, dict[str, Any], dict[str, Any]]] = {
        "plain": (with_plugin, {}, {}),
        "score": (with_plugin, ask.params(), {}),
        "pooled, all layers, float16": (with_plugin, pool.params(), {}),
        "log-probabilities": (with_plugin, {}, logprobs),
    }
    if a.naive_url:
        naive = Server(a.naive_url)
        kinds["plain, naive server"] = (naive, {}, {})
        kinds["naive: last layer by token"] = (naive, {}, {"return_hidden_states": True})
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    size: dict[str, list[int]] = {kind: [] for kind in kinds}
    for turn in range(a.repeat + 5):
        for kind, (server, params, further) in kinds.items():
            step = [rng.randrange(3, a.vocabulary) for _ in range(a.step * a.steps)]
            sampling = {"temperature": 0, "max_new_tokens": 1}
            if params:
                sampling["custom_params"] = params
            body = {"input_ids": context + step, "sampling_params": sampling, **further}
            took, length, answer = server.generate(body)
            if params:
                reply(answer["meta_info"], a.url)
            if turn >= 5:  # the first ones warm up
                seconds[kind].append(took)
                size[kind].append(length)
    rows = []
    for kind in kinds:
        base = "plain, naive server" if "naive" in kind else "plain"
        # pairs of the same turn, so that other work on the machine is in both
        added = median(own - other for own, other in zip(seconds[kind], seconds[base], strict=True))
        row = {
            "kind": kind,
            "median_ms": round(1e3 * median(seconds[kind]), 3),
            "added_ms": round(1e3 * added, 3),
            "added_share": round(added / median(seconds[base]), 4),
            "bytes": median(size[kind]),
            "added_bytes": median(size[kind]) - median(size[base]),
        }
        rows.append(row)
        print(
            f"{kind:30s} {row['median_ms']:9.2f} ms  {row['added_ms']:+8.2f} ms"
            f" ({row['added_share']:+7.1%})  {row['added_bytes']:+10.0f} bytes",
            file=sys.stderr,
        )
    shape = {"layers": probe.layers, "width": probe.width}
    print(json.dumps({"arguments": vars(a), **shape, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
