"""The builds and steps of example_suite/test_qwen_ladder.py without the plugin.

Prints a JSON object: seconds for each case and in all, imports apart. What a careful person would
write by hand: no proof that it trained, no peaks by phase, no process of its own.
"""

from __future__ import annotations

import gc
import json
import time
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit, Params4bit
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert

COMMON: dict[str, Any] = {"model_type": "qwen2", "use_cache": False}
SIZES = {
    "Qwen2.5-1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-3B": (2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-7B": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2.5-14B": (5120, 13824, 48, 40, 8, 152064, False),
}
NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
STEPS = 8


def build(size: str, checkpointing: bool) -> nn.Module:
    config = AutoConfig.for_model(**COMMON | dict(zip(NAMES, SIZES[size], strict=True)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    replace_with_bnb_linear(
        model,
        modules_to_not_convert=get_keys_to_not_convert(model),
        quantization_config=quantisation,
    )
    model.is_loaded_in_4bit = True
    model.tie_weights()
    made = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device="cuda")
        for name, old in list(module._parameters.items()):
            if old is None:
                continue
            if id(old) not in made:
                value = torch.empty(old.shape, dtype=torch.bfloat16, device="cuda")
                value.normal_(0, 0.02)
                if isinstance(module, Linear4bit) and name == "weight":
                    made[id(old)] = Params4bit(value, requires_grad=False, **old.__dict__).cuda()
                else:
                    made[id(old)] = nn.Parameter(value, requires_grad=False)
            module._parameters[name] = made[id(old)]
        if "RMSNorm" in type(module).__name__ or "Rotary" in type(module).__name__:
            with torch.no_grad():
                model._init_weights(module)
    model = prepare_model_for_kbit_training(
        model,
        use_gradient_checkpointing=checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )
    lora = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, lora).train()


def run(size: str, checkpointing: bool) -> None:
    model = build(size, checkpointing)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    vocabulary = SIZES[size][5]
    for _ in range(STEPS):
        ids = torch.randint(vocabulary, (1, 512), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        model.zero_grad()
        torch.cuda.synchronize()


def main() -> None:
    seconds = {}
    begin = time.perf_counter()
    for size in SIZES:
        for checkpointing in (False, True):
            case_begin = time.perf_counter()
            run(size, checkpointing)
            gc.collect()
            torch.cuda.empty_cache()
            seconds[f"{size} {checkpointing}"] = round(time.perf_counter() - case_begin, 2)
    print(json.dumps({"cases": seconds, "all": round(time.perf_counter() - begin, 2)}))


if __name__ == "__main__":
    main()
