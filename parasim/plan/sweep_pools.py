"""Where the points of a sweep run: one `concurrent.futures.Executor` per back end, all alike to the sweep."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import Failed, MissingExtra

POLL = 0.2  # seconds between looks at jobs
Options = Mapping[str, Any]
Pool = Callable[[int, Options, Path], AbstractContextManager[Executor]]


class Inline(Executor):
    """No other process: a point is done when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run now."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def local(workers: int, options: Options, folder: Path) -> Iterator[Executor]:
    """Processes of this machine, spawned; with one worker, this process."""
    pool = Inline() if workers == 1 else ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def dask(workers: int, options: Options, folder: Path) -> Iterator[Executor]:
    """Dask: the scheduler at `options["scheduler"]`, or a LocalCluster of processes. A worker that dies is replaced and its points are done again."""
    distributed = _library("distributed", "dask")
    if "scheduler" in options:
        target: dict[str, Any] = {"address": str(options["scheduler"])}
    else:
        target = {"n_workers": workers, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    try:
        client = distributed.Client(**target)
    except (OSError, ValueError) as error:
        raise Failed(f"dask: no scheduler at {options.get('scheduler', 'this machine')} ({error})") from None
    with client:
        yield client.get_executor(retries=3)  # closing the client lets go of what has not run


@contextmanager
def slurm(workers: int, options: Options, folder: Path) -> Iterator[Executor]:
    """Slurm through submitit; `options` go to it, but `cluster: local` runs the jobs on this machine."""
    submitit = _library("submitit", "slurm")
    given = dict(options)
    try:
        executor = submitit.AutoExecutor(folder=str(folder), cluster=given.pop("cluster", None))
        executor.update_parameters(**{"timeout_min": 60, "name": "parasim-sweep", **given})
    except (RuntimeError, ValueError, NameError, TypeError) as error:
        raise Failed(f"slurm: {error}; options: cluster: local runs the jobs on this machine") from None
    pool = _Jobs(executor, workers)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Jobs(Executor):
    """submitit's jobs as futures, at most `most` at a time; a thread looks after them."""

    def __init__(self, executor: Any, most: int) -> None:
        self.executor, self.most = executor, most
        self.waiting: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self.running: list[tuple[Future[Any], Any]] = []
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a job."""
        future: Future[Any] = Future()
        with self.lock:
            self.waiting.append((future, fn, args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop looking after jobs, and cancel those that run."""
        self.stopped.set()
        self.thread.join()
        for future, job in self.running:
            if cancel_futures and not future.done():
                job.cancel()

    def _watch(self) -> None:
        while not self.stopped.is_set():
            with self.lock:
                try:
                    while self.waiting and len(self.running) < self.most:
                        future, fn, args = self.waiting.pop(0)
                        self.running.append((future, self.executor.submit(fn, *args)))
                except Exception as error:  # sbatch refused: the one who waits must hear of it
                    future.set_exception(Failed(f"slurm: {error}"))
            for future, job in [pair for pair in self.running if pair[1].done()]:
                self.running.remove((future, job))
                _settle(future, job)
            time.sleep(POLL)


def _settle(future: Future[Any], job: Any) -> None:
    """The result of a job, or what it raised: the error itself where it can be had, else what submitit says."""
    try:
        outcome, result = pickle.loads(Path(job.paths.result_pickle).read_bytes()) if job.paths.result_pickle.exists() else ("lost", "")
        if outcome == "success":
            future.set_result(result)
        else:
            future.set_exception(Failed(f"slurm: job {job.job_id} {'ended without a result' if outcome == 'lost' else 'failed'}: {str(result)[-300:]}".strip()))
    except Exception as error:
        future.set_exception(Failed(f"slurm: job {job.job_id}: {error}"))


def _library(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise MissingExtra(name, extra) from None


POOLS: dict[str, Pool] = {"local": local, "dask": dask, "slurm": slurm}
