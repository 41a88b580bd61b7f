"""The parts of a certificate: laws, cells, tests, their power, and greedy texts."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

from semspec.certify import greedy, statistics
from semspec.certify.endpoints.http import Client
from semspec.certify.laws import END, Law, Partition, law_of_likeliest, law_of_row, with_end
from semspec.certify.prompts import PROMPTS, read_prompts
from semspec.certify.statistics import Cells, Evidence, Pairing
from semspec.decoding.sampling import probabilities
from semspec.deferred import torch
from semspec.engines.toy import Toy
from semspec.errors import UserError
from semspec.types import Sampling
from tests.support.faulty_speculation import Speculating, ToyReference

TOY = Toy(vocabulary=5, seed=3, stop=True)


# --- laws ---


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.6),
        Sampling(1.0, 3),
        Sampling(0.8, 0, 0.9),
        Sampling(0.7, 0, 1.0, 0.2),
    ],
    ids=str,
)
def test_the_listed_tokens_give_the_law_of_the_whole_row(sampling: Sampling) -> None:
    row = torch.randn(12, generator=torch.Generator().manual_seed(1)) * 3
    own = law_of_row(row, sampling)
    logs = row.log_softmax(-1).tolist()
    for count in (12, 10):
        best = sorted(enumerate(logs), key=lambda one: -one[1])[:count]
        found = law_of_likeliest(dict(best), sampling)
        assert found.tokens == own.tokens[: len(found.tokens)]
        assert found.probs == pytest.approx(own.probs[: len(found.probs)], abs=2e-3)
        assert math.fsum(found.probs) + found.rest == pytest.approx(1, abs=1e-6)
    whole = probabilities(row, sampling)
    assert all(own.of(t) == pytest.approx(float(whole[t]), abs=1e-6) for t in range(12))


@pytest.mark.parametrize(
    "sampling", [Sampling(1.5), Sampling(1.0, 9), Sampling(1.0, 0, 0.99), Sampling(0.9)], ids=str
)
def test_what_the_listed_tokens_leave_open_is_refused(sampling: Sampling) -> None:
    flat = {token: math.log(0.1) for token in range(5)}  # half of the mass is unlisted
    with pytest.raises(UserError, match="do not determine its distribution"):
        law_of_likeliest(flat, sampling)


def test_places_are_uniform_whatever_the_law() -> None:
    law = Law((3, 1, 7), (0.5, 0.3, 0.1), 0.1)
    rng = random.Random(0)
    drawn = rng.choices([3, 1, 7, "any"], [0.5, 0.3, 0.1, 0.1], k=20_000)
    places = [law.place(token, rng.random()) for token in drawn]
    counts, _ = np.histogram(places, 20, (0, 1))
    assert chi2.sf(((counts - 1_000) ** 2 / 1_000).sum(), 19) > 1e-4
    assert not Law((3,), (1.0,)).possible(1) and law.possible(99)


def test_all_ends_of_a_text_are_one() -> None:
    law = with_end(Law((1, 2, 3), (0.5, 0.3, 0.2)), frozenset({2, 3}))
    assert law.of(END) == pytest.approx(0.5) and law.of(2) == 0


@pytest.mark.parametrize(("most", "length"), [(1, 2), (6, 3), (40, 3), (10_000, 3)])
def test_cells_divide_all_outcomes_by_their_probabilities(most: int, length: int) -> None:
    reference, sampling = ToyReference(TOY), Sampling(0.8)
    cells = Partition(lambda nodes: reference.laws(nodes, sampling), (0, 1), length, most, 0.0)
    law = TOY.models()["target"].law((0, 1), length, sampling)
    sums = [0.0] * len(cells.probs)
    for outcome, p in law.items():
        shown = (*outcome[:-1], END) if outcome[-1] == 4 else outcome
        sums[cells.cell(shown)] += p
    assert sums == pytest.approx(cells.probs, abs=1e-6)
    assert (0 < cells.depth() <= length) == (most > 1)
    assert all(cells.cell(o) < len(sums) for o in product(range(5), repeat=length))


# --- statistics ---


def test_pools_expect_enough_and_keep_all_mass() -> None:
    probs = [0.5, 0.3, 0.1, 0.05, 0.03, 0.02]
    for n in (1, 20, 100, 1_000):
        pools = statistics.pooled(probs, n)
        sums = statistics.add_up(probs, pools)
        assert sums.sum() == pytest.approx(1)
        assert len(sums) == 1 or (sums * n >= statistics.LEAST - 1e-9).all()
    assert len(set(statistics.pooled(probs, 1_000))) == 6


def test_p_values_near_the_threshold_come_from_the_law_itself() -> None:
    """With few expected counts chi-square's tail is wrong; the drawn one is Pearson's own."""
    rng = np.random.default_rng(1)
    cells = Cells(np.array([14.0, 46.0]), np.array([0.1, 0.9]))
    exact = sum(
        math.comb(60, k) * 0.1**k * 0.9 ** (60 - k)
        for k in range(61)
        if (k - 6) ** 2 / 6 + (6 - k) ** 2 / 54 >= cells.statistic() - 1e-9
    )
    found = statistics.chi_square([cells], rng, 200_000)
    assert found.p == pytest.approx(exact, rel=0.15)


def test_evidence_of_a_law_is_rarely_large_at_any_time() -> None:
    rng, wrong = random.Random(4), 0
    for _ in range(300):
        evidence = Evidence([0.6, 0.3, 0.1])
        for _ in range(60):
            evidence.add(rng.choices(range(3), [0.6, 0.3, 0.1])[0])
            if evidence.log() >= math.log(10):
                wrong += 1
                break
    assert wrong <= 45  # 30 at most are expected
    other = Evidence([0.6, 0.3, 0.1])
    for _ in range(300):
        other.add(rng.choices(range(3), [0.4, 0.3, 0.3])[0])
    assert other.log() > math.log(100)
    other.add(1)
    assert Evidence([1.0, 0.0]).log() == 0.0


def test_evidence_is_a_martingale() -> None:
    """Its mean over all outcomes of two draws is 1."""
    law, mean = [0.7, 0.2, 0.1], 0.0
    for a, b in product(range(3), repeat=2):
        evidence = Evidence(law)
        evidence.add(a)
        evidence.add(b)
        mean += law[a] * law[b] * math.exp(evidence.log())
    assert mean == pytest.approx(1)


def test_pairs_of_one_source_are_no_evidence_and_of_two_are() -> None:
    rng = random.Random(2)
    alike, unlike = Pairing(), Pairing()
    for _ in range(400):
        alike.add(rng.randrange(4), rng.randrange(4))
        unlike.add(rng.randrange(4), rng.choices(range(4), [0.5, 0.3, 0.1, 0.1])[0])
    assert alike.log < math.log(20) < unlike.log
    first = Pairing()
    first.add("a", "b")  # before anything is known, either way is as likely
    assert first.log == 0.0


def test_what_would_be_found_is_what_chi_square_finds() -> None:
    for freedom, alpha, power in ((1, 0.05, 0.8), (20, 0.001, 0.9), (60, 1e-4, 0.99)):
        needed = statistics.noncentrality(freedom, alpha, power)
        assert ncx2.sf(chi2.isf(alpha, freedom), freedom, needed) == pytest.approx(power, abs=1e-6)
        n = statistics.needed(0.1, freedom, alpha, power)
        assert statistics.detectable(n, freedom, alpha, power) == pytest.approx(0.1, rel=0.01)
    # the least divergence at a distance: half of the mass against the other half
    p, t = np.array([0.2, 0.3, 0.5]), 0.1
    q = p + t * np.array([0.4, 0.6, -1.0])
    assert ((q - p) ** 2 / p).sum() == pytest.approx(4 * t * t)


def test_coincidences_are_counted_exactly() -> None:
    assert statistics.too_many(3, [(10, 0.1)]).p == pytest.approx(0.0702, abs=1e-4)
    assert statistics.too_many(0, [(10, 0.1)]).p == 1.0
    assert statistics.too_many(0, []).p == 1.0


# --- greedy texts ---


def test_a_tie_is_told_from_a_fault() -> None:
    class Two(ToyReference):
        def logprobs(self, prefixes, also):  # type: ignore[no-untyped-def]
            return [{1: -0.5, 2: -0.51, 3: -3.0} for _ in prefixes]

    found = greedy.read_by(Two(TOY), 0, (0,), (1, 2, 1, 3, 9), tie=0.1)
    assert (found.agreed, found.ties, found.faults) == (2, 1, 2)
    assert found.first is not None and found.first.at == 1
    assert found.first.gap == pytest.approx(0.01)
    assert found.worst is not None and found.worst.wrote == 9 and found.worst.gap is None
    assert greedy.Result(0.1, [found]).faulty


def test_two_servers_part_at_their_first_difference() -> None:
    found = greedy.beside(0, (0,), (1, 2, 3), (1, 4, 5), lambda p, t: {2: -1.0, 4: -0.4}, tie=0.1)
    assert (found.tokens, found.agreed, found.faults) == (2, 1, 1)
    untold = greedy.beside(0, (0,), (1, 2), (1, 4), None, tie=0.1)
    assert greedy.Result(0.1, [untold]).undecided
    assert greedy.beside(0, (0,), (1, 2), (1, 2), None, tie=0.1).agreed == 2


def test_honest_speculation_is_greedy_where_the_target_is() -> None:
    writer, prefix = Speculating(TOY), (0, 1)
    (text,) = writer.write([prefix], 30, greedy.GREEDY)
    assert not greedy.read_by(ToyReference(TOY), 0, prefix, text, tie=1e-6).faults


# --- what is read ---


def test_prompts_come_from_lines_and_json(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "p"
    file.write_text('a\\nb\n\n{"prompt": "c"}\n{"turns": ["d", "e"], "category": "x"}\n{broken\n')
    assert read_prompts(str(file)) == ["a\nb", "c", "d", "{broken"]
    assert read_prompts("") == list(PROMPTS)
    file.write_text("\n")
    with pytest.raises(UserError, match="contains no prompt"):
        read_prompts(str(file))
    with pytest.raises(UserError, match="give a text file"):
        read_prompts(str(tmp_path))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:0", "http://x:y"])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(UserError, match="not a server's address"):
        Client(url)


def test_an_address_is_shown_without_its_password() -> None:
    assert Client("http://ada:secret@127.0.0.1:1/v1").url == "http://127.0.0.1:1/v1"
