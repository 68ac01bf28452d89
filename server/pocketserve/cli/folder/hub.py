"""Models of the Hugging Face hub: what a repository holds, which file is meant, and its download.

The layout is that of ``huggingface_hub``: ``/api/models/ORG/REPO/revision/REV`` lists, ``/ORG/REPO/resolve/REV/FILE``
gives a file, often by a redirect to another host, and errors have a code in ``X-Error-Code``. Files are fetched by that
library where it is installed: it knows storage that plain HTTPS does not profit from, and logins.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from pocketserve.cli.folder.download import DownloadCut, Remote, check_address, download
from pocketserve.cli.folder.models_folder import Stage, check_room
from pocketserve.cli.folder.sources import Obtained, SeveralModels, Wish, find_license
from pocketserve.messages import excerpt
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from requests import Response

SCHEME = "hf:"
DEFAULT_ENDPOINT = "https://huggingface.co"
MAX_LISTING_BYTES, MAX_FILES, MAX_SIDE_BYTES = 64 << 20, 100_000, 64 << 20
LISTING_FAULTS = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)
MAX_OFFERED = 20  # files that are listed for a choice
LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
_SOURCE = re.compile(
    r"hf:(?P<repo>\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:/(?P<path>[^@]+))?(?:@(?P<revision>[^@]{1,200}))?"
)

_PAGE = re.compile(
    r"/(?!(?:api|datasets|docs|spaces)/)(?P<repo>\w[\w.-]*/\w[\w.-]*)"
    r"(?:/(?:blob|resolve|tree)/(?P<revision>[^/@]+)(?:/(?P<path>[^@]+))?)?/?"
)


class HubFile(NamedTuple):
    """A file of a repository."""

    size: int
    sha256: str = ""  # of a large file
    blob: str = ""  # Git's SHA-1 of a small one


class HubRepo(NamedTuple):
    """A repository of models at one commit."""

    name: str
    commit: str
    files: Mapping[str, HubFile]
    license: str = ""


class Hub:
    """The hub that ``HF_ENDPOINT`` names, with the token of ``HF_TOKEN`` or of a login, which no other host is sent.

    Raises:
        CommandError: the endpoint is no address with HTTPS.
    """

    def __init__(self, progress: Progress) -> None:
        self.endpoint = _endpoint()
        check_address(self.endpoint)
        self._progress = progress
        try:
            import huggingface_hub

            self._library: Any = huggingface_hub
            self._token = huggingface_hub.get_token()
        except ImportError:
            self._library, self._token = (
                None,
                os.environ.get("HF_TOKEN", "").strip() or None,
            )

    def list_files(self, name: str, revision: str, stage: Stage) -> HubRepo:
        """Return what a repository holds at a revision: a branch, a tag or a commit."""
        target = stage.path / "listing"
        for path in (target, target.with_name("listing.json")):
            path.unlink(missing_ok=True)
        url = f"{self.endpoint}/api/models/{name}/revision/{quote(revision, safe='')}?blobs=true"
        self._download(
            url,
            target,
            f"{name} at {revision}",
            MAX_LISTING_BYTES,
            f"looking at {name}",
        )
        try:
            repo = _parse_listing(name, json.loads(target.read_bytes()))
            target.unlink()
            return repo
        except LISTING_FAULTS:
            raise CommandError(
                f"{self.endpoint} does not answer as the hub does; look at HF_ENDPOINT"
            ) from None

    def fetch(self, repo: HubRepo, name: str, stage: Stage) -> Path:
        """Return a file of a repository, fetched and compared with its hash."""
        target = (
            stage.path
            / f"file-{hashlib.sha256(f'{repo.commit}/{name}'.encode()).hexdigest()[:16]}"
        )
        title, file = f"{name} of {repo.name}", repo.files[name]
        if target.is_file() and _has_content(
            target, file
        ):  # from an earlier command, which another file failed
            return target
        if self._library is not None:
            target = self._fetch_by_library(repo, name, stage, title)
        else:
            url = f"{self.endpoint}/{repo.name}/resolve/{repo.commit}/{quote(name)}"
            self._download(url, target, title, file.size)
        if not _has_content(target, file):
            target.unlink(missing_ok=True)
            raise CommandError(
                f"{title} is not what the hub lists: its size or hash differs; nothing was added"
            )
        return target

    def _fetch_by_library(
        self, repo: HubRepo, name: str, stage: Stage, title: str
    ) -> Path:
        folder = stage.path / "hub"
        fetching = f"fetching {PurePosixPath(name).name} ({human_bytes(repo.files[name].size)})"
        self._library.utils.disable_progress_bars()  # its own would be mixed with ours
        self._progress.show(fetching, 0)
        try:
            with self._progress.waiting(fetching):
                place = {
                    "revision": repo.commit,
                    "local_dir": folder,
                    "endpoint": self.endpoint,
                }
                self._library.hf_hub_download(
                    repo.name, name, token=self._token or False, **place
                )
        except Exception as error:  # it raises those of three libraries
            if (response := getattr(error, "response", None)) is not None:
                raise CommandError(
                    _refusal(response, title, bool(self._token))
                ) from None
            again = "the same command goes on with what is there"
            raise DownloadCut(
                f"{title} cannot be fetched: {excerpt(error)}; {again}"
            ) from None
        return folder / name

    def _download(
        self, url: str, target: Path, title: str, maximum: int, progress_title: str = ""
    ) -> None:
        def check(remote: Remote) -> None:
            if (remote.size or 0) > maximum:
                raise CommandError(f"{title} has more than {human_bytes(maximum)}")

        def refusal(response: Response) -> str | None:
            return (
                None
                if response.status_code in (200, 206)
                else _refusal(response, title, bool(self._token))
            )

        download(
            *(url, target, self._progress, check),
            max_bytes=maximum,
            title=progress_title,
            headers=self._headers,
            refusal=refusal,
        )

    def _headers(self, url: str) -> Mapping[str, str]:
        """Return the token for the hub itself; its files often lie elsewhere."""
        own, other = urlsplit(self.endpoint), urlsplit(url)
        is_hub = (own.scheme, own.hostname, own.port) == (
            other.scheme,
            other.hostname,
            other.port,
        )
        return (
            {"Authorization": f"Bearer {self._token}"} if self._token and is_hub else {}
        )


def take_hub(wish: Wish, stage: Stage, progress: Progress) -> Obtained:
    """Fetch a model of the hub into a stage: the model file, and what beside it tells how it is asked.

    Raises:
        CommandError: it cannot be had, or several files may be meant.
    """
    parts = _SOURCE.fullmatch(wish.source)
    if parts is None:
        raise CommandError(
            f"{wish.source!r} is not hf:ORG/REPO, hf:ORG/REPO/FILE or one of these with @REVISION"
        )
    name = wish.choose_name(parts["repo"].partition("/")[2])
    hub = Hub(progress)
    repo = hub.list_files(parts["repo"], parts["revision"] or "main", stage)
    model = choose_file(repo, parts["path"] or "")
    files = (
        [model, *_beside(repo, model)] if model in repo.files else _below(repo, model)
    )
    check_room(wish.folder, sum(repo.files[file].size for file in files))
    home = stage.models / name
    try:
        paths = {file: hub.fetch(repo, file, stage) for file in files}
    except (DownloadCut, KeyboardInterrupt):
        stage.keep_parts()
        raise
    for file, path in paths.items():
        target = home / _target_of(file, model, repo)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    provenance = {
        "source": f"hf:{repo.name}/{model}".removesuffix("/."),
        "revision": repo.commit,
    }
    if model in repo.files:
        provenance["sha256"] = wish.check_sha256(
            home / PurePosixPath(model).name, progress
        )
    elif wish.sha256 is not None:
        raise CommandError("--sha256 is that of a file, and this model is a folder")
    return Obtained(name, provenance, repo.license or find_license(home))


def source_of_page(url: str) -> str | None:
    """Return the source that a page of the hub stands for, which browsers show; None for other addresses."""
    parts = urlsplit(url)
    page = _PAGE.fullmatch(
        unquote(
            f"{parts.scheme}://{parts.netloc}{parts.path}".removeprefix(_endpoint())
        )
    )
    if page is None:
        return None
    path = f"/{page['path']}" if page["path"] else ""
    return f"{SCHEME}{page['repo']}{path}" + (
        f"@{page['revision']}" if page["revision"] else ""
    )


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", DEFAULT_ENDPOINT).rstrip("/")


def choose_file(repo: HubRepo, path: str) -> str:
    """Return the one model file, or folder that is a model, that a repository has at or below a path.

    Raises:
        CommandError: it has none there, or several, which are listed.
    """
    path = path.strip("/")
    if path in repo.files and (model := _model_of(path)) is not None:
        return model
    inside = [file for file in repo.files if not path or file.startswith(f"{path}/")]
    # Each with a path that names it: of a model that is the whole repository, the file that marks it.
    names = {
        model: file if model == "." else model
        for file in inside
        if (model := _model_of(file)) is not None
    }
    models = sorted(
        model
        for model in names
        if not any(model.startswith(f"{other}/") for other in names)
    )
    if len(models) == 1:
        return models[0]
    at = f"{repo.name}/{path}" if path else repo.name
    if not models:
        fault = "is no model file" if path in repo.files else "holds no model file"
        weights = any(
            file.endswith((".safetensors", ".bin", ".gguf")) for file in inside
        )
        hint = (
            "; weights alone are no model: look for an ONNX or TFLite export of it"
            if weights
            else ""
        )
        raise CommandError(f"{at} {fault} of a kind that is served{hint}")
    lines = [
        f"  hf:{repo.name}/{names[model]}  {_size_of(repo, model)}"
        for model in models[:MAX_OFFERED]
    ]
    more = (
        [f"  and {len(models) - MAX_OFFERED} more"] if len(models) > MAX_OFFERED else []
    )
    raise SeveralModels(f"{at} holds {len(models)} models; name one:", [*lines, *more])


def _model_of(file: str) -> str | None:
    """Return the model that a file is: itself, or its folder where its name marks that as a model."""
    from pocketserve.runtimes.registry import MARKERS

    folder, _, name = file.rpartition("/")
    if name in MARKERS:
        return folder or "."
    return file if _is_model_file(file) else None


def _is_model_file(file: str) -> bool:
    from pocketserve.runtimes.registry import MARKERS, format_of_name

    name = PurePosixPath(file).name
    return (
        name not in MARKERS
        and not name.endswith(".py")
        and format_of_name(name) is not None
    )


def _below(repo: HubRepo, folder: str) -> list[str]:
    """Return the files of a folder that is a model, but hidden ones."""
    files = [
        file for file in repo.files if folder == "." or file.startswith(f"{folder}/")
    ]
    return [file for file in files if not file.startswith(".")]


def _beside(repo: HubRepo, model: str) -> list[str]:
    """Return a model's further weights, what tells how it is asked, from its own folder first, and a licence; no code.

    Weights that a file could not hold are called after it: ``model.onnx_data``, ``model.onnx.data``.
    """
    from pocketserve.repository.sidecar_files import NAMES

    files = [
        file
        for file in repo.files
        if file.startswith(f"{model}_") or file.startswith(f"{model}.")
    ]
    for name in (*NAMES, *LICENSES):
        places = [f"{_folder_of(model)}{name}", name]
        file = next((place for place in places if place in repo.files), None)
        if (
            file is not None
            and not file.endswith(".py")
            and repo.files[file].size <= MAX_SIDE_BYTES
        ):
            files.append(file)
    return files


def _target_of(file: str, model: str, repo: HubRepo) -> str:
    """Return where a file goes in the model's folder: beside the model file, as it lies there or at the top."""
    base = model if model not in repo.files else model.rpartition("/")[0]
    return file.removeprefix(f"{base}/") if base not in ("", ".") else file


def _folder_of(model: str) -> str:
    folder = model.rpartition("/")[0]
    return f"{folder}/" if folder else ""


def _size_of(repo: HubRepo, model: str) -> str:
    files = [model] if model in repo.files else _below(repo, model)
    return human_bytes(sum(repo.files[file].size for file in files))


def _has_content(path: Path, file: HubFile) -> bool:
    """Return whether a file has the size and the hash that the hub lists."""
    size = path.stat().st_size
    digest = (
        hashlib.sha256()
        if file.sha256
        else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    )
    with path.open("rb") as content:
        while piece := content.read(1 << 20):
            digest.update(piece)
    expected = file.sha256 or file.blob
    return size == file.size and expected in ("", digest.hexdigest())


def _parse_listing(name: str, document: Any) -> HubRepo:
    """Return what the hub's answer says; one of ``LISTING_FAULTS`` where it is none."""
    from pocketserve.repository.toml_table import is_contained_name

    siblings, commit, card = (
        document["siblings"],
        document["sha"],
        document.get("cardData") or {},
    )
    if len(siblings) > MAX_FILES or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError("too many files, or no commit")
    files = {}
    for item in siblings:
        path, lfs = item["rfilename"], item.get("lfs") or {}
        if is_contained_name(path) and path.isprintable():
            file = HubFile(
                int(item.get("size") or 0),
                lfs.get("sha256") or "",
                "" if lfs else item.get("blobId") or "",
            )
            if file.size < 0 or not re.fullmatch(r"[0-9a-f]{64}|", file.sha256):
                raise ValueError("a size or hash that is none")
            files[path] = file
    license = card.get("license_name") or card.get("license") or ""
    return HubRepo(
        name, commit, files, str(license)[:100] if isinstance(license, str) else ""
    )


def _refusal(response: Response, title: str, has_token: bool) -> str:
    """Return the sentence for an answer that is no file, by the hub's own code."""
    code, status = response.headers.get("X-Error-Code", ""), response.status_code
    if code == "GatedRepo":
        way = (
            "this token's account has to"
            if has_token
            else "log in there, set HF_TOKEN, and"
        )
        return (
            f"{title} is behind an agreement: {way} accept it on the page of the model"
        )
    if code == "RevisionNotFound":
        return f"{title}: there is no such revision; the part behind @ is a branch, a tag or a commit"
    if code == "EntryNotFound":
        return f"{title}: there is no such file"
    if code == "RepoNotFound" or status in (401, 404):
        way = (
            "this token may not see it"
            if has_token
            else "it is private: then set HF_TOKEN to a token that may"
        )
        return f"{title}: there is no such repository, or {way}"
    if status == 403:
        return f"{title}: this token may not read it ({excerpt(response.headers.get('X-Error-Message', ''), 100)})"
    if status == 429:
        return f"{title}: the hub takes no more requests for now; try again later"
    return f"{title} cannot be fetched: the hub answers {status}"
