"""A typed data contract between the rollouts and the loss.

A schema tags each field as a fixed input of the loss or as trainable. Building a batch cuts the graph of every fixed
field and checks shape, dtype, device, lengths and masks. Losses take nothing else, so a live graph cannot reach an
importance ratio.
"""

from rollout_contract.aggregation import Aggregation as Aggregation
from rollout_contract.configuration import configure as configure
from rollout_contract.configuration import settings as settings
from rollout_contract.errors import ContractError as ContractError
from rollout_contract.layout import Layout as Layout
from rollout_contract.losses.entropy import entropy_bonus as entropy_bonus
from rollout_contract.losses.inputs import read as read
from rollout_contract.losses.kl import kl_loss as kl_loss
from rollout_contract.losses.loss import Loss as Loss
from rollout_contract.losses.policy import policy_loss as policy_loss
from rollout_contract.losses.term import Terms as Terms
from rollout_contract.losses.value import value_loss as value_loss
from rollout_contract.metrics import Metrics as Metrics
from rollout_contract.roles import AnyDevice as AnyDevice
from rollout_contract.roles import Fixed as Fixed
from rollout_contract.roles import FixedTensor as FixedTensor
from rollout_contract.roles import Metadata as Metadata
from rollout_contract.roles import PerSample as PerSample
from rollout_contract.roles import Trainable as Trainable
from rollout_contract.roles import TrainableTensor as TrainableTensor
from rollout_contract.roles import Upcast as Upcast
from rollout_contract.roles import unbound as unbound
from rollout_contract.sampling import Sampling as Sampling
from rollout_contract.schema.batch import RolloutBatch as RolloutBatch
from rollout_contract.schemas import KLBatch as KLBatch
from rollout_contract.schemas import OPDBatch as OPDBatch
from rollout_contract.schemas import PolicyBatch as PolicyBatch
from rollout_contract.schemas import RewardBatch as RewardBatch
from rollout_contract.schemas import TISBatch as TISBatch
from rollout_contract.schemas import ValueBatch as ValueBatch
