"""Two ranks train with the losses of ncelm.torch under torchrun; each scenario compares with a single process.

python -m torch.distributed.run --nproc-per-node 2 two_ranks.py FOLDER writes FOLDER/RANK.json: an error or "" for each
scenario.
"""

import copy
import json
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ncelm.torch import NCELoss, NegativeSamplingLoss, RowwiseAdagrad, SampledSoftmaxLoss, shard_rows

D, V, K, N, STEPS, RANKS = 6, 21, 5, 8, 3, 2
EMPTY = torch.zeros(0, D), torch.zeros(0, dtype=torch.int64)


class Model(nn.Module):
    """A hidden layer and a loss: DistributedDataParallel needs both in one forward."""

    def __init__(self, loss_type, tied=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(D, D)
        if tied:
            self.embedding = nn.Embedding(V, D, sparse=options["sparse"])
            options["tied_weight"] = self.embedding.weight
        self.loss = loss_type(D, V, torch.arange(1, V + 1), K, **options)

    def forward(self, input, target):
        return self.loss(self.hidden(input), target)


def batch(step, rank, empty):
    """Return the batch of a rank; with `empty`, rank 1 has none."""
    if empty and rank == 1:
        return EMPTY
    random = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(N, D, generator=random), torch.randint(V, (N,), generator=random)


def optimizers(model, kind=torch.optim.Adagrad):
    return [torch.optim.SGD(model.hidden.parameters(), lr=0.1), kind(model.loss.parameters(), lr=0.1)]


def train(model, chosen, ranks, empty=False, divide=False):
    """Train on the batches of `ranks`: one rank of several, or a single process with the mean over both."""
    for step in range(STEPS):
        losses = []
        for rank in ranks:
            torch.manual_seed(1000 * step + rank)  # of the noise
            losses.append(model(*batch(step, rank, empty)))
        for optimizer in chosen:
            optimizer.zero_grad()
        (sum(losses) / len(losses)).backward()
        if divide:  # the loss is not in DistributedDataParallel, and neither is the hidden layer
            for parameter in model.hidden.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= RANKS
        for optimizer in chosen:
            optimizer.step()


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def compare(model, expected):
    found = model.state_dict()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(full(found[name]), value, rtol=0, atol=1e-6)


def ddp(rank, loss_type=NCELoss, empty=False, kind=torch.optim.Adagrad, **options):
    model = Model(loss_type, **options)
    single = copy.deepcopy(model)
    parallel = DistributedDataParallel(model, forward_sync_buffers=False)
    train(parallel, optimizers(model, kind), [rank], empty)
    train(single, optimizers(single, kind), range(RANKS), empty)
    assert model.loss.weight.grad.is_sparse == options.get("sparse", False)
    compare(model, single)


def fsdp(rank, loss_type=NCELoss, empty=False):
    model = Model(loss_type)
    single = copy.deepcopy(model)
    fully_shard(model.loss)
    fully_shard(model)
    train(model, optimizers(model), [rank], empty)
    train(single, optimizers(single), range(RANKS), empty)
    compare(model, single)
    exact(model.loss, single.loss, rank)
    hidden, _ = batch(9, rank, False)
    torch.testing.assert_close(model.loss.log_prob(hidden), single.loss.log_prob(hidden))


def fsdp_sparse(rank):
    model = Model(NCELoss, sparse=True)
    fully_shard(model.loss)
    fully_shard(model)
    try:
        train(model, [], [rank])
    except RuntimeError as error:
        if "shard_rows" not in str(error):
            raise
    else:
        raise AssertionError("sparse gradients were accepted")


def exact(loss, expected, rank):
    """Compare nll, predict and top_k of batches with different sizes, outside of forward."""
    for hidden, target in (
        batch(9, rank, False),
        tuple(t[: 3 + rank] for t in batch(8, rank, False)),
        batch(7, rank, True),
    ):
        torch.testing.assert_close(loss.nll(hidden, target), expected.nll(hidden, target))
        assert torch.equal(loss.predict(hidden), expected.predict(hidden))
        for k in (1, 4, V):
            for found, known in zip(loss.top_k(hidden, k), expected.top_k(hidden, k), strict=True):
                torch.testing.assert_close(found, known)


def rows(rank, loss_type=NCELoss, empty=False, kind=torch.optim.Adagrad, **options):
    """Rows divided among the ranks."""
    model = Model(loss_type, **options)
    single = copy.deepcopy(model)
    shard_rows(model.loss, init_device_mesh("cpu", (RANKS,)))
    assert len(model.loss.weight) == (11, 10)[rank]
    train(model, optimizers(model, kind), [rank], empty, divide=True)
    train(single, optimizers(single, kind), range(RANKS), empty)
    assert model.loss.weight.grad.is_sparse == options.get("sparse", False)
    compare(model, single)
    exact(model.loss, single.loss, rank)
    # a state_dict of a whole loss, and one of a divided loss, can be loaded
    for state in (single.loss.state_dict(), model.loss.state_dict()):
        other = Model(loss_type, **options)
        nn.init.zeros_(other.loss.weight)
        shard_rows(other.loss, init_device_mesh("cpu", (RANKS,)))
        other.loss.load_state_dict(state)
        torch.testing.assert_close(other.loss.weight, model.loss.weight, rtol=0, atol=1e-6)
    other.loss.reset_parameters()
    if other.loss.bias is not None:
        expected = single.loss
        expected.reset_parameters()
        torch.testing.assert_close(full(other.loss.state_dict()["bias"]), expected.bias.detach())


SCENARIOS = {
    "ddp-dense": lambda rank: ddp(rank),
    "ddp-sparse": lambda rank: ddp(rank, sparse=True),
    "ddp-sparse-shared": lambda rank: ddp(rank, SampledSoftmaxLoss, sparse=True, shared_noise=True),
    "ddp-sparse-tied": lambda rank: ddp(rank, sparse=True, tied=True),
    "ddp-sparse-scalar": lambda rank: ddp(rank, sparse=True, normalizer="scalar"),
    "ddp-sparse-rowwise": lambda rank: ddp(rank, sparse=True, kind=RowwiseAdagrad),
    "ddp-dense-empty": lambda rank: ddp(rank, empty=True),
    "ddp-sparse-empty": lambda rank: ddp(rank, empty=True, sparse=True),
    "fsdp": fsdp,
    "fsdp-empty": lambda rank: fsdp(rank, empty=True),
    "fsdp-negative-sampling": lambda rank: fsdp(rank, NegativeSamplingLoss),
    "fsdp-sparse": fsdp_sparse,
    "rows-dense": lambda rank: rows(rank),
    "rows-sparse": lambda rank: rows(rank, sparse=True, kind=RowwiseAdagrad),
    "rows-shared": lambda rank: rows(rank, SampledSoftmaxLoss, sparse=True, shared_noise=True),
    "rows-negative-sampling": lambda rank: rows(rank, NegativeSamplingLoss, bias=False),
    "rows-empty": lambda rank: rows(rank, empty=True, sparse=True),
}


def main(folder):
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    dist.init_process_group("gloo")
    rank, results = dist.get_rank(), {}
    for name, scenario in SCENARIOS.items():
        try:
            scenario(rank)
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
        dist.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
