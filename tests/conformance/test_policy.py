"""Policy losses: every record of every trainer, value and gradient, computed from the record's own params."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

from rollout_contract import Aggregation, Layout, Loss, policy_loss
from rollout_contract.aggregation import step_weights
from rollout_contract.corrections import Correction, Reject, Truncate
from rollout_contract.log_probs import score_hidden_states, score_logits
from rollout_contract.losses.entropy import entropy_bonus
from rollout_contract.losses.kl import kl_loss
from rollout_contract.objectives import PositiveNLL, positive_example_weights
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import (
    EntropyBatch,
    LiveBatch,
    PositiveBatch,
    RewardBatch,
    TISBatch,
)
from tests.conformance.harness import Vector, batch_inputs, full_width_layout, tensor, vectors
from tests.conformance.policy_objectives import kl_of, objective_of

VECTORS = vectors("policy")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.id)
def test_policy(vector: Vector) -> None:
    case = Case(vector)
    value = case.value()
    (gradient,) = torch.autograd.grad(value.sum(), case.leaf)
    vector.check(value, gradient)


# -- the batch ---------------------------------------------------------------------------------------------------------

FIELDS = {
    "old": "old_log_probs",
    "behaviour": "rollout_log_probs",
    "reference": "ref_log_probs",
    "advantages": "advantages",
}


@cache
def combined(*bases: type[RolloutBatch]) -> type[Any]:
    """One schema with the fields of all of these."""
    distinct = dict.fromkeys(bases)
    most_derived = [
        base for base in distinct if not any(base is not other and issubclass(other, base) for other in distinct)
    ]
    return type("Step", tuple(most_derived), {})


@dataclass
class Case:
    """One record, as a step of the library."""

    vector: Vector

    def __post_init__(self) -> None:
        self.params = self.vector.params
        self.rows = self.params.get("rows")
        self.leaf = tensor(self.vector.entry["wrt"]).requires_grad_()
        self.scores = self._scores()
        self.objective = objective_of(self.params, self.mask_rows.shape[1])

    # The rows of the batch that the record is about, and how they are packed.

    def padded(self, role: str) -> Tensor:
        name = self.vector.roles[role]
        found = self.leaf if name == self.vector.entry["wrt"] else tensor(name)
        return found if self.rows is None else found[self.rows]

    @cached_property
    def mask_rows(self) -> Tensor:
        return self.padded("mask").bool()

    @cached_property
    def layout(self) -> Layout:
        if not self.vector.has("packed_logits"):
            return full_width_layout(self.mask_rows)
        lengths = [int(n) for n in self.padded("lengths")]
        return Layout(lengths, prompt_lengths=[self.params["prompt_len"]] * len(lengths))

    def packed(self, role: str) -> Tensor:
        found = self.padded(role)
        return self.layout.expand(found) if found.dim() == 1 else self.layout.pack(found)

    # What is live.

    def _scores(self) -> Any:
        if self.vector.has("packed_logits"):
            logits = self.layout.response_from_predictions(self.leaf)
            token_ids = self.layout.response_from_sequence(tensor(self.vector.roles["packed_tokens"]))
            return score_logits(logits, token_ids, temperature=self.params["temperature"])
        if self.vector.has("hidden"):
            hidden, weight = self.padded("hidden").flatten(0, 1), self.padded("weight")
            return score_hidden_states(hidden, weight, self.padded("tokens").flatten())
        if self.vector.has("logits"):
            return score_logits(self.padded("logits").flatten(0, 1), self.padded("tokens").flatten())
        return None

    @cached_property
    def log_probs(self) -> Tensor:
        return self.packed("logprob") if self.scores is None else self.scores.log_probs

    @cached_property
    def entropy(self) -> Tensor:
        return self.packed("entropy") if self.scores is None else self.scores.entropy

    # What is fixed.

    @cached_property
    def fields(self) -> dict[str, Any]:
        found = {
            field: self.packed(role) for role, field in FIELDS.items() if self.vector.has(role) and role != "rewards"
        }
        if self.vector.has("rewards"):
            found["rewards"] = self.padded("rewards")
        if self.params.get("old_is_self"):
            found["old_log_probs"] = self.log_probs.detach()
        if self.objective.reads.__plan__.keys() & {"rollout_log_probs"} and "rollout_log_probs" not in found:
            found["rollout_log_probs"] = found.pop("old_log_probs")
        if "advantages" in found:
            found["advantages"] = found["advantages"] * self.params.get("adv_scale", 1.0)
        if self.params.get("top_entropy_quantile") is not None:
            found["observed_entropy"] = self.entropy
        return found

    def step(self, mask: Tensor, *bases: type[RolloutBatch]) -> Any:
        schema = combined(*bases)
        fields = {name: value for name, value in self.fields.items() if name in schema.__plan__}
        lengths = {"response_lengths": self.layout.response_lengths, "prompt_lengths": self.layout.prompt_lengths}
        lengths = {name: value for name, value in lengths.items() if value is not None}
        return schema(**lengths, loss_mask=mask, **fields)

    @cached_property
    def mask(self) -> Tensor:
        """The mask after rejection. A record that rejects has no old policy but the current one, seen as fixed."""
        mask, rule = self.packed("mask").bool(), self.params.get("rejection")
        if rule is None:
            return mask
        assert rule["option"] == "seq_mean_k1", "another rejection rule"
        scored = TISBatch(
            response_lengths=self.layout.response_lengths,
            loss_mask=mask,
            old_log_probs=self.log_probs,
            rollout_log_probs=self.packed("behaviour"),
        )
        low, high = torch.tensor([rule["low"], rule["high"]], dtype=torch.float64).log().tolist()
        kept = Reject(statistic="k1", level="sequence-mean", low=low, high=high)(scored).mask
        assert kept is not None
        return kept

    def corrected(self, step: Any) -> Any:
        correction = self.params.get("correction")
        if correction is None or correction["type"] == "clamp_live_ratio":
            return step
        if correction["type"] == "clamp":
            rule = Truncate(low=correction["low"], high=correction["high"], log_ratio_bound=correction["log_clamp"])
            return step.corrected(rule(step))
        assert correction["type"] in ("given", "vespo_is"), "another correction"
        return step.corrected(Correction(step, weights=self.packed("is_weights")))

    # The loss.

    def value(self) -> Tensor:
        needs_tis = (self.params.get("correction") or {}).get("type") == "clamp"
        step = self.step(self.mask, self.objective.reads, *((TISBatch,) if needs_tis else ()))
        step = self.corrected(step)
        if self.params["aggregation"]["mode"] == "none":
            terms = self.objective.terms(step.bind(log_probs=self.log_probs))
            return self.layout.pad(terms.loss)
        loss = policy_loss(self.weighted(step).bind(log_probs=self.log_probs), self.objective)
        for term in (self.kl(), self.entropy_term(), self.positive_nll()):
            loss = loss if term is None else loss + term
        return loss.value

    def kl(self) -> Loss | None:
        params = self.params.get("kl")
        if params is None:
            return None
        estimator = kl_of(params)
        if self.params.get("kl_is_token"):
            # Liger's LUSPO averages n_i x KL over all positions of the padded batch, trained or not.
            step = self.step(torch.ones_like(self.mask), estimator.reads)
            counts = self.layout.expand(self.mask_rows.sum(1))
            step = step.extend(type(step), loss_weights=counts / self.mask.numel())
        else:
            step = self.weighted(self.step(self.mask, estimator.reads))
        return params["coef"] * kl_loss(step.bind(log_probs=self.log_probs), estimator)

    def entropy_term(self) -> Loss | None:
        if not self.params.get("entropy_coef"):
            return None
        step = self.weighted(self.step(self.mask, EntropyBatch), self.params.get("entropy_aggregation"))
        entropy = self.entropy if self.entropy.requires_grad else self.entropy.requires_grad_()
        return -self.params["entropy_coef"] * entropy_bonus(step.bind(entropy=entropy))

    def positive_nll(self) -> Loss | None:
        if not self.params.get("positive_nll"):
            return None
        rewarded = self.step(self.mask, RewardBatch, LiveBatch).weighted("token-mean")
        step = rewarded.extend(
            combined(RewardBatch, PositiveBatch), positive_weights=positive_example_weights(rewarded)
        )
        return self.params["positive_nll"] * policy_loss(step.bind(log_probs=self.log_probs), PositiveNLL())

    def weighted(self, step: Any, spec: dict[str, Any] | None = None) -> Any:
        """The step with the record's aggregation: a mode of the library, and the record's own epsilons and counts."""
        spec = self.params["aggregation"] if spec is None else spec
        factors = self._epsilon_factors(spec) * self._token_weights()
        weights = step_weights(self.layout, step.loss_mask, self._aggregation(spec, step.loss_mask))
        return step.extend(type(step), loss_weights=weights * factors)

    def _aggregation(self, spec: dict[str, Any], mask: Tensor) -> Aggregation:
        samples, mode = len(self.mask_rows), spec["mode"]
        if mode == "sum":
            return Aggregation(mode="sum")
        if mode == "token_sum_over_const":
            return Aggregation(mode="sum", scale=1.0 / spec["constant"])
        if mode == "token_mean":
            count = {"mask_sum": mask.sum(), "original_mask_sum": self.mask_rows.sum()}.get(spec["denominator"])
            count = spec["denominator"] if count is None else int(count)
            return Aggregation(mode="sum", scale=1.0 / (max(count, spec.get("clamp_min") or 0) + spec.get("eps", 0.0)))
        if mode == "sum_seq_token_mean":
            return Aggregation(mode="seq-mean-token-mean", count_empty=True, scale=samples)
        if mode in ("batch_mean", "seq_loss_times_length_mean"):
            return Aggregation(mode="seq-mean-token-mean", count_empty=True)
        assert mode == "seq_mean_token_mean", f"another aggregation: {mode}"
        if spec["denominator"] in ("batch", "nonempty"):
            return Aggregation(mode="seq-mean-token-mean", count_empty=spec["denominator"] == "batch")
        scale = samples / (spec["denominator"] + spec.get("denom_eps", 0.0))
        return Aggregation(mode="seq-mean-token-mean", count_empty=True, scale=scale)

    def _epsilon_factors(self, spec: dict[str, Any]) -> Tensor:
        """n / (n + eps) where a record divides each sample by n + eps; GMPO does so for its mean advantage."""
        by_sample = spec["mode"] == "seq_mean_token_mean"
        eps = spec.get("eps", 0.0) if by_sample else 0.0
        if self.params["objective"] == "geo_mean":
            eps = self.params.get("seq_eps") or 0.0
        counts = self.layout.sum(self.mask.double()).clamp(min=1.0)
        return self.layout.expand(counts / (counts + eps))

    def _token_weights(self) -> Tensor:
        if not self.vector.has("token_weights"):
            return torch.ones(self.layout.num_tokens, dtype=torch.float64)
        assert self.params["token_weights"] == "abs"
        return self.packed("token_weights").abs()


def test_every_record_of_the_kind_is_run() -> None:
    assert len(VECTORS) == len({vector.id for vector in VECTORS}) > 0
    assert batch_inputs()["shape"]["B"] > 0
