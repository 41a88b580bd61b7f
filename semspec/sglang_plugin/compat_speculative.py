"""``compat`` for speculative decoding: SGLang's private names that rules and drafters touch.

Looked up in the wheels of 0.5.20 to 0.5.23; differences between them are noted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from semspec.errors import UserError
from semspec.sglang_plugin import compat, trees
from semspec.sglang_plugin.compat import LOOPS, READING
from semspec.sglang_plugin.protocol import ROUNDS
from semspec.types import Sampling

OLDEST = "0.5.20"
# one function verifies for EAGLE, EAGLE3, STANDALONE and NGRAM; SGLang's registry also hooks the
# references of modules that imported it by name
SAMPLE = "speculative.eagle_utils.eagle_sample"
LOADED = "model_executor.model_runner.ModelRunner.load_model"
DRAFTED = "semspec_drafted"  # in our drafters' verify inputs: [requests] nodes without padding
SMALL_MODEL = "SEMSPEC_LM"  # the drafter that can draft whole steps
ASKED = "managers.scheduler.Scheduler.get_internal_state"  # for /server_info
ENDLESS = 1 << 30  # tokens, where SGLang has no limit
# rows of a verifying pass that cost as much as launching a pass of one row without a CUDA graph: derived from what GPUs
# compute in the time that launching takes, not measured
GRAPH_ROWS = 512
RETRACTED = "managers.schedule_batch.Req.reset_for_retract"
JUDGED = "semspec_judged"  # at a request: its steps are judged, and it is to go on exactly
HELD = "semspec_held"  # at such a one: a token of its text, and where it stood in the output
LOOP = "semspec_loop"  # at a request: the loop that judges its steps, where others draft
RULES = "semspec_rules"  # at the target's runner: what requests ask of their verification


def check_version() -> None:
    """Raise UserError for a version that ``compat`` supports and this file does not."""
    if not compat.since(OLDEST):
        raise UserError(
            f"rules and drafters are for SGLang {OLDEST} and later, this is {compat.version()}: install"
            " a later one, or leave verification and drafting out"
        )


def params_of(request: Any) -> Any:
    return request.sampling_params


def sampling_of(params: Any) -> Sampling:
    """Return a request's sampling. SGLang turns temperature 0 into top_k = 1 on arrival."""
    if params.top_k == 1:
        return Sampling(0.0)
    cuts = int(params.top_k), float(params.top_p), float(params.min_p)
    return Sampling(float(params.temperature), *cuts)


def asked(params: Any) -> Any:
    return params.custom_params


def loop_of(request: Any) -> Any:
    """Return what ``keep_loop`` kept; None where nothing was."""
    return getattr(request, LOOP, None)


def keep_loop(request: Any, loop: Any) -> None:
    """Keep a request's loop as long as the request."""
    setattr(request, LOOP, loop)


def text_of(request: Any) -> tuple[list[int], list[int]]:
    """Return a request's prompt and output, as far as passes are booked."""
    return list(request.origin_input_ids), list(request.output_ids)


def goes_on_exactly(request: Any) -> None:
    """Note that no token may come into a request's text that its loop did not write."""
    setattr(request, JUDGED, True)


def take_back(result: Any, request: Any, *_: Any) -> None:
    """Take the last token of a retracted text back.

    The pass that reads the text again writes a token. It is to be this one (``held``), and not another one behind it. Values that
    SGLang keeps by token would have it twice: then SGLang's token stays.
    """
    output = request.output_ids
    if getattr(request, JUDGED, False) and output and not request.return_logprob:
        last = int(output.pop())
        setattr(request, HELD, (len(output), last))


def held(request: Any) -> int | None:
    """Return the token that was taken back from a request's text, where that ends before it."""
    place, token = getattr(request, HELD, (-1, None))
    return token if place == len(request.output_ids) else None


def budget_of(params: Any) -> int:
    """Return how many tokens a request may have written at its end."""
    return ENDLESS if params.max_new_tokens is None else int(params.max_new_tokens)


def seed_of(params: Any) -> int | None:
    seed: int | None = params.sampling_seed
    return seed


def ends_of(params: Any, stop_ids: frozenset[int]) -> frozenset[int]:
    """Return the tokens that end a request's text."""
    return frozenset() if params.ignore_eos else stop_ids | frozenset(params.stop_token_ids or ())


def constrained(params: Any) -> bool:
    """Return whether a grammar says which tokens may follow."""
    kinds = ("json_schema", "regex", "ebnf", "structural_tag")
    return any(getattr(params, kind, None) is not None for kind in kinds)


def tell(output: Any, requests: int, key: str, values: Mapping[int, Any]) -> None:
    """Hand out lists with a pass's result, by request, in front of what is there under this key."""
    info = output.customized_info or {}
    there = info.get(key) or [None] * requests
    column = [[*(values.get(i) or ()), *(own or ())] or None for i, own in enumerate(there)]
    output.customized_info = {**info, key: column}


class Verifying:
    """One call of ``eagle_sample``: the drafts of a batch, and the target's logits over them."""

    def __init__(self, verify_input: Any, batch: Any, output: Any, grammar_mask: Any) -> None:
        self.verify_input, self.batch = verify_input, batch
        self.output, self.grammar_mask = output, grammar_mask
        self.idle = bool(batch.forward_mode.is_idle())
        self.requests: Sequence[Any] = batch.reqs
        self.n: int = verify_input.draft_token_num

    @property
    def tokens(self) -> Tensor:
        """[requests, n], starting with the last token of each text."""
        found: Tensor = self.verify_input.draft_token
        return found.reshape(len(self.requests), self.n)

    @property
    def links(self) -> tuple[Tensor, Tensor]:
        """[requests, n] each: the first child, and the next sibling."""
        return self.verify_input.retrieve_next_token, self.verify_input.retrieve_next_sibling

    def length(self, request: int) -> int:
        """Return how many tokens a request's text has: its last one is the tree's root, and not in the cache yet."""
        return int(self.batch.seq_lens[request]) + 1

    def first_paths(self) -> list[list[int]]:
        """Return the nodes of each tree's path of first children that were proposed, from the root on."""
        proposed = self.proposed(trees.parents_of(*self.links))
        real = None if proposed is None else proposed.tolist()
        found = []
        for i, child in enumerate(self.links[0].tolist()):
            path = [0]
            while (node := child[path[-1]]) >= 0 and (real is None or real[i][node]):
                path.append(node)
            found.append(path)
        return found

    @property
    def logits(self) -> Tensor:
        """[requests * n, vocabulary]"""
        found: Tensor = self.output.next_token_logits
        return found

    @property
    def loops(self) -> dict[int, Any]:
        """By request, the loop that judges its draft: none where SGLang's verification does."""
        found = getattr(self.verify_input, LOOPS, None) or ()
        return {i: loop for i, loop in enumerate(found) if loop is not None}

    @contextmanager
    def ending(self, ends: Mapping[int, int]) -> Iterator[None]:
        """Let the trees of these requests end behind a node, for the time of the call."""
        held = self.verify_input.retrieve_next_token
        if ends:
            rows, nodes = (on(list(some), held.device) for some in (ends, ends.values()))
            cut = held.clone()
            cut[rows, nodes] = -1
            self.verify_input.retrieve_next_token = cut
        try:
            yield
        finally:
            self.verify_input.retrieve_next_token = held

    def tell(self, key: str, values: Mapping[int, Any]) -> None:
        """Hand out lists with this pass's result, by request."""
        tell(self.output, len(self.requests), key, values)

    def show(self, logits: Tensor) -> None:
        """Replace the logits that SGLang uses from now on."""
        self.output.next_token_logits = logits

    @contextmanager
    def already_cut(self, requests: Sequence[int]) -> Iterator[None]:
        """Keep SGLang from applying top-p to these requests: their logits allow only what may be drawn.

        After min-p less mass is left, of which top-p would take its share once more.
        """
        info = self.batch.sampling_info
        true = info.top_ps
        if requests:
            info.top_ps = true.index_fill(0, on(requests, true.device), 1.0)
        try:
            yield
        finally:
            info.top_ps = true

    def settle(self) -> Tensor:
        """Apply penalties, biases and grammar to the logits in place, and return the original logits.

        ``eagle_sample`` is about to do the same, but a rule has to see these settings of the request
        beforehand. Give ``eagle_sample`` the original logits, so that nothing is applied twice.
        """
        info, n, logits = self.batch.sampling_info, self.n, self.logits
        additive, scaling = info.acc_additive_penalties, info.acc_scaling_penalties
        adjustments = (additive, scaling, info.logit_bias)
        # a grammar's mask alone needs no copy: applied twice it masks the same tokens
        raw = logits if all(one is None for one in adjustments) else logits.clone()
        if additive is not None:
            logits.add_(additive.repeat_interleave(n, 0))
        if scaling is not None:
            from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties

            apply_scaling_penalties(logits, scaling.repeat_interleave(n, 0))
        if info.logit_bias is not None:
            logits.add_(info.logit_bias.repeat_interleave(n, 0))
        if self.grammar_mask is not None:
            self.grammar_mask.apply(logits)
        return raw

    def takes_the_likeliest(self) -> bool:
        """Return whether SGLang takes the argmax: all are greedy, or the device cannot sample."""
        from sglang.srt.speculative import eagle_utils as theirs

        greedy = bool(self.batch.sampling_info.is_all_greedy)
        on = {f"is_{name}": getattr(theirs, f"_is_{name}") for name in ("cpu", "hip", "xpu")}
        if not compat.since("0.5.22"):
            return greedy or any(on.values())
        on["use_rejection_sampling"] = theirs.get_spec().speculative_use_rejection_sampling
        return bool(theirs._verify_uses_greedy(is_all_greedy=greedy, **on))

    def coins(self) -> Tensor:
        """Return random numbers [requests, n] that SGLang does not use itself."""
        n, seed = self.n, self.batch.sampling_info.sampling_seed
        if seed is None:
            return torch.rand(len(self.requests), n, device=self.logits.device)
        from sglang.srt.speculative.eagle_utils import _seeded_verify_coins

        where = {"seq_lens": self.batch.seq_lens, "device": self.logits.device}
        drawn: Tensor
        drawn, *_ = _seeded_verify_coins(sampling_seed=seed, draft_token_num=2 * n + 1, **where)
        return drawn[:, n + 1 :]  # after those that SGLang uses

    def proposed(self, parents: Tensor) -> Tensor | None:
        """Return which nodes a drafter really proposed, bool [requests, n]; None means all of them.

        SGLang's own NGRAM pads a tree with token 0 under the root, as which a drafted 0 counts there.
        """
        from sglang.srt.speculative.spec_info import SpecInputType

        counts = getattr(self.verify_input, DRAFTED, None)
        if counts is not None:
            own: Tensor = torch.arange(parents.shape[1], device=parents.device) < counts[:, None]
            return own
        if self.verify_input.spec_input_type != SpecInputType.NGRAM_VERIFY:
            return None
        return ~((parents == 0) & (self.tokens == 0))


def agreed(tensor: Tensor) -> Tensor:
    """Return the tensor of the tensor-parallel group's first rank, at all of its ranks.

    Ranks sum in different orders: if only one passed a bound by a hair, they would go on with sequences
    of different lengths and wait for each other forever.
    """
    if (group := _group()) is None:
        return tensor
    tensor = tensor.contiguous()
    received = group.broadcast(tensor, src=0)
    return tensor if received is None else received


def agreed_object(found: Any) -> Any:
    """Do the same as ``agreed`` for an object on the host."""
    group = _group()
    return found if group is None else group.broadcast_object(found, src=0)


def leads() -> bool:
    """Return whether this process decides for all that run its batch: it is their first one, or the only one."""
    group = _group()
    return group is None or group.rank_in_group == 0


def _group() -> Any:
    """Return the group of ranks that run one batch, or None if this one runs it alone."""
    state = sys.modules.get("sglang.srt.distributed.parallel_state")
    if state is None or state._TP is None:
        return None
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.runtime_context import get_parallel

    ranks = get_parallel()
    group = ranks.attn_tp_group if is_dp_attention_enabled() else ranks.tp_group
    return None if group.world_size == 1 else group


def reads_verification(runner: Any) -> bool:
    """Return whether states can be read in verifying passes: by the part ``probe``, in no CUDA graph, on one rank."""
    return eager(runner) and bool(getattr(runner, READING, False)) and not shares_passes(runner)


def tell_server_info(state: Any, key: str, value: Any) -> None:
    """Add an entry to what /server_info says of a scheduler."""
    state.internal_state[key] = value


def algorithm() -> str:
    """Return who drafts in this server; "" where nobody does."""
    from sglang.srt.runtime_context import get_spec

    return str(get_spec().speculative_algorithm or "")


def shares_passes(runner: Any) -> bool:
    """Return whether several processes run a pass together."""
    return int(runner.server_args.tp_size) > 1


def splits_batches(runner: Any) -> bool:
    """Return whether each process has requests of its own, of the batches of one model."""
    return bool(getattr(runner.server_args, "enable_dp_attention", False))


def share_rules(runner: Any, rules: Any) -> None:
    """Keep what requests ask of their verification where the drafter of the same process finds it."""
    setattr(runner, RULES, rules)


def rules_of(runner: Any) -> Any:
    """Return what ``share_rules`` kept; None where the part for rules is not switched on."""
    return getattr(runner, RULES, None)


def is_target(runner: Any) -> bool:
    return not runner.is_draft_worker


def place(runner: Any) -> tuple[str, str | None, str]:
    """Return path, revision and tokenizer of the model that a runner has loaded."""
    args = runner.server_args
    return args.model_path, args.revision, args.tokenizer_path or args.model_path


def vocabulary(runner: Any) -> int:
    return int(runner.model_config.vocab_size)


def layers(runner: Any) -> int:
    return int(runner.model_config.num_hidden_layers)


def width(runner: Any) -> int:
    return int(runner.model_config.hidden_size)


def stop_ids(runner: Any) -> frozenset[int]:
    return frozenset(runner.model_config.hf_eos_token_id or ())


def device(runner: Any) -> torch.device:
    found: torch.device = next(runner.model.parameters()).device
    return found


def embeddings(runner: Any) -> Callable[[Tensor], Tensor]:
    """Return a look-up of input embeddings, by which all ranks ask for the same rows."""
    try:
        table = runner.model.get_input_embeddings()
    except AttributeError:
        table = getattr(getattr(runner.model, "model", None), "embed_tokens", None)
    if table is None:
        raise UserError(
            f"{type(runner.model).__name__} does not show its input embeddings, which ARC and AdaPLD"
            " need: use another rule, or prompt_lookup or suffix"
        )

    def rows(ids: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = table(ids)
        return found.float()

    return rows


def on(values: Sequence[int], where: torch.device) -> Tensor:
    """Make a small tensor on a device without waiting for the work running there."""
    made = torch.tensor(values, dtype=torch.long)
    made = made.pin_memory() if where.type == "cuda" else made
    return made.to(where, non_blocking=True)


# moves kept tokens to where the text's are, and commits states of linear attention
BEHIND_TREES = "move_accept_tokens_to_target_kvcache", "commit_mamba_states_after_verify"
WORKERS: dict[str, Callable[[], type]] = {}  # of our drafters, by their last options


def register_algorithm(name: str, width: int, worker: Callable[[], type]) -> None:
    """Register a name for ``--speculative-algorithm`` that acts as NGRAM, but with another worker.

    ``width`` is the default number of nodes, used without ``--speculative-num-draft-tokens``.
    """
    from sglang.srt.speculative import spec_registry
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    WORKERS[name] = worker
    if name in spec_registry._REGISTRY:  # a process may start two servers, with other options
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

        def __getattr__(self, asked: str) -> Any:  # attributes that only built-in algorithms have
            if asked.startswith("__"):
                raise AttributeError(asked)
            return getattr(ngram, asked)

    SpeculativeAlgorithm.register(name, supports_overlap=True, spec_class=TreeDrafter)(
        lambda server_args: WORKERS[name]()
    )


def tree_worker(corpus: Callable[[Any, int], Any]) -> type:
    """Return NGRAM's worker class with ``corpus(runner, n)`` in place of its own: ``drafting.Drafts``.

    It meets the requests before each draft and gets the results of the target's passes.
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
            # how many of a request's last tokens are handed over: more than one round can add
            self.max_trie_depth = 2 * self.draft_token_num
            self._prepared: Any = None  # the trees of the pass that is about to run
            self._decodes = False  # it is a decoding one
            self._prev_decode_rids: set[str] = set()  # SGLang's own: who was in the last one
            # linear attention: its states are committed by verifying passes
            self._linear = mambaish_config(runner.model_config) is not None
            # what SGLang does behind a verified tree, and need not do where the tree was its root
            self._behind = {name: getattr(theirs, name) for name in BEHIND_TREES}

        def _init_preallocated_tensors(self) -> None:
            """Make the tensors of a pass twice: for whole trees, and for their roots alone."""
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
            """Have the target read the last token of each text alone, as in plain decoding."""
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
            """Give the result of a plain pass the width that SGLang expects of every pass."""
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
            """Have the batch decoded as without speculation: SGLang draws, and nothing is verified."""
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
            """Return the result of such a pass."""
            with self._decoding(batch):
                # SGLang takes a batch that is not verified for a prompt's, and its lengths for those behind the pass
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
            if request.output_ids:  # it was retracted, and its text goes on
                return held(request)
            said: int | None = self.ngram_corpus.prompt_end(request)
            return held(request) if said is None else said

        def _write_first(self, requests: Sequence[Any], result: Any) -> None:
            """Let the output begin with the token that a request says, in place of the one that was drawn."""
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
    """Stand for ``BEHIND_TREES`` where each text has one token more, in its place already."""


class _Decoding:
    """The target's worker, which reads roots of trees by a decoding pass: every attention backend knows that."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def forward_batch_generation(self, batch: Any, *args: Any, **kw: Any) -> Any:
        with _as_decoded(batch, {}):
            return self._worker.forward_batch_generation(batch, *args, **kw)


@contextmanager
def _as_decoded(batch: Any, given: Mapping[str, Any]) -> Iterator[None]:
    """Give a batch, for a while, what ScheduleBatch.prepare_for_decode leaves there, and other values."""
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
    """Return whether SGLang draws for a batch alike with and without speculation.

    Where it verifies, penalties, grammars and log-probabilities go other ways, and processors of logits are not called.
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
    """Return whether a decoding pass is cheaper for a batch without drafts, and can stand for a verifying one."""
    runner = worker.model_runner
    if worker._linear:
        return False
    if any(request.return_hidden_states for request in batch.reqs):  # rows are as many as nodes
        return False
    rows = len(batch.reqs) * worker.draft_token_num
    return eager(runner) or rows >= GRAPH_ROWS


def _set(batch: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(batch, name, value)


def eager(runner: Any) -> bool:
    """Return whether no pass is a CUDA graph."""
    return device(runner).type == "cpu" or bool(runner.server_args.disable_cuda_graph)


def keeps_states(runner: Any) -> bool:
    """Return whether every pass keeps the last layer's states (``--enable-return-hidden-states``)."""
    return bool(runner.server_args.enable_return_hidden_states)
