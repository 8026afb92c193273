"""What a training strategy implements: the target side of the model, in the phases of `steps.train`.

Strategies are the types PerExampleNoise, SharedNoise and ExactLikelihood of `records`.
"""

from ncelm.kernels.compile import generic


@generic
def prepare_items(strategy, index, plan):
    """The number of work items of `prepare`."""


@generic
def prepare(strategy, item, index, plan, parameters, workspace):
    """Phase 1: what has to be done before examples are scored."""


@generic
def example_items(strategy, index, plan):
    """The number of work items of `examples`."""


@generic
def examples(strategy, item, index, plan, matrices, dropout, optimizer, parameters, state, workspace, rates, scratch):
    """Phase 2: q̂, scores, score gradients and dJ/dq̂ of a block of examples, and their loss."""


@generic
def after_examples_items(strategy, index, plan, parameters):
    """The number of work items of `after_examples`."""


@generic
def after_examples(strategy, item, index, plan, optimizer, parameters, state, workspace, rates, scratch):
    """Phase 3: gradients of target words, and where these are complete the updates."""


@generic
def targets_are_longest(strategy):
    """Whether the work items of `after_examples` take longer than those of `contexts.context_gradients`."""


@generic
def finish_targets_items(strategy, index, plan):
    """The number of work items of `finish_targets`."""


@generic
def finish_targets(strategy, item, index, plan, optimizer, parameters, state, workspace, rates, gradient):
    """Phase 4: updates of target words that had to wait for phase 3."""


@generic
def tied_groups(strategy, index, plan, parameters):
    """Phase 5, tied embeddings: the number of target words whose gradients are in TiedGradients.targets."""


@generic
def target_word(strategy, g, index, plan):
    """The word of the g-th gradient in TiedGradients.targets."""
