"""Where a server is: its URL, read once for all who talk to one."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from semspec.errors import UserError, without_passwords


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of ``http://USER:PASSWORD@HOST:PORT/PATH``; name and password are in ``signed`` alone."""

    tls: bool
    netloc: str  # host and port as they were given
    host: str
    port: int
    path: str  # without a slash at its end
    signed: str  # the value of the header Authorization, by HTTP's basic scheme; "" without a name

    @classmethod
    def read(cls, url: str) -> Self:
        """Read an address; ``http://`` may be left out. Raise UserError for what is none."""
        url = url if "//" in url else f"http://{url}"
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            shown = without_passwords(url)
            raise UserError(f"'{shown}' is no server's address: give http://HOST:PORT")
        tls, signed = parts.scheme == "https", ""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            signed = f"Basic {base64.b64encode(pair.encode()).decode()}"
        netloc = parts.netloc.rpartition("@")[2]
        return cls(tls, netloc, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), signed)  # fmt: skip

    @property
    def url(self) -> str:
        """The address as it may be shown."""
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.path}"
