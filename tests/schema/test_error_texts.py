"""What a user reads: the text of the usual mistakes, pinned."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rollout_contract import PolicyBatch, RolloutBatch, errors, policy_loss, settings
from rollout_contract.errors import ContractError
from rollout_contract.objectives import PPOClip
from rollout_contract.schemas import KLBatch
from tests.schema.batches import LENGTHS, MASK, NAN, OLD, FullBatch, live, policy_batch

# -- what a user reads ----------------------------------------------------------------------------------------------


def edited() -> Any:
    step = policy_batch().weighted("token-mean")
    step.advantages.sub_(1)
    return policy_loss(step.bind(log_probs=live()), PPOClip())


def made_live() -> Any:
    step = policy_batch().weighted("token-mean")
    step.old_log_probs.requires_grad_()
    return policy_loss(step.bind(log_probs=live()), PPOClip())


def refused_live() -> Any:
    with settings(live_inputs="refuse"):
        return policy_batch(old_log_probs=torch.tensor(OLD, requires_grad=True) * 1.0)


def assigned() -> Any:
    policy_batch().advantages = torch.zeros(5)  # type: ignore[misc, assignment]


def sampled_differently() -> Any:
    heat = {"old_log_probs": {"temperature": 1.0}, "rollout_log_probs": {"temperature": 0.6}}
    return FullBatch(
        response_lengths=LENGTHS,
        loss_mask=MASK,
        old_log_probs=OLD,
        rollout_log_probs=OLD,
        advantages=OLD,
        sampling=heat,  # type: ignore[arg-type]
    )


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "advantages per sample": (
        lambda: policy_batch(advantages=torch.zeros(2)),
        """
PolicyBatch breaks its contract:

  advantages [shape]
    expected  [5 tokens]
    found     f32[2]
    repair    one value per sample where one per token belongs: Layout(response_lengths).expand(tensor) repeats it
""",
    ),
    "padded": (
        lambda: policy_batch(advantages=torch.zeros(2, 3)),
        """
PolicyBatch breaks its contract:

  advantages [shape]
    expected  [5 tokens]
    found     f32[2, 3]
    repair    this looks padded: Layout(response_lengths).pack(tensor) gives the packed form
""",
    ),
    "a typing error": (
        lambda: policy_batch(old_log_probs=..., old_logprobs=torch.tensor(OLD)),
        """
PolicyBatch breaks its contract in 2 places:

  old_logprobs [unknown]
    expected  a field of the schema
    found     old_logprobs
    repair    did you mean old_log_probs?

  old_log_probs [missing]
    expected  fixed float[tokens], which the schema requires
    found     nothing
    repair    pass old_log_probs=
""",
    ),
    "a mask that did not grow": (
        lambda: policy_batch(loss_mask=[[1, 1], [1, 0]]),
        """
PolicyBatch breaks its contract:

  loss_mask [length], row 1
    expected  3 response tokens
    found     2 entries
    repair    when a response is resumed, its mask grows with it: one entry for every token, old and new
""",
    ),
    "shifted scores": (
        lambda: policy_batch(old_log_probs=[[-1.0, -1.0], [-1.0, -1.0]]),
        """
PolicyBatch breaks its contract:

  old_log_probs [length], row 1
    expected  3 response tokens
    found     2 entries
    repair    one entry short: this looks like scores that start at the second token. Entry t must score token t \
itself; keep the first one (Layout.response_from_predictions converts)
""",
    ),
    "with the prompt": (
        lambda: policy_batch(old_log_probs=[[-1.0] * 4, [-1.0] * 3]),
        """
PolicyBatch breaks its contract:

  old_log_probs [length], row 0
    expected  2 response tokens
    found     4 entries
    repair    a per-token field covers the response alone, without the prompt (Layout.response_from_sequence cuts it)
""",
    ),
    "null from JSON": (
        lambda: policy_batch(old_log_probs=[[-1.0, None], [-1.0, -1.0, -1.0]]),
        """
PolicyBatch breaks its contract:

  old_log_probs [value], row 0, position 1
    expected  a log-prob on every trained token
    found     None
    repair    find out why the engine gave no value (a NaN becomes null in JSON), or build under \
settings(missing="mask_out") or settings(missing="neutral")
""",
    ),
    "NaN on a trained token": (
        lambda: policy_batch(advantages=torch.tensor([1.0, NAN, 1.0, NAN, 1.0])),
        """
PolicyBatch breaks its contract:

  advantages [value], row 0, position 1
    expected  a finite number
    found     nan
    repair    mask the token out, or repair the producer
""",
    ),
    "logits": (
        lambda: policy_batch(old_log_probs=torch.full((5,), 3.0)),
        """
PolicyBatch breaks its contract:

  old_log_probs [value], row 0, position 0
    expected  a finite log-prob, at most 0
    found     3.0 (and 3 more such entries)
    repair    a probability above 1: were logits or negated log-probs passed?
""",
    ),
    "half precision": (
        lambda: policy_batch(old_log_probs=torch.tensor(OLD).bfloat16()),
        """
PolicyBatch breaks its contract:

  old_log_probs [dtype]
    expected  float32 or float64
    found     bfloat16
    repair    score in float32: in half precision a log-prob of -12.3 is off by 3 %. To accept what is already lost, \
tag the field Upcast or build under settings(half_precision="upcast")
""",
    ),
    "half precision of something else": (
        lambda: policy_batch(advantages=torch.tensor(OLD).half()),
        """
PolicyBatch breaks its contract:

  advantages [dtype]
    expected  float32 or float64
    found     float16
    repair    compute it in float32. To accept what is already lost, tag the field Upcast or build under \
settings(half_precision="upcast")
""",
    ),
    "a weight in the mask": (
        lambda: policy_batch(loss_mask=[[1, 1], [0.5, 0, 1]]),
        """
PolicyBatch breaks its contract:

  loss_mask [mask], row 1, position 0
    expected  0 and 1, or bool
    found     0.5
    repair    weights other than 0 and 1 belong in a field of their own, for example loss_weights
""",
    ),
    "another device": (
        lambda: policy_batch(advantages=torch.zeros(5, device="meta")),
        """
PolicyBatch breaks its contract:

  advantages [device]
    expected  cpu, where the batch is
    found     meta
    repair    move it with .to('cpu'), or tag the field AnyDevice if the loss shall move it
""",
    ),
    "live scores": (
        refused_live,
        """
PolicyBatch breaks its contract:

  old_log_probs [live graph]
    expected  a tensor without an autograd graph: the field is a fixed input of the loss
    found     a live graph (grad_fn MulBackward0)
    repair    score under torch.no_grad(), or detach where the scores are made
""",
    ),
    "detached log-probs": (
        lambda: policy_batch().bind(log_probs=torch.tensor(OLD)),
        """
PolicyBatch breaks its contract:

  log_probs [no graph]
    expected  a tensor with an autograd graph: the loss is differentiated through it
    found     no graph
    repair    pass the output of the current forward pass, without detach; for evaluation use torch.no_grad()
""",
    ),
    "an edit": (
        edited,
        """
PolicyBatch breaks its contract:

  advantages [mutated]
    expected  the values that were validated
    found     an edit in place since then
    repair    compute a new tensor and build or extend a batch with it
""",
    ),
    "made live": (
        made_live,
        """
PolicyBatch breaks its contract:

  old_log_probs [live graph]
    expected  no graph, as when the batch was built
    found     a leaf tensor with requires_grad=True
    repair    do not call requires_grad_() on a batch's tensor, nor write a live tensor into it
""",
    ),
    "an assignment": (
        assigned,
        """
PolicyBatch breaks its contract:

  advantages [frozen]
    expected  a batch that nobody changes after it was validated
    found     an assignment
    repair    make a new batch: extend() adds fields, bind() sets those of the forward pass
""",
    ),
    "no weights": (
        lambda: policy_loss(policy_batch().bind(log_probs=live()), PPOClip()),
        """
PolicyBatch breaks its contract:

  loss_weights [missing]
    expected  a value
    found     nothing: the field is not bound
    repair    call batch.weighted("token-mean") (or another aggregation) on the whole step, before any split
""",
    ),
    "the wrong schema": (
        lambda: policy_loss(KLBatch(response_lengths=[1], loss_mask=[1], ref_log_probs=[-1.0]), PPOClip()),  # type: ignore[type-var]
        """
policy_loss breaks its contract:

  batch [missing]
    expected  a PolicyBatch
    found     a KLBatch, which lacks advantages, old_log_probs
    repair    let KLBatch inherit from PolicyBatch, or extend(PolicyBatch, ...)
""",
    ),
    "two temperatures": (
        sampled_differently,
        """
FullBatch breaks its contract:

  rollout_log_probs [metadata]
    expected  processed at temperature 1.0, as old_log_probs
    found     processed at temperature 0.6
    repair    score with the same temperature and support on both sides; dividing log-probs repairs nothing
""",
    ),
    "weights of a part": (
        lambda: policy_batch().split(samples=1)[0].weighted("token-mean"),
        """
PolicyBatch breaks its contract:

  loss_weights [rows]
    expected  the whole step
    found     a part of one, with too small counts
    repair    call weighted() on the step, then split it; or give the step's denominator
""",
    ),
    "no lengths": (
        lambda: RolloutBatch(loss_mask=[1]),
        """
RolloutBatch breaks its contract:

  response_lengths [missing]
    expected  one value per sample, which the schema requires
    found     nothing
    repair    pass response_lengths=
""",
    ),
    "lengths that are no numbers": (
        lambda: policy_batch(response_lengths=[2, "x"]),
        """
PolicyBatch breaks its contract:

  response_lengths [metadata], row 1
    expected  a valid integer, unable to parse string as an integer
    found     'x'
""",
    ),
    "rows in another order": (
        lambda: policy_batch(row_ids=[3, 4]).merge(policy_batch(row_ids=[4, 3]), PolicyBatch),
        """
PolicyBatch breaks its contract:

  row_ids [rows]
    expected  rows 3, 4
    found     rows 4, 3
    repair    select() the rows of one into the order of the other, or give both the same row_ids when they are built
""",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_text_of(name: str) -> None:
    mistake, text = MISTAKES[name]
    with pytest.raises(ContractError) as caught:
        mistake()
    assert f"\n{caught.value}\n" == text


@pytest.mark.parametrize("name", MISTAKES)
def test_every_one_travels(name: str) -> None:
    with pytest.raises(ContractError) as caught:
        MISTAKES[name][0]()
    same = pickle.loads(pickle.dumps(caught.value))
    assert (type(same), str(same)) == (type(caught.value), str(caught.value))


def test_an_unknown_field_that_looks_like_none_lists_the_fields() -> None:
    with pytest.raises(errors.UnknownFieldError) as caught:
        policy_batch(zebra=1)
    assert caught.value.hint.startswith("declare it in a schema of your own that inherits from this one, whose fields")
    assert caught.value.hint.endswith("advantages, old_log_probs")
