"""Access: API keys, and the addresses on which a server without keys may listen."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from semspec.errors import UserError

VARIABLE = "SEMSPEC_API_KEYS"
LEAST = 16  # characters of a key
LOCAL = ("localhost", "127.0.0.1", "::1")


class Keys:
    """The valid API keys; without any, everybody has access."""

    def __init__(self, keys: tuple[bytes, ...] = ()) -> None:
        self._keys = keys

    @classmethod
    def read(cls, file: str, environment: Mapping[str, str] = os.environ) -> Keys:
        """Read the keys from the environment variable, separated by commas, and from a file, one a line."""
        given = environment.get(VARIABLE, "").split(",")
        if file:
            try:
                given += Path(file).expanduser().read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise UserError(
                    f"keys={file} cannot be read ({why}): name a file with one key a line"
                ) from error
        keys = [key.strip() for key in given if key.strip() and not key.lstrip().startswith("#")]
        if file and not keys:
            raise UserError(f"keys={file} has no key: write one a line")
        if any(len(key) < LEAST for key in keys):
            raise UserError(
                f"a key is shorter than {LEAST} characters: make one with 'openssl rand -hex 24'"
            )
        if not all(key.isascii() and key.isprintable() for key in keys):
            raise UserError(
                "a key has characters other than ASCII, which clients cannot send in a header: make one with 'openssl rand -hex 24'"
            )
        return cls(tuple(key.encode() for key in keys))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def owner(self, authorization: str | None) -> str:
        """Return a hash that stands for the owner of a key; "" if the server has no keys."""
        if not self._keys:
            return ""
        given = (authorization or "").partition(" ")[2].strip()
        return hashlib.sha256(given.encode("utf-8", "surrogateescape")).hexdigest()

    def allow(self, authorization: str | None) -> bool:
        """Tell whether a header has a valid key; compares with every key, in constant time."""
        if not self._keys:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        told = given.strip().encode("utf-8", "surrogateescape")
        found = [hmac.compare_digest(key, told) for key in self._keys]
        return scheme.lower() == "bearer" and any(found)


def is_local(host: str) -> bool:
    """Tell whether an address can be reached from this machine only."""
    if host in LOCAL:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name may resolve to any address
        return False


def check_bind(host: str, keys: Keys, insecure: bool) -> None:
    """Raise UserError if other machines could use the server without a key."""
    if not is_local(host) and not keys and not insecure:
        raise UserError(
            f"host={host} lets everybody who can reach this machine use the models: put a key into {VARIABLE} or"
            " keys=FILE, leave it at host=127.0.0.1, or say insecure=true"
        )


def same_machine(host_header: str) -> bool:
    """Tell whether a Host header names this machine; others may come from DNS rebinding by a foreign page."""
    name = host_header.strip()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    return is_local(name)
