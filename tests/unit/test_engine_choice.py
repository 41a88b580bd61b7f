"""``engine=auto``, the default: what it chooses on which machine, and its message."""

from __future__ import annotations

from pathlib import Path

import pytest

from semspec import config, run
from semspec.choices.engine import choose_engine
from semspec.choices.settle import expand_shorthands
from semspec.engines.hf import Hf
from semspec.engines.sglang import Sglang
from semspec.jobs import sweep
from semspec.training.probes import compose as probes
from tests.support import nvidia_smi

URL = "target_url=http://127.0.0.1:30000"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def choice(*arguments: str) -> str:
    return str(choose_engine(arguments))


def machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool = True, version: str = "0.5.23"
) -> None:
    """Pretend that there is a GPU, and an SGLang of this version."""
    if gpu:
        nvidia_smi.install(folder / "bin", monkeypatch, nvidia_smi.table(81_559))
    if version:
        made = folder / "site" / f"sglang-{version}.dist-info"
        made.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
        (made / "METADATA").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(str(folder / "site"))


def test_without_a_gpu_it_is_hf_as_if_nothing_had_been_said() -> None:
    assert choice() == choice("engine=auto") == "engine: hf (no GPU here)"
    assert expand_shorthands(["seed=1"]) == ["seed=1"]
    assert expand_shorthands(["engine=auto", "seed=1"]) == ["seed=1"]
    assert isinstance(config.build(config.compose(expand_shorthands(["engine=auto"]))).engine, Hf)
    assert choose_engine(["engine=hf"]) is None and choose_engine(["engine=toy", URL]) is None
    assert expand_shorthands(["engine=auto,toy"]) == ["engine=hf,toy"]


@pytest.mark.parametrize("option", [URL, f"engine.{URL}", "server_args={}", "engine.patience=3"])
def test_an_option_of_sglang_s_own_chooses_it(option: str) -> None:
    assert choice(option) == f"engine: sglang ({option.partition('=')[0]}= is given)"
    expanded = expand_shorthands([option, "accept=logprob"])
    made = config.build(config.compose(expanded))
    assert isinstance(made.engine, Sglang)


def test_with_a_gpu_and_sglang_it_is_sglang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch)
    assert choice("accept=logprob") == "engine: sglang (SGLang 0.5.23, NVIDIA H100 80GB)"
    assert expand_shorthands(["accept=logprob"]) == ["accept=logprob", "engine=sglang"]
    assert expand_shorthands(["accept=logprob"], auto=False) == ["accept=logprob"]
    assert choice("device=cuda:1") == "engine: hf (device= is given)"
    made = probes.build(["engine=auto"])
    assert isinstance(made.engine, Sglang)
    assert isinstance(probes.build([]).engine, Hf)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("salvage=true",), "salvage=true needs probs, which engine=sglang cannot return"),
        (("split=token", "accept=typical"), "accept=typical needs probs, which engine=sglang"),
        (("accept=logprob,typical", "split=token"), "accept=typical needs probs, which"),
    ],
)
def test_what_sglang_cannot_run_is_run_by_hf(
    options: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch)
    assert choice(*options).startswith(f"engine: hf ({why}")
    assert "\n" not in choice(*options)
    assert choice("accept=no-such-rule").startswith("engine: sglang"), "its own mistake is told"


def test_why_it_is_not_sglang_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path / "a", monkeypatch, version="")
    assert choice() == 'engine: hf (SGLang is not installed here: pip install "sglang>=0.5.20")'
    machine(tmp_path / "b", monkeypatch, version="0.4.9")
    assert choice() == 'engine: hf (SGLang 0.4.9 is too old: pip install "sglang>=0.5.20")'
    nvidia_smi.install(tmp_path / "c", monkeypatch, "Driver/library version mismatch", 18)
    assert "engine: hf (NVIDIA's driver does not answer" in choice()
    assert "version mismatch" in choice()


def test_a_run_prints_the_choice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "main", lambda overrides: 0)  # it is told before the first run
    shown = {(): True, ("engine=auto",): True, ("engine=hf",): False, ("quiet=true",): False}
    for options, told in shown.items():
        with pytest.raises(SystemExit):
            run._main(["-m", "seed=0,1", *options])
        printed = capsys.readouterr().out
        assert printed.startswith("engine: hf (no GPU here)\n") == told, options
    run._main(["--cfg", "job"])
    printed = capsys.readouterr().out
    assert printed.startswith("model:") and "device: auto" in printed, "YAML and nothing else"
