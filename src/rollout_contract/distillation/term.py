"""What the terms of ``distillation_loss`` share, and the simplest of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from rollout_contract import metrics
from rollout_contract.losses.inputs import read
from rollout_contract.metrics import Metrics
from rollout_contract.objectives.base import Terms
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import DivergenceBatch


class DistributionTerm(BaseModel, ABC):
    """A divergence per token between distributions: the student's is live, the teacher's fixed.

    Attributes:
        name, formula, paper, known_as: as in ``rollout_contract.objectives.base.Objective``.
        reads: the schema that a batch must have.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str] = "arXiv:2306.13649"
    known_as: ClassVar[Mapping[str, str]]
    reads: ClassVar[type[RolloutBatch]]

    @abstractmethod
    def terms(self, batch: Any, /) -> Terms:
        """The divergence of every token: [tokens], in nats, finite where the inputs are."""


class FullVocabulary(DistributionTerm):
    """The divergence over the whole vocabulary that :mod:`.full` computed and ``bind`` took.

    Liger's hard-label mix is a sum of two losses: ``0.6 * distillation_loss(batch, FullVocabulary())
    + 0.4 * policy_loss(batch, NLL())``, on a batch that is also bound with ``log_probs``.
    """

    name = "full_vocabulary"
    formula = "M = (1 - beta) S + beta T; beta KL(T || M) + (1 - beta) KL(S || M); beta = 0: KL(T || S), 1: KL(S || T)"
    known_as: ClassVar[Mapping[str, str]] = {
        "TRL": "(experimental.gkd: beta; experimental.sdpo, experimental.sdft: distillation_mode=full_logits)",
        "Liger": "(LigerFusedLinearJSDLoss: beta)",
        "NeMo-RL": "(DistillationLossFn: kl_type=mixed, interpolation='linear', beta = 1 - mixed_kl_weight)",
    }
    reads: ClassVar[type[RolloutBatch]] = DivergenceBatch

    def terms(self, batch: DivergenceBatch, /) -> Terms:
        divergence = read(batch, "divergence")
        return Terms(divergence, Metrics({"divergence": metrics.mean(divergence, batch.loss_mask)}))
