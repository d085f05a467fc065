"""A recipe's loss: the same for every split, every term once, and denominators as the trainer has them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract.corrections import Correction, Normalize, Reject, Truncate
from rollout_contract.errors import ContractError
from rollout_contract.kl import K3, LowVarKL
from rollout_contract.objectives import PPOClip
from rollout_contract.presets import AdvantageRule, Recipe, ZeroOutside, preset
from rollout_contract.presets.recipe import corrected
from rollout_contract.schemas import OPDBatch, PolicyBatch, RewardBatch, TISBatch, TokenRewardBatch

LENGTHS = [3, 5, 2, 4]
MASK = torch.tensor([1, 0, 1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1]).bool()
IDS = torch.tensor([0] * 3 + [1] * 5 + [2] * 2 + [3] * 4)
REWARDS = torch.tensor([1.0, 0.0, 1.0, -1.0], dtype=torch.float64)


def numbers(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(LENGTHS), generator=generator, dtype=torch.float64)


def scores(seed: int) -> Tensor:
    """Log-probs that lie near each other, so that ratios are moderate."""
    return -1.0 - numbers(0).abs() + 0.3 * numbers(seed)


LIVE, OLD, ROLLOUT, REFERENCE = (scores(seed) for seed in (1, 2, 3, 4))
ADVANTAGES, ENTROPY = numbers(5), numbers(6).abs()
FIELDS: dict[str, Tensor] = {
    "old_log_probs": OLD,
    "rollout_log_probs": ROLLOUT,
    "ref_log_probs": REFERENCE,
    "teacher_log_probs": scores(7),
    "advantages": ADVANTAGES,
    "rewards": REWARDS,
}


def step(recipe: Recipe) -> Any:
    """A step with the fields that the recipe reads."""
    found = {name: value for name, value in FIELDS.items() if name in recipe.reads.__plan__}
    return recipe.reads(response_lengths=LENGTHS, loss_mask=MASK, group_ids=[0, 0, 1, 1], **found)


def loss_of(recipe: Recipe, *, parts: dict[str, int] | None = None, **options: Any) -> tuple[float, Tensor]:
    """The loss, and its gradient in log_probs and entropy, of a step that is split in some way."""
    live = torch.stack([LIVE, ENTROPY]).requires_grad_()
    whole = recipe.prepare(step(recipe), **options)
    total = torch.zeros((), dtype=torch.float64)
    for micro in [whole] if parts is None else whole.split(**parts):
        rows = torch.cat([(whole.row_ids.index(row) == IDS).nonzero().flatten() for row in micro.row_ids])
        bound = {"log_probs": live[0][rows]}
        if "entropy" in recipe.reads.__plan__:
            bound["entropy"] = live[1][rows]
        if "observed_entropy" in recipe.reads.__plan__:
            bound["observed_entropy"] = live[1][rows].detach()
        total = total + recipe.loss(micro.bind(**bound)).value
    (gradient,) = torch.autograd.grad(total, live)
    return total.item(), gradient


MIS = {"use_tis": True, "custom_tis_function_path": "mis.compute_mis_weights_with_cp"}
SPLITTABLE: list[tuple[str, dict[str, Any]]] = [
    ("verl", {"use_kl_loss": True, "entropy_coeff": 0.1, "loss_agg_mode": "seq-mean-token-sum"}),
    ("verl", {"loss_mode": "sapo", "use_kl_loss": True, "entropy_coeff": 0.1, "rollout_is": "sequence"}),
    ("verl", {"loss_mode": "gspo", "rollout_rs": "token_k1", "rollout_rs_threshold": "0.7_1.2", "use_kl_loss": True}),
    ("verl", {"rollout_is": "token", "rollout_is_batch_normalize": True, "kl_loss_type": "k1+", "use_kl_loss": True}),
    ("verl", {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "sequence"}),
    ("miles", MIS | {"tis_mode": "mask", "use_kl_loss": True, "kl_loss_coef": 0.1, "use_unbiased_kl": True}),
    ("slime", {"advantage_estimator": "cispo", "calculate_per_token_loss": True, "entropy_coef": 0.1}),
    ("trl", {"beta": 0.1, "loss_type": "luspo", "importance_sampling_level": "sequence", "entropy_coef": 0.1}),
    ("trl", {"beta": 0.1, "loss_type": "vespo", "use_vllm": True, "vllm_importance_sampling_mode": "token_mask"}),
    ("trl", {"off_policy_mask_threshold": 0.01, "use_vllm": True}),
    ("openrlhf", {"policy_loss_type": "gspo", "use_kl_loss": True, "kl_estimator": "k2", "entropy_loss_coef": 0.1}),
    ("openrlhf", {"enable_vllm_is_correction": True, "vllm_is_correction_type": "seq-mask-tis"}),
    ("prime-rl", {}),
    ("nemo-rl", {"positive_example_nll_weight": 0.1}),
    ("nemo-rl", {"token_level_loss": False, "use_on_policy_kl_approximation": True}),
    ("areal", {"use_decoupled_loss": True, "rejection_sampling": {"upper": 1.2, "lower": 0.8}}),
    ("skyrl", {"sequence_mask_metric": "product", "product_mask_low": 0.9, "tis_ratio_type": "token"}),
    ("skyrl", {"loss_reduction": "prompt_mean", "use_entropy_loss": True}),
    ("liger", {"loss_type": "bnpo"}),
    ("torchforge.simple_grpo", {}),
    ("tinker", {"loss_fn": "dro"}),
]


@pytest.mark.uninstrumented("a batch with the fields of a schema that does not inherit from it")
@pytest.mark.parametrize(("trainer", "options"), SPLITTABLE)
@pytest.mark.parametrize("parts", [{"samples": 1}, {"max_tokens": 8}])
def test_a_split_changes_nothing(trainer: str, options: dict[str, Any], parts: dict[str, int]) -> None:
    recipe = preset(trainer, options)
    value, gradient = loss_of(recipe)
    again, split_gradient = loss_of(recipe, parts=parts)
    assert again == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(split_gradient, gradient, rtol=1e-10, atol=1e-14)
    assert bool((gradient[:, ~MASK] == 0).all())


@pytest.mark.uninstrumented("a batch with the fields of a schema that does not inherit from it")
@pytest.mark.parametrize(("trainer", "options"), SPLITTABLE)
def test_the_scale_multiplies_every_term(trainer: str, options: dict[str, Any]) -> None:
    recipe = preset(trainer, options)
    value, gradient = loss_of(recipe)
    scaled, scaled_gradient = loss_of(recipe, scale=8.0)
    assert scaled == pytest.approx(8.0 * value, rel=1e-12)
    torch.testing.assert_close(scaled_gradient, 8.0 * gradient, rtol=1e-10, atol=1e-14)


# -- terms by hand -----------------------------------------------------------------------------------------------------


def ppo(clip: float = 0.2) -> Tensor:
    ratio = (LIVE - OLD).exp()
    return torch.maximum(-ratio * ADVANTAGES, -ratio.clamp(1 - clip, 1 + clip) * ADVANTAGES)


def k3() -> Tensor:
    x = LIVE - REFERENCE
    return (-x).exp() - 1 + x


def per_sample(terms: Tensor, mask: Tensor, counted: Tensor = MASK) -> Tensor:
    """[samples] sums over ``mask``, each divided by the number of tokens that count."""
    zeros = torch.zeros(len(LENGTHS), dtype=torch.float64)
    sums = zeros.index_add(0, IDS, terms.where(mask, 0.0))
    return sums / zeros.index_add(0, IDS, counted.double()).clamp(min=1)


def test_policy_kl_and_entropy_add_up() -> None:
    recipe = preset("trl", {"beta": 0.1, "use_bias_correction_kl": False, "entropy_coef": 0.01, "loss_type": "grpo"})
    expected = per_sample(ppo() + 0.1 * k3(), MASK).sum() / 4 - 0.01 * ENTROPY[MASK].mean()
    assert loss_of(recipe)[0] == pytest.approx(expected.item(), rel=1e-12)


def test_the_kl_may_have_other_denominators_than_the_policy() -> None:
    recipe = preset("verl", {"loss_mode": "sapo", "use_kl_loss": True, "kl_loss_coef": 0.1})
    policy = preset("verl", {"loss_mode": "sapo"})
    assert policy.aggregation.mode == "seq-mean-token-mean"
    assert recipe.kl_loss is not None
    assert recipe.kl_loss.aggregation.mode == "token-mean"
    expected = loss_of(policy)[0] + 0.1 * k3()[MASK].mean().item()
    assert loss_of(recipe)[0] == pytest.approx(expected, rel=1e-12)


def test_importance_weights_are_for_the_policy_alone() -> None:
    options = {"use_kl_loss": True, "entropy_coeff": 0.1, "rollout_is": "token", "clip_ratio_c": 100.0}
    weights = (OLD - ROLLOUT).exp().clamp(max=2.0)
    expected = (weights * ppo())[MASK].mean() + 0.001 * k3()[MASK].mean() - 0.1 * ENTROPY[MASK].mean()
    assert loss_of(preset("verl", options))[0] == pytest.approx(expected.item(), rel=1e-12)


KEPT = MASK & ((OLD - ROLLOUT).exp() >= 0.85) & ((OLD - ROLLOUT).exp() <= 1.2)
MASKING = MIS | {"tis_mode": "mask", "tis_lower_bound": 0.85, "tis_upper_bound": 1.2}


def test_some_tokens_are_rejected() -> None:
    assert 0 < int(KEPT.sum()) < int(MASK.sum())


def test_rejected_tokens_stay_in_the_denominators_of_miles() -> None:
    recipe = preset("miles", MASKING)
    expected = per_sample((OLD - ROLLOUT).exp() * ppo(), KEPT).sum() / 4
    assert loss_of(recipe)[0] == pytest.approx(expected.item(), rel=1e-12)


def test_rejected_tokens_leave_the_denominators_of_verl() -> None:
    bounds = {"rollout_rs": "token_k1", "rollout_rs_threshold": f"{1 / 1.2}_{1 / 0.85}"}
    recipe = preset("verl", bounds | {"clip_ratio_c": 100.0})
    assert loss_of(recipe)[0] == pytest.approx(ppo()[KEPT].mean().item(), rel=1e-12)


def test_rejected_tokens_keep_their_kl_in_skyrl() -> None:
    bounds = {"token_mask_is_threshold_low": 0.85, "token_mask_is_threshold_high": 1.2}
    recipe = preset("skyrl", bounds | {"kl_loss_coef": 0.1})
    expected = ppo()[KEPT].sum() / MASK.sum() + 0.1 * per_sample(k3(), MASK).sum() / 4
    assert loss_of(recipe)[0] == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.uninstrumented("a batch with the fields of a schema that does not inherit from it")
def test_positive_examples_get_their_likelihood() -> None:
    options = {"reference_policy_kl_penalty": 0.0, "positive_example_nll_weight": 0.5}
    positive = MASK & (REWARDS > 0)[IDS]
    expected = ppo()[MASK].mean() - 0.5 * LIVE[positive].mean()
    assert loss_of(preset("nemo-rl", options))[0] == pytest.approx(expected.item(), rel=1e-12)


def test_a_denominator_from_elsewhere() -> None:
    recipe = preset("trl", {"loss_type": "dapo"})
    assert loss_of(recipe, denominator=40.0)[0] == pytest.approx(ppo()[MASK].sum().item() / 40, rel=1e-12)


# -- weights of 0 ------------------------------------------------------------------------------------------------------


def tis_step() -> TISBatch:
    return TISBatch(response_lengths=LENGTHS, loss_mask=MASK, old_log_probs=OLD, rollout_log_probs=ROLLOUT)


def test_zero_outside() -> None:
    batch, outside = tis_step(), Reject(low=0.85, high=1.2)
    plain = ZeroOutside(rule=None, outside=outside)(batch)
    assert plain.mask is None
    assert plain.weights is not None
    torch.testing.assert_close(plain.weights, KEPT.double())
    weighted = ZeroOutside(rule=Truncate(high=1.1), outside=outside)(batch)
    torch.testing.assert_close(weighted.weights, (OLD - ROLLOUT).exp().clamp(max=1.1).where(KEPT, 0.0))
    assert {"truncate/ratio_mean", "reject/ratio/token/rejected"} <= set(weighted.metrics)


def test_rules_that_are_combined_see_the_same_batch() -> None:
    rule = Normalize(rule=Truncate()) & Reject(high=1.2)
    batch = tis_step()
    found, expected = corrected(batch, rule, None), rule(batch)
    assert isinstance(found, Correction)
    torch.testing.assert_close(found.weights, expected.weights)
    torch.testing.assert_close(found.mask, expected.mask)


# -- what a recipe is --------------------------------------------------------------------------------------------------


def test_a_recipe_says_what_it_reads() -> None:
    assert preset("verl").reads is PolicyBatch
    recipe = preset("verl", {"use_kl_loss": True, "rollout_is": "token"})
    assert set(recipe.schemas) >= {PolicyBatch, TISBatch}
    assert {"advantages", "old_log_probs", "rollout_log_probs", "ref_log_probs"} <= set(recipe.reads.__plan__)


def test_a_step_of_another_schema_is_refused() -> None:
    batch = tis_step()
    with pytest.raises(ContractError, match="verl recipe"):
        preset("verl").prepare(batch)
    with pytest.raises(ContractError, match="verl recipe"):
        preset("verl").loss(batch)


def test_a_recipe_is_a_value() -> None:
    recipe = preset("miles", MASKING | {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"})
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert recipe != preset("miles", MASKING)
    assert recipe.objective == PPOClip()
    assert recipe.kl_loss is not None
    assert recipe.kl_loss.estimator == LowVarKL() != K3()
    shown = recipe.model_dump()
    assert shown["objective"]["clip_high"] == 0.2
    assert shown["kl_loss"]["estimator"]["output_bound"] == 10.0


# -- advantages --------------------------------------------------------------------------------------------------------


def test_distillation_is_taken_off_before_the_whitening() -> None:
    options = {"advantage_estimator": "reinforce_plus_plus", "normalize_advantages": True, "use_opd": True}
    rule = preset("miles", options | {"opd_kl_coef": 0.5}).advantages
    assert rule is not None

    class Step(TokenRewardBatch, OPDBatch):
        pass

    rewards = numbers(8)
    batch = Step(
        response_lengths=LENGTHS,
        loss_mask=MASK,
        token_rewards=rewards,
        old_log_probs=OLD,
        teacher_log_probs=FIELDS["teacher_log_probs"],
    )
    plain = rule.model_copy(update={"distillation": None, "whitening": None})(batch).advantages
    raw = (plain - 0.5 * (OLD - FIELDS["teacher_log_probs"]))[MASK]
    expected = (raw - raw.mean()) / (raw.var() + 1e-8).sqrt()
    torch.testing.assert_close(rule(batch).advantages[MASK], expected)


def test_advantages_may_be_scaled() -> None:
    batch = RewardBatch(response_lengths=LENGTHS, loss_mask=MASK, group_ids=[0, 0, 1, 1], rewards=REWARDS)
    rule = preset("prime-rl", {"adv_tau": 0.5}).advantages
    assert rule is not None
    expected = 0.5 * torch.tensor([0.5, -0.5, 1.0, -1.0], dtype=torch.float64)[IDS].where(MASK, 0.0)
    torch.testing.assert_close(rule(batch).advantages, expected)
    assert rule == AdvantageRule(estimator="dr_grpo", scale=0.5)
