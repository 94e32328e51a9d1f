"""A wrong marker is an ERROR of its own test, in one sentence, whatever the run is for."""

from __future__ import annotations

import re

import pytest
from inner import HEAD, Ran, RunOnce

from pytest_vramfit.marker.keywords import KEYWORDS

TABLE = r"""
# how it is written
fits_vram
    fits_vram needs a model, such as fits_vram(model='Qwen2.5-7B')
fits_vram()
    fits_vram needs a model, such as fits_vram(model='Qwen2.5-7B')
fits_vram("tiny")
    fits_vram takes keywords only, not 'tiny'; write fits_vram(model='tiny')
fits_vram("tiny", rank=4)
    fits_vram takes keywords only, not 'tiny'; write fits_vram(model='tiny')
fits_vram(model="tiny", wobble=1)
    fits_vram has no keyword 'wobble'; it takes {keywords}
fits_vram(model="tiny", rnak=4)
    fits_vram has no keyword 'rnak'; did you mean 'rank'?
fits_vram(model="tiny", gradient_checkpointing=True)
    fits_vram has no keyword 'gradient_checkpointing'; here it is checkpointing
fits_vram(model="tiny", per_device_train_batch_size=1)
    fits_vram has no keyword 'per_device_train_batch_size'; here it is batch
fits_vram(model="tiny", lora_alpha=4)
    fits_vram has no keyword 'lora_alpha'; here it is alpha
fits_vram(model="tiny", load_in_4bit=True)
    fits_vram has no keyword 'load_in_4bit'; here it is method='qlora'
# the model
fits_vram(rank=4)
    fits_vram needs a model, such as fits_vram(model='Qwen2.5-7B')
fits_vram(model="Qwen2.5-8B")
    fits_vram: model='Qwen2.5-8B' is not in the catalogue and no folder with a config.json; the
    nearest is 'Qwen2.5-7B'
fits_vram(model=7)
    fits_vram: model=7 must be a catalogue name, a folder with a config.json, or a dict of
    config values
fits_vram(model=None)
    fits_vram: model=None must be a catalogue name, a folder with a config.json, or a dict of
    config values
fits_vram(model="")
    fits_vram: model='' must be a catalogue name, a folder with a config.json, or a dict of
    config values
fits_vram(model="./nothing")
    fits_vram: model='./nothing' is no folder with a config.json ({folder}/nothing/config.json)
fits_vram(model={"hidden_size": 64})
    fits_vram: model={'hidden_size': 64} has no 'model_type', such as 'llama'
fits_vram(model={"model_type": "llama", "hidden_size": print})
    fits_vram: model={'model_type': 'llama', 'hidden_size': <built-in function print>} has
    'hidden_size' of type builtin_function_or_method, which is no JSON value
fits_vram(model={"model_type": "llama", "x": float("nan")})
    fits_vram: model={'model_type': 'llama', 'x': nan} has 'x' = nan, which is no number
# one keyword's value
fits_vram(model="tiny", method="qlorra")
    fits_vram: method='qlorra' must be 'full', 'lora' or 'qlora' (did you mean 'qlora'?)
fits_vram(model="tiny", method=["lora"])
    fits_vram: method=['lora'] must be 'full', 'lora' or 'qlora'
fits_vram(model="tiny", rank=0)
    fits_vram: rank=0 must be an integer from 1 to 65,536
fits_vram(model="tiny", rank="16")
    fits_vram: rank='16' must be an integer from 1 to 65,536
fits_vram(model="tiny", rank=True)
    fits_vram: rank=True must be an integer from 1 to 65,536
fits_vram(model="tiny", rank=16.0)
    fits_vram: rank=16.0 must be an integer from 1 to 65,536
fits_vram(model="tiny", rank=10**9)
    fits_vram: rank=1000000000 must be an integer from 1 to 65,536
fits_vram(model="tiny", alpha=-1)
    fits_vram: alpha=-1 must be a number above 0
fits_vram(model="tiny", alpha=float("inf"))
    fits_vram: alpha=inf must be a number above 0
fits_vram(model="tiny", dropout=1)
    fits_vram: dropout=1 must be a number from 0 up to, not including, 1
fits_vram(model="tiny", targets="q_proj")
    fits_vram: targets='q_proj' must be 'all-linear', 'attention', 'qv' or a list of module
    names, such as ['q_proj']
fits_vram(model="tiny", targets=[])
    fits_vram: targets=[] must be 'all-linear', 'attention', 'qv' or a list of module names
fits_vram(model="tiny", targets=[1])
    fits_vram: targets=[1] must be 'all-linear', 'attention', 'qv' or a list of module names
fits_vram(model="tiny", quant="nf8")
    fits_vram: quant='nf8' must be 'nf4', 'fp4' or 'int8' (did you mean 'nf4'?)
fits_vram(model="tiny", double_quant=1)
    fits_vram: double_quant=1 must be False or True
fits_vram(model="tiny", seq=1)
    fits_vram: seq=1 must be an integer from 2 to 16,777,216
fits_vram(model="tiny", seq=None)
    fits_vram: seq=None must be an integer from 2 to 16,777,216
fits_vram(model="tiny", batch=0)
    fits_vram: batch=0 must be an integer from 1 to 1,048,576
fits_vram(model="tiny", accumulation="2")
    fits_vram: accumulation='2' must be an integer from 1 to 65,536
fits_vram(model="tiny", precision="float16")
    fits_vram: precision='float16' must be 'bf16', 'fp16' or 'fp32' (did you mean 'fp16'?)
fits_vram(model="tiny", autocast="yes")
    fits_vram: autocast='yes' must be False or True
fits_vram(model="tiny", dtype="int8")
    fits_vram: dtype='int8' must be 'bf16', 'fp16', 'fp32' or 'auto'
fits_vram(model="tiny", optimizer="adam")
    fits_vram: optimizer='adam' must be 'adamw', 'adamw_fused', 'adamw_8bit', 'paged_adamw',
    'paged_adamw_8bit', 'sgd' or 'adafactor' (did you mean 'adamw'?)
fits_vram(model="tiny", max_grad_norm=0)
    fits_vram: max_grad_norm=0 must be a number above 0, or None
fits_vram(model="tiny", checkpointing="yes")
    fits_vram: checkpointing='yes' must be False, True or 'reentrant'
fits_vram(model="tiny", attention="flash")
    fits_vram: attention='flash' must be 'sdpa', 'eager' or 'flash_attention_2'
fits_vram(model="tiny", card="16GB")
    fits_vram: card='16GB' must be a size in B, KiB, MiB, GiB, TiB; write '16GiB' for powers of
    1024
fits_vram(model="tiny", card=16)
    fits_vram: card=16 must be a size such as '16303MiB' or '15.9GiB'
fits_vram(model="tiny", card="RTX 5070 Tj")
    fits_vram: card='RTX 5070 Tj' must be a known GPU (did you mean 'GeForce RTX 5070 Ti'?) or a
    size such as '16303MiB'
fits_vram(model="tiny", alloc_conf="backend:cudaMallocAsync")
    fits_vram: alloc_conf='backend:cudaMallocAsync' must be settings of PyTorch's own allocator:
    its statistics are what is measured
fits_vram(model="tiny", card="0GiB")
    fits_vram: card='0GiB' must be a size above zero
fits_vram(model="tiny", headroom=10)
    fits_vram: headroom=10 must be a share such as '10%' or a size such as '1GiB'
fits_vram(model="tiny", headroom="100%")
    fits_vram: headroom='100%' must be a share below 100%
fits_vram(model="tiny", max_step=2)
    fits_vram: max_step=2 must be a duration such as '2s' or '350ms'
fits_vram(model="tiny", max_step="2h")
    fits_vram: max_step='2h' must be a duration in ns, us, ms, s, min
fits_vram(model="tiny", require=["gputime"])
    fits_vram: require=['gputime'] must be a list of 'no_oom', 'peak_within_vram', 'eval',
    'save', 'merge', 'resident', 'headroom', 'trained', 'max_step', 'step_time', 'gpu_time',
    'steady' or 'peak_baseline' (did you mean 'gpu_time'?)
fits_vram(model="tiny", steps=0)
    fits_vram: steps=0 must be an integer from 1 to 10,000
fits_vram(model="tiny", warmup=1)
    fits_vram: warmup=1 must be an integer from 2 to 10,000
fits_vram(model="tiny", phases=["train", "test"])
    fits_vram: phases=['train', 'test'] must be a list of 'train', 'eval', 'save' or 'merge'
fits_vram(model="tiny", timeout=0)
    fits_vram: timeout=0 must be a number of seconds above 0, at most 604,800 (a week)
fits_vram(model="tiny", timeout=float("nan"))
    fits_vram: timeout=nan must be a number of seconds above 0, at most 604,800 (a week)
# keywords that do not go together
fits_vram(model="tiny", method="full", rank=4)
    fits_vram: rank=4 has no meaning with method='full', only with 'lora' or 'qlora'
fits_vram(model="tiny", method="lora", quant="nf4")
    fits_vram: quant='nf4' has no meaning with method='lora', only with 'qlora'
fits_vram(model="tiny", method="full", precision="fp16", dtype="fp16")
    fits_vram: dtype='fp16' cannot be trained in full with precision='fp16' and autocast,
    because the gradient scaler refuses fp16 weights; use dtype='fp32'
fits_vram(model="tiny", precision="fp16", adapter_dtype="fp16")
    fits_vram: adapter_dtype='fp16' cannot be trained with precision='fp16' and autocast,
    because the gradient scaler refuses fp16 weights; use adapter_dtype='fp32'
fits_vram(model="tiny", precision="fp32", dtype="bf16")
    fits_vram: dtype='bf16' must be 'fp32' where precision='fp32' and nothing is cast
    automatically, or the arithmetic would be in bf16
fits_vram(model="tiny", quant="int8", double_quant=True)
    fits_vram: double_quant=True has no meaning with quant='int8', only with 'nf4' or 'fp4'
fits_vram(model="tiny", method="full", phases=["merge"])
    fits_vram: phases=['merge'] has no meaning with method='full': there are no adapters to merge
fits_vram(model="tiny", eval_batch=4)
    fits_vram: eval_batch=4 has no meaning without phases=['eval']
fits_vram(model="tiny", weights="pretrained")
    fits_vram: model='tiny' has no checkpoint that the catalogue knows; name a folder or a hub id
fits_vram(model="tiny", revision="main")
    fits_vram: revision='main' has no meaning here: nothing of tiny is read from the hub
fits_vram(model="tiny", method="lora", precision="fp16", modules_to_save=["lm_head"])
    fits_vram: modules_to_save cannot be trained in dtype='fp16' with precision='fp16' and
    autocast, because the gradient scaler refuses fp16 weights; use dtype='fp32'
fits_vram(model={"model_type": "gpt2"}, seq=2048)
    fits_vram: seq=2048 must be at most 1,024, the learned positions of custom gpt2
fits_vram(model="tiny", overflow="spill")
    fits_vram: overflow='spill' needs the card that is to overflow: card='RTX 5070 Ti' in the
    marker, or --vramfit-card
fits_vram(model="tiny", overflow="spill", card="1GiB", alloc_conf="expandable_segments:True")
    fits_vram: overflow='spill' does not go with alloc_conf='expandable_segments:True': such
    segments cannot be served from host memory
# what is not built yet
fits_vram(config="train.yaml")
    fits_vram: config='train.yaml' asks for training-config files: not built yet
fits_vram(step="mine:factory")
    fits_vram: step='mine:factory' asks for own training steps: not built yet
# objects that do not behave
fits_vram(model="tiny", rank=Unshowable())
    fits_vram: rank=<Unshowable, whose repr raises RuntimeError> must be an integer from 1 to
    65,536
fits_vram(model="tiny", method="x" * 1000)
    fits_vram:
    method='xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... must
    be 'full', 'lora' or 'qlora'
fits_vram(model="tiny", **{"": 1})
    fits_vram has no keyword ''; it takes {keywords}
"""
"""Markers, each above its sentence."""

NOTE_OR_MARKER = re.compile(r"^(?=\S)", re.MULTILINE)
MARKERS = {
    marker: " ".join(sentence.split())
    for marker, _, sentence in (one.partition("\n") for one in NOTE_OR_MARKER.split(TABLE))
    if sentence
}

SUITE = (
    HEAD
    + """
class Unshowable:
    def __repr__(self):
        raise RuntimeError

def test_plain_before(): pass

"""
)
SUITE += "\n".join(
    f"@pytest.mark.{marker}\ndef test_{i}(): pass" for i, marker in enumerate(MARKERS)
)
SUITE += "\ndef test_plain_after(): pass"


@pytest.fixture(
    params=[("--vramfit=cpu",), ("--vramfit=cpu", "-n2"), ()], ids=["cpu", "two-workers", "off"]
)
def ran(request: pytest.FixtureRequest, run_once: RunOnce) -> Ran:
    return run_once(*request.param, test_wrong=SUITE)


@pytest.mark.parametrize(("number", "marker"), list(enumerate(MARKERS)), ids=list(MARKERS))
def test_one_sentence(ran: Ran, number: int, marker: str) -> None:
    """An ERROR, with the sentence and nothing else."""
    sentence = MARKERS[marker]
    for what, value in (("{folder}", str(ran.folder)), ("{keywords}", ", ".join(KEYWORDS))):
        sentence = sentence.replace(what, value)
    lines = [one for one in ran.text(f"test_{number}").splitlines() if not one.startswith("[gw")]
    assert (ran.word(f"test_{number}"), lines) == ("ERROR", [sentence])


def test_others_still_run(ran: Ran) -> None:
    assert [ran.word("test_plain_before"), ran.word("test_plain_after")] == ["PASSED", "PASSED"]


def test_no_internal_error(ran: Ran) -> None:
    """Two tests pass, all others are errors, and pytest says no more than that."""
    assert "INTERNALERROR" not in ran.output
    assert f" 2 passed, {len(MARKERS)} errors in " in ran.output
