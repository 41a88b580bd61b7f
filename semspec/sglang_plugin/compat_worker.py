"""``compat`` for our drafters: the drafting worker, a subclass of SGLang's NGRAM worker, and its command-line name.

Looked up in the wheels of 0.5.20 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from semspec.sglang_plugin.compat import LOOPS
from semspec.sglang_plugin.compat_speculative import DRAFTED, eager, held, on, tell
from semspec.sglang_plugin.protocol import ROUNDS

# a verifying pass of so many rows costs as much as launching a one-row pass without a CUDA graph: derived from what GPUs
# compute in the launch time, not measured
GRAPH_ROWS = 512
# move the KV of accepted tokens into place, and commit states of linear attention
BEHIND_TREES = "move_accept_tokens_to_target_kvcache", "commit_mamba_states_after_verify"
WORKERS: dict[str, Callable[[], type]] = {}  # by algorithm, with the options registered last


def register_algorithm(name: str, width: int, worker: Callable[[], type]) -> None:
    """Register a name for ``--speculative-algorithm`` that behaves like NGRAM with another worker.

    ``width``: the number of nodes if ``--speculative-num-draft-tokens`` is not given.
    """
    from sglang.srt.speculative import spec_registry
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    WORKERS[name] = worker
    if name in spec_registry._REGISTRY:  # a process may start two servers with different options
        return
    ngram = SpeculativeAlgorithm.NGRAM

    class TreeDrafter(spec_registry.CustomSpecAlgo):  # type: ignore[misc]
        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def handle_server_args(self, server_args: Any) -> None:
            if server_args.speculative_num_draft_tokens is None:
                server_args.speculative_num_draft_tokens = width
            ngram.handle_server_args(server_args)

        def __getattr__(self, asked: str) -> Any:  # for attributes that only built-ins have
            if asked.startswith("__"):
                raise AttributeError(asked)
            return getattr(ngram, asked)

    SpeculativeAlgorithm.register(name, supports_overlap=True, spec_class=TreeDrafter)(
        lambda server_args: WORKERS[name]()
    )


def tree_worker(corpus: Callable[[Any, int], Any]) -> type:
    """Return a subclass of NGRAM's worker with ``corpus(runner, n)``, a ``drafts.Drafts``, as its corpus.

    The corpus is shown the requests before each draft, and gets the results of the target's passes.
    """
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.speculative import ngram_worker as theirs

    class TreeWorker(theirs.NGRAMWorker):  # type: ignore[misc]
        def __init__(
            self, server_args: Any, gpu_id: int, *args: Any, target_worker: Any, **kw: Any
        ) -> None:
            runner = target_worker.model_runner
            known = theirs.NgramCorpus  # compiled when it is first constructed
            theirs.NgramCorpus = lambda *_, draft_token_num, **__: corpus(runner, draft_token_num)
            try:
                super().__init__(server_args, gpu_id, *args, target_worker=target_worker, **kw)
            finally:
                theirs.NgramCorpus = known
            # how many of a request's last tokens the corpus gets: more than one round can add
            self.max_trie_depth = 2 * self.draft_token_num
            self._prepared: Any = None  # the trees of the pass that is about to run
            self._decodes = False  # True while a plain decoding pass runs
            self._prev_decode_rids: set[str] = set()  # SGLang's own: requests of the last pass
            # linear attention: only verifying passes commit its states
            self._linear = mambaish_config(runner.model_config) is not None
            # what SGLang does after verifying a tree; not needed if the tree was only its root
            self._behind = {name: getattr(theirs, name) for name in BEHIND_TREES}

        def _init_preallocated_tensors(self) -> None:
            """Allocate the tensors of a pass twice: for whole trees, and for their roots alone."""
            super()._init_preallocated_tensors()
            own = self.__dict__
            wide = dict(own)
            self.draft_token_num = 1
            super()._init_preallocated_tensors()
            self._single = {name: own[name] for name in own if own[name] is not wide.get(name)}
            own.update(wide)

        def _prepare_draft_tokens(self, batch: Any) -> Any:
            if self._prepared is not None:
                return self._prepared
            reqs = batch.reqs
            texts = [(r.rid, r, r.origin_input_ids_unpadded, r.output_ids) for r in reqs]
            self.ngram_corpus.meet(texts)
            return super()._prepare_draft_tokens(batch)

        @contextmanager
        def _plainly(self) -> Iterator[None]:
            """Let the target read only the last token of each text, as in plain decoding."""
            nodes, sees = self._prepared
            n = self.draft_token_num
            held = {name: getattr(self, name) for name in self._single}
            worker = self._target_worker
            self._prepared = (
                nodes.reshape(-1, n)[:, 0].copy(),
                sees.reshape(-1, n, n)[:, 0, 0].copy(),
            )
            self.__dict__.update(self._single, _target_worker=_Decoding(worker))
            vars(theirs).update(dict.fromkeys(self._behind, _nothing))
            try:
                yield
            finally:
                vars(theirs).update(self._behind)
                self.__dict__.update(held, _target_worker=worker)

        def _padded(self, result: Any) -> None:
            """Pad the result of a plain pass to the width that SGLang expects of every pass."""
            draft = result.next_draft_input
            wide = draft.accept_tokens.new_zeros(len(draft.accept_lens), self.draft_token_num)
            wide[:, 0] = draft.accept_tokens
            result.next_token_ids = tokens = wide.flatten()
            result.next_draft_input = type(draft)(
                draft_token_num=self.draft_token_num,
                new_seq_lens=draft.new_seq_lens,
                accept_tokens=tokens,
                accept_lens=draft.accept_lens,
            )

        @contextmanager
        def _decoding(self, batch: Any) -> Iterator[None]:
            """Let the batch be decoded without speculation: SGLang draws, and nothing is verified."""
            draft, where = batch.spec_info, batch.req_pool_indices
            last = (draft.accept_lens - 1).long()[:, None]
            kept = draft.accept_tokens.view(len(last), -1)
            table = batch.req_to_token_pool.req_to_token
            given = {"input_ids": kept.gather(1, last)[:, 0].long()}
            given["out_cache_loc"] = table[where, batch.seq_lens].to(torch.int64)
            self._decodes = True
            try:
                with _as_decoded(batch, given):
                    yield
            finally:
                self._decodes = False

        def _decoded(self, batch: Any, *args: Any, **kw: Any) -> Any:
            """Run a pass under ``_decoding`` and return its result."""
            with self._decoding(batch):
                # SGLang handles an unverified batch like prompts, and takes its lengths as those after the pass
                result = super().forward_batch_generation(batch, *args, **kw)
            result.next_token_ids = result.next_draft_input.accept_tokens
            here = {request.rid for request in batch.reqs}
            if gone := self._prev_decode_rids - here:
                self.ngram_corpus.erase_match_state(list(gone))
            self._prev_decode_rids = here
            return result

        def _prepare_for_speculative_decoding(self, batch: Any) -> None:
            if self._decodes:
                return
            super()._prepare_for_speculative_decoding(batch)
            if batch.forward_mode.is_target_verify():
                counts = on(self.ngram_corpus.counts, torch.device(self.device))
                setattr(batch.spec_info, DRAFTED, counts)
                setattr(batch.spec_info, LOOPS, self.ngram_corpus.loops)

        def _first_of(self, request: Any) -> int | None:
            if request.output_ids:  # it was retracted, and its text continues
                return held(request)
            said: int | None = self.ngram_corpus.prompt_end(request)
            return held(request) if said is None else said

        def _write_first(self, requests: Sequence[Any], result: Any) -> None:
            """Replace the first drawn token by the one that the request prescribes, if it does."""
            begun = {
                i: token
                for i, request in enumerate(requests)
                if (token := self._first_of(request)) is not None
            }
            if not begun:
                return
            drawn, drafts = result.next_token_ids, result.next_draft_input.accept_tokens
            places = on(list(begun), drawn.device)
            tokens = on(list(begun.values()), drawn.device)
            drawn[places] = tokens.to(drawn.dtype)
            drafts.view(len(requests), -1)[places, 0] = tokens.to(drafts.dtype)

        def forward_batch_generation(self, batch: Any, *args: Any, **kw: Any) -> Any:
            extends, verifies = batch.forward_mode.is_extend(), batch.forward_mode.is_decode()
            fed = []
            if extends:
                parts = zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
                fed = [(request.rid, request, *part) for request, *part in parts]
            plain = decodes = False
            if verifies:
                corpus, saves = self.ngram_corpus, _saves(self, batch)
                simply = saves and _drawn_simply(batch)
                decodes = simply and corpus.rests([request.rid for request in batch.reqs])
                if not decodes:
                    corpus.may_drop = saves
                    self._prepared = self._prepare_draft_tokens(batch)
                    plain = saves and corpus.nothing_drafted
                    decodes = simply and plain and corpus.nothing_judged
            try:
                if decodes:
                    self._prepared = None
                    result = self._decoded(batch, *args, **kw)
                else:
                    with self._plainly() if plain else nullcontext():
                        result = super().forward_batch_generation(batch, *args, **kw)
            finally:
                self._prepared = None
            output = result.logits_output
            if extends:
                self._write_first(batch.reqs, result)
                self.ngram_corpus.prefilled(fed, output.hidden_states)
            elif decodes:
                self.ngram_corpus.passes["plain"] += 1
            elif verifies:
                if plain:
                    self._padded(result)
                rids = [request.rid for request in batch.reqs]
                width = 1 if plain else self.draft_token_num
                self.ngram_corpus.verified(
                    rids, width, output.next_token_logits, output.hidden_states
                )
            if verifies and self.ngram_corpus.marks:
                tell(output, len(batch.reqs), ROUNDS, self.ngram_corpus.marks)
                self.ngram_corpus.marks.clear()
            return result

    return TreeWorker


def _nothing(*_: Any, **__: Any) -> None:
    """Replace ``BEHIND_TREES`` in passes that add one token to each text, which is in place already."""


class _Decoding:
    """The target's worker, made to read tree roots with a decoding pass, which every attention backend supports."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def forward_batch_generation(self, batch: Any, *args: Any, **kw: Any) -> Any:
        with _as_decoded(batch, {}):
            return self._worker.forward_batch_generation(batch, *args, **kw)


@contextmanager
def _as_decoded(batch: Any, given: Mapping[str, Any]) -> Iterator[None]:
    """Temporarily give a batch what ScheduleBatch.prepare_for_decode sets, and the ``given`` values."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    lengths = ("seq_lens", "seq_lens_cpu", "orig_seq_lens")
    longer = {name: getattr(batch, name, None) for name in lengths}
    changed = {name: value + 1 for name, value in longer.items() if value is not None}
    changed |= {"forward_mode": ForwardMode.DECODE, "spec_info": None, "seq_lens_sum": None}
    changed |= given
    held = {name: getattr(batch, name) for name in changed}
    _set(batch, changed)
    try:
        yield
    finally:
        _set(batch, held)


def _drawn_simply(batch: Any) -> bool:
    """Return whether SGLang draws the same for a batch with and without speculation.

    When it verifies, penalties, grammars and log-probabilities take other code paths, and logit processors are not called.
    """
    info = batch.sampling_info
    penalties = info.penalizer_orchestrator
    accumulated = info.acc_additive_penalties, info.acc_scaling_penalties
    return not (
        batch.has_grammar
        or batch.return_logprob
        or info.has_custom_logit_processor
        or (penalties is not None and penalties.is_required)
        or any(one is not None for one in accumulated)
    )


def _saves(worker: Any, batch: Any) -> bool:
    """Return whether, without drafts, a decoding pass can replace the verifying pass of a batch and is cheaper."""
    runner = worker.model_runner
    if worker._linear:
        return False
    if any(request.return_hidden_states for request in batch.reqs):  # expects a row per node
        return False
    rows = len(batch.reqs) * worker.draft_token_num
    return eager(runner) or rows >= GRAPH_ROWS


def _set(batch: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(batch, name, value)
