"""What the terms of ``distillation_loss`` share, and the simplest of them."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar

from rollout_contract import metrics
from rollout_contract.losses.inputs import read
from rollout_contract.losses.term import LossTerm, Terms
from rollout_contract.metrics import Metrics
from rollout_contract.schema.batch import RolloutBatch
from rollout_contract.schemas import DivergenceBatch


class DistributionTerm(LossTerm, ABC):
    """A divergence per token between distributions, in nats: the student's is live, the teacher's fixed."""

    paper: ClassVar[str] = "arXiv:2306.13649"


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
