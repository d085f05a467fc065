"""Names, values and contradictions: what a preset takes, and what it says when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rollout_contract.errors import ContractError
from rollout_contract.objectives import GSPO, PPOClip
from rollout_contract.presets import TRAINERS, OptionError, TrainerOptions, preset

# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "gspo"}, "clip_ratio_high": 4e-4}}},
        {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo", "actor_rollout_ref.actor.clip_ratio_high": 4e-4},
        {"actor": {"policy_loss.loss_mode": "gspo", "clip_ratio_high": 4e-4}},
        {"policy_loss": {"loss_mode": "gspo"}, "clip_ratio_high": 4e-4},
        {"loss_mode": "gspo", "clip_ratio_high": "0.0004"},
    ],
)
def test_nested_dotted_and_shortened_names_are_the_same(options: dict[str, Any]) -> None:
    assert preset("verl", options) == preset("verl", {"loss_mode": "gspo", "clip_ratio_high": 4e-4})


@pytest.mark.parametrize("name", ["--advantage-estimator", "--advantage_estimator", "advantage_estimator"])
def test_flags_may_keep_their_dashes(name: str) -> None:
    assert preset("miles", {name: "gspo", "--eps-clip": 3e-4}).objective == GSPO(clip_low=3e-4, clip_high=3e-4)


@pytest.mark.parametrize("name", ["verl", "VERL", "Verl"])
def test_the_case_of_a_trainer_does_not_matter(name: str) -> None:
    assert preset(name) == preset("verl")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_has_defaults(trainer: str) -> None:
    options = {"max_completion_length": 512} if trainer == "liger" else {}
    recipe = preset(trainer, options)
    assert preset(trainer, options) == recipe
    with pytest.raises(ValidationError, match="frozen"):
        recipe.objective = PPOClip()


def test_a_name_of_the_critic_is_not_shortened() -> None:
    recipe = preset("verl", {"loss_agg_mode": "seq-mean-token-mean", "critic": {"loss_agg_mode": "token-mean"}})
    assert recipe.aggregation.mode == "seq-mean-token-mean"
    assert recipe.critic is not None
    assert recipe.critic.aggregation.mode == "token-mean"


# -- errors ------------------------------------------------------------------------------------------------------------


def message(trainer: str, options: dict[str, Any], **more: Any) -> str:
    with pytest.raises(OptionError) as caught:
        preset(trainer, options, **more)
    assert isinstance(caught.value, ContractError)
    return str(caught.value)


def test_a_trainer_that_is_not_known() -> None:
    text = message("verrl", {})
    assert "verrl" in text
    assert "verl" in text
    assert "trl.rloo" in text


def test_an_unknown_option_gets_its_close_match() -> None:
    text = message("verl", {"actor.clip_ratio_hihg": 0.3})
    assert "preset('verl') cannot be made of these options" in text
    assert "actor.clip_ratio_hihg [unknown]" in text
    assert "did you mean actor_rollout_ref.actor.clip_ratio_high" in text


def test_an_unknown_option_without_a_match_gets_the_list() -> None:
    assert "there are: beta" in message("torchforge.simple_grpo", {"quux": 1})


@pytest.mark.parametrize(
    ("trainer", "name"),
    [
        ("verl", "data.train_files"),
        ("verl", "actor_rollout_ref.actor.optim.lr"),
        ("miles", "--rollout-batch-size"),
        ("slime", "--lr"),
        ("trl", "learning_rate"),
        ("trl.rloo", "num_generations"),
        ("openrlhf", "--actor_learning_rate"),
        ("prime-rl", "optim.lr"),
        ("nemo-rl", "policy.model_name"),
        ("areal", "actor.optimizer.lr"),
        ("skyrl", "trainer.epochs"),
        ("liger", "chunk_size"),
    ],
)
def test_an_option_that_is_not_about_the_loss(trainer: str, name: str) -> None:
    known = {"max_completion_length": 512} if trainer == "liger" else {}
    text = message(trainer, known | {name: 1})
    assert f"{name} [unrelated]" in text
    assert 'unrelated="ignore"' in text
    assert preset(trainer, known | {name: 1}, unrelated="ignore") == preset(trainer, known)


def test_unknown_options_are_refused_even_where_unrelated_ones_are_ignored() -> None:
    text = message("verl", {"data.train_files": "x", "clip_ratoi": 0.2}, unrelated="ignore")
    assert "clip_ratoi [unknown]" in text
    assert "train_files" not in text


def test_an_ambiguous_name_names_its_meanings() -> None:
    text = message("prime-rl", {"type": "ipo"})
    assert "type [ambiguous]" in text
    assert "loss.type or algo.type or algo.length_penalty.type" in text


def test_two_spellings_of_one_option() -> None:
    assert "actor_rollout_ref.actor.policy_loss.loss_mode [twice]" in message(
        "verl", {"loss_mode": "gspo", "actor.policy_loss.loss_mode": "gspo"}
    )


def test_a_value_outside_its_list() -> None:
    text = message("verl", {"loss_mode": "gsop"})
    assert "vanilla | gspo | cispo" in text
    assert "'gsop'" in text
    assert "did you mean gspo?" in text


def test_a_number_out_of_range() -> None:
    text = message("miles", {"--eps-clip": -0.1, "--gamma": 1.5})
    assert "eps_clip [value]" in text
    assert "gamma [value]" in text
    assert "greater than or equal to 0" in text


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        preset("trl", {"epsilonn": 0.2, "learning_rate": 1e-6, "beta": "much"})
    assert [violation.rule for violation in caught.value.violations] == ["unknown", "unrelated", "value"]


VERL_KL = {"use_kl_loss": True}
MIS = {"use_tis": True, "custom_tis_function_path": "mis.compute_mis_weights_with_cp"}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("verl", {"clip_ratio": 0.3}, "hide clip_ratio"),
    ("verl", {"loss_mode": "dro"}, "a positive number for loss_mode=dro"),
    ("verl", {"loss_mode": "clip_cov", "clip_cov_lb": 6.0}, "less than clip_cov_ub"),
    ("verl", {"loss_agg_mode": "seq-mean-token-sum-norm"}, "padded width"),
    ("verl", VERL_KL | {"kl_loss_type": "full"}, "no code for it"),
    ("verl", {"use_kl_in_reward": True, "kl_penalty": "full"}, "no code for it"),
    ("verl", {"use_pf_ppo": True}, "resamples"),
    ("verl", {"adv_estimator": "gdpo"}, "whitens over samples"),
    ("verl", {"distillation.enabled": True}, "rollout_contract.distillation"),
    ("verl", {"rollout_is_threshold": "wide"}, "a positive number"),
    ("verl", {"rollout_is_threshold": "5_0.5"}, "low and high in order"),
    ("verl", {"rollout_rs": "token_k9", "rollout_rs_threshold": 2.0}, "token_k1 | token_k2"),
    ("verl", {"rollout_rs": "token_k1"}, "a threshold for each option"),
    ("verl", {"rollout_rs": "token_k3", "rollout_rs_threshold": "0.1_0.2"}, "one upper bound for token_k3"),
    ("verl", {"rollout_rs": "token_k1,token_k2", "rollout_rs_threshold": "1,2,3"}, "one threshold, or 2"),
    ("verl", {"bypass_mode": True, "loss_mode": "gspo"}, "replaces any other loss"),
    ("verl", {"bypass_mode": True, "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0}, "by the live policy"),
    (
        "verl",
        {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": "0.5_2"},
        "IcePop by the live policy",
    ),
    (
        "verl",
        {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": "token", "rollout_is_batch_normalize": True},
        "a mean over live weights",
    ),
    ("miles", {"loss_type": "custom_loss"}, "docs/extending.md"),
    ("miles", {"custom_pg_loss_reducer_function_path": "x.y"}, "Dr.GRPO's"),
    ("miles", {"kl_coef": 0.1, "kl_loss_coef": 0.1}, "or kl_loss_coef=0"),
    ("miles", {"use_rollout_logprobs": True, "use_tis": True}, "against the sampler already"),
    ("miles", {"advantage_estimator": "reinforce_plus_plus"}, "True for advantage_estimator"),
    (
        "miles",
        {"advantage_estimator": "reinforce_plus_plus_baseline", "normalize_advantages": True, "kl_coef": 0.1},
        "before the whitening",
    ),
    ("miles", {"use_opd": True, "opd_log_prob_top_k": 8}, "its expected gradient is 0"),
    ("miles", {"use_tis": True, "custom_tis_function_path": "my.own"}, "a function that is known"),
    ("miles", {"use_tis": True, "tis_mode": "mask"}, "which reads these options"),
    ("miles", {"use_tis": True, "tis_clip": 1.0, "tis_clip_low": 2.0}, "at most tis_clip"),
    ("miles", MIS | {"tis_batch_normalize": True, "tis_level": "geometric"}, "False for tis_level=geometric"),
    ("miles", MIS | {"tis_mode": "mask", "tis_lower_bound": 3.0}, "less than tis_upper_bound"),
    ("slime", {"custom_advantage_function_path": "my.own"}, "code of yours"),
    ("trl", {"loss_type": "dr_grpo", "max_completion_length": None}, "a number for loss_type=dr_grpo"),
    ("trl", {"loss_type": "cispo", "importance_sampling_level": "sequence"}, "in no paper"),
    ("trl", {"loss_type": "sapo", "delta": 3.0}, "does not read it"),
    ("trl", {"use_adaptive_entropy": True}, "changes from step to step"),
    ("trl", {"top_entropy_quantile": 0.0}, "the single token"),
    ("trl", {"top_entropy_quantile": 0.2, "entropy_coef": 0.1}, "tokens of high entropy alone"),
    ("trl", {"router_aux_loss_coef": 0.1}, "a loss of the router"),
    (
        "trl",
        {"use_vllm": True, "vllm_importance_sampling_clip_min": 4.0},
        "less than vllm_importance_sampling_clip_max=3.0",
    ),
    ("trl", {"use_vllm": True, "loss_type": "vespo"}, "token_truncate | token_mask"),
    ("trl.rloo", {"normalize_advantages": True}, "over samples"),
    ("trl.gmpo", {"top_entropy_quantile": 0.5}, "geometric mean"),
    ("trl.gspo_token", {"importance_sampling_level": "token"}, 'preset("trl", ...)'),
    ("trl.gspo_token", {"loss_type": "sapo"}, "a clipped loss"),
    ("trl.gspo_token", {"beta": 0.1}, "the sequence's"),
    ("openrlhf", {"vllm_is_truncated_threshold": [5.0, 0.5]}, "in order"),
    ("openrlhf", {"eps_clip": 0.1, "eps_clip_low_high": [0.2, 0.3]}, "what counts"),
    ("openrlhf", {"aux_loss_coef": 0.1}, "a loss of the router"),
    ("openrlhf", {"no_advantage_std_norm": True}, "without the division"),
    ("openrlhf", {"advantage_estimator": "rloo", "gamma": 0.9}, "gamma=1 with rloo"),
    ("openrlhf", {"advantage_estimator": "reinforce_baseline"}, "before the whitening"),
    ("prime-rl", {"loss.ipo_threshold": 0.2}, "left out with loss.type=default"),
    ("prime-rl", {"loss.type": "ipo", "dppo_mask_low": 0.1}, "left out with loss.type=ipo"),
    ("prime-rl", {"loss.type": "custom"}, "code of yours"),
    ("prime-rl", {"algo.type": "echo"}, "tokens of the environment"),
    ("prime-rl", {"length_penalty.type": "turns"}, "number of turns"),
    ("prime-rl", {"length_penalty.type": "tokens", "algo.type": "max_rl"}, "none with algo.type=max_rl"),
    ("prime-rl", {"tool_response_weight": 0.5}, "left out without algo.length_penalty.type"),
    ("prime-rl", {"length_penalty.type": "tokens", "completion_weight": 0.0}, "only tool responses"),
    ("nemo-rl", {"sequence_level_importance_ratios": True}, "False for sequence_level_importance_ratios"),
    (
        "nemo-rl",
        {"sequence_level_importance_ratios": True, "token_level_loss": False, "force_on_policy_ratio": True},
        "has no sequence",
    ),
    ("nemo-rl", {"use_cispo": True, "disable_ppo_ratio": True}, "use_cispo"),
    ("nemo-rl", {"truncated_importance_sampling_ratio": 2.0}, "None without"),
    ("nemo-rl", {"truncated_importance_sampling_type": "tis"}, "use_importance_sampling_correction"),
    (
        "nemo-rl",
        {"use_importance_sampling_correction": True, "truncated_importance_sampling_type": "icepop"},
        "a number for icepop",
    ),
    ("nemo-rl", {"adv_estimator.name": "reinforce_plus_plus", "use_kl_in_reward": True}, "before the whitening"),
    ("areal", {"use_sapo_loss": True, "use_decoupled_loss": True}, "False for use_sapo_loss"),
    ("areal", {"use_sapo_loss": True, "c_clip": 3.0}, "None for use_sapo_loss"),
    ("areal", {"rejection_sampling.upper": 2.0}, "None without use_decoupled_loss"),
    ("areal", {"m2_threshold": 0.1}, "None without use_decoupled_loss"),
    ("areal", {"use_decoupled_loss": True, "rejection_sampling.lower": 0.5}, "requires the upper bound"),
    ("areal", {"adv_norm.mean_level": "group", "adv_norm.std_level": "group"}, "of the batch, or neither"),
    (
        "areal",
        {"use_decoupled_loss": True, "rejection_sampling": {"action": "clamp", "metric": "kl_k1", "upper": -1.0}},
        "the weight would be negative",
    ),
    (
        "areal",
        {"use_decoupled_loss": True, "rejection_sampling": {"upper": 1.0, "lower": 2.0}},
        "at most upper=1.0",
    ),
    ("skyrl", {"use_kl_in_reward": True}, "False next to use_kl_loss"),
    ("skyrl", {"loss_reduction": "token_mean_legacy"}, "the split changes the loss"),
    ("skyrl", {"loss_reduction": "seq_mean_token_sum_norm"}, "a number for loss_reduction"),
    ("skyrl", {"policy_loss_type": "clip_cov", "clip_cov.clip_cov_lb": 6.0}, "less than clip_cov_ub"),
    ("skyrl", {"token_mask_is_threshold_low": 0.5}, "both, or none"),
    ("skyrl", {"zero_variance_filter": True}, "zero_variance()"),
    ("skyrl", {"policy_loss_type": "kl_cov", "tis_ratio_type": "token"}, "does not read it"),
    ("skyrl", {"policy_loss_type": "dppo", "tis_ratio_type": "token"}, "against the sampler already"),
    ("skyrl", {"policy_loss_type": "dppo", "sequence_mask_metric": "product"}, "the KL would lose its tokens"),
    ("liger", {"loss_type": "sapo", "importance_sampling_level": "sequence"}, "Liger refuses it"),
    ("liger", {"loss_type": "luspo", "importance_sampling_level": "sequence"}, "depends on padding"),
    ("tinker", {"loss_fn": "ppo", "clip_low_threshold": 1.1}, "around 1"),
]


@pytest.mark.parametrize(("trainer", "options", "expected"), REFUSED)
def test_what_contradicts_itself_or_is_not_covered(trainer: str, options: dict[str, Any], expected: str) -> None:
    assert expected in message(trainer, options)


# -- what is not about the loss ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", TRAINERS)
def test_no_pattern_of_unrelated_options_hides_one_that_counts(trainer: str) -> None:
    kind = TRAINERS[trainer]
    for name in kind.names():
        for wrong in (name, *typos(name)):
            assert not unrelated(kind, wrong), wrong


def typos(name: str) -> list[str]:
    """The last part with a letter too many, one too few, and two of them swapped."""
    path, dot, last = name.rpartition(".")
    wrong = [f"{last}x", last[:-1], last[:-2] + last[-1] + last[-2]]
    return [f"{path}{dot}{found}" for found in wrong]


def unrelated(kind: type[TrainerOptions], name: str) -> bool:
    try:
        kind.read({name: object()})
    except OptionError as error:
        return any(violation.rule == "unrelated" for violation in error.violations)
    return False
