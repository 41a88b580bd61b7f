"""What docs/deploy has, read by the checkers of those who run it; quick, but they are no packages of .venv."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY, CHECKERS = ROOT / "docs" / "deploy", ROOT / ".venv-clients" / "bin"


def check(*command: object) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_compose_file_is_one() -> None:
    command = [CHECKERS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    assert "ok" in check(*command, DEPLOY / "compose.yaml")


def test_manifest_is_one(tmp_path: Path) -> None:
    said = check(CHECKERS / "kubernetes-validate", "--strict", DEPLOY / "kubernetes.yaml")
    for kind in ("deployment", "service", "poddisruptionbudget"):
        assert f"passed for resource {kind}/semspec" in said
    text = (DEPLOY / "kubernetes.yaml").read_text()
    broken = tmp_path / "kubernetes.yaml"
    broken.write_text(text.replace("readinessProbe:", "readynessProbe:"))
    with pytest.raises(AssertionError, match="readynessProbe"):
        check(CHECKERS / "kubernetes-validate", "--strict", broken)


@pytest.mark.parametrize("name", ["compose.yaml", "kubernetes.yaml", "prometheus.yaml"])
def test_yaml_is_tidy(name: str) -> None:
    rules = (
        "{line-length: disable, document-start: disable, comments: {min-spaces-from-content: 1}}"
    )
    check(CHECKERS / "yamllint", "--strict", "-d", f"{{extends: default, rules: {rules}}}", DEPLOY / name)  # fmt: skip


def test_queries_of_the_dashboard_are_promql() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 10
    script = "import json, sys, promql_parser\nfor one in json.loads(sys.argv[1]): promql_parser.parse(one)"
    plain = [query.replace("$__rate_interval", "1m") for query in queries]
    check(CHECKERS / "python", "-c", script, json.dumps(plain))
    with pytest.raises(AssertionError):
        check(CHECKERS / "python", "-c", script, json.dumps([f"{plain[0]} )"]))


def test_unit_of_systemd_is_one(tmp_path: Path) -> None:
    text = (DEPLOY / "serve.service").read_text()
    unit = tmp_path / "semspec.service"
    unit.write_text(text.replace("/opt/semspec/.venv/bin/python", sys.executable))
    assert "semspec" not in check("systemd-analyze", "verify", unit)
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=mostly"))
    assert "Failed to parse kill mode" in check("systemd-analyze", "verify", unit)
