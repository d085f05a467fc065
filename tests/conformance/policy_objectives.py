"""Turns a record's hyper-parameters into an objective and a KL estimator of the library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rollout_contract import kl as kls
from rollout_contract.objectives import (
    CISPO,
    DPPO,
    GMPO,
    GSPO,
    LUSPO,
    NLL,
    SAPO,
    VESPO,
    ClipCov,
    GSPOToken,
    ImportanceSampling,
    KLCov,
    Objective,
    OnPolicyRatio,
    PPOClip,
    ProbabilityMask,
    ProductClip,
    ProximalOPSM,
    Reinforce,
    RolloutIS,
    RolloutReinforce,
    TopEntropy,
)


class DrawnClipCov(ClipCov):
    """Clip-Cov with the random draw that a record made; it checks that the record's candidates are ours."""

    recorded_candidates: tuple[int, ...]
    recorded_draw: tuple[int, ...]

    def draw(self, candidates: Tensor, count: Tensor) -> Tensor:
        assert candidates.nonzero().flatten().tolist() == list(self.recorded_candidates)
        assert len(self.recorded_draw) == min(int(count), len(self.recorded_candidates))
        drawn = torch.zeros_like(candidates)
        drawn[list(self.recorded_draw)] = True
        return drawn


class Float32TopEntropy(TopEntropy):
    """TRL takes the quantile in float32, also of float64 entropies, so a token exactly at it may round below."""

    def keep(self, batch: Any, /) -> Tensor:
        entropy, mask, kept = batch.observed_entropy, batch.loss_mask, super().keep(batch)
        threshold = entropy[mask].float().quantile(1.0 - self.fraction)
        recorded: Tensor = mask & (entropy >= threshold)
        assert ((entropy - threshold).abs() < 1e-6)[recorded != kept].all()
        return recorded


def bound(params: dict[str, Any]) -> float | None:
    """A record's log-ratio clamp, which is symmetric wherever it has a lower side."""
    clamp = params.get("log_ratio_clamp")
    if clamp is None or clamp[0] is None:
        return None
    assert clamp[0] == -clamp[1], "an asymmetric clamp"
    return float(clamp[1])


def cap(params: dict[str, Any]) -> float | None:
    clamp = params.get("log_ratio_clamp")
    return None if clamp is None or clamp[0] is not None else float(clamp[1])


def clip(params: dict[str, Any]) -> dict[str, Any]:
    names = {"clip_low": "eps_low", "clip_high": "eps_high", "dual_clip": "dual_clip", "ratio_cap": "ratio_cap"}
    return {ours: params.get(theirs) for ours, theirs in names.items()} | {"log_ratio_bound": bound(params)}


def cispo(params: dict[str, Any]) -> Objective:
    low = 0.0 if params["ratio_min"] is None else params["ratio_min"]
    return CISPO(ratio_min=low, ratio_max=params["ratio_max"], log_ratio_bound=bound(params))


def gspo(params: dict[str, Any]) -> Objective:
    kind = LUSPO if params["aggregation"]["mode"] == "seq_loss_times_length_mean" else GSPO
    return kind(**clip(params), average_advantages=params.get("adv_sequence_mean", False))


def sapo(params: dict[str, Any]) -> Objective:
    level = params.get("level", "token")
    assert params.get("adv_sequence_mean", False) == (level == "sequence")
    taus = {"tau_positive": params["tau_pos"], "tau_negative": params["tau_neg"]}
    return SAPO(**taus, level=level, log_ratio_bound=bound(params))


def gmpo(params: dict[str, Any]) -> Objective:
    return GMPO(clip_low=params["eps_low"], clip_high=params["eps_high"], log_ratio_bound=None)


def vespo(params: dict[str, Any]) -> Objective:
    return VESPO(
        k_positive=params["k_pos"],
        lambda_positive=params["lambda_pos"],
        k_negative=params["k_neg"],
        lambda_negative=params["lambda_neg"],
        log_ratio_bound=params["in_clamp"],
    )


def clip_cov(params: dict[str, Any], width: int) -> Objective:
    flat = {
        name: tuple(sorted(row * width + column for row, column in params[theirs]))
        for name, theirs in (("recorded_candidates", "candidates"), ("recorded_draw", "dropped_positions"))
    }
    band = {"covariance_low": params["cov_low"], "covariance_high": params["cov_high"]}
    return DrawnClipCov(**clip(params), **band, fraction=params["frac"], **flat)


def dppo(params: dict[str, Any], divergence: str) -> Objective:
    radius = {"delta_low": params["delta_low"], "delta_high": params["delta_high"]}
    return DPPO(divergence=divergence, **radius, drift=params.get("drift", 0.0), log_ratio_bound=bound(params))


def reinforce(params: dict[str, Any]) -> Objective:
    correction = params.get("correction") or {}
    if correction.get("type") != "clamp_live_ratio":
        return Reinforce()
    return RolloutReinforce(
        weight_min=correction.get("low") or 0.0,
        weight_max=correction["high"],
        log_ratio_bound=correction["log_clamp"],
    )


def objective_of(params: dict[str, Any], width: int) -> Objective:
    makers = {
        "ppo_clip": lambda: PPOClip(**clip(params)),
        "gspo": lambda: gspo(params),
        "gspo_token": lambda: GSPOToken(**clip(params), log_ratio_cap=cap(params)),
        "cispo": lambda: cispo(params),
        "sapo": lambda: sapo(params),
        "reinforce": lambda: reinforce(params),
        "geo_mean": lambda: gmpo(params),
        "clip_cov": lambda: clip_cov(params, width),
        "kl_cov": lambda: KLCov(fraction=params["frac"], coef=params["coef"], log_ratio_bound=bound(params)),
        "dppo_tv": lambda: dppo(params, "tv"),
        "dppo_kl": lambda: dppo(params, "kl"),
        "ipo_mask": lambda: ProbabilityMask(
            delta=params["delta"], drift=params["drift"], log_ratio_bound=bound(params)
        ),
        "rollout_is": lambda: RolloutIS(
            ratio_min=1 - params["eps_low"], ratio_max=1 + params["eps_high"], log_ratio_bound=bound(params)
        ),
        "is_surrogate": lambda: ImportanceSampling(log_ratio_bound=bound(params)),
        "vespo": lambda: vespo(params),
        "seq_product_clip": lambda: ProductClip(**clip(params)),
        "on_policy_ratio": OnPolicyRatio,
        "nll": NLL,
    }
    objective: Objective = makers[params["objective"]]()
    if params.get("opsm_delta") is not None:
        objective = ProximalOPSM(objective=objective, delta=params["opsm_delta"])
    if params.get("top_entropy_quantile") is not None:
        objective = Float32TopEntropy(objective=objective, fraction=params["top_entropy_quantile"])
    return objective


# -- KL ----------------------------------------------------------------------------------------------------------------


def kl_of(params: dict[str, Any]) -> kls.KLEstimator:
    kinds = {"k1": kls.K1, "k2": kls.K2, "k3": kls.K3, "low_var_kl": kls.LowVarKL}
    estimator = kinds[params["estimator"]](input_bound=params["in_clamp"], output_bound=params["out_clamp"])
    weighted: dict[str, kls.KLEstimator] = {
        "none": estimator,
        "ratio": kls.UnbiasedKL(estimator=estimator, cut_where_clamped=False, log_weight_bound=None),
        "seq_ratio": kls.UnbiasedKL(estimator=estimator, level="sequence", log_weight_bound=None),
        "score": kls.ScoreFunctionKL(estimator=estimator, log_weight_bound=None),
        "behaviour_ratio": kls.BehaviourKL(estimator=estimator, log_weight_bound=None),
    }
    return weighted[params["weight"]]
