"""Optimizers and gradient clipping for tables with sparse gradients."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ncelm.torch import compiled
from ncelm.torch.checks import nonnegative
from ncelm.torch.scores import add_rows_


class RowOptimizer(torch.optim.Optimizer):
    """Base of the optimizers: `update` changes one parameter."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients; return what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)
        return loss

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter in place. Subclasses implement it."""
        raise NotImplementedError


class SparseSGD(RowOptimizer):
    """SGD for sparse and dense gradients.

    The result is that of `torch.optim.SGD`; updates by sparse gradients are faster.

    Args:
        params (iterable): parameters or parameter groups.
        lr (float): learning rate.

    Examples:
        >>> table = torch.nn.Embedding.from_pretrained(torch.zeros(3, 2), freeze=False, sparse=True)
        >>> table(torch.tensor([1, 1])).sum().backward()
        >>> _ = SparseSGD(table.parameters(), lr=0.1).step()
        >>> table.weight.data
        tensor([[ 0.0000,  0.0000],
                [-0.2000, -0.2000],
                [ 0.0000,  0.0000]])
    """

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": nonnegative("lr", lr)})

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Subtract the gradient times the learning rate."""
        if gradient.is_sparse:
            rows, values = gradient._indices()[0], gradient._values()
            if compiled.supports(parameter, values):
                compiled.update_rows(parameter, rows, values, -group["lr"])
            else:
                add_rows_(parameter, rows, values * -group["lr"])
        else:
            parameter.add_(gradient, alpha=-group["lr"])


class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator per row of a table, for sparse and dense gradients.

    The accumulator of a row grows by the mean square of its gradient g, (d,), and the row changes by
    −lr · g / (√accumulator + eps). The state of a table (V, d) has V numbers instead of V d, and rows without a
    gradient are not touched. For vectors, such as biases, this is Adagrad.

    Args:
        params (iterable): parameters or parameter groups.
        lr (float): learning rate. Default: 0.1.
        eps (float): added to the root of the accumulator. Default: 1e-8.
        initial_accumulator_value (float): Default: 0.

    Examples:
        >>> table = torch.nn.Embedding(5, 2, sparse=True)
        >>> optimizer = RowwiseAdagrad(table.parameters(), lr=0.1)
        >>> table(torch.tensor([1, 3])).sum().backward()
        >>> _ = optimizer.step()
        >>> optimizer.state[table.weight]["sum"]
        tensor([0., 1., 0., 1., 0.])
    """

    def __init__(
        self, params: Any, lr: float = 0.1, *, eps: float = 1e-8, initial_accumulator_value: float = 0.0
    ) -> None:
        defaults = {
            "lr": nonnegative("lr", lr),
            "eps": nonnegative("eps", eps),
            "initial_accumulator_value": nonnegative("initial_accumulator_value", initial_accumulator_value),
        }
        super().__init__(params, defaults)

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Add to the accumulators and update the rows."""
        state = self.state[parameter]
        if "sum" not in state:
            first = group["initial_accumulator_value"]
            state["sum"] = parameter.new_full(parameter.shape[:1], first)  # (V,)
        accumulator = state["sum"]
        if not gradient.is_sparse:
            accumulator += _mean_square(gradient)
            parameter -= group["lr"] * gradient / _column(accumulator.sqrt() + group["eps"], gradient)
            return
        _is_coalesced(gradient)
        summed = gradient.coalesce()  # each row once
        rows, values = summed.indices()[0], summed.values()
        totals = accumulator.index_select(0, rows) + _mean_square(values)
        accumulator.index_copy_(0, rows, totals)
        add_rows_(parameter, rows, values * _column(-group["lr"] / (totals.sqrt() + group["eps"]), values))


def _is_coalesced(gradient: Tensor) -> bool:
    """Return whether each row occurs once, and mark such a gradient: autograd drops the mark of the losses."""
    if not gradient.is_coalesced() and gradient.sparse_dim() == 1:
        rows = gradient._indices()[0]
        if bool((rows[1:] > rows[:-1]).all()):
            gradient._coalesced_(True)
    return gradient.is_coalesced()


def _mean_square(values: Tensor) -> Tensor:
    """Return the mean square of each row, or the square of each number."""
    return values.square() if values.dim() == 1 else values.square().flatten(1).mean(1)


def _column(numbers: Tensor, like: Tensor) -> Tensor:
    """Return one number per row in a shape that broadcasts."""
    return numbers.view(-1, *[1] * (like.dim() - 1))


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale gradients, sparse ones too, so that their total norm is at most `max_norm`; return the former norm.

    `torch.nn.utils.clip_grad_norm_` rejects sparse gradients. Sparse gradients are coalesced: a row counts once, with
    the sum of its entries.

    Args:
        parameters (iterable of Tensor): parameters with gradients.
        max_norm (float): largest total norm.

    Examples:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> clip_grad_norm_([weight], 1.0), weight.grad
        (tensor(5.), tensor([0.6000, 0.8000]))
    """
    if not max_norm > 0.0:
        raise ValueError(f"max_norm is {max_norm}: give a positive number")
    values = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
        values.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    total = torch.stack([value.norm() for value in values]).norm() if values else torch.zeros(())
    scale = (max_norm / total).clamp(max=1.0)
    for value in values:
        value.mul_(scale)
    return total
