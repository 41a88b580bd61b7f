"""What a model's preset and its generation_config.json set in a run, and what they leave unchanged."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from semspec import api, config
from semspec.choices.names import quoted
from semspec.choices.presets import is_yes, with_preset, with_recommended
from semspec.choices.settle import expand_shorthands
from semspec.cli import launch
from semspec.config import build, compose
from semspec.errors import UserError
from semspec.jobs import experiments, sweep
from semspec.models.recommended import presets
from semspec.models.text import Text
from semspec.run import main
from tests.support.pair import TARGET

ROOT = Path(__file__).parents[2]
SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def made(*overrides: str) -> config.RunConfig:
    return build(compose(expand_shorthands(with_preset(overrides))))


@cache
def alone(name: str) -> config.RunConfig:
    return made(f"model={name}")


def drawn(run: config.RunConfig) -> tuple[float, ...]:
    return tuple(getattr(run, name) for name in SAMPLING)


@pytest.mark.parametrize(
    "word", ["true", "True", "yes", "y", "ON", "1", "2", "false", "no", "n", "Off", "0"]
)
def test_a_switch_is_read_as_hydra_reads_it(word: str) -> None:
    assert is_yes(word) is compose([f"quiet={word}"]).quiet
    assert is_yes("true,false") is is_yes("") is False


def test_a_preset_brings_what_the_card_recommends() -> None:
    for given in (["model=qwq32b", "draft=r1-1.5b"], ["model=qwq32b"]):
        run = made(*given)
        assert drawn(run) == (0.6, 0.95, 40, 0.0)
        assert (run.max_new_tokens, run.problems) == (32768, 32)
        assert config.plugin_names(run)["benchmark"] == "math500"
        assert run.draft.model.path == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
        assert config.plugin_names(run)["accept"] == "logprob"
    assert drawn(made("model=qwen3-8b")) == (0.6, 0.95, 20, 0.0)
    direct = made("model=qwen3-8b-direct")
    assert drawn(direct) == (0.7, 0.8, 20, 0.0) and direct.model.thinking is False


def test_what_is_typed_wins() -> None:
    run = made("model=qwq32b", "temperature=1", "top_k=0", "benchmark=gsm8k", "max_new_tokens=99")
    assert drawn(run) == (1.0, 0.95, 0, 0.0) and run.max_new_tokens == 99
    assert config.plugin_names(run)["benchmark"] == "gsm8k"
    assert made("model=qwq32b", "draft=qwen3-0.6b").draft.model.path == "Qwen/Qwen3-0.6B"
    assert made("model=qwq32b", "draft.model.path=a/b").draft.model.path == "a/b"
    asked = made("model=qwq32b", "prompt=How many?")
    assert config.plugin_names(asked)["benchmark"] == "prompt"
    seeded = made(
        "model=qwq32b", "benchmark.seed=3"
    )  # of the benchmark that stands without a preset
    assert config.plugin_names(seeded)["benchmark"] == "synthetic"
    local = made("model=qwq32b", "model.path=here")
    assert local.model.path == "here" and local.top_k == 40


def test_a_preset_brings_the_layer_that_a_drafter_compares() -> None:
    """AdaPLD's table 6, for whichever of the two drafters is chosen, and where."""
    for model, layer in {
        "vicuna-7b": 9,
        "vicuna-13b": 13,
        "vicuna-33b": 11,
        "qwen3-8b": 29,
    }.items():
        for drafter in ("pld_plus", "adapld"):
            found = with_preset([f"model={model}", f"draft={drafter}"])
            assert f"draft.layer={layer}" in found
        assert f"nested.layer={layer}" in with_preset([f"model={model}", "nested=adapld"])
        for given in (["draft=pld_plus", "draft.layer=3"], ["draft=suffix"], ["draft=pld_plus", "layer=3"]):  # fmt: skip
            found = with_preset([f"model={model}", *given])
            assert not any(word.endswith(f"layer={layer}") for word in found)
    assert not any("layer" in word for word in with_preset(["model=qwen3-32b-direct", "draft=adapld"]))  # fmt: skip
    assert made("model=qwen3-8b", "draft=pld_plus", "split=token").draft.layer == 29


def test_the_embedded_models_and_no_preset_leave_the_defaults() -> None:
    for given in ([], ["model=tiny"], ["model=tiny-copier"], ["model.path=embedded/tiny-target"]):
        assert with_recommended(given) == (given, "")
        assert drawn(made(*given)) == (0.6, 1.0, 0, 0.0)


def test_a_draft_comes_with_its_options_or_not_at_all() -> None:
    run = made("model=vicuna-13b")
    assert config.plugin_names(run)["draft"] == "adapld" and run.draft.layer == 13
    assert (run.split, config.plugin_names(run)["accept"]) == ("token", "lossless")
    other = with_preset(["model=vicuna-13b", "draft=none"])
    assert not [o for o in other if o.startswith(("draft.", "split"))]


@pytest.mark.deep
def test_every_preset_goes_together() -> None:
    models = set(config.presets("model"))
    assert set(presets()) == models - {"tiny", "tiny-copier"}
    for name, preset in presets().items():
        run = alone(name)
        given = dict(option.partition("=")[::2] for option in [*preset.options, *preset.pair])
        assert {"temperature", "max_new_tokens", "benchmark", "draft"} <= set(given), name
        assert run.max_new_tokens < preset.context, name
        assert run.temperature == float(given["temperature"]), name
        if not preset.thinking.startswith("no"):
            assert run.max_new_tokens == 32768 and given["benchmark"] == "math500", name
    for name in config.presets("draft"):
        file: Any = OmegaConf.load(ROOT / f"conf/draft/{name}.yaml")
        assert list(file.defaults) in (["lm"], ["eagle3"])


def test_the_page_of_models_shows_the_presets_as_they_are() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    shown = [line for line in page.splitlines() if line.startswith("| `")][1:]
    assert shown == [
        f"| `{name}` | {alone(name).model.path} | `{' '.join(p.pair)}` | `{' '.join(p.options)}` |"
        f" {p.context:,} | {p.thinking} | {p.source} |"
        for name, p in presets().items()
    ]


def test_every_job_of_a_sweep_has_its_own_models_settings() -> None:
    jobs = sweep.plan(["model=qwq32b,llama3-8b,tiny", "seed=0,1"])
    assert [job.name for job in jobs][:2] == ["model=qwq32b,seed=0", "model=qwq32b,seed=1"]
    runs = [sweep.resolve(job)[0] for job in jobs[::2]]
    assert [drawn(run)[1:3] for run in runs] == [(0.95, 40), (0.9, 0), (1.0, 0)]
    drafts = [run.draft.model.path.rpartition("/")[2] for run in runs]
    assert drafts == ["DeepSeek-R1-Distill-Qwen-1.5B", "Llama-3.2-1B-Instruct", "tiny-draft"]
    swept = [sweep.resolve(job)[0] for job in sweep.plan(["model=qwq32b", "temperature=0,1"])]
    assert [run.temperature for run in swept] == [0.0, 1.0] and swept[0].top_k == 40
    # a shorthand of a plugin that the presets will bring
    assert expand_shorthands(["model=qwq32b", "data=x"], brought=True)[1] == "benchmark.data=x"
    assert expand_shorthands(["model=qwq32b", "data=x"])[1] == "data=x"


@pytest.mark.parametrize("name", ["semanticspec/table4", "arc/table2", "adapld/table8"])
def test_experiments_keep_the_papers_settings(name: str) -> None:
    """None of their options comes from a preset: what a recipe leaves out is the default."""
    found = experiments.jobs(experiments.load(name), "real")
    job = next(job for job in found if with_preset(job.options) != list(job.options))
    given = dict(option.partition("=")[::2] for option in job.options)
    assert given["model"] in presets() and "top_k" not in given
    run = sweep.resolve(sweep.Job("x", job.options))[0]
    for option in (*SAMPLING, "max_new_tokens", "problems"):
        wanted = type(getattr(run, option))(given.get(option, getattr(config.RunConfig, option)))
        assert getattr(run, option) == wanted


def test_servers_are_started_for_the_preset_s_draft() -> None:
    planned = launch.plan(*launch.read(["model=qwq32b"]))
    assert [one.role for one in planned] == ["target", "draft"]
    assert "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B" in planned[1].command


# ---- generation_config.json ------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded target without its weights."""
    ignored = shutil.ignore_patterns("*.safetensors", "manifest.json")
    shutil.copytree(TARGET, tmp_path / "model", ignore=ignored)
    return tmp_path / "model"


def recommend(folder: Path, **told: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **told}))


def taken(folder: Path, *given: str) -> Sequence[str]:
    arguments = [f"model.path={folder}", *given]
    return with_recommended(arguments)[0][len(arguments) :]


def test_a_model_without_a_preset_takes_its_own_file(folder: Path) -> None:
    recommend(folder, do_sample=True, temperature=0.7, top_p=0.8, top_k=20, min_p=0.05)
    whole = ["temperature=0.7", "top_p=0.8", "top_k=20", "min_p=0.05"]
    assert taken(folder) == whole
    assert taken(folder, "temperature=1", "min_p=0") == ["top_p=0.8", "top_k=20"]
    told = with_recommended([f"model.path={folder}"])[1]
    assert told == f"from generation_config.json of {folder}: {' '.join(whole)}"
    run = build(compose(with_recommended([f"model.path={folder}"])[0]))
    assert drawn(run) == (0.7, 0.8, 20, 0.05)
    (job,) = sweep.plan([f"model.path={folder}"])
    assert drawn(sweep.resolve(job)[0]) == drawn(run)
    assert taken(folder, "model=qwq32b")[0] == "temperature=0.6"  # a copy of a model with a preset


def test_a_model_that_does_not_sample_is_greedy(folder: Path) -> None:
    recommend(folder, do_sample=False, temperature=0.7, top_p=0.8)
    assert taken(folder) == ["temperature=0"]
    recommend(folder)
    assert taken(folder) == []
    (folder / "generation_config.json").unlink()
    assert taken(folder) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "hot"), ("top_p", 1.5), ("top_k", 2.5), ("min_p", -1), ("top_k", True)],
)
def test_a_recommendation_that_is_none_is_named(folder: Path, name: str, value: object) -> None:
    recommend(folder, **{name: value})
    with pytest.raises(UserError, match=f"recommends {name}=.* not valid: give {name}= yourself"):
        taken(folder)


def test_a_path_is_read_as_it_was_typed(folder: Path) -> None:
    recommend(folder, temperature=0.7)
    odd = folder.rename(folder.parent / "it's a model")
    asked = f"model.path={quoted(str(odd))}"
    assert with_recommended([asked])[0][1:] == ["temperature=0.7"]
    for wrong in ("model.path=a,b", "model.path=", "model.path=[a", "model.path=null"):
        assert with_recommended([wrong]) == ([wrong], "")


def test_a_model_that_cannot_be_had_recommends_nothing() -> None:
    assert taken(Path("nowhere")) == taken(Path("owner/missing")) == []


def test_the_command_says_what_it_took_and_records_it(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(TARGET / "model.safetensors", folder)
    recommend(folder, temperature=0.9, min_p=0.02)
    options = [f"model.path={folder}", "accept=logprob", "threshold=-4", "problems=1"]
    options += ["max_new_tokens=8"]
    given = [*options, "plain=false", "transcript=false", f"hydra.run.dir={tmp_path / 'run'}"]
    monkeypatch.setattr(sys, "argv", ["semspec.run", *given])
    main()
    assert (
        f"from generation_config.json of {folder}: temperature=0.9 min_p=0.02"
        in capsys.readouterr().out
    )
    kept = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (kept["temperature"], kept["min_p"], kept["top_p"]) == (0.9, 0.02, 1.0)
    with api.load(*options) as pair:
        assert pair._solver.config.sampling.min_p == 0.02


def test_the_configuration_that_is_shown_is_resolved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["semspec.run", "--cfg", "job", "model=qwq32b"])
    main()
    shown: Any = OmegaConf.create(capsys.readouterr().out)
    assert (shown.top_k, shown.max_new_tokens) == (40, 32768)


# ---- thinking --------------------------------------------------------------------------------------


def test_a_template_is_told_of_the_thinking(folder: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    assert Text(str(folder)).prompt("p=1")[0] == "p=1"
    assert Text(str(folder), thinking=True).prompt("p=1")[0] == "p=1"
    assert Text(str(folder), thinking=False).prompt("p=1")[0] == "p=1<think></think>"
