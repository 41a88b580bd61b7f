"""Every kind of plugin, and the life cycle that all share.

Drafters and rules are *plans*: generators that yield queries and receive answers. They touch no
engine, so the driver can run one problem or many, and every rule can be tested on the toy engine,
whose exact distribution is known. A plugin is a frozen, kw_only dataclass whose fields are its options
and whose docstring's first line is its help; ``semspec.registry`` finds it.

The life cycle, in this order (``config.build``, ``solver.Solver``):

1. It is built from its options. ``__post_init__`` raises UserError for options that make no sense.
2. ``check_setup(setup)`` raises UserError if it cannot work in this configuration, before a model loads.
3. ``models()`` names the models that it brings along, by role (drafters and rules). Their light files,
   configurations and tokenizers, are fetched.
4. ``loads(run)`` names the artifacts that it will load, and raises UserError if they are not known, before
   anything heavy is fetched. ``plan=true`` shows them.
5. ``bind(run)`` returns a copy with its artifacts, and raises UserError if they belong to other models or do
   not hold for the run, before weights are fetched (drafters, rules, splitters, stoppers).
6. ``measure(bench)`` returns a copy with what can only be measured on the loaded pair (rules).
7. ``open(kit)`` begins one problem; a splitter opens a stream, an engine loads a model.

``example(folder)`` gives the contract tests plugins to try, because ``tests/contract`` names none.

``plugin`` has what all kinds share; ``setup``, ``kit`` and ``plan`` have what plugins are given and how they ask models.
Each kind has its own module (``drafter``, ``rule``, ``stopper``, ``splitter``, ``engine``, ``benchmark``), and
``in_server`` is for rules inside a serving engine. Import all names from here.
"""

from __future__ import annotations

from semspec.protocols.benchmark import Benchmark, BenchmarkProblem, Grade
from semspec.protocols.drafter import Drafter, DraftSession
from semspec.protocols.engine import (
    Caching,
    Concurrent,
    Constraining,
    Engine,
    EngineOptions,
    Need,
    OnServers,
    Onward,
    Small,
    Standing,
    Watched,
)
from semspec.protocols.in_server import VERIFIED, InServer, Verified
from semspec.protocols.kit import Earlier, Kit
from semspec.protocols.plan import Plan
from semspec.protocols.plugin import Plugin, Run, Source
from semspec.protocols.rule import Bench, ProbeSource, Rule, RuleSession
from semspec.protocols.setup import Setup
from semspec.protocols.splitter import Splitter
from semspec.protocols.stopper import Closing, Stopper, StopSession

__all__ = [
    "VERIFIED",
    "Bench",
    "Benchmark",
    "BenchmarkProblem",
    "Caching",
    "Closing",
    "Concurrent",
    "Constraining",
    "DraftSession",
    "Drafter",
    "Earlier",
    "Engine",
    "EngineOptions",
    "Grade",
    "InServer",
    "Kit",
    "Need",
    "OnServers",
    "Onward",
    "Plan",
    "Plugin",
    "ProbeSource",
    "Rule",
    "RuleSession",
    "Run",
    "Setup",
    "Small",
    "Source",
    "Splitter",
    "Standing",
    "StopSession",
    "Stopper",
    "Verified",
    "Watched",
]
