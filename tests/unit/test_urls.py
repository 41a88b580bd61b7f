"""Passwords in server addresses: used for the connection, never shown or stored."""

from __future__ import annotations

import time

from semspec.errors import UserError, describe_error, without_passwords


def test_user_and_password_go_and_the_rest_stays() -> None:
    for given, wanted in (
        ("http://me:pw@host:30000/v1", "http://host:30000/v1"),
        ("[http://a:p@w@h1,https://token@h2]", "[http://h1,https://h2]"),
        ("http://[::1]:30000", "http://[::1]:30000"),
        ("https://host/a@b?c=d@e", "https://host/a@b?c=d@e"),
        ("mail me@here, see http://x y@z", "mail me@here, see http://x y@z"),
    ):
        assert without_passwords(given) == wanted
    value = {"urls": ["http://a:b@c"], "deep": {"n": 1, "url": "http://a:b@c"}, "none": None}
    assert without_passwords(value) == {
        "urls": ["http://c"], "deep": {"n": 1, "url": "http://c"}, "none": None
    }  # fmt: skip


def test_errors_of_other_libraries_lose_them_too() -> None:
    assert describe_error(UserError("no http://me:pw@host")) == "no http://host"
    assert describe_error(OSError("no http://me:pw@host")) == "OSError: no http://host"


def test_hostile_lengths_take_no_time() -> None:
    began = time.process_time()
    for text in ("://" * 100_000, "http://" + "a" * 1_000_000, "://" + "@" * 300_000 + " "):
        without_passwords(text)
    assert time.process_time() - began < 1
