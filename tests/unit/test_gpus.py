"""The GPU catalogue's look-up rules and its data, without torch or pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from urllib.parse import urlsplit

import pytest

from pytest_vramfit.catalog import gpus

ROWS = [gpu for name in gpus.names() if (gpu := gpus.find(name))]

# What the card is sold as having, in GB, which is its memory in GiB or a little more.
SOLD_AS = {
    "GeForce RTX 5090": 32,
    "GeForce RTX 5080": 16,
    "GeForce RTX 5070 Ti": 16,
    "GeForce RTX 5070": 12,
    "GeForce RTX 5060 Ti 16GB": 16,
    "GeForce RTX 5060": 8,
    "GeForce RTX 5060 Laptop GPU": 8,
    "GeForce RTX 4090": 24,
    "GeForce RTX 4090 D": 24,
    "GeForce RTX 4080 SUPER": 16,
    "GeForce RTX 4070 Ti SUPER": 16,
    "GeForce RTX 4070 Laptop GPU": 8,
    "GeForce RTX 4060": 8,
    "GeForce RTX 4060 Laptop GPU": 8,
    "GeForce RTX 4050 Laptop GPU": 6,
    "GeForce RTX 3090 Ti": 24,
    "GeForce RTX 3090": 24,
    "GeForce RTX 3080 10GB": 10,
    "GeForce RTX 3060 12GB": 12,
    "GeForce RTX 3060 Laptop GPU": 6,
    "GeForce RTX 3050 Ti Laptop GPU": 4,
    "GeForce RTX 2080 Ti": 11,
    "GeForce RTX 2080 SUPER": 8,
    "GeForce RTX 2070 SUPER": 8,
    "GeForce GTX 1650": 4,
    "GeForce GTX 1650 Ti": 4,
    "GeForce GTX 1080 Ti": 11,
    "TITAN V": 12,
    "RTX PRO 6000 Blackwell Workstation Edition": 96,
    "RTX PRO 6000 Blackwell Max-Q Workstation Edition": 96,
    "RTX A6000": 48,
    "RTX A5000": 24,
    "RTX A4000": 16,
    "Quadro RTX 6000": 24,
    "Quadro RTX 4000": 8,
    "Quadro P2000": 5,
    "B200": 180,
    "GH200 120GB": 96,
    "H200": 141,
    "H100 80GB HBM3": 80,
    "H100 NVL": 94,
    "L40S": 48,
    "L4": 24,
    "A10": 24,
    "A10G": 24,
    "A40": 48,
    "A100-SXM4-40GB": 40,
    "A100-SXM4-80GB": 80,
    "A100 80GB PCIe": 80,
    "A100-SXM-64GB": 64,
    "Tesla T4": 16,
    "Tesla V100-SXM2-32GB": 32,
    "Tesla V100S-PCIE-32GB": 32,
    "Tesla V100-DGXS-32GB": 32,
    "Tesla P100-PCIE-12GB": 12,
    "Tesla P40": 24,
}

# By architecture, as NVIDIA's lists have them (developer.nvidia.com/cuda-gpus and
# /cuda-legacy-gpus): Pascal, Volta, Turing, Ampere, Ada Lovelace, Hopper, Blackwell.
CAPABILITIES = {
    *((6, 0), (6, 1), (7, 0), (7, 5)),
    *((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)),
}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        pytest.param("GeForce RTX 5070 Ti", "GeForce RTX 5070 Ti", id="catalogue name"),
        pytest.param("NVIDIA GeForce RTX 5070 Ti", "GeForce RTX 5070 Ti", id="NVML's name"),
        pytest.param("RTX 5070 Ti", "GeForce RTX 5070 Ti", id="without GeForce"),
        pytest.param("NVIDIA RTX 5070 Ti", "GeForce RTX 5070 Ti", id="NVIDIA without GeForce"),
        pytest.param("rtx 5070 TI", "GeForce RTX 5070 Ti", id="another case"),
        pytest.param("nvidia-rtx-5070-ti", "GeForce RTX 5070 Ti", id="hyphens"),
        pytest.param("rtx_5070_ti", "GeForce RTX 5070 Ti", id="underscores"),
        pytest.param("RTX5070Ti", "GeForce RTX 5070 Ti", id="nothing between the words"),
        pytest.param("  RTX  5070 Ti ", "GeForce RTX 5070 Ti", id="more spaces"),
        pytest.param("RTX 4090", "GeForce RTX 4090", id="begins another name"),
        pytest.param("RTX 4090D", "GeForce RTX 4090 D", id="ending written on"),
        pytest.param("RTX 4070 Laptop", "GeForce RTX 4070 Laptop GPU", id="without GPU"),
        pytest.param("T4", "Tesla T4", id="without Tesla"),
        pytest.param("NVIDIA A10", "A10", id="begins A100 and A10G"),
        pytest.param("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", id="data centre"),
        pytest.param("A100 80GB SXM", "A100-SXM4-80GB", id="also"),
        pytest.param("H100 SXM", "H100 80GB HBM3", id="the form for NVML's name"),
        pytest.param("RTX 5060 Ti 16 GB", "GeForce RTX 5060 Ti 16GB", id="with the memory"),
    ],
)
def test_find_accepts(spelling: str, name: str) -> None:
    gpu = gpus.find(spelling)
    assert gpu is not None
    assert gpu.name == name


@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param("A100", id="40 or 80 GB"),
        pytest.param("RTX 3080", id="10 or 12 GB"),
        pytest.param("RTX 5060 Ti", id="8 or 16 GB"),
        pytest.param("RTX 6000", id="Quadro or Ada"),
        pytest.param("RTX 4090 Laptop GPU", id="laptop's of a desktop card"),
        pytest.param("RTX 5070 Ti SUPER", id="another ending"),
        pytest.param("5070 Ti", id="number without RTX"),
        pytest.param("GTX 5090", id="GTX for RTX"),
        pytest.param("16303MiB", id="a size"),
        pytest.param("NVIDIA", id="brand alone"),
        pytest.param("", id="empty"),
    ],
)
def test_find_refuses(spelling: str) -> None:
    assert gpus.find(spelling) is None


def test_find_returns_a_row_for_every_name() -> None:
    assert tuple(row.name for row in ROWS) == gpus.names()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_spelling_of_a_row_leads_to_it(row: gpus.Gpu) -> None:
    spellings = [row.name, f"NVIDIA {row.name}", row.name.replace(" ", "-"), *row.also]
    assert {gpus.find(spelling) for spelling in spellings} == {row}


def test_spellings_are_unique_whatever_the_case_and_the_separators() -> None:
    rows = json.loads(files("pytest_vramfit.catalog").joinpath("gpus.json").read_text("utf-8"))
    spellings = [
        "".join(filter(str.isalnum, spelling.lower()))
        for name, row in rows["gpus"].items()
        for spelling in (name, *row["also"])
    ]
    assert len(set(spellings)) == len(spellings)


def test_catalogue_has_at_least_45_gpus() -> None:
    assert len(ROWS) >= 45


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_memory_and_capability_have_sources_that_are_addresses(row: gpus.Gpu) -> None:
    parts = [urlsplit(source) for source in row.sources]
    assert all(part.scheme == "https" and part.netloc and part.path.strip("/") for part in parts)
    assert parts[-1].netloc == "developer.nvidia.com"
    assert any(part.netloc != "developer.nvidia.com" for part in parts)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_memory_is_what_the_card_is_sold_as_or_a_little_less(row: gpus.Gpu) -> None:
    """ECC takes a sixteenth where the memory chips have none of their own, and the card a bit."""
    assert 0.93 <= row.memory_bytes / (SOLD_AS[row.name] * 2**30) <= 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_memory_is_a_whole_number_of_mebibytes(row: gpus.Gpu) -> None:
    assert row.memory_bytes % 2**20 == 0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_capability_is_one_that_nvidia_lists(row: gpus.Gpu) -> None:
    assert row.capability in CAPABILITIES


@pytest.mark.parametrize(
    ("begin", "capability"),
    [
        ("GeForce RTX 50", (12, 0)),
        ("GeForce RTX 40", (8, 9)),
        ("GeForce RTX 30", (8, 6)),
        ("GeForce RTX 20", (7, 5)),
        ("GeForce GTX 16", (7, 5)),
        ("H", (9, 0)),
        ("L4", (8, 9)),
        ("A100", (8, 0)),
        ("Tesla V100", (7, 0)),
    ],
)
def test_capability_is_the_same_in_a_series(begin: str, capability: tuple[int, int]) -> None:
    found = {row.capability for row in ROWS if row.name.startswith(begin)}
    assert found == {capability}


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        pytest.param("RTX 5070 Ti", 16303, id="vram_mib of the reference's seed_results.json"),
        pytest.param("RTX 4090", 24564, id="RTX 4090"),
        pytest.param("H200", 143771, id="H200"),
    ],
)
def test_memory_bytes_of(name: str, mib: int) -> None:
    assert gpus.memory_bytes_of(name) == mib * 1024 * 1024


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param(
            "RTX 5070 Tii",
            "a known GPU (did you mean 'GeForce RTX 5070 Ti'?) or a size such as '16303MiB'",
            id="typo",
        ),
        pytest.param(
            "RTX 3080",
            "a known GPU (did you mean 'GeForce RTX 3080 10GB'?) or a size such as '16303MiB'",
            id="one known name begins so",
        ),
        pytest.param(
            "A100",
            "one known GPU (is it 'A100-SXM4-40GB', 'A100-SXM4-80GB', 'A100 80GB PCIe' or "
            "'A100-SXM-64GB'?) or a size such as '16303MiB'",
            id="several known names begin so",
        ),
        pytest.param(
            "Quadro",
            "one known GPU (is it 'Quadro RTX 6000', 'Quadro RTX 4000' or 'Quadro P2000'?) or a "
            "size such as '16303MiB'",
            id="a word",
        ),
        pytest.param(
            "toaster",
            "a known GPU such as 'RTX 5070 Ti' or a size such as '16303MiB'",
            id="nothing near",
        ),
        pytest.param(
            "", "a known GPU such as 'RTX 5070 Ti' or a size such as '16303MiB'", id="empty"
        ),
    ],
)
def test_memory_bytes_of_refuses_in_words_that_follow_must_be(name: str, words: str) -> None:
    with pytest.raises(ValueError, match="size such as") as caught:
        gpus.memory_bytes_of(name)
    assert str(caught.value) == words


def test_memory_bytes_of_lists_five_of_many_names() -> None:
    with pytest.raises(ValueError, match=rf"5060 Ti 16GB' or {_begun('RTX') - 5} more\?\) or a"):
        gpus.memory_bytes_of("RTX")


def _begun(word: str) -> int:
    return sum(name.removeprefix("GeForce ").startswith(f"{word} ") for name in gpus.names())


@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param("H100", ("H100 80GB HBM3", "H100 NVL"), id="two"),
        pytest.param(
            "RTX 3060",
            ("GeForce RTX 3060 12GB", "GeForce RTX 3060 Laptop GPU"),
            id="desktop and laptop",
        ),
        pytest.param("RTX 5060 Ti", ("GeForce RTX 5060 Ti 16GB",), id="one"),
        pytest.param("A10", (), id="a name itself, though A10G begins so"),
        pytest.param("A1", (), id="part of a number"),
        pytest.param("", (), id="empty"),
    ],
)
def test_ambiguous(name: str, known: tuple[str, ...]) -> None:
    assert gpus.ambiguous(name) == known


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        pytest.param("RTX 5070 T", "GeForce RTX 5070 Ti", id="letter missing"),
        pytest.param("RXT 5070 Ti", "GeForce RTX 5070 Ti", id="letters swapped"),
        pytest.param("GTX 5090", "GeForce RTX 5090", id="GTX for RTX"),
        pytest.param("3090", "GeForce RTX 3090", id="number alone"),
        pytest.param("RTX 5070 Ti SUPER", "GeForce RTX 5070 Ti", id="name with an ending"),
        pytest.param("RTX 4070 Labtop GPU", "GeForce RTX 4070 Laptop GPU", id="laptop"),
        pytest.param("A100-SMX4-40GB", "A100-SXM4-40GB", id="data centre"),
    ],
)
def test_nearest_suggests(spelling: str, name: str) -> None:
    assert gpus.nearest(spelling) == name


@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param("RTX 5071 Ti", id="another number is another card"),
        pytest.param("RTX 4090 Laptop GPU", id="a laptop's, and the desktop's known"),
        pytest.param("Radeon RX 7900 XTX", id="another maker"),
        pytest.param("toaster", id="no number"),
        pytest.param("", id="empty"),
    ],
)
def test_nearest_suggests_nothing_where_nothing_is_close(spelling: str) -> None:
    assert gpus.nearest(spelling) is None


def test_import_needs_neither_torch_nor_pytest_and_reads_no_data() -> None:
    code = (
        "import sys\n"
        "from pytest_vramfit.catalog import gpus\n"
        "print(sorted({'torch', 'pytest'} & set(sys.modules)), gpus._gpus.cache_info().currsize)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert run.stdout.strip() == "[] 0"
