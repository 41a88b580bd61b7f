"""Run nginx with docs/deploy/nginx.conf, to check that file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "deploy" / "nginx.conf"


def nginx_command(folder: Path, changes: Mapping[str, str]) -> list[str]:
    """Write the example with these texts replaced, and everything it needs, into a folder; return the command to run it."""
    text = EXAMPLE.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "semspec.conf").write_text(text)
    own = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))  # fmt: skip
    user = "user root; " if os.geteuid() == 0 else ""  # the folders belong to root then
    (folder / "nginx.conf").write_text(
        f"{user}daemon off; pid {folder / 'pid'}; error_log {folder / 'log'};\nevents {{}}\n"
        f"http {{ access_log off;\n{own}include {folder / 'semspec.conf'};\n}}\n"
    )
    return ["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "log")]
