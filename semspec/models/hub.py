"""Resolve a name to a local folder: the folder itself, or a checked snapshot from the Hub.

A revision is first resolved to a commit. The commit's listing (name, size and hash of every file) is kept
beside the snapshot, so that an incomplete snapshot is noticed without a network. Every file is hashed once,
because the Hub's client only checks sizes.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semspec.errors import UserError
from semspec.models.intact import check_model
from semspec.models.online import (
    COMMIT,
    HASH,
    Listing,
    content_hash,
    hub_errors,
    list_files,
    reachable,
)
from semspec.models.wanted import MODEL, Wanted
from semspec.storage import foreign, manifests
from semspec.storage.files import dumps, read_json, write_text
from semspec.storage.swap import recover

AT_A_TIME = 8  # files downloaded in parallel
GIB = 1 << 30
_REVISION = re.compile(r"(?!.*\.\.)[\w][\w./+-]{0,199}")


@dataclass(frozen=True, slots=True)
class Access:
    """The usual options of the Hub's client."""

    token: str | None = None
    cache_dir: Path | None = None
    local_only: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The folder to which a name was resolved."""

    folder: Path
    on_hub: bool  # a snapshot, whose folder is named after the commit


_FOUND: ContextVar[dict[str, Found] | None] = ContextVar("found", default=None)


@contextlib.contextmanager
def noted() -> Iterator[dict[str, Found]]:
    """Record everything that is located in the block, by the given name and revision."""
    found: dict[str, Found] = {}
    token = _FOUND.set(found)
    try:
        yield found
    finally:
        _FOUND.reset(token)


def split_revision(name: str) -> tuple[str, str | None]:
    """Split ``owner/name@revision``; return the name of an existing folder unchanged."""
    place, _, revision = name.rpartition("@")
    if not place or Path(name).expanduser().exists():
        return name, None
    return place, revision or None


def locate(
    folder_or_repo: str,
    revision: str | None = None,
    wanted: Wanted = MODEL,
    access: Access | None = None,
) -> Path:
    """Return the local folder of a name: the folder itself, or a snapshot of a Hub repository.

    Raise UserError if neither exists, or if a check of its files fails.
    """
    name, folder = folder_or_repo, Path(folder_or_repo).expanduser()
    recover(folder)
    on_hub = not folder.is_dir()
    if on_hub:
        if folder.exists():
            raise UserError(f"{folder} is a file: point {wanted.option} at its folder")
        if name.startswith((".", "/", "~")) or name.count("/") != 1:
            raise UserError(
                f"no {wanted.noun} folder {name}: download or train the {wanted.noun}"
                f" first, or point {wanted.option} at a local folder or a Hub repository"
                " (owner/name)"
            )
        folder = snapshot(name, revision, wanted, access or Access())
    if wanted.noun == MODEL.noun:
        check_model(folder, wanted.of)
    if (found := _FOUND.get()) is not None:
        found[f"{name}@{revision}" if revision else name] = Found(folder, on_hub)
    return folder


def snapshot(repo: str, revision: str | None, wanted: Wanted, access: Access) -> Path:
    """Return a folder of the client's cache with all wanted files, checked against the Hub's listing.

    Raise UserError if they are not available, or still differ from the listing after a second download.
    """
    from huggingface_hub import constants

    if revision is not None and not _REVISION.fullmatch(revision):
        raise UserError(f"'{revision}' is not a valid revision: give a branch, a tag or a commit")
    at = f"{repo} at revision {revision}" if revision else repo
    with hub_errors(repo, at, wanted):
        cache = _Cache(repo, wanted, access)
        known = COMMIT.fullmatch(revision or "")
        if known and not access.force and cache.lacks(known[0]) == []:
            with contextlib.suppress(_ChangedError):
                return cache.checked(known[0], at)
        if constants.HF_HUB_OFFLINE or access.local_only or not reachable(constants.ENDPOINT):
            return _offline(cache, at, revision, access)
        commit, listing = list_files(repo, revision, wanted, access.token)
        cache.remember(commit, listing, revision or "main")
        wanted.check(listing, at)
        for last in (False, True):  # fetch a corrupted file once more
            lacking = wanted.of(listing) if access.force else cache.lacks(commit) or []
            if lacking:
                cache.fetch(commit, lacking)
            try:
                return cache.checked(commit, at)
            except _ChangedError as error:
                error.path.resolve().unlink(missing_ok=True)
                error.path.unlink(missing_ok=True)
                if last:
                    raise UserError(
                        f"{error.path.name} of {at} was corrupted in the download or on"
                        " this disk (its content differs from the Hub's listing) and was"
                        " removed: try again later"
                    ) from error
    raise AssertionError("unreachable")


def _offline(cache: _Cache, at: str, revision: str | None, access: Access) -> Path:
    from huggingface_hub import constants

    wanted = cache.wanted
    commit = cache.resolved(revision or "main")
    why = "only local files are allowed" if access.local_only else "the Hub cannot be reached"
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else why
    options = "--repo-type dataset " if wanted.repo_type == "dataset" else ""
    options += f"--revision {revision} " if revision else ""
    ways = (
        f"run 'hf download {options}{cache.repo}' on a machine with network access, or point"
        f" {wanted.option} at a local folder"
    )
    if commit is None or not cache.folder(commit).is_dir():
        raise UserError(f"{at} is not downloaded and {why}: {ways}")
    lacking = cache.lacks(commit)
    if lacking is None:
        lacking = cache.named_but_absent(commit)
    if lacking:
        shown = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" * (len(lacking) > 3))
        raise UserError(f"{at} is only partly downloaded ({shown} missing) and {why}: {ways}")
    try:
        return cache.checked(commit, at)
    except _ChangedError as error:
        message = f"{error.path} differs from the Hub's listing, and {why}: {ways}"
        raise UserError(message) from error


@dataclass(frozen=True, slots=True)
class Stock:
    """The sizes of a name's wanted files, and which of them are not downloaded yet."""

    commit: str | None  # None: a folder
    sizes: Mapping[str, int]
    lacking: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes.values())

    @property
    def missing(self) -> int:
        """Bytes still to download."""
        return sum(self.sizes[name] for name in self.lacking)


def stock(
    folder_or_repo: str,
    revision: str | None = None,
    wanted: Wanted = MODEL,
    access: Access | None = None,
) -> Stock | None:
    """Return what files a name stands for, without fetching any of them.

    It comes from an earlier download's record, or else from the Hub; None if neither knows. Raise UserError if
    there is no such folder or repository.
    """
    folder = Path(folder_or_repo).expanduser()
    if folder.exists() or folder_or_repo.count("/") != 1:
        with noted():  # do not record it as loaded
            folder = locate(folder_or_repo, revision, wanted, access)
        return Stock(None, _sizes_in(folder, wanted))
    access = access or Access()
    cache = _Cache(folder_or_repo, wanted, access)
    if (known := _listed(cache, revision, wanted)) is not None:
        commit, listing = known
        names = wanted.of(listing)
        cache.listings[commit] = listing
        lacking = names if access.force else cache.lacks(commit) or []
        return Stock(commit, {name: listing[name][0] for name in names}, tuple(lacking))
    commit_here = revision if _is_commit(revision) else cache.resolved(revision or "main")
    if commit_here is None or not cache.folder(commit_here).is_dir():
        return None
    if cache.named_but_absent(commit_here):  # their sizes are not known here
        return None
    return Stock(commit_here, _sizes_in(cache.folder(commit_here), wanted))


def _is_commit(revision: str | None) -> bool:
    return revision is not None and COMMIT.fullmatch(revision) is not None


def _sizes_in(folder: Path, wanted: Wanted) -> dict[str, int]:
    there = sorted(f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file())
    return {name: (folder / name).stat().st_size for name in wanted.of(there)}


def _listed(cache: _Cache, revision: str | None, wanted: Wanted) -> tuple[str, Listing] | None:
    """Return commit and listing of a revision: recorded ones for a commit, else the Hub's, else recorded ones."""
    from huggingface_hub import constants

    repo = cache.repo
    at = f"{repo} at revision {revision}" if revision else repo
    with hub_errors(repo, at, wanted):
        known = revision if _is_commit(revision) else None
        if known and (noted := cache.listing(known)) is not None:
            return known, noted
        offline = constants.HF_HUB_OFFLINE or cache.access.local_only
        if not offline and reachable(constants.ENDPOINT):
            return list_files(repo, revision, wanted, cache.access.token)
        known = known or cache.resolved(revision or "main")
        noted = cache.listing(known) if known else None
        return (known, noted) if known and noted is not None else None


def check_room(stocks: Iterable[Stock | None]) -> None:
    """Raise UserError if the missing files exceed the free space of the Hub client's cache."""
    from huggingface_hub import constants

    missing = sum(one.missing for one in stocks if one is not None)
    folder = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free
    if missing > free:
        raise UserError(
            f"the download needs {missing / GIB:.1f} GiB, but {folder} has only"
            f" {free / GIB:.1f} GiB free: set HF_HOME to a folder on a larger disk, or free"
            " space ('hf cache ls' lists what is there)"
        )


def sizes(
    folder_or_repo: str, revision: str | None = None, wanted: Wanted = MODEL
) -> dict[str, int]:
    """Return the size of every wanted file by name, without fetching those of a Hub repository if possible.

    Raise UserError as ``locate`` does.
    """
    known = stock(folder_or_repo, revision, wanted)
    if known is None:
        return _sizes_in(locate(folder_or_repo, revision, wanted), wanted)
    return dict(known.sizes)


def known_files(
    repo: str, revision: str | None, wanted: Wanted, access: Access | None = None
) -> tuple[Path, list[str]] | None:
    """Return the folder to which a repository's files are downloaded, and all their names.

    They come from an earlier download's record, or else from the Hub; None if neither knows. Raises UserError
    if the Hub refuses.
    """
    cache = _Cache(repo, wanted, access or Access())
    known = _listed(cache, revision, wanted)
    return (cache.folder(known[0]), sorted(known[1])) if known is not None else None


class _ChangedError(Exception):
    def __init__(self, path: Path) -> None:
        self.path = path


class _Cache:
    """A repository in the client's cache, and the project's records beside it."""

    def __init__(self, repo: str, wanted: Wanted, access: Access) -> None:
        from huggingface_hub import constants

        self.repo, self.wanted, self.access = repo, wanted, access
        root = access.cache_dir or Path(constants.HF_HUB_CACHE)
        self.root = root / f"{wanted.repo_type}s--{repo.replace('/', '--')}"
        self.own = self.root / ".semspec"
        self.listings: dict[str, Listing] = {}  # read since this object was created

    def folder(self, commit: str) -> Path:
        return self.root / "snapshots" / commit

    def listing(self, commit: str) -> Listing | None:
        if commit in self.listings:
            return self.listings[commit]
        stored = read_json(self.own / f"{commit}.json")
        if not isinstance(stored, dict):
            return None
        return {name: (int(size), str(listed_hash)) for name, (size, listed_hash) in stored.items()}

    def resolved(self, revision: str) -> str | None:
        """Return the commit of a revision at its last lookup."""
        known = COMMIT.fullmatch(revision)
        commit = revision if known else (_text(self.root / "refs" / revision) or "").strip()
        return commit if COMMIT.fullmatch(commit) else None

    def remember(self, commit: str, listing: Listing, revision: str) -> None:
        self.listings[commit] = listing
        self._put(self.own / f"{commit}.json", dumps(listing))
        if not COMMIT.fullmatch(revision):
            self._put(self.root / "refs" / revision, commit)

    def _put(self, path: Path, text: str) -> None:
        """Write atomically; in a read-only cache, write nothing, so files are listed and hashed again each time."""
        if _text(path) != text:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)

    def lacks(self, commit: str) -> list[str] | None:
        """Return the wanted files that are missing or incomplete; None if there is no listing."""
        listing = self.listing(commit)
        if listing is None:
            return None
        return [
            name
            for name in self.wanted.of(listing)
            if not (path := self.folder(commit) / name).is_file()
            or path.stat().st_size != listing[name][0]
        ]

    def named_but_absent(self, commit: str) -> list[str]:
        """Return the missing files that a manifest or an index names, for a snapshot without a listing."""
        folder, named = self.folder(commit), set()
        manifest = manifests.read(folder) if manifests.is_ours(folder) else None
        if manifest is not None:
            named |= set(self.wanted.of(manifest["files"]))
        for index in folder.glob("*.safetensors.index.json"):
            parsed = foreign.read_json(index)
            if isinstance(parsed, dict) and isinstance(parsed.get("weight_map"), dict):
                named |= {str(name) for name in parsed["weight_map"].values()}
        return sorted(name for name in named if not (folder / name).is_file())

    def fetch(self, commit: str, names: Iterable[str]) -> None:
        from huggingface_hub import hf_hub_download

        access, kind = self.access, self.wanted.repo_type
        how: dict[str, Any] = {"revision": commit, "repo_type": kind, "token": access.token}
        how |= {"cache_dir": access.cache_dir, "force_download": access.force}
        pool = ThreadPoolExecutor(max_workers=AT_A_TIME)
        try:
            list(pool.map(lambda name: hf_hub_download(self.repo, name, **how), names))
        finally:  # after an interruption, do not wait for running downloads
            pool.shutdown(wait=False, cancel_futures=True)

    def checked(self, commit: str, at: str) -> Path:
        """Return the snapshot's folder after hashing every wanted file that changed since the last check.

        Raise _ChangedError for a file that does not match its hash.
        """
        folder, listing = self.folder(commit), self.listing(commit)
        if listing is not None:
            self.wanted.check(listing, at)
            hashes = {name: listing[name][1] for name in self.wanted.of(listing)}
        else:  # another program downloaded it; a blob is named after its hash
            there = [f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()]
            self.wanted.check(there, at)
            hashes = {name: (folder / name).resolve().name for name in self.wanted.of(there)}
        for name, wanted in hashes.items():
            path = folder / name
            if HASH.fullmatch(wanted):
                state = path.stat()
                mark = self.own / "hashed" / wanted
                seen = f"{state.st_size} {state.st_mtime_ns}"
                if _text(mark) != seen:
                    if content_hash(path, wanted) != wanted:
                        raise _ChangedError(path)
                    self._put(mark, seen)
        return folder


def _text(path: Path) -> str | None:
    """Return a file's content, or None if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return None
