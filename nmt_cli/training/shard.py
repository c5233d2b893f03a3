"""Models that do not fit on one device (`train.shard`): each process keeps a part of every weight, gradient and moment.

torch's FSDP2 gathers the weights of a layer when a pass needs them, and frees them again. A tensor of which each
process keeps a part is a DTensor. Checkpoints hold whole tensors, so any number of processes can resume them, sharded
or not. DTensor.full_tensor gathers the tensors one by one, under the names of all other runs. The functions of
torch.distributed.checkpoint have names of their own for moments, which would have to be translated in both directions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.build import build_model
from nmt_cli.model.decoder_only import Layer
from nmt_cli.model.transformer import DecoderLayer, EncoderLayer
from nmt_cli.recipe.schema import Model
from nmt_cli.training.distributed import World
from nmt_cli.training.loss import TrainingLoss


def shard(objective: TrainingLoss, device: torch.device, world: World) -> None:
    """Leave this process its part of the weights, on the device. Its backward pass takes the mean of all gradients.

    Every pass gathers weights, so all processes must make equally many passes.
    """
    from torch.distributed.device_mesh import init_device_mesh  # most runs do not need FSDP2
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # The keys and values of the source are views of the output of a layer. Nothing writes to them.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (world.size,))
    for layer in list(objective.model.modules()):
        if isinstance(layer, DecoderLayer):
            fully_shard(layer.cross.keys_values, mesh=mesh)  # the encoder calls it
        if isinstance(layer, DecoderLayer | EncoderLayer):
            fully_shard(layer, mesh=mesh)
        if isinstance(layer, Layer):
            for method in ("read", "write", "keys_values"):  # the model calls these, not `forward`
                register_fsdp_forward_method(layer, method)
    fully_shard(objective, mesh=mesh)  # embeddings and all the rest


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # to import DTensor takes long


def whole(tensor: Tensor) -> Tensor:
    """All parts of a tensor, in every process. A tensor that is not sharded is returned as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The parts of this process. For operations on single elements: DTensor would plan them anew for each number."""
    return [tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors]  # type: ignore[attr-defined]


def on_leader(tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """The tensors, whole. Sharded tensors are gathered one by one on the CPU of the leader. The other processes get
    only the tensors that are not sharded."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        gathered = whole(tensor)
        if not is_sharded(tensor):
            result[name] = tensor
        elif world.leader:
            result[name] = gathered.cpu()
    return result


def whole_model(config: Model, sizes: tuple[int, int], weights: Mapping[str, Tensor], device: torch.device) -> Seq2Seq:
    """A separate, whole model with these weights, for evaluation. FSDP2 gathers weights only when a layer is called as
    a whole, and a search does not call whole layers."""
    with torch.device("meta"):
        model = build_model(config, *sizes)
    model.to_empty(device=device)
    for name, tensor in model.state_dict().items():
        tensor.copy_(whole(weights[name]))
    return model.eval()
