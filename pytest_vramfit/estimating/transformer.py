"""The matrices of a decoder-only transformer, from its Hugging Face config values: no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from pytest_vramfit.spec import ConfigValues


class NoClosedFormError(ValueError):
    """The model's matrices cannot be told from its config values here: one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """A module with parameters of its own."""

    name: str
    """In full, as in transformers: ``model.layers.0.self_attn.q_proj``."""
    kind: Literal["linear", "norm", "embedding", "head"]
    weight: tuple[int, ...]
    """Its shape; of a linear and the head (out, in) features, also where it is kept transposed."""
    bias: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of weight and bias."""
        return (self.weight, self.weight[:1]) if self.bias else (self.weight,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformer:
    """A decoder-only language model."""

    modules: tuple[Module, ...]
    """The head is the last."""
    layers: int
    hidden: int
    tied: bool
    """Whether the head's weight is the input embedding's."""
    post_norm: bool
    """Whether what a layer hands on comes out of a norm, not of a sum."""
    capped: bool
    """Whether the logits go through a tanh."""

    @property
    def shapes(self) -> Iterator[tuple[int, ...]]:
        """Of all parameters; a tied head has none."""
        for module in self.modules[:-1] if self.tied else self.modules:
            yield from module.shapes

    @property
    def parameters(self) -> int:
        """Elements, a tied head counted once."""
        return sum(map(prod, self.shapes))


_SHAPES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings"),
)
_DEFAULTS: Mapping[str, tuple[int | None, ...]] = {
    "gemma2": (256_000, 2304, 9216, 26, 8, 4, 256, True),
    "gemma3_text": (262_208, 2304, 9216, 26, 8, 4, 256, True),
    "gpt2": (50_257, 768, None, 12, 12, None, None, True),
    "llama": (32_000, 4096, 11_008, 32, 32, None, None, False),
    "mistral": (32_000, 4096, 14_336, 32, 32, 8, None, False),
    "opt": (50_272, 768, None, 12, 12, None, None, True),
    "phi3": (32_064, 3072, 8192, 32, 32, None, None, False),
    "qwen2": (151_936, 4096, 22_016, 32, 32, 32, None, False),
    "qwen3": (151_936, 4096, 22_016, 32, 32, 32, 128, False),
}
"""What transformers takes where a config does not say; None: it follows from the others."""
_GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}


def transformer(config: ConfigValues) -> Transformer:
    """The model of these Hugging Face config values, as transformers 5 builds it.

    Raises NoClosedFormError for a model type that is not known here (mixtures of experts, latent
    attention), and for values that make another model of a known one.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        known = ", ".join(_DEFAULTS)
        raise NoClosedFormError(f"model_type {kind!r} has no closed form here, only {known}")
    values: dict[str, Any] = dict(zip(_SHAPES, _DEFAULTS[kind], strict=True))
    if kind == "gpt2":
        values |= {_GPT2_NAMES[key]: config[key] for key in _GPT2_NAMES.keys() & config.keys()}
    values |= config
    outer, path, layer = {"gpt2": _gpt2, "opt": _opt}.get(kind, _llama)(values)
    layers = values["num_hidden_layers"]
    _, width = outer[0].weight
    head = Module(name="lm_head", kind="head", weight=(values["vocab_size"], width))
    cap = values.get("final_logit_softcapping", 30.0 if kind == "gemma2" else None)
    return Transformer(
        modules=(
            *outer,
            *(replace(one, name=f"{path}.{n}.{one.name}") for n in range(layers) for one in layer),
            head,
        ),
        layers=layers,
        hidden=values["hidden_size"],
        tied=bool(values["tie_word_embeddings"]),
        post_norm=kind == "opt" and not values.get("do_layer_norm_before", True),
        capped=kind in ("gemma2", "gemma3_text") and cap is not None,
    )


_Plan = tuple[list[Module], str, list[Module]]
"""What is outside the layers, the input embedding first; the path of the layers; one of them."""


def _llama(values: Mapping[str, Any]) -> _Plan:
    """Also gemma2, gemma3_text, mistral, phi3, qwen2 and qwen3: they differ in biases, norms and
    fused projections.
    """
    kind, hidden, inner = (values[key] for key in ("model_type", *_SHAPES[1:3]))
    heads = values["num_attention_heads"]
    size = values["head_dim"] or hidden // heads
    queries, keys = heads * size, (values["num_key_value_heads"] or heads) * size
    bias = kind not in ("mistral", "phi3", "qwen2") and values.get("attention_bias", False)
    mlp_bias = kind == "llama" and values.get("mlp_bias", False)
    if kind == "phi3":
        layer = [
            _linear("self_attn.qkv_proj", hidden, queries + 2 * keys),
            _linear("mlp.gate_up_proj", hidden, 2 * inner),
        ]
    else:
        widths = {"q": queries, "k": keys, "v": keys}
        layer = [
            *(
                _linear(f"self_attn.{name}_proj", hidden, width, bias=bias or kind == "qwen2")
                for name, width in widths.items()
            ),
            *(_linear(f"mlp.{name}_proj", hidden, inner, bias=mlp_bias) for name in ("gate", "up")),
        ]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if kind in ("gemma2", "gemma3_text"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    layer += [
        _linear("self_attn.o_proj", queries, hidden, bias=bias),
        _linear("mlp.down_proj", inner, hidden, bias=mlp_bias),
        *(_norm(name, hidden) for name in norms),
    ]
    if kind in ("gemma3_text", "qwen3"):
        layer += [_norm("self_attn.q_norm", size), _norm("self_attn.k_norm", size)]
    outer = [
        _embedding("model.embed_tokens", values["vocab_size"], hidden),
        _norm("model.norm", hidden),
    ]
    return outer, "model.layers", layer


def _gpt2(values: Mapping[str, Any]) -> _Plan:
    if values.get("add_cross_attention"):
        raise NoClosedFormError("add_cross_attention=True has no closed form here")
    hidden = values["hidden_size"]
    inner = values.get("n_inner") or 4 * hidden
    outer = [
        _embedding("transformer.wte", values["vocab_size"], hidden),
        _embedding("transformer.wpe", values.get("max_position_embeddings", 1024), hidden),
        _norm("transformer.ln_f", hidden, bias=True),
    ]
    layer = [
        _norm("ln_1", hidden, bias=True),
        _linear("attn.c_attn", hidden, 3 * hidden, bias=True),
        _linear("attn.c_proj", hidden, hidden, bias=True),
        _norm("ln_2", hidden, bias=True),
        _linear("mlp.c_fc", hidden, inner, bias=True),
        _linear("mlp.c_proj", inner, hidden, bias=True),
    ]
    return outer, "transformer.h", layer


def _opt(values: Mapping[str, Any]) -> _Plan:
    if not values.get("layer_norm_elementwise_affine", True):
        raise NoClosedFormError("layer_norm_elementwise_affine=False has no closed form here")
    hidden, inner = values["hidden_size"], values.get("ffn_dim", 3072)
    width = values.get("word_embed_proj_dim") or hidden
    positions = values.get("max_position_embeddings", 2048)
    bias = values.get("enable_bias", True)
    path = "model.decoder"
    outer = [
        _embedding(f"{path}.embed_tokens", values["vocab_size"], width),
        _embedding(f"{path}.embed_positions", positions + 2, hidden),  # its two are never used
    ]
    if width != hidden:
        outer += [
            _linear(f"{path}.project_in", width, hidden),
            _linear(f"{path}.project_out", hidden, width),
        ]
    if values.get("do_layer_norm_before", True) and not values.get("_remove_final_layer_norm"):
        outer.append(_norm(f"{path}.final_layer_norm", hidden, bias=True))
    attention = ("k_proj", "v_proj", "q_proj", "out_proj")
    layer = [
        *(_linear(f"self_attn.{name}", hidden, hidden, bias=bias) for name in attention),
        _norm("self_attn_layer_norm", hidden, bias=True),
        _linear("fc1", hidden, inner, bias=bias),
        _linear("fc2", inner, hidden, bias=bias),
        _norm("final_layer_norm", hidden, bias=True),
    ]
    return outer, f"{path}.layers", layer


def _linear(name: str, inputs: int, outputs: int, *, bias: bool = False) -> Module:
    return Module(name=name, kind="linear", weight=(outputs, inputs), bias=bias)


def _norm(name: str, size: int, *, bias: bool = False) -> Module:
    return Module(name=name, kind="norm", weight=(size,), bias=bias)


def _embedding(name: str, rows: int, width: int) -> Module:
    return Module(name=name, kind="embedding", weight=(rows, width))
