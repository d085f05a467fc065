"""KL, value, entropy and distillation losses equal the obvious implementation, in value and gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rollout_contract import kl as library
from rollout_contract.distillation import (
    FlooredTopKDivergence,
    FullVocabulary,
    TopKDivergence,
    TopKReverseKL,
    distillation_loss,
    divergence_of_logits,
    topk_support,
)
from rollout_contract.log_probs import score_logits
from rollout_contract.losses.entropy import entropy_bonus
from rollout_contract.losses.kl import kl_loss
from rollout_contract.losses.loss import Loss
from rollout_contract.losses.value import CriticError, value_loss
from rollout_contract.schemas import DivergenceBatch, EntropyBatch, TopKBatch, TopKEntropyBatch, ValueBatch
from tests.properties.batches import Case, cases
from tests.properties.compare import FEW, FEWER, MODE, assert_close, assert_loss, pack
from tests.properties.objective_references import Inputs
from tests.properties.setups import setup
from tests.reference import distillation, kl, values
from tests.reference.scalars import Row, Rows, gradients, leaves, mean, per_token, row, rows

# -- KL ----------------------------------------------------------------------------------------------------------------


def geometric(x: Inputs) -> Rows:
    """Each sequence's mean of l - old, at each of its tokens."""
    means = []
    for entries, mask in zip(kl.log_ratios(x.log_probs, x.old), x.mask, strict=True):
        means.append(mean([value for value, keep in zip(entries, mask, strict=True) if keep]))
    return [[centre] * len(mask) for centre, mask in zip(means, x.mask, strict=True)]


def on_old(x: Inputs) -> Rows:
    return kl.log_ratios(x.log_probs, x.old)


def on_rollout(x: Inputs) -> Rows:
    return kl.log_ratios(x.log_probs, x.rollout)


def on_itself(x: Inputs) -> Rows:
    return kl.log_ratios(x.log_probs, [[value.detach() for value in entries] for entries in x.log_probs])


LOW_VAR = {"estimator": "k3", "input_clamp": 20.0, "output_clamp": 10.0}
CUT = {"detach_weight_where_clamped": True, "log_weight_clamp": 20.0}
ESTIMATORS: list[tuple[Any, dict[str, Any], Callable[[Inputs], Rows] | None]] = [
    (library.K1(), {"estimator": "k1"}, None),
    (library.K2(), {"estimator": "k2"}, None),
    (library.K3(), {"estimator": "k3"}, None),
    (library.AbsoluteKL(), {"estimator": "abs"}, None),
    (library.LowVarKL(), LOW_VAR, None),
    (library.K2(input_bound=2.0), {"estimator": "k2", "input_clamp": 2.0}, None),
    (library.K1(output_bound=0.5), {"estimator": "k1", "output_clamp": 0.5}, None),
    *(
        (library.StraightThroughKL(estimator=found), {"estimator": name, "straight_through": True}, None)
        for name, found in (("k1", library.K1()), ("k3", library.K3()), ("abs", library.AbsoluteKL()))
    ),
    (library.StraightThroughKL(estimator=library.LowVarKL()), {**LOW_VAR, "straight_through": True}, None),
    (library.ScoreFunctionKL(), {"estimator": "k3", **CUT}, on_itself),
    (library.UnbiasedKL(estimator=library.K1()), {"estimator": "k1", **CUT}, on_old),
    (library.UnbiasedKL(estimator=library.LowVarKL()), {**LOW_VAR, **CUT}, on_old),
    (
        library.UnbiasedKL(estimator=library.LowVarKL(), cut_where_clamped=False, log_weight_bound=None),
        LOW_VAR,
        on_old,
    ),
    (library.UnbiasedKL(level="sequence"), {"estimator": "k3", **CUT}, geometric),
    (
        library.BehaviourKL(estimator=library.K2(output_bound=0.5), weight_before_clamp=False),
        {"estimator": "k2", "output_clamp": 0.5, "weight_before_clamp": False, **CUT},
        on_rollout,
    ),
]


@pytest.mark.filterwarnings("ignore:k1 as a loss")
@pytest.mark.parametrize(("estimator", "options", "log_weights"), ESTIMATORS, ids=[repr(e) for e, *_ in ESTIMATORS])
@given(case=cases())
@FEW
def test_kl(estimator: Any, options: dict[str, Any], log_weights: Callable[[Inputs], Rows] | None, case: Case) -> None:
    made, x = setup(estimator.reads, case), Inputs.of(case)
    late = made.live()
    loss = kl_loss(made.build().weighted(MODE).bind(**late), estimator)
    weights = None if log_weights is None else log_weights(x)
    expected = kl.kl(x.log_probs, x.ref, x.mask, **options, log_weights=weights)
    assert_loss(loss, late["log_probs"], expected, x.log_probs, case, repr(estimator))


# -- value and entropy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("huber_delta", [None, 0.7])
@given(case=cases())
@FEW
def test_value_loss(half: bool, clip: float | None, huber_delta: float | None, case: Case) -> None:
    made = setup(ValueBatch, case)
    late = made.live()
    error = CriticError(clip=clip, half=half, huber_delta=huber_delta)
    loss = value_loss(made.build().weighted(MODE).bind(**late), error)
    live = leaves(case.tokens["value_predictions"])
    fixed = [rows(case.tokens[name]) for name in ("values", "returns")]
    expected = values.value_loss(live, *fixed, case.mask, clip=clip, half=half, huber_delta=huber_delta)
    assert_loss(loss, late["value_predictions"], expected, live, case, repr(error))


@given(case=cases())
@FEW
def test_entropy_bonus(case: Case) -> None:
    made = setup(EntropyBatch, case)
    late = made.live()
    loss = entropy_bonus(made.build().weighted(MODE).bind(**late))
    live = leaves(case.tokens["entropy"])
    assert_loss(loss, late["entropy"], values.entropy_bonus(live, case.mask), live, case, "entropy bonus")


# -- distillation over a vocabulary ------------------------------------------------------------------------------------

VOCABULARY = 6


class Logits:
    """Logits of a student, live, and of a teacher, for each token of a case."""

    def __init__(self, case: Case, seed: int, spread: float) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(seed)
        shape = (2, sum(case.lengths), VOCABULARY)
        student, self.teacher = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
        self.student = student.requires_grad_()
        self.live = leaves(student.tolist())

    def expected(self, of: Callable[[Row, Row], Tensor]) -> Rows:
        """The reference of every token, from the log-probs of both sides."""
        starts = [sum(self.case.lengths[:i]) for i in range(len(self.case.lengths))]
        teacher = self.teacher.tolist()

        def term(i: int, t: int) -> Tensor:
            place = starts[i] + t
            return of(self.log_probs(self.live[place]), self.log_probs(row(teacher[place])))

        return per_token(self.case.mask, term)

    @staticmethod
    def log_probs(logits: Row) -> Row:
        return distillation.log_softmax(logits)

    def assert_loss(self, loss: Loss, of: Callable[[Row, Row], Tensor], what: str) -> None:
        assert_loss(loss, self.student, self.expected(of), self.live, self.case, what)


@st.composite
def logits(draw: st.DrawFn) -> Logits:
    spread = draw(st.sampled_from((1e-3, 0.1, 1.0, 8.0)))
    return Logits(draw(cases()), draw(st.integers(0, 2**32)), spread)


def step(schema: Any, case: Case, **fields: Tensor) -> Any:
    mask = torch.tensor([m for entries in case.mask for m in entries], dtype=torch.bool)
    return schema(response_lengths=case.lengths, loss_mask=mask, **fields).weighted(MODE)


INTERPOLATIONS: dict[str, Callable[[Row, Row, float], Tensor]] = {
    "mixture": distillation.jensen_shannon,
    "linear": distillation.between,
}


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@given(made=logits())
@FEWER
def test_full_vocabulary(beta: float, interpolation: Any, made: Logits) -> None:
    found = divergence_of_logits(made.student, made.teacher, beta=beta, interpolation=interpolation, chunk_size=4)
    loss = distillation_loss(step(DivergenceBatch, made.case).bind(divergence=found), FullVocabulary())
    made.assert_loss(loss, lambda s, t: INTERPOLATIONS[interpolation](s, t, beta), f"{interpolation} {beta}")


def topk_batch(made: Logits, support: Any, k: int = 2, *, entropy: bool = False) -> Any:
    tops = [scores.topk(k).indices for scores in (made.student.detach(), made.teacher)]
    ids, members = topk_support(*tops, support)
    teacher = score_logits(made.teacher, ids).log_probs
    fields = {"topk_ids": ids, "teacher_topk_log_probs": teacher, "topk_mask": members}
    scores = score_logits(made.student, ids)
    late = {"topk_log_probs": scores.log_probs, "topk_mask": fields.pop("topk_mask")}
    schema = TopKEntropyBatch if entropy else TopKBatch
    return step(schema, made.case, **fields).bind(**late, **({"entropy": scores.entropy} if entropy else {}))


def support_of(s: Row, t: Row, support: str, k: int = 2) -> list[int]:
    return sorted(distillation.top_k_set(s, t, k, support))


SUPPORTS = st.sampled_from(("student", "teacher", "union", "intersection", "xor"))


BETWEEN = [(0.0, "mixture"), (0.3, "mixture"), (0.6, "linear"), (1.0, "linear")]
OUTSIDE = {"tail": True, "renormalise": False, "ignore": None}


@pytest.mark.parametrize(("beta", "interpolation"), BETWEEN)
@pytest.mark.parametrize("outside", OUTSIDE)
@given(support=SUPPORTS, made=logits())
@FEWER
def test_topk_divergence(beta: float, interpolation: Any, outside: Any, support: str, made: Logits) -> None:
    term = TopKDivergence(beta=beta, interpolation=interpolation, outside=outside)

    def expected(s: Row, t: Row) -> Tensor:
        options = {"beta": beta, "tail": OUTSIDE[outside], "of": INTERPOLATIONS[interpolation]}
        return distillation.top_k_divergence(s, t, support_of(s, t, support), **options)

    made.assert_loss(distillation_loss(topk_batch(made, support), term), expected, f"{support} {term}")


@pytest.mark.parametrize("weights", ["student", "teacher", "uniform"])
@pytest.mark.parametrize("renormalise", [True, False])
@given(support=SUPPORTS, made=logits())
@FEWER
def test_topk_reverse_kl(weights: Any, renormalise: bool, support: str, made: Logits) -> None:
    term = TopKReverseKL(weights=weights, renormalise=renormalise)

    def expected(s: Row, t: Row) -> Tensor:
        members = support_of(s, t, support)
        return distillation.top_k_reverse_kl(s, t, members, weights, normalised=renormalise)

    made.assert_loss(distillation_loss(topk_batch(made, support), term), expected, f"{support} {term}")


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@given(made=logits())
@FEWER
def test_floored_topk_divergence(beta: float, made: Logits) -> None:
    term = FlooredTopKDivergence(beta=beta, floor=-30.0)

    def expected(s: Row, t: Row) -> Tensor:
        options = {"mixed_weight": 1 - beta, "zero_outside": True, "log_zero": -30.0}
        return distillation.teacher_top_k_loss(s, t, 2, kl="mixed", **options)

    made.assert_loss(distillation_loss(topk_batch(made, "teacher", entropy=True), term), expected, repr(term))


@given(made=logits())
@FEWER
def test_scores_of_logits(made: Logits) -> None:
    ids = torch.arange(len(made.student)) % VOCABULARY
    found = score_logits(made.student, ids, temperature=0.7, chunk_size=4)
    by_token = [distillation.log_softmax(z, 0.7)[v] for z, v in zip(made.live, ids.tolist(), strict=True)]
    entropies = [distillation.entropy(z, 0.7) for z in made.live]
    assert_close(found.log_probs, pack([[x.detach() for x in by_token]]), what="log-probs")
    assert_close(found.entropy, pack([[x.detach() for x in entropies]]), what="entropy")
    (2.0 * found.log_probs.sum() + found.entropy.sum()).backward()
    wanted = pack(gradients(2.0 * sum(by_token, row([0.0])[0]) + sum(entropies, row([0.0])[0]), made.live))
    assert made.student.grad is not None
    assert_close(made.student.grad, wanted.reshape(made.student.shape), what="gradient of scores")
