"""The real Hub client pointed at a loopback server (see ``hub_server``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants

from semspec.artifacts.base import Artifact
from tests.support.hub_server import HubServer

ALICE, BOB = "hf_AliceAliceAliceAlice", "hf_BobBobBobBobBobBobB"
TOKENS = {ALICE: "alice", BOB: "bob"}


def settings(hub: HubServer, folder: Path, token: str | None = None) -> dict[str, str]:
    """Return the environment variables that make a process use the server as the Hub."""
    told = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_CACHE": str(folder / "cache"),
        "HF_TOKEN_PATH": str(folder / "home" / "token"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return told | ({"HF_TOKEN": token} if token else {})


@contextmanager
def hub_for(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Run a server that this process uses as the Hub.

    The client reads its settings when it is imported, which other tests may have done before, so they are patched.
    """
    with HubServer(folder / "blobs", TOKENS) as hub:
        for name in ("HF_TOKEN", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            patch.delenv(name, raising=False)
        for name, value in settings(hub, folder).items():
            patch.setenv(name, value)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
        patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "home" / "token"))
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield hub


def files_of(artifact: Artifact, folder: Path) -> dict[str, bytes]:
    """Return the files that publishing the artifact would upload."""
    artifact.save(folder)
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


def snapshot_files(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


def requests(hub: HubServer) -> list[str]:
    """Return the requests since the last call."""
    asked, hub.log[:] = list(hub.log), []
    return asked


def child_environment(hub: HubServer, folder: Path, token: str | None = None) -> dict[str, str]:
    return dict(os.environ) | settings(hub, folder, token)
