"""Advantage estimators: functions from a validated batch to fixed tensors.

    step = RewardBatch(response_lengths=..., loss_mask=..., group_ids=..., rewards=...)
    step = step.extend(MyStep, advantages=grpo(step), old_log_probs=...)

Every estimator reads the whole step, before any split: statistics of a part are not those of the step. Results carry no
graph, lie on the batch's device, and are 0 at masked tokens, whatever lies there in the inputs.
"""

from rollout_contract.advantages.estimator import ESTIMATORS as ESTIMATORS
from rollout_contract.advantages.estimator import AdvantagesAndReturns as AdvantagesAndReturns
from rollout_contract.advantages.estimator import Estimator as Estimator
from rollout_contract.advantages.gae import LengthAdaptive as LengthAdaptive
from rollout_contract.advantages.gae import gae as gae
from rollout_contract.advantages.gdpo import gdpo as gdpo
from rollout_contract.advantages.gpg import gpg as gpg
from rollout_contract.advantages.groups import reward_metrics as reward_metrics
from rollout_contract.advantages.groups import zero_variance as zero_variance
from rollout_contract.advantages.grpo import dr_grpo as dr_grpo
from rollout_contract.advantages.grpo import grpo as grpo
from rollout_contract.advantages.length_shaped import length_shaped_grpo as length_shaped_grpo
from rollout_contract.advantages.max_rl import max_rl as max_rl
from rollout_contract.advantages.opo import opo as opo
from rollout_contract.advantages.otb import optimal_token_baseline as optimal_token_baseline
from rollout_contract.advantages.pass_at_k import pass_at_k as pass_at_k
from rollout_contract.advantages.raw_reward import raw_reward as raw_reward
from rollout_contract.advantages.reinforce_plus_plus import reinforce_plus_plus as reinforce_plus_plus
from rollout_contract.advantages.reinforce_plus_plus import reinforce_plus_plus_baseline as reinforce_plus_plus_baseline
from rollout_contract.advantages.remax import remax as remax
from rollout_contract.advantages.returns import discounted_returns as discounted_returns
from rollout_contract.advantages.rewards import place_rewards as place_rewards
from rollout_contract.advantages.rloo import rloo as rloo
from rollout_contract.advantages.role_baseline import RoleAdvantages as RoleAdvantages
from rollout_contract.advantages.role_baseline import RoleBaselines as RoleBaselines
from rollout_contract.advantages.role_baseline import role_conditioned as role_conditioned
from rollout_contract.advantages.whitening import Whitening as Whitening
from rollout_contract.advantages.whitening import whiten as whiten
