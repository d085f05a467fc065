"""For trainers that keep their dict: the contract in one line, at the boundary or at the loss function.

batch = guard(rollout_data, PersistedBatch, MILES)         # after scoring: graphs are cut, the dict is put right

@contract(PersistedBatch, MILES, argument="batch")         # and nobody can call the loss with anything else
def policy_loss_function(args, batch, logits, sum_of_sample_mean): ...
"""

from rollout_contract.boundary.dicts import TrainerDict as TrainerDict
from rollout_contract.boundary.dicts import guard as guard
from rollout_contract.boundary.functions import contract as contract
from rollout_contract.boundary.names import PLAIN as PLAIN
from rollout_contract.boundary.names import Key as Key
from rollout_contract.boundary.names import Names as Names
from rollout_contract.boundary.schema import PersistedBatch as PersistedBatch
from rollout_contract.boundary.trainers import AREAL as AREAL
from rollout_contract.boundary.trainers import AREAL_ROLLOUTS as AREAL_ROLLOUTS
from rollout_contract.boundary.trainers import MILES as MILES
from rollout_contract.boundary.trainers import NEMO_RL as NEMO_RL
from rollout_contract.boundary.trainers import OPENRLHF as OPENRLHF
from rollout_contract.boundary.trainers import PRIME_RL as PRIME_RL
from rollout_contract.boundary.trainers import SKYRL as SKYRL
from rollout_contract.boundary.trainers import SLIME as SLIME
from rollout_contract.boundary.trainers import TRAINERS as TRAINERS
from rollout_contract.boundary.trainers import TRL as TRL
from rollout_contract.boundary.trainers import VERL as VERL
