"""Where a model's weights are read from."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vramfit import catalog
from pytest_vramfit.marker import checkpoint


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With a folder ``mine`` that has a config.json, and one that has none."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "nobody" / "empty").mkdir(parents=True)
    (tmp_path / "nobody" / "mine").symlink_to(tmp_path / "mine")
    return tmp_path


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("QWEN/qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("somebody/else", "somebody/else"),
        ("mine", "{root}/mine"),
        ("./mine/", "{root}/mine"),
        ("nobody/mine", "{root}/mine"),
        ("nobody/empty", "nobody/empty"),  # no folder that a model is read from
        (Path("mine"), "{root}/mine"),
    ],
    ids=str,
)
def test_checkpoint(model: object, found: str, root: Path) -> None:
    assert checkpoint.resolve(model, rootdir=root) == found.format(root=root.resolve())


def test_absolute_folder(root: Path) -> None:
    assert checkpoint.resolve(str(root / "mine"), rootdir=Path("/")) == str(root / "mine")


@pytest.mark.parametrize("name", catalog.names())
def test_checkpoint_of_a_catalogue_name_is_one_of_its_hub_ids(name: str) -> None:
    """Gemma 3's larger ones are on the hub with a vision tower only."""
    model = catalog.find(name)
    assert model is not None
    if name in {"tiny", "Gemma-3-4B", "Gemma-3-12B", "Gemma-3-27B"}:
        with pytest.raises(ValueError, match="has no checkpoint that the catalogue knows"):
            checkpoint.resolve(name, rootdir=Path("/nowhere"))
    else:
        assert checkpoint.resolve(name, rootdir=Path("/nowhere")) in model.hub_ids


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("tiny", "has no checkpoint that the catalogue knows; name a folder or a hub id"),
        ({"model_type": "llama"}, "has no checkpoint; name a folder or a model of the hub"),
    ],
)
def test_no_checkpoint(model: object, says: str, root: Path) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        checkpoint.resolve(model, rootdir=root)


@pytest.mark.parametrize(
    ("model", "is_one"),
    [
        ("Qwen/Qwen2.5-7B", True),
        ("a-b_c.d/e", True),
        ("Qwen2.5-7B", False),
        ("a/b/c", False),
        ("./b", False),
        ("../b", False),
        ("~/b", False),
        ("/b", False),
        ("a/", False),
        ("a b/c", False),
        ("a/b\n", False),
        ("é/b", False),
        (Path("a/b"), False),
        (7, False),
    ],
    ids=repr,
)
def test_hub_id_is_an_organisation_and_a_name(model: object, is_one: bool) -> None:
    assert checkpoint.is_hub_id(model) is is_one
