"""verl: this library's objectives in verl's registry of policy losses, behind the contract.

    from rollout_contract.integrations.verl import register

    register()                # policy_loss.loss_mode=contract_vanilla, contract_gspo, contract_dppo, ...
    register(prefix="")       # under verl's own names: no configuration changes

Have every process of verl import the module that says so: ``VERL_USE_EXTERNAL_MODULES=my_losses``.
"""

from rollout_contract.integrations.verl.losses import PolicyLoss as PolicyLoss
from rollout_contract.integrations.verl.losses import as_policy_loss as as_policy_loss
from rollout_contract.integrations.verl.registry import policy_losses as policy_losses
from rollout_contract.integrations.verl.registry import register as register
from rollout_contract.integrations.verl.registry import register_objective as register_objective
