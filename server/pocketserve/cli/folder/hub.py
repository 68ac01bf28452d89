"""Models of the Hugging Face hub.

The API is that of ``huggingface_hub``: ``/api/models/ORG/REPO/revision/REV`` lists,
``/ORG/REPO/resolve/REV/FILE`` returns a file, often by a redirect to another host, and
errors have a code in ``X-Error-Code``. If that library is installed, it fetches the
files: it supports faster storage and logins.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from pocketserve.cli.folder.download import (
    Download,
    DownloadCut,
    Remote,
    check_address,
    download,
)
from pocketserve.cli.folder.hub_language import (
    CONFIG,
    INDEX,
    choose_gguf,
    folder_files,
    folder_weights,
    gguf_parts,
    without_later_parts,
)
from pocketserve.cli.folder.models_folder import Stage, check_room
from pocketserve.cli.folder.sources import (
    AddRequest,
    FetchedModel,
    SeveralModelsError,
    find_license,
)
from pocketserve.engine.device.cores import available_memory
from pocketserve.messages import excerpt
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes, printable
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from requests import Response

SCHEME = "hf:"
DEFAULT_ENDPOINT = "https://huggingface.co"
MAX_LISTING_BYTES = 64 << 20
MAX_FILES = 100_000
MAX_SIDE_BYTES = 64 << 20
LISTING_FAULTS = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)
MAX_PLACEHOLDERS = 2000
MAX_OFFERED = 20  # files listed for the user to choose from
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
    """The hub at ``HF_ENDPOINT``.

    The token of ``HF_TOKEN`` or of a login is sent to this host only.

    Raises:
        CommandError: the endpoint is not an address with HTTPS.
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
            self._library = None
            self._token = os.environ.get("HF_TOKEN", "").strip() or None

    def list_files(self, name: str, revision: str, stage: Stage) -> HubRepo:
        """List a repository at a branch, tag or commit."""
        target = stage.path / "listing"
        for path in (target, target.with_name("listing.json")):
            path.unlink(missing_ok=True)
        path_of_revision = f"{name}/revision/{quote(revision, safe='')}"
        self._download(
            f"{self.endpoint}/api/models/{path_of_revision}?blobs=true",
            target,
            title=f"{name} at {revision}",
            max_bytes=MAX_LISTING_BYTES,
            progress_title=f"looking at {name}",
        )
        try:
            repo = _parse_listing(name, json.loads(target.read_bytes()))
            target.unlink()
            return repo
        except LISTING_FAULTS:
            raise CommandError(
                f"{self.endpoint} does not answer like the hub; check HF_ENDPOINT"
            ) from None

    def fetch(self, repo: HubRepo, name: str, stage: Stage) -> Path:
        """Fetch a file of a repository and check its hash."""
        key = hashlib.sha256(f"{repo.commit}/{name}".encode()).hexdigest()[:16]
        target = stage.path / f"file-{key}"
        title, file = f"{name} of {repo.name}", repo.files[name]
        if target.is_file() and _has_content(target, file):
            return target  # from an earlier command, which failed at another file
        if self._library is not None:
            target = self._fetch_by_library(repo, name, stage, title)
        else:
            url = f"{self.endpoint}/{repo.name}/resolve/{repo.commit}/{quote(name)}"
            self._download(url, target, title=title, max_bytes=file.size)
        if not _has_content(target, file):
            target.unlink(missing_ok=True)
            raise CommandError(
                f"{title} is not the file that the hub lists: "
                "its size or hash differs; nothing was added"
            )
        return target

    def _fetch_by_library(
        self, repo: HubRepo, name: str, stage: Stage, title: str
    ) -> Path:
        folder = stage.path / "hub"
        size = human_bytes(repo.files[name].size)
        fetching = f"fetching {PurePosixPath(name).name} ({size})"
        self._library.utils.disable_progress_bars()  # they would mix with ours
        self._progress.show(fetching, 0)
        try:
            with self._progress.waiting(fetching):
                self._library.hf_hub_download(
                    repo.name,
                    name,
                    token=self._token or False,
                    revision=repo.commit,
                    local_dir=folder,
                    endpoint=self.endpoint,
                )
        except Exception as error:  # the library raises errors of three others
            response = getattr(error, "response", None)
            if response is not None:
                raise CommandError(
                    _refusal(response, title, bool(self._token))
                ) from None
            raise DownloadCut(
                f"{title} cannot be fetched: {excerpt(error)}; "
                "the same command resumes the download"
            ) from None
        return folder / name

    def _download(
        self,
        url: str,
        target: Path,
        *,
        title: str,
        max_bytes: int,
        progress_title: str = "",
    ) -> None:
        def check(remote: Remote) -> None:
            if (remote.size or 0) > max_bytes:
                raise CommandError(f"{title} has more than {human_bytes(max_bytes)}")

        def refusal(response: Response) -> str | None:
            if response.status_code in (200, 206):
                return None
            return _refusal(response, title, bool(self._token))

        job = Download(
            url,
            target,
            check,
            max_bytes=max_bytes,
            title=progress_title,
            headers=self._headers,
            refusal=refusal,
        )
        download(job, self._progress)

    def _headers(self, url: str) -> Mapping[str, str]:
        """Return the token for the hub, not for other hosts."""
        if self._token and _origin(url) == _origin(self.endpoint):
            return {"Authorization": f"Bearer {self._token}"}
        return {}


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def take_hub(request: AddRequest, stage: Stage, progress: Progress) -> FetchedModel:
    """Fetch a hub model with its sidecar files.

    Raises:
        CommandError: it can't be fetched, or several files may be meant.
    """
    parts = _SOURCE.fullmatch(request.source)
    if parts is None:
        raise CommandError(
            f"{request.source!r} is not hf:ORG/REPO, hf:ORG/REPO/FILE "
            "or one of these with @REVISION"
        )
    name = request.choose_name(parts["repo"].partition("/")[2])
    home = stage.models / name
    hub = Hub(progress)
    repo = hub.list_files(parts["repo"], parts["revision"] or "main", stage)
    model = choose_file(repo, parts["path"] or "")
    files = _choose_files(hub, repo, model, request, stage)
    _fetch_all(hub, repo, files, model, stage, home)
    provenance = {
        "source": f"hf:{repo.name}/{model}".removesuffix("/."),
        "revision": repo.commit,
    }
    if model in repo.files:
        path = home / PurePosixPath(model).name
        provenance["sha256"] = request.check_sha256(path, progress)
    elif request.sha256 is not None:
        raise CommandError("--sha256 is that of a file, and this model is a folder")
    return FetchedModel(name, provenance, repo.license or find_license(home))


def _choose_files(
    hub: Hub, repo: HubRepo, model: str, request: AddRequest, stage: Stage
) -> list[str]:
    """Return the files of a model, some of which its first files name.

    Raises:
        CommandError: it can't be served, or the disk has too little room.
    """
    files = _files_of(repo, model)
    if PurePosixPath(model).name == CONFIG:
        files += _weights_of(hub, repo, model, stage)
    check_room(request.folder, _total_bytes(repo, files))
    files += _named_by(hub, repo, model, stage)
    files = list(dict.fromkeys(files))
    check_room(request.folder, _total_bytes(repo, files))
    return files


def _total_bytes(repo: HubRepo, files: Sequence[str]) -> int:
    return sum(repo.files[file].size for file in files)


def _files_of(repo: HubRepo, model: str) -> list[str]:
    if model not in repo.files:
        return _below(repo, model)
    files = [model, *gguf_parts(repo.files, model), *_beside(repo, model)]
    if PurePosixPath(model).name == CONFIG:
        files += folder_files(list(repo.files), model)
    return list(dict.fromkeys(files))


def _weights_of(hub: Hub, repo: HubRepo, config: str, stage: Stage) -> list[str]:
    """Return the weights of a folder that can be served.

    Raises:
        CommandError: it can't be served; none of its weights has been fetched.
    """
    names = list(repo.files)
    deciding = []
    for file in folder_files(names, config):
        if PurePosixPath(file).name not in (CONFIG, INDEX):
            continue
        if repo.files[file].size > MAX_SIDE_BYTES:
            raise CommandError(
                f"{file} of {repo.name} has more than {human_bytes(MAX_SIDE_BYTES)}"
            )
        deciding.append(file)
    return folder_weights(names, config, _fetch_files(hub, repo, deciding, stage))


def _named_by(hub: Hub, repo: HubRepo, model: str, stage: Stage) -> list[str]:
    """Return the files that a model's file names, such as external weights."""
    from pocketserve.runtimes.base import ModelLoadError
    from pocketserve.runtimes.registry import format_of_name

    format = format_of_name(PurePosixPath(model).name)
    if model not in repo.files or format is None or format.other_files is None:
        return []
    content = _fetch_files(hub, repo, [model], stage)[model]
    start = _folder_of(model)
    with tempfile.TemporaryDirectory(dir=stage.path, prefix="names-") as scratch:
        folder = Path(scratch)
        for file in _files_below(repo, start.removesuffix("/"))[:MAX_PLACEHOLDERS]:
            _make_placeholder(folder / file.removeprefix(start), repo.files[file].size)
        path = folder / PurePosixPath(model).name
        # Moved, since a copy of gigabytes takes long, and Android has no hard links.
        os.replace(content, path)
        try:
            names = list(format.other_files(path))
        except ModelLoadError:
            return []  # the trial reports the fault
        finally:
            os.replace(path, content)
    files = [f"{start}{name}" for name in names]
    return [file for file in files if file in repo.files]


def _make_placeholder(path: Path, size: int) -> None:
    """Make a file that has a size, but takes no room on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, contextlib.suppress(OSError, OverflowError):
        file.truncate(size)  # the listing may name an impossible size


def _fetch_files(
    hub: Hub, repo: HubRepo, files: Sequence[str], stage: Stage
) -> dict[str, Path]:
    """Fetch files into the stage; keep what there is of them for the next try."""
    try:
        return {file: hub.fetch(repo, file, stage) for file in files}
    except (DownloadCut, KeyboardInterrupt):
        stage.keep_parts()
        raise


def _fetch_all(
    hub: Hub, repo: HubRepo, files: list[str], model: str, stage: Stage, home: Path
) -> None:
    """Fetch a model's files, then move them into its folder."""
    for file, path in _fetch_files(hub, repo, files, stage).items():
        target = home / _target_of(file, model, repo)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)


def source_of_page(url: str) -> str | None:
    """Convert a hub page's URL to a source."""
    parts = urlsplit(url)
    address = f"{parts.scheme}://{parts.netloc}{parts.path}"
    page = _PAGE.fullmatch(unquote(address.removeprefix(_endpoint())))
    if page is None:
        return None
    path = f"/{page['path']}" if page["path"] else ""
    revision = f"@{page['revision']}" if page["revision"] else ""
    return f"{SCHEME}{page['repo']}{path}{revision}"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", DEFAULT_ENDPOINT).rstrip("/")


def choose_file(repo: HubRepo, path: str) -> str:
    """Return the only model at or below a path.

    Raises:
        CommandError: there is none, or there are several, which are listed.
    """
    path = path.strip("/")
    if path in repo.files:
        model = _model_of(path)
        if model is not None:
            return model
        is_config = PurePosixPath(path).name == CONFIG
        if is_config and folder_files(list(repo.files), path):
            return path
    inside = _files_below(repo, path)
    paths = _model_paths(without_later_parts(inside))
    models = sorted(paths)
    if len(models) == 1:
        return models[0]
    config = f"{path}/{CONFIG}" if path else CONFIG
    if not models and folder_files(inside, config):
        return config
    title = f"{repo.name}/{path}" if path else repo.name
    if not models:
        fault = "is not a model file" if path in repo.files else "holds no model file"
        hint = _weights_hint(inside)
        raise CommandError(f"{title} {fault} of a supported kind{hint}")
    sentence = f"{title} holds {len(models)} models; name one:"
    sizes = {model: _bytes_of(repo, model) for model in models}
    choice = choose_gguf(sizes, available_memory() // 2)
    if choice is not None and choice.file:
        _print_choice(choice.reason, _offer(repo, models, paths))
        return choice.file
    if choice is not None:
        sentence = f"{title}: {choice.reason}"
    raise SeveralModelsError(sentence, _offer(repo, models, paths))


def _files_below(repo: HubRepo, path: str) -> list[str]:
    """Return the files below a path; all of them if it is empty."""
    if not path:
        return list(repo.files)
    start = f"{path}/"
    return [file for file in repo.files if file.startswith(start)]


def _offer(repo: HubRepo, models: Sequence[str], paths: Mapping[str, str]) -> list[str]:
    """Return a line for each model, up to ``MAX_OFFERED``."""
    lines = []
    for model in models[:MAX_OFFERED]:
        size = _size_of(repo, model)
        lines.append(f"  hf:{repo.name}/{paths[model]}  {size}")
    if len(models) > MAX_OFFERED:
        lines.append(f"  and {len(models) - MAX_OFFERED} more")
    return lines


def _weights_hint(files: Sequence[str]) -> str:
    if any(file.endswith((".safetensors", ".bin", ".gguf")) for file in files):
        return (
            "; weights alone are not a model: look for an ONNX or TFLite export of it"
        )
    return ""


def _model_paths(files: Sequence[str]) -> dict[str, str]:
    """Return outermost models with a path for each.

    A model that is the whole repository has the path of the file that marks it.
    """
    paths = {}
    for file in files:
        model = _model_of(file)
        if model is not None:
            paths[model] = file if model == "." else model
    outer = {}
    for model, path in paths.items():
        if not any(model.startswith(f"{other}/") for other in paths):
            outer[model] = path
    return outer


def _model_of(file: str) -> str | None:
    """Return a file's model: itself or its folder."""
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
    """Return the visible files of a folder that is a model."""
    path = "" if folder == "." else folder
    files = []
    for file in _files_below(repo, path):
        if not file.startswith("."):
            files.append(file)
    return files


def _beside(repo: HubRepo, model: str) -> list[str]:
    """Return a model file's external weights, sidecars and licence.

    External weights are named after the file: ``model.onnx_data``, ``model.onnx.data``.
    Sidecar files in the model's folder precede those at the top. No file is code.
    """
    from pocketserve.repository.sidecar_files import NAMES

    prefixes = (f"{model}_", f"{model}.")
    files = [file for file in repo.files if file.startswith(prefixes)]
    for name in (*NAMES, *LICENSES):
        file = _nearest(repo, model, name)
        if file is None or file.endswith(".py"):
            continue
        if repo.files[file].size <= MAX_SIDE_BYTES:
            files.append(file)
    return files


def _nearest(repo: HubRepo, model: str, name: str) -> str | None:
    """Return the file of a name in the model's folder, or else at the top."""
    for file in (f"{_folder_of(model)}{name}", name):
        if file in repo.files:
            return file
    return None


def _target_of(file: str, model: str, repo: HubRepo) -> str:
    """Return a file's path in the model's folder."""
    base = model if model not in repo.files else model.rpartition("/")[0]
    return file.removeprefix(f"{base}/") if base not in ("", ".") else file


def _folder_of(model: str) -> str:
    folder = model.rpartition("/")[0]
    return f"{folder}/" if folder else ""


def _size_of(repo: HubRepo, model: str) -> str:
    return human_bytes(_bytes_of(repo, model))


def _bytes_of(repo: HubRepo, model: str) -> int:
    files = [model, *gguf_parts(repo.files, model)]
    if model not in repo.files:
        files = _below(repo, model)
    return _total_bytes(repo, files)


def _print_choice(sentence: str, lines: Sequence[str]) -> None:
    """Tell the user which model is taken, and list all."""
    text = printable(f"{sentence}; all of them:")
    print(text, *map(printable, lines), sep="\n", file=sys.stderr)


def _has_content(path: Path, file: HubFile) -> bool:
    """Return whether a file has the listed size and hash."""
    size = path.stat().st_size
    if size != file.size:
        return False
    digest = _new_digest(file)
    with path.open("rb") as content:
        while piece := content.read(1 << 20):
            digest.update(piece)
    expected = file.sha256 or file.blob
    return expected in ("", digest.hexdigest())


def _new_digest(file: HubFile) -> Any:
    """Create a hash of the kind that the hub lists."""
    if file.sha256:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


def _parse_listing(name: str, document: Any) -> HubRepo:
    """Parse the hub's listing.

    Raises:
        LISTING_FAULTS: it is malformed.
    """
    from pocketserve.repository.toml_table import is_contained_name

    siblings, commit = document["siblings"], document["sha"]
    if len(siblings) > MAX_FILES or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError("too many files, or no commit")
    files = {}
    for item in siblings:
        path = item["rfilename"]
        if is_contained_name(path) and path.isprintable():
            files[path] = _parse_file(item)
    return HubRepo(name, commit, files, _license_of(document))


def _license_of(document: Any) -> str:
    card = document.get("cardData") or {}
    license = card.get("license_name") or card.get("license") or ""
    return license[:100] if isinstance(license, str) else ""


def _parse_file(item: Any) -> HubFile:
    lfs = item.get("lfs") or {}
    size = int(item.get("size") or 0)
    sha256 = lfs.get("sha256") or ""
    blob = "" if lfs else item.get("blobId") or ""
    if size < 0 or not re.fullmatch(r"[0-9a-f]{64}|", sha256):
        raise ValueError("an invalid size or hash")
    return HubFile(size, sha256, blob)


def _refusal(response: Response, title: str, has_token: bool) -> str:
    """Return the message for an error response."""
    code, status = response.headers.get("X-Error-Code", ""), response.status_code
    if code == "GatedRepo":
        actor = "log in there, set HF_TOKEN, and"
        if has_token:
            actor = "this token's account has to"
        return f"{title} is behind an agreement: {actor} accept it on the page of the model"
    if code == "RevisionNotFound":
        return (
            f"{title}: there is no such revision; "
            "the part behind @ is a branch, a tag or a commit"
        )
    if code == "EntryNotFound":
        return f"{title}: there is no such file"
    if code == "RepoNotFound" or status in (401, 404):
        reason = "it is private: then set HF_TOKEN to a token that may read it"
        if has_token:
            reason = "this token may not see it"
        return f"{title}: there is no such repository, or {reason}"
    if status == 403:
        detail = excerpt(response.headers.get("X-Error-Message", ""), 100)
        return f"{title}: this token may not read it ({detail})"
    if status == 429:
        return f"{title}: the hub's rate limit is reached; try again later"
    return f"{title} cannot be fetched: the hub answers {status}"
