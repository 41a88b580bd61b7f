"""The plugin's states and scores against transformers' and the hf engine's, in real engines.

The pool holds few tokens and prompts are prefilled in chunks of 32, so states arrive in pieces; SGLang's own test switch
retracts running requests again and again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from semspec import world
from semspec.artifacts.probe import Probe
from semspec.engines.hf import Hf
from semspec.errors import UserError
from semspec.rules._engine_probe import Inside, for_engine
from semspec.sglang_plugin import settings
from semspec.sglang_plugin.protocol import Ask, ask_for, reply, unpack, values
from semspec.types import Context, Query, Sampling, What
from tests.support import sglang_env, tiny_models
from tests.support.probes import FACTS, random_probe

CHUNK = 32
ARTIFACTS = Path(__file__).parents[2] / "hub_artifacts"
PROBES = {name: f"embedded/probe-tiny-target-{name}" for name in ("paper", "plus", "last-layer")}
ONE = {"temperature": 0, "max_new_tokens": 1}
# engines of their own
QWEN2, QWEN3 = (pytest.param(name, marks=pytest.mark.deep) for name in ("qwen2", "qwen3"))
Spans = tuple[tuple[int, int], ...]


@dataclass
class Served:
    """An engine with the plugin, and transformers' own model of the same weights."""

    engine: Any
    model: Any
    folder: Path
    probes: Mapping[str, str]  # what it holds: by name, the place

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.vocab_size)

    def tokens(self, count: int, seed: int) -> list[int]:
        rng = random.Random(seed)
        return [rng.randrange(3, self.vocabulary) for _ in range(count)]

    def truth(self, ids: Sequence[int], ask: Ask) -> torch.Tensor:
        """[spans, reductions, layers, width] from transformers' output_hidden_states."""
        with torch.inference_mode():
            states = self.model(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states
        chosen = torch.stack([states[i][0] for i in ask.layers or range(len(states))])
        reduced = {
            "mean": lambda x: x.mean(1),
            "max": lambda x: x.amax(1),
            "last": lambda x: x[:, -1],
        }
        return torch.stack(
            [torch.stack([reduced[r](chosen[:, a:b]) for r in ask.reduce]) for a, b in ask.spans]
        )

    def check(self, ids: Sequence[int], ask: Ask, answer: Any) -> None:
        found = unpack(reply(answer["meta_info"]))
        expected = self.truth(ids, ask)
        assert found.shape == expected.shape
        assert (found - expected).abs().max() < 1e-4


def pooled(spans: Spans, *, reduce: Sequence[str] = ("mean",), layers: Sequence[int] = ()) -> Ask:
    return Ask(spans=spans, want="pooled", reduce=tuple(reduce), layers=tuple(layers))


@pytest.fixture(scope="module", params=[QWEN2, QWEN3, "tiny-target"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Qwen2 and Qwen3 with random weights and probes; the embedded target is a Llama with its own."""
    embedded = request.param == "tiny-target"
    folder = ARTIFACTS / request.param if embedded else tiny_models.folder(request.param)
    probes = PROBES if embedded else untrained(folder, tmp_path_factory.mktemp("probes"))
    asked = {"artifacts": list(probes.values()), "allow_mismatch": not embedded}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.VARIABLE, json.dumps({"probe": asked}))
        if not embedded:
            patch.setattr("sglang.srt.managers.scheduler.TEST_RETRACT", True)
        arguments = {
            "chunked_prefill_size": CHUNK,
            "max_total_tokens": 1024,
            "context_length": 512,
            "skip_tokenizer_init": True,
        }
        with sglang_env.engine(folder, **arguments) as engine:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            yield Served(engine, model, folder, probes)


def untrained(model: Path, folder: Path) -> dict[str, str]:
    """Probes of random weights for a model."""
    shape = json.loads((model / "config.json").read_text())
    facts = replace(FACTS, layers=shape["num_hidden_layers"], width=shape["hidden_size"])
    for name in ("states", "plus"):  # with this seed no step is like the others
        random_probe(facts=facts, seed=2, logprobs=name == "plus").save(folder / name)
    return {name: str(folder / name) for name in ("states", "plus")}


def test_pooled_states_are_those_of_transformers(served: Served) -> None:
    """Fresh, cached prefix, all cached, a span reaching into the cache, one token, several spans."""
    first = served.tokens(30, 1)
    step = first[:20] + served.tokens(9, 2)
    cases = [
        (first, ((18, 30),), 0),
        (first, ((18, 30),), 18),  # all of it is cached, what is read is computed again
        (step, ((20, 29),), 20),  # another step after the same prefix
        (step, ((11, 29),), 11),
        (step, ((28, 29),), 28),
        (step, ((0, 29),), 0),
        (step, ((20, 23), (23, 27), (28, 29)), 20),
    ]
    for ids, spans, cached in cases:
        ask = pooled(spans)
        answer = served.engine.generate(
            input_ids=ids, sampling_params=ONE | {"custom_params": ask.params()}
        )
        served.check(ids, ask, answer)
        assert answer["meta_info"]["cached_tokens"] == cached


def test_poolings_of_chosen_layers_are_those_of_transformers(served: Served) -> None:
    ids = served.tokens(25, 3)
    last = served.model.config.num_hidden_layers
    for layers in ((), (last,), (0,), (2, 0), (1, last)):
        ask = pooled(((10, 17), (17, 25)), reduce=("mean", "max", "last"), layers=layers)
        answer = served.engine.generate(
            input_ids=ids, sampling_params=ONE | {"custom_params": ask.params()}
        )
        served.check(ids, ask, answer)


def test_prompts_in_chunks_and_batches_pool_as_alone(served: Served) -> None:
    """Spans across chunk borders, in a batch with others and with one that asks nothing."""
    served.engine.flush_cache()
    prompts = [served.tokens(n, seed) for seed, n in enumerate((100, 70, 31, 33, 150))]
    asks = [
        pooled(((3, 97),)),
        pooled(((60, 62), (63, 65), (66, 70)), reduce=("max", "last")),
        None,
        pooled(((31, 33),)),
        pooled(((5, 20),), reduce=("last",)),  # over long before the prompt's last chunk
    ]
    answers = served.engine.generate(
        input_ids=prompts,
        sampling_params=[ONE | ({"custom_params": a.params()} if a else {}) for a in asks],
    )
    for ids, ask, answer in zip(prompts, asks, answers, strict=True):
        if ask is None:
            assert not [x for x in answer["meta_info"].get("semspec") or [] if x is not None]
        else:
            served.check(ids, ask, answer)


def test_reading_states_does_not_change_the_text(served: Served) -> None:
    ids = served.tokens(40, 7)
    sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    plain = served.engine.generate(input_ids=ids, sampling_params=sampling)
    ask = pooled(((30, 40),))
    read = served.engine.generate(
        input_ids=ids, sampling_params=sampling | {"custom_params": ask.params()}
    )
    served.check(ids, ask, read)
    assert read["output_ids"] == plain["output_ids"]
    none = served.engine.generate(
        input_ids=ids,
        sampling_params={"temperature": 0, "max_new_tokens": 0, "custom_params": ask.params()},
    )
    served.check(ids, ask, none)  # the value does not hang on a generated token


@pytest.mark.parametrize("served", [QWEN2, QWEN3], indirect=True)
def test_retracted_requests_keep_their_value(served: Served) -> None:
    prompts = [served.tokens(n, 50 + n) for n in (35, 42, 50, 64)]
    asks = [pooled(((len(ids) - 11, len(ids)),)) for ids in prompts]
    answers = served.engine.generate(
        input_ids=prompts,
        sampling_params=[
            {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
            | {"custom_params": ask.params()}
            for ask in asks
        ],
    )
    assert sum(a["meta_info"]["num_retractions"] for a in answers) > 0
    for ids, ask, answer in zip(prompts, asks, answers, strict=True):
        served.check(ids, ask, answer)


def test_a_bad_question_is_answered_in_one_line(served: Served) -> None:
    ids = served.tokens(20, 9)
    many = served.model.config.num_hidden_layers + 1
    for ask, told in [
        (pooled(((10, 21),)), "behind the prompt of 20 tokens"),
        (pooled(((5, 9),), layers=(many,)), "the model has 0"),
        (Ask(spans=((5, 9),), probe="c0ffee"), "probe c0ffee is not loaded there"),
    ]:
        answer = served.engine.generate(
            input_ids=ids, sampling_params=ONE | {"custom_params": ask.params()}
        )
        with pytest.raises(UserError, match=told) as caught:
            reply(answer["meta_info"])
        assert "\n" not in str(caught.value)
    for wrong, told in [
        (pooled(((12, 12),)), "spans ascend, and none is empty"),
        (pooled(((5, 9),), layers=(1, 1)), "layers: name each once"),
    ]:  # what makes no sense for any model is refused when it arrives
        with pytest.raises(ValueError, match=told):
            served.engine.generate(
                input_ids=ids, sampling_params=ONE | {"custom_params": wrong.params()}
            )


# ---- scores -----------------------------------------------------------------------------------


def chains(served: Served) -> list[tuple[list[int], list[int], Spans]]:
    """(context, steps, their spans): of every domain, or of random tokens for a random model."""
    if served.probes is PROBES:
        return solutions()
    spans = ((0, 12), (12, 33), (33, 42))
    return [(served.tokens(30, i), served.tokens(42, 100 + i), spans) for i in range(6)]


@cache
def solutions() -> list[tuple[list[int], list[int], Spans]]:
    """(context, steps of a solution and what is no step at all, their spans), of every domain."""
    tokenizer = AutoTokenizer.from_pretrained(ARTIFACTS / "tiny-target")
    rng, found = random.Random(4), []
    for domain in world.DOMAINS.values():
        for _ in range(3):
            problem = domain.make(rng)
            question = tokenizer.apply_chat_template(
                [{"role": "user", "content": problem.question}],
                tokenize=False,
                add_generation_prompt=True,
            )
            text = world.render_solution(problem, domain.solve(rng, problem))
            ids, solution = tokenizer(question)["input_ids"], tokenizer(text)["input_ids"]
            wrong = rng.sample(range(3, 500), 9)
            found.append(
                (ids + solution[:7], solution[7:40] + wrong, ((0, 12), (12, 33), (33, 42)))
            )
    return found


def test_scores_and_decisions_are_those_of_the_hf_engine(served: Served) -> None:
    """Several steps judged in one pass, in a batch, by probes that read log-probabilities, too."""
    for place in served.probes.values():
        same_scores(served, Probe.load(place))


def same_scores(served: Served, own: Probe) -> None:
    seat = for_engine(own, frozenset(What))
    assert isinstance(seat, Inside)
    engine = Hf(device="cpu").load(str(served.folder))
    queries, requests = [], []
    for context, tokens, spans in chains(served):
        query = Query("target", Context(len(queries), context), Sampling(), random.Random(0))
        query.tokens, query.reads = tokens, own.reads(spans)
        queries.append(query)
        ask = ask_for(seat.reads(spans), len(context))
        assert ask is not None
        requests.append((context + tokens, ask))
    answers = served.engine.generate(
        input_ids=[ids for ids, _ in requests],
        sampling_params=[ONE | {"custom_params": ask.params()} for _, ask in requests],
    )
    assert not any("input_token_logprobs" in answer["meta_info"] for answer in answers)
    ours, theirs = [], []
    for query, (_, _, spans), answer in zip(queries, chains(served), answers, strict=True):
        theirs.append(own.score(engine.answer([query])[0].values, query.reads, spans))
        reads = seat.reads(spans)
        ours.append(seat.score(values(reads, answer["meta_info"]), reads, spans))
    found, expected = torch.cat(ours), torch.cat(theirs)
    assert (found - expected).abs().max() < 1e-4
    for threshold in (0.25, float(expected.mean())):
        assert (found >= threshold).tolist() == (expected >= threshold).tolist()
    assert expected.min() + 0.01 < expected.mean() < expected.max() - 0.01, "nothing to decide"


@pytest.mark.parametrize("served", ["tiny-target"], indirect=True)
def test_a_probe_that_reads_logprobs_reads_one_row_more(served: Served) -> None:
    """A token's log-probability stands in the row before it: computed again, however much is cached."""
    ids = served.tokens(20, 9)
    for spans, told in (((10, 20),), 9), (((0, 20),), None):
        ask = Ask(spans=spans, probe=Probe.load(PROBES["plus"]).digest)
        params = ONE | {"custom_params": ask.params()}
        for _ in range(2):
            meta = served.engine.generate(input_ids=ids, sampling_params=params)["meta_info"]
        if told is None:
            with pytest.raises(UserError, match="first token has none: begin the first span"):
                reply(meta)
        else:
            assert meta["cached_tokens"] == told
            assert len(reply(meta)["scores"]) == 1
