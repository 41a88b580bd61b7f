"""Run the jobs of a sweep in this process, or by submitit (here or on Slurm) or Ray.

Launchers pass only strings to a job: the job as JSON, the sweep's folder and the working directory. How a job ended is
read from its folder, so a killed process is handled like any other end, and the other jobs go on. Hydra's own
launchers of these names abandon a sweep at the first killed process; from hydra-submitit-launcher only the options
are used.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from semspec.config import CONF, did_you_mean, one_line, register_configs
from semspec.deferred import hydra
from semspec.errors import UserError, describe_error
from semspec.jobs.job import Job, say, state_of, work
from semspec.jobs.options import take
from semspec.report.terminal import Screen
from semspec.storage.lock import is_locked
from semspec.storage.screen import complain

Ended = Callable[[Job], None]
Options = Mapping[str, Any]
Jobs = Sequence[Job]
_SUBMITIT = ("submitit", "hydra_plugins", "hydra_plugins.hydra_submitit_launcher")
PACKAGES: dict[str, tuple[str, ...]] = {  # modules that each launcher needs, parents first
    "basic": (),
    "submitit_local": _SUBMITIT,
    "submitit_slurm": _SUBMITIT,
    "ray": ("ray",),
}
A_YEAR = 365 * 24 * 60  # minutes
LOOK = 0.2  # seconds between checks of processes
POLL = 10  # seconds between queries to Slurm, at most


@dataclass
class RayOptions:
    """``hydra.launcher.*`` with ``hydra/launcher=ray``."""

    address: str | None = None  # a cluster's; None: start one on this machine for this sweep
    num_cpus: float = 1  # per job; as many jobs run at a time as fit
    num_gpus: float = 0
    _target_: str = "ray"  # Hydra requires it; it is never instantiated


def options_of(given: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the launcher given by ``hydra/launcher=`` and its options; raise UserError if it is not usable."""
    known = ("hydra/launcher=", "hydra.launcher.", "hydra.sweeper.max_batch_size=")
    for option in given:
        if not option.startswith(known):
            raise UserError(
                f"'{option}' means nothing in a sweep: its folder is sweep=DIR, and hydra/launcher=,"
                " hydra.launcher.* and hydra.sweeper.max_batch_size= say who runs it"
            )
    name = take(given, ("hydra/launcher",))[0].get("hydra/launcher", "basic")
    if name not in PACKAGES:
        near = did_you_mean(name, list(PACKAGES))
        raise UserError(f"hydra/launcher={name}{near} known: {', '.join(PACKAGES)}")
    for package in PACKAGES[name]:
        if importlib.util.find_spec(package) is None:
            extra = name.partition("_")[0]
            raise UserError(f'hydra/launcher={name} needs: pip install "semspec[{extra}]"')
    register_configs()
    store = hydra.core.config_store.ConfigStore.instance()
    store.store(group="hydra/launcher", name="ray", node=RayOptions)
    try:
        with hydra.initialize_config_dir(str(CONF.resolve()), "semspec", version_base="1.3"):
            composed = hydra.compose("config", overrides=list(given), return_hydra_config=True)
    except (hydra.errors.HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error)) from error
    found = OmegaConf.to_container(composed.hydra.launcher)
    assert isinstance(found, dict)
    ours = ("_target_", "submitit_folder", "name")
    options = {str(k): value for k, value in found.items() if k not in ours}
    if name == "submitit_local" and not any("timeout_min=" in option for option in given):
        options["timeout_min"] = A_YEAR  # the default of an hour is for shared clusters
    return name, options | {"at_a_time": composed.hydra.sweeper.max_batch_size}


def launch(
    name: str, options: Options, jobs: Jobs, root: Path, console: Screen, ended: Ended
) -> None:
    """Run the jobs; call ``ended`` for each as soon as it is over, however it ended."""
    if name == "basic":
        for job in jobs:
            work(job, root, console)
            ended(job)
    elif name == "ray":
        _ray(options, jobs, root, ended)
    else:
        _submitit(name.partition("_")[2], options, jobs, root, ended)


def remote(job: str, root: str, where: str, leaving: Callable[[], bool] = lambda: False) -> None:
    """Run a job in its own process, perhaps on another machine, given only these arguments."""
    os.chdir(where)  # paths in options may be relative
    work(Job.from_json(job), Path(root), Screen(quiet=True), leaving)


class Remote:
    """``remote`` for submitit, which submits it again if Slurm takes the node away."""

    leaving = False

    def __call__(self, job: str, root: str, where: str) -> None:
        self.leaving = False  # reset after an earlier start
        remote(job, root, where, lambda: self.leaving)

    def checkpoint(self, *arguments: Any) -> Any:
        import submitit

        self.leaving = True  # submitit's signal handler calls sys.exit next
        return submitit.helpers.DelayedSubmission(self, *arguments)  # resumes in its folder


def _arguments(job: Job, root: Path) -> tuple[str, str, str]:
    return job.to_json(), str(root.resolve()), str(Path.cwd())


def _over(job: Job, root: Path, why: str, ended: Ended) -> None:
    """Record the end of a job's process if the job could not do so itself."""
    for run in job.runs:
        if not is_locked(root / run.name) and state_of(run, root)[0] in ("waiting", "killed"):
            say(run, root, "killed", why)
    ended(job)


def _submitit(cluster: str, options: Options, jobs: Jobs, root: Path, ended: Ended) -> None:
    import submitit
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

    shared = set(OmegaConf.structured(BaseQueueConf).keys())
    first = {f"{cluster}_{k}": options[k] for k in ("max_num_timeout",) if k in options}
    at_a_time = options.get("at_a_time")
    ours = ("max_num_timeout", "at_a_time")
    given = {k: value for k, value in options.items() if k not in ours and value is not None}
    rest = {k if k in shared else f"{cluster}_{k}": value for k, value in given.items()}
    if cluster == "slurm" and at_a_time:
        rest["slurm_array_parallelism"] = at_a_time
    try:
        executor = submitit.AutoExecutor(str(root.resolve() / ".submitit" / "%j"), cluster, **first)
        executor.update_parameters(name="semspec", **rest)
    except (RuntimeError, ValueError, TypeError) as error:  # no Slurm here, or a wrong option
        raise UserError(f"hydra/launcher=submitit_{cluster}: {describe_error(error)}") from error
    running: dict[Any, Job]
    if cluster == "slurm":
        submitit.SlurmJob.watcher = _queue()
    if cluster == "local":  # limit the jobs here; Slurm has its own queue
        at_a_time = at_a_time or max(1, (os.cpu_count() or 1) // (options["cpus_per_task"] or 1))
        waiting, running = list(jobs), {}
    else:
        arguments = zip(*(_arguments(job, root) for job in jobs), strict=True)
        waiting = []
        running = dict(zip(executor.map_array(Remote(), *arguments), jobs, strict=True))
    try:
        while waiting or running:
            while waiting and at_a_time and len(running) < at_a_time:
                job = waiting.pop(0)
                with _stderr_to(root / ".submitit" / "processes.log"):
                    running[executor.submit(Remote(), *_arguments(job, root))] = job
            time.sleep(LOOK)
            for sent in [sent for sent in running if sent.done()]:
                _over(running.pop(sent), root, _why(sent), ended)
    except KeyboardInterrupt:
        if cluster == "local":
            for sent in running:
                sent.cancel(check=False)
            _settle(running, lambda sent: bool(sent.done()))
        else:
            complain(f"{len(running)} jobs stay in Slurm's queue")
        raise


ENDED = frozenset(  # Slurm's final states (submitit's own list is shorter); all others may go on
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY REVOKED TIMEOUT".split()
)


def queued(listed: str, asked: Iterable[str]) -> dict[str, dict[str, str]]:
    """Read the jobs' states from squeue's lines (``job|state``); a job that it no longer lists is over."""
    states = dict(line.strip().split("|") for line in listed.splitlines() if "|" in line)
    states = {job: s if s in ENDED else "RUNNING" for job, s in states.items()}
    return {job: {"JobID": job, "State": states.get(job, "GONE")} for job in asked}


def _queue() -> Any:
    """Return a submitit watcher that reads squeue.

    Unlike sacct, squeue needs no accounting. Without accounting, which some clusters lack, sacct never reports
    a killed job as over, and submitit would wait forever.
    """
    from submitit.slurm.slurm import SlurmInfoWatcher

    class Queue(SlurmInfoWatcher):
        def _make_command(self) -> list[str] | None:
            if not self._registered - self._finished:
                return None
            options = ["--noheader", "--array", "--states=all", "--format=%i|%T"]
            return ["squeue", f"--user={os.getuid()}", *options]

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            listed = string if isinstance(string, str) else string.decode()
            return queued(listed, self._registered - self._finished)

    return Queue(delay_s=POLL)


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Redirect the stderr of processes started in the block: submitit's print a traceback each at Ctrl-C."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _why(sent: Any) -> str:
    return f"its process ended ({str(sent.state).lower()}); its log is {sent.paths.stderr}"


def _settle(running: Mapping[Any, Job], over: Callable[[Any], bool], patience: float = 30) -> None:
    """Wait up to ``patience`` seconds until jobs that were asked to stop have stopped."""
    until = time.monotonic() + patience
    while time.monotonic() < until and not all(over(sent) for sent in running):
        time.sleep(LOOK)


def _ray(options: Options, jobs: Jobs, root: Path, ended: Ended) -> None:
    with _cluster(options["address"]) as ray:
        share = {name: options[name] for name in ("num_cpus", "num_gpus")}
        # do not retry a killed job automatically: the user repeats the command for that
        task = ray.remote(max_retries=0, **share)(remote)
        waiting, at_a_time = list(jobs), options.get("at_a_time") or len(jobs)
        running: dict[Any, Job] = {}
        while waiting or running:
            while waiting and len(running) < at_a_time:
                job = waiting.pop(0)
                running[task.remote(*_arguments(job, root))] = job
            for done in ray.wait(list(running), num_returns=1, timeout=1.0)[0]:
                why = ""
                try:
                    ray.get(done)
                except ray.exceptions.RayError as error:
                    why = describe_error(error)
                _over(running.pop(done), root, why, ended)


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    # jobs are the main work, so run them at normal priority
    os.environ.setdefault("RAY_worker_niceness", "0")
    # otherwise Ray hides all GPUs from jobs that request none, and warns that this will change
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    where: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    try:
        yield ray
    finally:
        ray.shutdown()  # after Ctrl-C this also stops running jobs
