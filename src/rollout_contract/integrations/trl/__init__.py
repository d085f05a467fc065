"""TRL: ``ContractGRPOTrainer`` in place of ``GRPOTrainer``. Needs the extra ``trl``."""

try:
    import trl as _trl
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "the extra is not installed: pip install 'rollout-contract[trl]'", name="trl"
    ) from _missing

from rollout_contract.integrations.trl.trainer import ContractGRPOTrainer as ContractGRPOTrainer

del _trl
