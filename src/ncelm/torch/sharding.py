"""Output layers whose rows are divided among the ranks of a process group.

Rank r of R holds the classes r·⌈V/R⌉ … (r + 1)·⌈V/R⌉ − 1, as `torch.distributed.tensor.Shard(0)` does. In training the
ranks exchange the rows of their targets and noise classes, and the gradients of those rows, by all-to-all. Exact
quantities are computed by each rank for its classes and the inputs of all ranks.

All functions are collective: every rank calls them, with a batch that may be empty.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncelm.torch import exact
from ncelm.torch.scores import row_gradient

if TYPE_CHECKING:
    from ncelm.torch.output_layer import SampledLoss


class Shard(NamedTuple):
    """The classes of one rank."""

    weight: Tensor  # (V_r, d)
    bias: Tensor | None  # (V_r,)
    first: int  # its first class
    group: dist.ProcessGroup


def class_range(num_classes: int, group: dist.ProcessGroup) -> tuple[int, int]:
    """Return the first class of this rank, and the first one after its last."""
    size = -(-num_classes // group.size())
    return min(group.rank() * size, num_classes), min((group.rank() + 1) * size, num_classes)


def shard_rows(loss: "SampledLoss", mesh: Any) -> None:
    """Divide the weight and the bias of a loss among the ranks of a one-dimensional device mesh, in place.

    Each rank keeps V/R rows, their gradients and their optimizer state. Gradients are averaged over the ranks, as by
    DistributedDataParallel, so that training equals that of one process; sparse gradients and all optimizers are
    supported. Leave the loss out of DistributedDataParallel and of `fully_shard`. The state_dict holds DTensors, for
    torch.distributed.checkpoint; a state_dict of a loss that is not divided can be loaded.

    Args:
        loss (NCELoss or another loss with an output layer): the same on all ranks.
        mesh (torch.distributed.device_mesh.DeviceMesh): the ranks.
    """
    if loss.group is not None:
        raise ValueError("the rows of this loss are divided already")
    if any(name in loss.tied for name in ("weight", "bias")):
        raise ValueError("parameters that belong to another module cannot be divided: construct the loss without them")
    if getattr(loss, "log_normalizer", None) is not None:
        raise ValueError('learned normalizers cannot be divided: construct the loss with normalizer="fixed"')
    loss.group = mesh.get_group()
    first, last = class_range(loss.num_classes, loss.group)
    for name in ("weight", "bias"):
        parameter = getattr(loss, name)
        if parameter is not None:
            loss.register_parameter(name, nn.Parameter(parameter.detach()[first:last].clone()))
            loss.tied.discard(name)

    def save(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor import Shard as Rows

        for name in ("weight", "bias"):
            local = state.get(prefix + name)
            if local is not None:
                shape = torch.Size((module.num_classes, *local.shape[1:]))
                strides = torch.empty(shape, device="meta").stride()
                state[prefix + name] = DTensor.from_local(
                    local, mesh, [Rows(0)], run_check=False, shape=shape, stride=strides
                )

    def load(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in ("weight", "bias"):
            given = state.get(prefix + name)
            if given is not None:
                state[prefix + name] = given.to_local() if hasattr(given, "to_local") else given[first:last]

    loss.register_state_dict_post_hook(save)
    loss.register_load_state_dict_pre_hook(load)


# -- training ----------------------------------------------------------------------------------------------------------


class Exchange(NamedTuple):
    """Which rows this rank asks of others, and which they ask of it."""

    order: Tensor  # (n,): the asked classes, sorted by the rank that has them
    asked: list[int]  # number of rows asked of each rank
    wanted: Tensor  # rows of this rank that others ask for, as indices of its shard
    given: list[int]  # number of rows given to each rank
    group: dist.ProcessGroup


def plan_exchange(classes: Tensor, num_classes: int, group: dist.ProcessGroup) -> Exchange:
    """Return how the rows of `classes`, (n,), are exchanged."""
    size = -(-num_classes // group.size())
    owner = classes // size
    order = owner.argsort(stable=True)
    asked = owner.bincount(minlength=group.size())
    given = torch.empty_like(asked)
    dist.all_to_all_single(given, asked, group=group)
    sent, received = asked.tolist(), given.tolist()
    wanted = _all_to_all(classes[order], sent, received, group) - group.rank() * size
    return Exchange(order, sent, wanted, received, group)


def remote_rows(table: Tensor, exchange: Exchange, sparse: bool) -> Tensor:
    """Return the rows of all ranks' tables that were planned, (n, …), in the order of the classes."""
    return _RemoteRows.apply(table, exchange, sparse)


class _RemoteRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, exchange: Exchange, sparse: bool) -> Tensor:
        ctx.exchange, ctx.sparse, ctx.shape = exchange, sparse, table.shape
        order, asked, wanted, given, group = exchange
        rows = _all_to_all(table.index_select(0, wanted), given, asked, group)
        return torch.empty_like(rows).index_copy_(0, order, rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        order, asked, wanted, given, group = ctx.exchange
        values = _all_to_all(gradient.index_select(0, order), asked, given, group) / group.size()
        return row_gradient(wanted, values, ctx.shape, ctx.sparse), None, None


def _all_to_all(values: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = values.new_empty((sum(received), *values.shape[1:]))
    dist.all_to_all_single(out, values.contiguous(), received, sent, group=group)
    return out


# -- exact quantities --------------------------------------------------------------------------------------------------


@torch.no_grad()
def negative_log_likelihood(shard: Shard, input: Tensor, targets: Tensor) -> Tensor:
    """Return −log P of the targets of this rank, (N,), without a gradient."""
    inputs, own = _of_all_ranks(input, shard.group)
    classes, _ = _of_all_ranks(targets, shard.group)
    log_z = torch.stack(_all_gather(exact.log_normalizers(inputs, shard.weight, shard.bias), shard.group))
    local = classes - shard.first
    inside = (local >= 0) & (local < len(shard.weight))
    scores = inputs.new_zeros(len(inputs))  # a target's score on the rank that has it, 0 on the others
    rows = local[inside]
    scores[inside] = (inputs[inside] * shard.weight[rows].to(inputs.dtype)).sum(1)
    if shard.bias is not None:
        scores[inside] += shard.bias[rows].to(inputs.dtype)
    dist.all_reduce(scores, group=shard.group)
    return (torch.logsumexp(log_z, 0) - scores)[own]


@torch.no_grad()
def top_k(shard: Shard, input: Tensor, k: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the k highest scores of this rank's inputs and their classes, (N, k) each."""
    if not 1 <= k <= num_classes:
        raise ValueError(f"k is {k}: give a number from 1 to {num_classes}, the number of classes")
    inputs, own = _of_all_ranks(input, shard.group)
    size = min(k, -(-num_classes // shard.group.size()))  # the same number on all ranks
    found = inputs.new_full((len(inputs), size), -torch.inf), inputs.new_zeros((len(inputs), size), dtype=torch.int64)
    some = min(size, len(shard.weight))
    if some:
        values, classes = exact.top_k(inputs, shard.weight, shard.bias, some)
        found[0][:, :some], found[1][:, :some] = values, classes + shard.first
    parts = list(zip(*(_all_gather(tensor, shard.group) for tensor in found), strict=True))
    values, classes = exact.merge_top_k(k, parts)
    return values[own], classes[own]


def _of_all_ranks(tensor: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, slice]:
    """Return the rows of all ranks, and where those of this rank are."""
    sizes = [int(size) for size in _all_gather(torch.tensor([len(tensor)], device=tensor.device), group)]
    padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    rows = torch.cat([part[:size] for part, size in zip(_all_gather(padded, group), sizes, strict=True)])
    first = sum(sizes[: group.rank()])
    return rows, slice(first, first + len(tensor))


def _all_gather(tensor: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return parts
