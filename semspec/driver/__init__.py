"""The driver: answer the queries of plans, for one problem or many at a time, and measure times.

An engine in this process answers batches. Plans then run in lockstep (``lockstep``): all waiting queries to the same
model go into one batch. When a plan ends, the next one starts at once, so ``concurrency`` problems are always running.
If a plan asks two models at the same time (drafting ahead), their batches run in parallel.

Servers take every query as it comes (``protocols.Concurrent``) and batch by themselves. Plans then run freely
(``freely``): each continues as soon as its own answer is there, and a slow one holds up nobody.

Plans are given all at once, or arrive while others run (``Inbox``). A plan that arrives begins at the next turn, and
its errors do not affect the others.

Plans read no clock. An engine stamps each answer with the seconds of its pass, ``Timed`` stamps each draft with
the seconds of the drafter's own work, and ``Finished`` has the seconds of the whole problem.

``way`` has what lockstep and freely share. Import all names from here.
"""

from __future__ import annotations

from semspec.driver.driver import Driver
from semspec.driver.inbox import Inbox
from semspec.driver.lockstep import SPARED
from semspec.driver.running import Finished
from semspec.driver.timed import Timed
from semspec.driver.way import Turns

__all__ = ["SPARED", "Driver", "Finished", "Inbox", "Timed", "Turns"]
