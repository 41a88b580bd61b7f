"""The driver: answer what plans ask, for one problem or many at a time, and take the times.

An engine in this process answers batches. Plans then run in lockstep (``lockstep``): every waiting question for the
same model goes into one batch. A plan that ends makes room for the next one at once, so that ``concurrency`` problems
are always under way. Where a plan asks two models at the same time (drafting ahead), their batches run side by side.

Servers take every question as it comes (``protocols.Concurrent``) and batch by themselves. Plans then run freely
(``freely``): each goes on as soon as its own answer is there, and a slow one holds up nobody.

Plans are given all at once, or they arrive while others run (``Inbox``): a plan that arrives begins at the next
turn, and what goes wrong with it is its own affair.

Plans read no clock. An engine stamps each answer with the seconds of its pass; ``Timed`` stamps each
draft with the seconds of the drafter's own work; ``Finished`` has those of the whole problem.

``way`` has what lockstep and freely share. Import every name from here.
"""

from __future__ import annotations

from semspec.driver.driver import Driver
from semspec.driver.inbox import Inbox
from semspec.driver.lockstep import SPARED
from semspec.driver.running import Finished
from semspec.driver.timed import Timed
from semspec.driver.way import Turns

__all__ = ["SPARED", "Driver", "Finished", "Inbox", "Timed", "Turns"]
