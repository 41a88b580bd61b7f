"""docs/deploy passes the checkers of the programs that run it; quick, but those are not packages of .venv."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.nginx import nginx_command

ROOT = Path(__file__).resolve().parents[2]
DEPLOY, CHECKERS = ROOT / "docs" / "deploy", ROOT / ".venv-clients" / "bin"
FOUND = {**os.environ, "PATH": f"{os.environ['PATH']}:{CHECKERS}"}
MONITORS = """
import json, sys
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor
from pydantic import ValidationError

def wrong(told):
    try:
        read = ServiceMonitor.model_validate(told)
    except ValidationError as error:
        return str(error)
    known = read.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return "" if known == told else f"of this the schema knows only {known}"

print(json.dumps([wrong(told) for told in json.loads(sys.argv[1])]))
"""
"""Reads each of several ServiceMonitors by models that were generated from the CRD; says what is wrong with it, or nothing."""

DASHBOARD = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

def lost(told, known, path):
    if isinstance(told, dict) and isinstance(known, dict):
        return [one for key in told for one in lost(told[key], known.get(key), f"{path}.{key}")]
    if isinstance(told, list) and isinstance(known, list) and len(told) == len(known):
        return [one for at in range(len(told)) for one in lost(told[at], known[at], f"{path}.{at}")]
    return [] if told == known else [path]

told = json.loads(sys.argv[1])
known = json.loads(JSONEncoder().encode(Dashboard.from_json(told)))
print(json.dumps(lost(told, known, "")))
"""
"""Reads a dashboard by Grafana's own types; says which fields these do not know."""


def check(*command: object) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, env=FOUND
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def replaced(name: str, old: str, new: str, folder: Path) -> Path:
    """Write a copy of an example in which one text stands for another."""
    text = (DEPLOY / name).read_text()
    assert old in text
    copy = folder / name
    copy.write_text(text.replace(old, new))
    return copy


def test_compose_file_is_one(tmp_path: Path) -> None:
    command = [CHECKERS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    assert "ok" in check(*command, DEPLOY / "compose.yaml")
    broken = replaced("compose.yaml", "healthcheck:", "healthchek:", tmp_path)
    with pytest.raises(AssertionError, match="healthchek"):
        check(*command, broken)


def test_image_is_built_as_hadolint_advises(tmp_path: Path) -> None:
    command = [CHECKERS / "hadolint", "--no-color"]
    assert check(*command, DEPLOY / "Dockerfile") == ""
    broken = replaced("Dockerfile", "sglang:v0.5.23", "sglang", tmp_path)
    with pytest.raises(AssertionError, match="DL3006"):  # an image without a tag
        check(*command, broken)
    with pytest.raises(AssertionError, match="unexpected 'E'"):
        check(*command, replaced("Dockerfile", "EXPOSE", "EXPORT", tmp_path))


def test_configuration_of_prometheus_is_one(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("key-of-the-metrics")
    file = replaced("prometheus.yaml", "/run/secrets/metrics-key", str(key), tmp_path)
    assert "SUCCESS" in check("promtool", "check", "config", file)
    file.write_text(file.read_text().replace("metrics_path", "metric_path"))
    with pytest.raises(AssertionError, match="field metric_path not found"):
        check("promtool", "check", "config", file)


def test_manifest_is_one(tmp_path: Path) -> None:
    said = check(CHECKERS / "kubernetes-validate", "--strict", DEPLOY / "kubernetes.yaml")
    for kind in ("deployment", "service", "poddisruptionbudget"):
        assert f"passed for resource {kind}/semspec" in said
    broken = replaced("kubernetes.yaml", "readinessProbe:", "readynessProbe:", tmp_path)
    with pytest.raises(AssertionError, match="readynessProbe"):
        check(CHECKERS / "kubernetes-validate", "--strict", broken)


def test_servicemonitor_is_one_of_the_operators() -> None:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    (monitor,) = [one for one in documents if one["kind"] == "ServiceMonitor"]
    misspelt, no_time, no_selector = (deepcopy(monitor) for _ in range(3))
    endpoint: dict[str, Any] = misspelt["spec"]["endpoints"][0]
    endpoint["paths"] = endpoint.pop("path")
    no_time["spec"]["endpoints"][0]["interval"] = "fifteen"
    del no_selector["spec"]["selector"]
    asked = json.dumps([monitor, misspelt, no_time, no_selector])
    said = json.loads(check(CHECKERS / "python", "-c", MONITORS, asked))
    assert said[0] == ""
    assert "the schema knows only" in said[1] and "/metrics" not in said[1]
    assert "spec.endpoints.0.interval" in said[2] and "spec.selector" in said[3]


@pytest.mark.parametrize("name", ["compose.yaml", "kubernetes.yaml", "prometheus.yaml"])
def test_yaml_is_tidy(name: str, tmp_path: Path) -> None:
    rules = (
        "{line-length: disable, document-start: disable, comments: {min-spaces-from-content: 1}}"
    )
    command = [CHECKERS / "yamllint", "--strict", "-d", f"{{extends: default, rules: {rules}}}"]
    check(*command, DEPLOY / name)
    with pytest.raises(AssertionError, match="too many spaces after colon"):
        check(*command, replaced(name, ": ", ":  ", tmp_path))


def test_dashboard_has_the_fields_that_grafana_knows() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    command = [CHECKERS / "python", "-c", DASHBOARD]
    assert json.loads(check(*command, json.dumps(dashboard))) == []
    panel = dashboard["panels"][1]
    panel["gridPosition"] = panel.pop("gridPos")
    assert json.loads(check(*command, json.dumps(dashboard))) == [".panels.1.gridPosition"]


def test_queries_of_the_dashboard_are_promql() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 10
    script = "import json, sys, promql_parser\nfor one in json.loads(sys.argv[1]): promql_parser.parse(one)"
    plain = [query.replace("$__rate_interval", "1m") for query in queries]
    check(CHECKERS / "python", "-c", script, json.dumps(plain))
    with pytest.raises(AssertionError):
        check(CHECKERS / "python", "-c", script, json.dumps([f"{plain[0]} )"]))


def test_configuration_of_nginx_is_one(tmp_path: Path) -> None:
    assert "test is successful" in check(*nginx_command(tmp_path, {}), "-t")
    broken = nginx_command(tmp_path, {"proxy_buffering off;": "proxy_buffers off;"})
    with pytest.raises(AssertionError, match='invalid number of arguments in "proxy_buffers"'):
        check(*broken, "-t")


def test_unit_of_systemd_is_one(tmp_path: Path) -> None:
    text = (DEPLOY / "serve.service").read_text()
    unit = tmp_path / "semspec.service"
    unit.write_text(text.replace("/opt/semspec/.venv/bin/python", sys.executable))
    assert "semspec" not in check("systemd-analyze", "verify", unit)
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=mostly"))
    assert "Failed to parse kill mode" in check("systemd-analyze", "verify", unit)
