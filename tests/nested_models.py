"""Random models whose vectors of 8 dimensions can be cut to 2 or 4, one of each system that has such vectors."""

from dataclasses import replace

import torch

from raycase.encoder.choices import find_encoder
from raycase.heads.condition_head import ConditionHead, HeadConfig
from raycase.heads.projector import Projector, ProjectorConfig
from raycase.models import case, condition_pooling
from raycase.models.model_folder import write_folder

NESTED = (2, 4)


def save_case(folder, encoder, nested=NESTED, seed=0, *, dim=8, **options):
    """CASE with a projector on the encoder's folder; gives the model folder's name."""
    shape = ProjectorConfig(input_dim=32, output_dim=dim, nested=nested)
    config = replace(case.resolve(str(encoder), prompt="concat-sc", pooling="mean"), projector=shape, **options)
    torch.manual_seed(seed)
    write_folder(folder, config, Projector(shape).eval(), {}, "")
    return str(folder)


def save_condition_pooling(folder, encoder, nested=NESTED):
    """Condition pooling with a head on the encoder's folder; gives the model folder's name."""
    spec = find_encoder(str(encoder), prompt="concat-sc", pooling="mean")
    untrained = condition_pooling.ConditionPoolingConfig(name=str(encoder), encoder=spec, layers=(0.5, 1.0))
    plain = {"unconditional_dim": 32, "unconditional_vector_dim": 32}
    shape = HeadConfig(states_dim=64, heads=2, head_dim=4, output_dim=8, nested=nested, **plain)
    torch.manual_seed(0)
    head = ConditionHead(shape).eval()
    assert head.unconditional is not None
    head.unconditional.rare.normal_()  # every sentence is unfamiliar
    head.unconditional.turn.normal_()
    write_folder(folder, replace(untrained, head=shape), head, {}, "")
    return str(folder)


SAVE = {"case": save_case, "condition-pooling": save_condition_pooling}
