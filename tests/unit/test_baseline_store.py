"""The files of the baselines: written, read, found, refused."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from entries import ENVIRONMENT, GIB, H200, entry, process, three
from hypothesis import given
from hypothesis import strategies as st
from samples import MEASUREMENT, SPEC

from pytest_vramfit.baseline import BaselineError, Entry, Process, Store
from pytest_vramfit.baseline import store as store_module
from pytest_vramfit.baseline.entry import changed_fields
from pytest_vramfit.baseline.store import read_file

T4 = "Tesla T4"
FILE = "nvidia-h200.json"

TEXT = """\
{
 "schema": "pytest-vramfit/baselines/1",
 "device": "NVIDIA H200",
 "entries": [
  {
   "nodeid": "a.py::b[é 1]",
   "engine": "gpu",
   "digest": "DIGEST",
   "peak_allocated_bytes": 10737418240,
   "processes": [
    {
     "step_ns": [260, 240, 250],
     "gpu_ns": [85],
     "kernels": 2000
    },
    {
     "step_ns": [255],
     "gpu_ns": null,
     "kernels": null
    }
   ],
   "environment": {
    "device": "NVIDIA H200",
    "driver": "580.1"
   },
   "spec": {
    "model": "Small",
    "config": {
     "mlp_only_layers": [],
     "betas": [0.9, 0.99]
    },
    "targets": [
     "q_proj",
     "v_proj"
    ]
   }
  }
 ]
}
"""

AS_TEXT = entry(
    "a.py::b[é 1]",
    processes=(
        Process(step_ns=(260, 240, 250), gpu_ns=(85,), kernels=2_000),
        Process(step_ns=(255,), gpu_ns=None, kernels=None),
    ),
    environment={"device": H200, "driver": "580.1"},
    spec={
        "model": "Small",
        "config": {"mlp_only_layers": [], "betas": [0.9, 0.99]},
        "targets": ["q_proj", "v_proj"],
    },
)
TEXT = TEXT.replace("DIGEST", AS_TEXT.digest)


def written(folder: Path, *entries: Entry) -> Path:
    """The one file that these entries make."""
    (file,) = Store(folder).put(entries)
    return file


def broken(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A sound file of one entry with one change."""
    document = json.loads(TEXT)
    change(document)
    file = folder / FILE
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def message(folder: Path) -> str:
    with pytest.raises(BaselineError) as caught:
        Store(folder)
    return str(caught.value)


def test_file_is_written_to_be_read_in_a_diff(tmp_path: Path) -> None:
    """A value a line, samples on one line."""
    assert written(tmp_path, AS_TEXT).read_text(encoding="utf-8") == TEXT


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    entries = [AS_TEXT, entry("b.py::c"), entry("b.py::c", engine="cpu"), entry(device=T4)]
    Store(tmp_path).put(entries)
    read = Store(tmp_path).entries
    assert sorted(read, key=lambda one: (one.device, one.key)) == sorted(
        entries, key=lambda one: (one.device, one.key)
    )


@given(
    nodeid=st.text(st.characters(codec="utf-8"), min_size=1),
    device=st.text(st.sampled_from("ab 1[],.\n\"'"), min_size=1),
    samples=st.lists(st.integers(1, 2**63 - 1), min_size=1),
    spec=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text("[1, 2]\n"),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
    ),
)
def test_whatever_is_written_is_read_back(
    nodeid: str,
    device: str,
    samples: list[int],
    spec: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Also texts that look like the lists of numbers that go on one line."""
    one = entry(
        nodeid,
        processes=(Process(step_ns=tuple(samples), gpu_ns=None, kernels=None),),
        environment={"device": device},
        spec={"value": spec},
    )
    folder = tmp_path_factory.mktemp("baselines")
    written(folder, one)
    assert Store(folder).entries == [one]


def test_nodeid_that_looks_like_a_list_of_numbers_stays(tmp_path: Path) -> None:
    written(tmp_path, entry("a.py::b[ 1, 2 ]"))
    assert [one.nodeid for one in Store(tmp_path).entries] == ["a.py::b[ 1, 2 ]"]


def test_entries_are_sorted_whatever_the_order_they_came_in(tmp_path: Path) -> None:
    nodeids = ["b.py::a", "a.py::c", "a.py::b"]
    for nodeid in nodeids:
        file = written(tmp_path, entry(nodeid))
    document = json.loads(file.read_text(encoding="utf-8"))
    assert [one["nodeid"] for one in document["entries"]] == sorted(nodeids)


def test_writing_the_same_again_changes_no_byte(tmp_path: Path) -> None:
    file = written(tmp_path, entry("a"), entry("b"))
    before = file.read_bytes()
    written(tmp_path, entry("b"))
    assert file.read_bytes() == before


def test_each_device_has_its_file(tmp_path: Path) -> None:
    files = Store(tmp_path).put([entry(), entry(device="NVIDIA GeForce RTX 5070 Ti (Laptop)")])
    assert [one.name for one in files] == [FILE, "nvidia-geforce-rtx-5070-ti-laptop.json"]
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_put_replaces_the_same_test_only(tmp_path: Path) -> None:
    old, cpu, other = entry("a"), entry("a", engine="cpu"), entry("b")
    written(tmp_path, old, cpu, other)
    new = replace(old, peak_allocated_bytes=1)
    written(tmp_path, new)
    assert {one.key: one for one in Store(tmp_path).entries} == {
        ("a", "gpu"): new,
        ("a", "cpu"): cpu,
        ("b", "gpu"): other,
    }


def test_store_that_put_knows_it_without_reading_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put([entry("a")])
    assert store.entries == [entry("a")]


def test_remove_takes_out_these_only(tmp_path: Path) -> None:
    written(tmp_path, entry("a"), entry("b"), entry("a", engine="cpu"))
    Store(tmp_path).put([entry("a", device=T4)])
    Store(tmp_path).remove([entry("a")])
    assert {(one.device, *one.key) for one in Store(tmp_path).entries} == {
        (H200, "b", "gpu"),
        (H200, "a", "cpu"),
        (T4, "a", "gpu"),
    }


def test_folder_that_is_not_there_has_no_baselines_and_is_not_made(tmp_path: Path) -> None:
    assert Store(tmp_path / "none").entries == []
    assert not (tmp_path / "none").exists()


def test_put_makes_the_folder(tmp_path: Path) -> None:
    assert written(tmp_path / "new" / "deep", entry()).is_file()


def find(store: Store, nodeid: str, digest: str, **changes: str) -> tuple[str, bool] | None:
    """The nodeid that was found, and whether it is another one."""
    match = store.find(
        **{"device": H200, "engine": "gpu", "nodeid": nodeid, "digest": digest, **changes}
    )
    return match and (match.entry.nodeid, match.renamed)


def test_entry_is_found_by_its_nodeid_whatever_it_trains(tmp_path: Path) -> None:
    """The caller says what changed."""
    store = Store(tmp_path)
    store.put([entry("a", digest="1"), entry("b", digest="2")])
    assert find(store, "a", "1") == ("a", False)
    assert find(store, "a", "2") == ("a", False)


def test_renamed_test_is_found_by_what_it_trains(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put([entry("a", digest="1"), entry("b", digest="2")])
    assert find(store, "new", "2") == ("b", True)


def test_two_that_train_the_same_are_no_renamed_test(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put([entry("a", digest="1"), entry("b", digest="1")])
    assert find(store, "new", "1") is None


@pytest.mark.parametrize("elsewhere", [{"device": T4}, {"engine": "cpu"}], ids=str)
def test_another_device_or_engine_is_another_test(
    elsewhere: dict[str, str], tmp_path: Path
) -> None:
    store = Store(tmp_path)
    store.put([entry("a", digest="1")])
    assert find(store, "a", "1", **elsewhere) is None
    assert find(store, "new", "1", **elsewhere) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON: Expecting value"),
        ("{", "is not JSON: Expecting property name"),
        ("<<<<<<< HEAD\n" + TEXT, "is not JSON: Expecting value"),
        ("[" * 100_000, "is not JSON: "),
        ("[]", "the file is [], not an object"),
        ("{}", "schema is missing"),
    ],
    ids=["empty", "cut", "merge conflict", "deep", "list", "no schema"],
)
def test_file_that_is_no_baselines(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    assert message(tmp_path).startswith(f"{tmp_path / FILE}")
    assert says in message(tmp_path)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\xff\xfe{}")
    assert f"{tmp_path / FILE} is not a text file" in message(tmp_path)


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    assert message(tmp_path) == f"{tmp_path / FILE} cannot be read: Is a directory"


def test_file_in_place_of_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    assert message(file) == f"{file} is a file, not a folder of baselines"


def test_newer_schema_is_called_that(tmp_path: Path) -> None:
    file = broken(tmp_path, lambda one: one.update(schema="pytest-vramfit/baselines/2"))
    assert message(tmp_path) == (
        f'{file}: schema is "pytest-vramfit/baselines/2", not "pytest-vramfit/baselines/1" '
        "(written by a newer pytest-vramfit?)"
    )


def test_results_file_is_not_called_newer(tmp_path: Path) -> None:
    file = broken(tmp_path, lambda one: one.update(schema="pytest-vramfit/results/1"))
    assert message(tmp_path) == (
        f'{file}: schema is "pytest-vramfit/results/1", not "pytest-vramfit/baselines/1"'
    )


def test_file_of_another_name_than_its_device_has(tmp_path: Path) -> None:
    """Its entries would neither be found nor removed."""
    file = written(tmp_path, entry()).rename(tmp_path / "old.json")
    assert message(tmp_path) == f'{file}: device is "NVIDIA H200", whose file is nvidia-h200.json'


PLACES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "device": (("device",), 5, "5, not a text"),
    "empty device": (("device",), "", '"", not a text'),
    "entries": (("entries",), {}, "{}, not a list"),
    "entry": (("entries", 0), "x", '"x", not an object'),
    "nodeid": (("entries", 0, "nodeid"), ["a"], '["a"], not a text'),
    "engine": (("entries", 0, "engine"), True, "true, not a text"),
    "digest": (("entries", 0, "digest"), 12, "12, not a text"),
    "spec": (("entries", 0, "spec"), "seq", '"seq", not an object'),
    "peak of 0": (("entries", 0, "peak_allocated_bytes"), 0, "0, not an integer above 0"),
    "negative peak": (("entries", 0, "peak_allocated_bytes"), -1, "-1, not an integer above 0"),
    "peak of true": (("entries", 0, "peak_allocated_bytes"), True, "true, not an integer above 0"),
    "text as peak": (("entries", 0, "peak_allocated_bytes"), "9", '"9", not an integer above 0'),
    "broken peak": (("entries", 0, "peak_allocated_bytes"), 1.5, "1.5, not an integer above 0"),
    "NaN": (("entries", 0, "peak_allocated_bytes"), float("nan"), "NaN, not an integer above 0"),
    "huge peak": (
        ("entries", 0, "peak_allocated_bytes"),
        10**400,
        f"1{'0' * 76}..., not an integer above 0",
    ),
    "processes": (("entries", 0, "processes"), "p", '"p", not a list'),
    "no process": (("entries", 0, "processes"), [], "[], not a list of at least one process"),
    "process": (("entries", 0, "processes", 1), [1], "[1], not an object"),
    "step_ns": (("entries", 0, "processes", 0, "step_ns"), 5, "5, not a list"),
    "no sample": (
        ("entries", 0, "processes", 1, "step_ns"),
        [],
        "[], not a list of at least one sample",
    ),
    "sample": (("entries", 0, "processes", 0, "step_ns", 2), 0, "0, not an integer above 0"),
    "gpu_ns": (("entries", 0, "processes", 0, "gpu_ns", 0), "x", '"x", not an integer above 0'),
    "kernels": (("entries", 0, "processes", 0, "kernels"), 0, "0, not an integer above 0"),
    "environment": (("entries", 0, "environment"), [], "[], not an object"),
    "driver": (("entries", 0, "environment", "driver"), 580.1, "580.1, not a text"),
    "null driver": (("entries", 0, "environment", "driver"), None, "null, not a text"),
}
"""Where a wrong value stands, the value, and what is said of it."""


@pytest.mark.parametrize("bad", PLACES)
def test_wrong_value_is_said_with_file_and_place(bad: str, tmp_path: Path) -> None:
    (*way, last), value, says = PLACES[bad]

    def change(document: Any) -> None:
        for step in way:
            document = document[step]
        document[last] = copy.deepcopy(value)

    file = broken(tmp_path, change)
    parts = [f"[{one}]" if isinstance(one, int) else f".{one}" for one in (*way, last)]
    place = "".join(parts).removeprefix(".")
    assert message(tmp_path) == f"{file}: {place} is {says}"


@pytest.mark.parametrize("key", ["nodeid", "engine", "digest", "spec", "processes", "environment"])
@pytest.mark.parametrize("null", [True, False], ids=["null", "left out"])
def test_missing_value_is_said_with_file_and_place(key: str, null: bool, tmp_path: Path) -> None:
    def change(document: Any) -> None:
        if null:
            document["entries"][0][key] = None
        else:
            del document["entries"][0][key]

    file = broken(tmp_path, change)
    assert message(tmp_path) == f"{file}: entries[0].{key} is missing"


def test_same_test_twice(tmp_path: Path) -> None:
    """As a merge may leave it."""
    broken(tmp_path, lambda document: document["entries"].append(document["entries"][0]))
    assert message(tmp_path).endswith(
        'entries[1].nodeid is "a.py::b[\\u00e9 1]", '
        "not another test than that of an entry before it"
    )


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (
            '"device": "NVIDIA H200",\n "entries"',
            '"device": "a", "device": "b", "entries"',
            "device",
        ),
        ('"nodeid":', '"engine": "cpu", "nodeid":', "engine"),
        ('"config": {', '"config": {"betas": 1,', "betas"),
        ('"kernels": 2000', '"kernels": 2000, "kernels": 2000', "kernels"),
    ],
    ids=["document", "entry", "config", "process"],
)
def test_same_key_twice(old: str, new: str, key: str, tmp_path: Path) -> None:
    """As a merge may leave it; the last would silently count."""
    assert TEXT.count(old) == 1
    (tmp_path / FILE).write_text(TEXT.replace(old, new), encoding="utf-8")
    assert message(tmp_path) == f'{tmp_path / FILE}: an object has the key "{key}" twice'


HALF_A_PAIR = json.loads('"a\\ud800"')


@pytest.mark.parametrize(
    "place",
    ["device", "entries[0].nodeid", "entries[0].environment.driver", "entries[0].spec.model"],
)
def test_half_a_surrogate_pair_cannot_be_written_again(place: str, tmp_path: Path) -> None:
    def change(document: Any) -> None:
        *way, last = place.replace("entries[0]", "entries.0").split(".")
        for step in way:
            document = document[int(step) if step.isdigit() else step]
        document[last] = HALF_A_PAIR

    file = broken(tmp_path, change)
    assert message(tmp_path) == f'{file}: {place} is "a\\ud800", not text that can be written'


def test_half_a_surrogate_pair_in_a_key(tmp_path: Path) -> None:
    def change(document: Any) -> None:
        document["entries"][0]["spec"]["targets"] = ["q", {HALF_A_PAIR: 1}]

    file = broken(tmp_path, change)
    assert message(tmp_path) == (
        f'{file}: entries[0].spec.targets[1] has the key "a\\ud800", not text that can be written'
    )


def test_whole_surrogate_pair_is_text(tmp_path: Path) -> None:
    broken(tmp_path, lambda document: document["entries"][0].update(nodeid="\U0001f600"))
    assert "\\ud83d\\ude00" in (tmp_path / FILE).read_text(encoding="utf-8")
    assert [one.nodeid for one in Store(tmp_path).entries] == ["\U0001f600"]


def test_text_that_cannot_be_written_stops_before_anything_is(tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    with pytest.raises(BaselineError) as caught:
        store.put([entry(device=T4), entry("b"), entry(HALF_A_PAIR)])
    assert str(caught.value) == 'the baseline of "a\\ud800" is not text that can be written'
    assert not (tmp_path / "new").exists()


def test_digest_of_another_spec(tmp_path: Path) -> None:
    """One of the two was edited: what was measured is not known."""
    file = broken(tmp_path, lambda document: document["entries"][0].update(digest="deadbeef"))
    assert message(tmp_path) == (
        f'{file}: entries[0].digest is "deadbeef", not "{AS_TEXT.digest}", the digest of its spec'
    )


def test_spec_that_was_edited(tmp_path: Path) -> None:
    broken(tmp_path, lambda document: document["entries"][0]["spec"].update(seq=1024))
    assert f'entries[0].digest is "{AS_TEXT.digest}", not ' in message(tmp_path)


def test_digest_of_a_real_spec_is_that_of_its_file(tmp_path: Path) -> None:
    for spec in (SPEC, replace(SPEC, targets=("q_proj",), max_grad_norm=None, alpha=8.5)):
        one = Entry.of("a.py::b", "gpu", spec, [MEASUREMENT])
        written(tmp_path, one)
        assert Store(tmp_path).entries == [one]


def test_digest_is_believed_where_a_newer_version_wrote_the_spec(tmp_path: Path) -> None:
    change = {"digest": "deadbeef", "spec": {"seq": 512, "later": False}}
    broken(tmp_path, lambda document: document["entries"][0].update(change))
    assert [one.digest for one in Store(tmp_path).entries] == ["deadbeef"]


ALIKE = "NVIDIA-H200"
SECOND_FILE = f"nvidia-h200-{hashlib.sha256(ALIKE.encode()).hexdigest()[:8]}.json"


def test_second_device_of_the_same_file_name_has_a_file_of_its_own(tmp_path: Path) -> None:
    first, second = entry("a"), entry("a", device=ALIKE, peak_allocated_bytes=1)
    store = Store(tmp_path)
    files = store.put([first, second])
    assert [one.name for one in files] == [FILE, SECOND_FILE]
    for one in (store, Store(tmp_path)):
        assert len(one.entries) == 2
        for device, there in ((H200, first), (ALIKE, second)):
            match = one.find(device=device, engine="gpu", nodeid="a", digest=there.digest)
            assert match is not None
            assert match.entry == there
    Store(tmp_path).remove([second])
    assert Store(tmp_path).entries == [first]
    assert written(tmp_path, second).name == SECOND_FILE
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([FILE, SECOND_FILE])


def test_entries_are_only_of_the_device_that_their_file_names(tmp_path: Path) -> None:
    written(tmp_path, entry("a"))
    assert find(Store(tmp_path), "a", entry().digest, device=ALIKE) is None
    Store(tmp_path).remove([entry("a", device=ALIKE)])
    assert read_file(tmp_path / FILE)


def test_second_device_keeps_its_file_when_the_first_is_gone(tmp_path: Path) -> None:
    Store(tmp_path).put([entry("a"), entry("a", device=ALIKE)])
    (tmp_path / FILE).unlink()
    assert written(tmp_path, entry("b", device=ALIKE)).name == SECOND_FILE
    assert [one.nodeid for one in Store(tmp_path).entries] == ["a", "b"]
    assert written(tmp_path, entry("a")).name == FILE


def test_two_files_of_one_device(tmp_path: Path) -> None:
    """Which one counts is not known."""
    Store(tmp_path).put([entry("a"), entry("a", device=ALIKE)])
    text = (tmp_path / SECOND_FILE).read_text(encoding="utf-8")
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    assert message(tmp_path) == (
        f'{tmp_path / FILE}: device is "{ALIKE}", whose file is {SECOND_FILE}'
    )


def test_device_whose_name_has_no_letter_of_ascii(tmp_path: Path) -> None:
    files = Store(tmp_path).put([entry(device="显卡"), entry(device="--")])
    assert all(re.fullmatch(r"[0-9a-f]{8}\.json", one.name) for one in files)
    assert {one.device for one in Store(tmp_path).entries} == {"显卡", "--"}


def test_link_to_a_file_stays_one(tmp_path: Path) -> None:
    """As where several checkouts share their baselines."""
    shared, folder = tmp_path / "shared", tmp_path / "baselines"
    target = written(shared, entry("a")).rename(shared / "h200.of-the-team")
    folder.mkdir()
    (folder / FILE).symlink_to("../shared/h200.of-the-team")
    assert written(folder, entry("b")) == folder / FILE
    assert (folder / FILE).is_symlink()
    assert sorted(one for one, _ in read_file(target)) == ["a", "b"]
    assert list(shared.iterdir()) == [target]
    assert list(folder.iterdir()) == [folder / FILE]


def test_writer_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_PATIENCE_S", 0.1)
    store = Store(tmp_path)
    with store_module._locked(tmp_path / FILE), pytest.raises(BaselineError) as caught:
        store.put([entry()])
    assert str(caught.value).startswith("another process holds ")
    assert str(caught.value).endswith(f".lock, the lock of {tmp_path / FILE}")
    assert list(tmp_path.iterdir()) == []
    store.put([entry()])


def test_each_user_has_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cannot open the file of another in a folder for all."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    for uid in (1, 2):
        monkeypatch.setattr(os, "getuid", lambda uid=uid: uid)
        with store_module._locked(tmp_path / FILE):
            assert len([*tmp_path.glob(f"pytest-vramfit-{uid}-*.lock")]) == 1


@given(data=st.data())
def test_no_value_anywhere_raises_anything_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any value in any place is read, or refused by its place."""
    value = st.sampled_from([None, True, 0, -1, 2**70, 1.5, "", "x", [], [1], {}, {"a": 1}])

    def change(document: Any) -> None:
        while True:
            keys = [*document] if isinstance(document, dict) else list(range(len(document)))
            key = data.draw(st.sampled_from(keys))
            inner = document[key]
            if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
                document[key] = data.draw(value)
                return
            document = inner

    folder = tmp_path_factory.mktemp("baselines")
    file = broken(folder, change)
    said = ""
    try:
        read_file(file)
    except BaselineError as error:
        said = str(error)
    assert not said or said.startswith(f"{file}: ")


def test_broken_file_is_not_touched_by_who_writes(tmp_path: Path) -> None:
    """Also where it was broken after the store was read."""
    store = Store(tmp_path)
    file = broken(tmp_path, lambda document: document["entries"][0].pop("digest"))
    before = file.read_bytes()
    with pytest.raises(BaselineError, match=r"entries\[0\]\.digest is missing"):
        store.put([entry("b")])
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_disk_that_fails_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, entry("a"))
    before = file.read_bytes()

    def fail(self: Path, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    store = Store(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        store.put([entry("b")])
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
    assert store.entries == [entry("a")]


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from entries import entry
from pytest_vramfit.baseline import Store
store = Store(Path({folder!r}))
print("ready", flush=True)
sys.stdin.readline()
for index in range(20):
    store.put([entry(f"{name}-{{index}}")])
"""


def test_two_writers_at_once_lose_no_entry(tmp_path: Path) -> None:
    """Each writes twenty entries, one at a time, into the same file."""
    tests = str(Path(__file__).parent)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER.format(tests=tests, folder=str(tmp_path), name=name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for one in writers:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in writers:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    for one in writers:
        one.communicate(timeout=60)
        assert one.returncode == 0
    nodeids = {one.nodeid for one in Store(tmp_path).entries}
    assert nodeids == {f"{name}-{index}" for name in "ab" for index in range(20)}


def test_entry_of_measurements_has_a_process_for_each_and_the_smallest_peak() -> None:
    assert MEASUREMENT.memory is not None
    fuller = replace(
        MEASUREMENT,
        memory=replace(MEASUREMENT.memory, backward_peak_bytes=11 * GIB),
        step_ns=(7, 8, 9),
    )
    seen = Entry.of("a.py::b", "gpu", SPEC, [fuller, MEASUREMENT])
    assert seen.device == "Card"
    assert seen.digest == SPEC.digest
    assert seen.spec == SPEC.to_json()
    assert seen.peak_allocated_bytes == 10 * GIB
    assert [one.step_ns for one in seen.processes] == [(7, 8, 9), MEASUREMENT.step_ns]


def test_processes_of_two_entries_are_put_together() -> None:
    one, other = entry(processes=three()), entry(processes=(process(9),), peak_allocated_bytes=5)
    both = one.with_processes_of(other)
    assert both.processes == (*three(), process(9))
    assert both.peak_allocated_bytes == 5


def test_medians_are_those_of_the_middle_process() -> None:
    one = entry(
        processes=(
            Process(step_ns=(1, 9, 2), gpu_ns=(5, 6, 7), kernels=3),
            Process(step_ns=(4, 4, 90), gpu_ns=None, kernels=None),
            Process(step_ns=(30, 10, 20), gpu_ns=(8, 9, 1), kernels=5),
        )
    )
    assert one.median_step_ns == 4
    assert one.median_gpu_ns == 6
    assert one.kernels == 3


def test_gpu_time_of_no_process_is_none() -> None:
    one = entry(processes=three(gpu_ms=None))
    assert one.median_gpu_ns is None


def test_changed_fields_go_into_the_config_and_leave_the_name_out() -> None:
    before = {"model": "A", "seq": 512, "config": {"hidden_size": 64, "layers": 2, "model": "x"}}
    now = {"model": "B", "seq": 1024, "config": {"hidden_size": 64, "layers": 4, "model": "y"}}
    assert changed_fields(before, {**now, "rank": 8}) == [
        ("config.layers", 2, 4),
        ("config.model", "x", "y"),
        ("rank", None, 8),
        ("seq", 512, 1024),
    ]


def test_environment_may_have_an_empty_text(tmp_path: Path) -> None:
    """An environment variable that is set to nothing is written so."""
    one = entry(environment={**ENVIRONMENT, "allocator settings": ""})
    written(tmp_path, one)
    assert Store(tmp_path).entries == [one]
