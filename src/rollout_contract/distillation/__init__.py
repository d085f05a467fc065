"""Distillation: in the advantages, as a policy objective on the sampled token, or as a loss over distributions.

=================================  ==================================================  ==============================
what the teacher gives             use                                                 with
=================================  ==================================================  ==============================
log-probs of the sampled tokens    ``opd_advantages``, ``minillm_advantages``          ``policy_loss``
the same, in the loss              ``SampledReverseKL``, ``WeightedReverseKL``,        ``policy_loss``
                                   ``RolloutReverseKL``, ``FrontLoadedReverseKL``
a reverse KL, computed already     ``reverse_kl_advantages``                           ``policy_loss``
several teachers' log-probs        ``mixed_teacher``, then any of the above
log-probs of a few outcomes        ``TopKDivergence``, ``FlooredTopKDivergence``,      ``distillation_loss``
                                   ``TopKReverseKL``
logits or hidden states            ``divergence_of_logits``,                           ``distillation_loss`` with
                                   ``divergence_of_hidden_states``                     ``FullVocabulary``
=================================  ==================================================  ==============================

Both sides must score the same token ids at the same temperature; ``sampling`` on the batch checks the latter.
"""

from rollout_contract.distillation.advantages import minillm_advantages as minillm_advantages
from rollout_contract.distillation.advantages import opd_advantages as opd_advantages
from rollout_contract.distillation.advantages import reverse_kl as reverse_kl
from rollout_contract.distillation.advantages import reverse_kl_advantages as reverse_kl_advantages
from rollout_contract.distillation.advantages import reverse_kl_metrics as reverse_kl_metrics
from rollout_contract.distillation.full import divergence_of_hidden_states as divergence_of_hidden_states
from rollout_contract.distillation.full import divergence_of_logits as divergence_of_logits
from rollout_contract.distillation.registry import DISTRIBUTION_TERMS as DISTRIBUTION_TERMS
from rollout_contract.distillation.teachers import mixed_teacher as mixed_teacher
from rollout_contract.distillation.term import FullVocabulary as FullVocabulary
from rollout_contract.distillation.topk import FlooredTopKDivergence as FlooredTopKDivergence
from rollout_contract.distillation.topk import TopKDivergence as TopKDivergence
from rollout_contract.distillation.topk import TopKReverseKL as TopKReverseKL
from rollout_contract.kernels.topk import topk_support as topk_support
from rollout_contract.losses.distillation import distillation_loss as distillation_loss
from rollout_contract.objectives.reverse_kl import FrontLoadedReverseKL as FrontLoadedReverseKL
from rollout_contract.objectives.reverse_kl import RolloutReverseKL as RolloutReverseKL
from rollout_contract.objectives.reverse_kl import SampledReverseKL as SampledReverseKL
from rollout_contract.objectives.reverse_kl import WeightedReverseKL as WeightedReverseKL
