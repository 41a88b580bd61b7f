"""Who may use a server, and what its command refuses before it loads anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from semspec.cli import serve
from semspec.errors import UserError
from semspec.serve.errors import ApiError
from semspec.serve.keys import VARIABLE, Keys, check_bind, is_local, same_machine
from semspec.serve.requests import ChatRequest, CompletionRequest, parse

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_keys_come_from_the_environment_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{KEY}\n\n")
    keys = Keys.read(str(file), {VARIABLE: f"{OTHER}, "})
    for key in (KEY, OTHER):
        assert keys.allow(f"Bearer {key}") and keys.allow(f"bearer  {key} ")
    for wrong in (
        None,
        "",
        "Bearer",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Basic {KEY}",
        "Bearer é",
    ):
        assert not keys.allow(wrong)
    assert Keys.read("", {}).allow(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no key"),
        ("short", "shorter than 16"),
        (None, "cannot be read"),
        ("schlüssel-0123456789", "other than ASCII"),
    ],
)
def test_keys_that_protect_nothing_are_refused(
    tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=message) as raised:
        Keys.read(str(file), {})
    assert text != "short" or "short\n" not in str(raised.value)


def test_who_holds_a_key_has_a_name_that_is_not_the_key() -> None:
    first, second = b"0123456789abcdef", b"fedcba9876543210"
    keys = Keys((first, second))
    names = {keys.owner(f"Bearer {key.decode()}") for key in (first, second)}
    assert len(names) == 2 and not any(key.decode() in name for key in (first, second) for name in names)  # fmt: skip
    assert keys.owner("bearer  0123456789abcdef ") in names  # as such a header is taken
    assert Keys().owner("Bearer anything-at-all") == ""


def test_only_this_machine_is_served_without_a_key() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        assert is_local(host)
        check_bind(host, Keys(), insecure=False)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(UserError, match="insecure=true"):
            check_bind(host, Keys(), insecure=False)
        check_bind(host, Keys(), insecure=True)
        check_bind(host, Keys((b"key",)), insecure=False)
    assert all(map(same_machine, ("localhost:8000", "127.0.0.1", "[::1]:8000")))
    assert not any(map(same_machine, ("", "evil.example", "localhost.evil.example", "10.0.0.1:80")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["host=0.0.0.0"], "insecure=true"),
        (["prot=1"], "unknown option 'prot'; did you mean 'port'"),
        (["quue=3"], "unknown option 'quue'; did you mean 'queue'"),
        (["port=99999"], "port=99999: give a port"),
        (["queue=-1"], "queue=-1"),
        (["accept=logprop"], "did you mean 'logprob'"),
    ],
)
def test_a_mistake_ends_the_command_before_models_are_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        serve.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(UserError, match=r"no_such_package: pip install 'semspec\[serve\]'"):
        serve.check_installed()


def test_a_header_is_read_like_the_body_and_never_beside_it() -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}]}'
    made = parse(
        ChatRequest, body, "rule=logprob; threshold=-3;draft_length=2; steps; off=false; tenant=one"
    )
    assert made.semspec.model_dump() == {
        "rule": "logprob", "threshold": -3.0, "risk": None, "draft_length": 2, "off": False, "steps": True,
        "thinking_stop": None, "thinking_threshold": None, "thinking_risk": None, "tenant": "one",
    }  # fmt: skip
    for header, named in (
        ("threshold=high", "semspec.threshold"),
        ("nonsense=1", "semspec.nonsense"),
    ):
        with pytest.raises(ApiError) as raised:
            parse(ChatRequest, body, header)
        assert raised.value.param == named
    both = body[:-1] + b', "semspec": {}}'
    with pytest.raises(ApiError, match="one of them"):
        parse(ChatRequest, both, "off")


def test_prompts_are_texts_or_ids() -> None:
    for prompt, expected in (('"a"', ["a"]), ("[1, 2]", [[1, 2]]), ('["a", "b"]', ["a", "b"]), ("[[1], [2]]", [[1], [2]])):  # fmt: skip
        made = parse(CompletionRequest, f'{{"prompt": {prompt}}}'.encode())
        assert list(made.prompts) == expected
    for prompt in ('""', "[]", "[[]]", "[true]", "3"):
        with pytest.raises(ApiError) as raised:
            parse(CompletionRequest, f'{{"prompt": {prompt}}}'.encode())
        assert raised.value.param == "prompt" or str(raised.value.param).startswith("prompt.")
