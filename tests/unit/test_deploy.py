"""docs/deploy matches the server: options, names of counters, times, addresses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from semspec.cli import serve
from semspec.serve.lookout import LIMIT
from semspec.serve.metrics import Metrics
from semspec.serve.settings import Settings

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
TIMEOUT = Settings(name="").timeout
OURS = re.compile(r"\b(?:semspec|vllm|sglang):\w+")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def deployment() -> dict[str, Any]:
    (found,) = [one for one in documents("kubernetes.yaml") if one["kind"] == "Deployment"]
    return found


def unit(name: str) -> str:
    """Return a setting of the systemd unit."""
    (found,) = re.findall(rf"^{name}=(.*)$", (DEPLOY / "serve.service").read_text(), re.M)
    return str(found)


def commands() -> dict[str, list[str]]:
    """Return what each example gives the server as options."""
    (container,) = deployment()["spec"]["template"]["spec"]["containers"]
    (image,) = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.M)
    return {
        "compose": documents("compose.yaml")[0]["services"]["semspec"]["command"],
        "kubernetes": container["args"],
        "systemd": shlex.split(unit("ExecStart"))[3:],
        "image": json.loads(image),
    }


@pytest.mark.parametrize("where", ["compose", "kubernetes", "systemd", "image"])
def test_options_are_the_servers(where: str) -> None:
    words = commands()[where]
    config, given = serve.read(words)
    assert given.keys and not given.insecure
    if where != "image":
        assert (config.model.path, config.draft.model.path) == (  # type: ignore[attr-defined]
            "Qwen/QwQ-32B",
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        )


def test_who_ends_it_waits_for_what_is_in_flight() -> None:
    pod = deployment()["spec"]["template"]["spec"]
    before = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] - before > TIMEOUT
    compose = documents("compose.yaml")[0]["services"]["semspec"]
    assert float(compose["stop_grace_period"].removesuffix("s")) > TIMEOUT
    assert float(unit("TimeoutStopSec")) > TIMEOUT and unit("KillSignal") == "SIGTERM"
    waits = re.findall(r"proxy_read_timeout (\d+)s", (DEPLOY / "nginx.conf").read_text())
    assert [float(seconds) > TIMEOUT for seconds in waits] == [True]


def test_probes_ask_what_is_open_and_wait_for_the_look_at_the_target() -> None:
    (container,) = deployment()["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["startupProbe"]["httpGet"]["path"] == "/ready"
    live = container["livenessProbe"]
    assert live["httpGet"]["path"] == "/health"
    for probe in (
        live,
        container["readinessProbe"],
    ):  # a look for SGLang's servers may take so long
        assert probe["timeoutSeconds"] > LIMIT


def test_monitors_find_the_service() -> None:
    kinds = {one["kind"]: one for one in documents("kubernetes.yaml")}
    labels = deployment()["spec"]["template"]["metadata"]["labels"]
    service, monitor = kinds["Service"], kinds["ServiceMonitor"]
    assert service["spec"]["selector"] == labels
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    (job,) = documents("prometheus.yaml")[0]["scrape_configs"]
    for path in (endpoint["path"], job["metrics_path"]):
        assert path == "/metrics"
    assert endpoint["authorization"]["credentials"]["name"] == "semspec-keys"


def test_the_dashboard_asks_for_counters_that_are_there() -> None:
    metrics = Metrics("tiny", lambda: 1, lambda: 0)
    there = {
        sample.name for family in metrics.registry.collect() for sample in family.samples
    } | {
        # with labels that only come with use
        *(f"{name}_total" for name in ("semspec:requests", "vllm:spec_decode_num_accepted_tokens_per_pos")),
        *(f"{name}_bucket" for name in ("semspec:time_to_first_token_seconds", "semspec:request_seconds")),
    }  # fmt: skip
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    asked = {n for p in panels for t in p["targets"] for n in OURS.findall(t["expr"])}
    assert asked <= there and len(asked) > 8
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(places)) == len({p["id"] for p in panels}) == len(panels)
