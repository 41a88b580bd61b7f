"""The address of a server, parsed in one place for all clients."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from semspec.errors import UserError, without_passwords


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of ``http://USER:PASSWORD@HOST:PORT/PATH``; only ``signed`` contains user and password."""

    tls: bool
    netloc: str  # host and port as given
    host: str
    port: int
    path: str  # without a trailing slash
    signed: str  # value of the Authorization header (HTTP basic); "" without a user name

    @classmethod
    def read(cls, url: str) -> Self:
        """Parse an address; ``http://`` may be left out. Raise UserError if it is malformed."""
        url = url if "//" in url else f"http://{url}"
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            shown = without_passwords(url)
            raise UserError(f"'{shown}' is not a server's address: give http://HOST:PORT")
        tls, signed = parts.scheme == "https", ""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            signed = f"Basic {base64.b64encode(pair.encode()).decode()}"
        netloc = parts.netloc.rpartition("@")[2]
        return cls(tls, netloc, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), signed)  # fmt: skip

    @property
    def url(self) -> str:
        """The address without user and password, safe to show."""
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.path}"
