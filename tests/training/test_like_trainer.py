"""The step moves the weights as transformers.Trainer moves them, on the same batches."""

from __future__ import annotations

import pytest
import torch
from no_meter import METER
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainingArguments

from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.step import BITSANDBYTES, LEARNING_RATE, SEED, Step, make_optimizer

CPU = torch.device("cpu")
STEPS = 3


def prepared(spec):
    outline = model.outline(spec)
    model.materialise(outline, spec, CPU)
    torch.manual_seed(1)  # PEFT draws A
    return adapters.prepare(outline, spec, adapters.targets(outline, spec))


def batches(spec):
    """The ids that the step draws, one sequence a row."""
    generator = torch.Generator().manual_seed(SEED)
    rows = []
    for _ in range(STEPS * spec.accumulation):
        ids = torch.randint(1024, (spec.batch, spec.seq), generator=generator)
        rows += [{"input_ids": row, "labels": row} for row in ids]
    return rows


TRAINER_S = {
    "adamw": "adamw_torch",
    "adamw_fused": "adamw_torch_fused",
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw": "paged_adamw_32bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
}
"""Trainer's name of each optimizer; its SGD takes the learning rate of the others."""


class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return SequentialSampler(self.train_dataset)


def trained_by_trainer(spec, folder):
    subject = prepared(spec)
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        bf16=spec.precision == "bf16" and spec.autocast,
        per_device_train_batch_size=spec.batch,
        gradient_accumulation_steps=spec.accumulation,
        gradient_checkpointing=bool(spec.checkpointing),
        gradient_checkpointing_kwargs={"use_reentrant": spec.checkpointing == "reentrant"},
        max_steps=STEPS,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        optim=TRAINER_S[spec.optimizer],
        max_grad_norm=spec.max_grad_norm or 0.0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    InOrder(model=subject, args=arguments, train_dataset=batches(spec)).train()
    return {name: one for name, one in subject.named_parameters() if one.requires_grad}


def trained_by_the_step(spec):
    step = Step(prepared(spec), spec, CPU)
    for _ in range(STEPS):
        step.run(METER)
    return step.trainable


@pytest.mark.parametrize(
    "keywords",
    [
        {"method": "lora", "precision": "fp32"},
        {"method": "lora", "precision": "bf16"},
        {"method": "qlora", "precision": "bf16", "checkpointing": True},
        {"method": "full", "precision": "fp32", "accumulation": 2, "batch": 2},
        {"method": "full", "precision": "bf16", "max_grad_norm": 0.01},
        {"method": "lora", "precision": "fp32", "optimizer": "adafactor", "rslora": True},
        {"method": "lora", "precision": "fp32", "dora": True, "modules_to_save": ["lm_head"]},
        {"method": "qlora", "precision": "bf16", "quant": "int8", "checkpointing": "reentrant"},
    ],
    ids=str,
)
def test_the_weights_after_three_steps(keywords, spec_of, tmp_path):
    adapter = {} if keywords["method"] == "full" else {"dropout": 0.0}
    spec = spec_of(**keywords, **adapter)
    before = {n: p.detach().clone() for n, p in prepared(spec).named_parameters()}
    theirs, ours = trained_by_trainer(spec, tmp_path), trained_by_the_step(spec)
    assert theirs.keys() == ours.keys()
    for name, one in ours.items():
        moved, reference = one - before[name], theirs[name] - before[name]
        assert reference.norm() > 0, name
        # Trainer divides the loss by the tokens of the batch, the model by those with a next one:
        # AdamW does not see the factor but for its epsilon
        assert (moved - reference).norm() < 0.02 * reference.norm(), name


@pytest.mark.parametrize("name", TRAINER_S)
def test_the_optimizer_is_set_as_trainer_sets_it(name, spec_of, tmp_path):
    arguments = TrainingArguments(
        output_dir=tmp_path, use_cpu=True, learning_rate=LEARNING_RATE, optim=TRAINER_S[name]
    )
    kind, settings = Trainer.get_optimizer_cls_and_kwargs(arguments)
    theirs = kind([torch.nn.Parameter(torch.ones(1))], **{"weight_decay": 0.0, **settings})
    ours = make_optimizer([torch.nn.Parameter(torch.ones(1))], spec_of(optimizer=name))
    assert type(ours) is type(theirs)
    (mine,), (other,) = ours.param_groups, theirs.param_groups
    assert {**mine, "params": 0} == {**other, "params": 0}
    if name in BITSANDBYTES:
        assert ours.is_paged is theirs.is_paged is name.startswith("paged")
        assert vars(ours.args) == vars(theirs.args)
