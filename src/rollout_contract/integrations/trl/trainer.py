"""``GRPOTrainer`` whose loss goes through the contract."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import trl
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from rollout_contract.errors import Violation
from rollout_contract.integrations.trl.configuration import OF_THE_WINDOW, Configuration
from rollout_contract.integrations.trl.inputs import LENGTHS, naming_keys
from rollout_contract.integrations.trl.observe import Pending, number, own_metrics, trl_metrics
from rollout_contract.integrations.trl.step import Forward, Losses, Window, bound_step, losses
from rollout_contract.metrics import Metric
from rollout_contract.presets.options import OptionError

TESTED = "1.16."
"""The releases of TRL whose losses and gradients were compared with these."""

_OF_THE_FORWARD = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


class ContractGRPOTrainer(GRPOTrainer):
    """Drop-in for ``trl.GRPOTrainer``: the same arguments, the same loss and gradient, through validated batches.

    TRL generates and scores as ever. Then each micro-batch is packed (one gather per live field), built, weighted,
    bound and given to the objectives that the ``GRPOConfig`` amounts to. So what TRL's inputs hold besides the forward
    pass, be it old, reference or sampler log-probs, importance ratios or advantages, cannot carry a graph into the
    loss, and a fault in them is an error with the field, the row, and TRL's own key. ``settings`` and ``configure`` of
    ``rollout_contract`` decide whether live inputs are cut, warned about or refused.

    Metrics appear under TRL's names, with TRL's values, and the library's own under ``contract/``. They are read from
    the device when they are logged, not in every micro-batch.

    Attributes:
        configuration: the terms of the loss, made from the ``GRPOConfig``.

    Raises:
        OptionError: an option that decides about the loss is not covered. Nothing is silently ignored.
        ContractError: while training, something in TRL's inputs breaks the contract.

    Warns:
        UserWarning: an untested TRL, or log-probs of the sampler that are not those of the trainer's distribution.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(super().__init__).bind(*args, **kwargs).arguments.get("args")
        if given is not None:
            Configuration(given)  # before a model is loaded
        super().__init__(*args, **kwargs)
        config = cast("GRPOConfig", self.args)
        self.configuration: Configuration = Configuration(config)
        self._unread = {"train": Pending(), "eval": Pending()}
        self._refuse_other_ranks(config)
        for message in _doubts(config):
            warnings.warn(message, UserWarning, stacklevel=2)

    def _refuse_other_ranks(self, config: GRPOConfig) -> None:
        if self.configuration.reads_other_ranks and self.accelerator.num_processes > 1:
            expected = "1.0 with several processes: TRL takes the quantile over all of them, this trainer over each"
            wrong = Violation("top_entropy_quantile", "not covered", expected, str(config.top_entropy_quantile))
            raise OptionError("ContractGRPOTrainer", [wrong])

    # -- lengths that the host knows anyway ------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        lengths: list[int] = []
        with self._recording(lengths):
            scored: dict[str, Any] = super()._generate_and_score_completions(inputs)
        # TRL shuffles and splits lists along with the tensors.
        return scored | ({LENGTHS: lengths} if lengths else {})

    @contextmanager
    def _recording(self, lengths: list[int]) -> Generator[None]:
        """Note the lengths of what is about to be padded, whichever subclass has generated it."""
        generate, own = self._generate, vars(self).get("_generate")

        def recorded(prompts: list[Any]) -> Any:
            generated = generate(prompts)
            lengths[:] = [len(ids) for ids in generated[1]]
            return generated

        vars(self)["_generate"] = recorded
        try:
            yield
        finally:
            del vars(self)["_generate"]
            vars(self).update({} if own is None else {"_generate": own})

    # -- loss ------------------------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        forward, router_loss = self._forward(model, inputs)
        window = self._window(inputs)
        with naming_keys():
            step = bound_step(self.configuration, inputs, forward, window)
            loss = losses(self.configuration, step, window)
        named = trl_metrics(step, loss, self.configuration.objective)
        self._unread[self._mode].add(named.merge(self._more(loss, router_loss, window)), own_metrics(step, loss))
        if router_loss is None:
            return loss.total.value
        return loss.total.value + self.router_aux_loss_coef * router_loss / window.accumulation

    def _forward(self, model: Any, inputs: Mapping[str, Any]) -> tuple[Forward, Tensor | None]:
        """The one forward pass, as TRL makes it; and the loss of a mixture's router, which the model returns itself."""
        log_probs, entropy, router_loss = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
            inputs["completion_ids"].size(1),
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs.get(name) for name in _OF_THE_FORWARD},
        )
        return Forward(log_probs, cast("Tensor", entropy)), router_loss

    def _window(self, inputs: Mapping[str, Any]) -> Window:
        trains = self._mode == "train"
        return Window(
            accumulation=self.current_gradient_accumulation_steps if trains else 1,
            denominator=self.configuration.denominator(inputs, self.accelerator.num_processes, trains),
            is_corrected=self.loss_type == "vespo" or (self.use_vllm and self.vllm_importance_sampling_correction),
        )

    @property
    def _mode(self) -> str:
        return "train" if cast("torch.nn.Module", self.model).training else "eval"

    # -- logs ------------------------------------------------------------------------------------------------------

    def _more(self, loss: Losses, router_loss: Tensor | None, window: Window) -> dict[str, Metric]:
        """What TRL logs only when there is an entropy bonus, or a router."""
        found: dict[str, Metric] = {} if router_loss is None else {"aux_loss": number(router_loss)}
        coefficient = self.configuration.entropy_coefficient
        if coefficient:
            # Losses that are divided by the accumulation steps are reported before that.
            scale = 1 if self.configuration.loss_type in OF_THE_WINDOW else window.accumulation
            found["policy_loss"] = number(loss.policy.value * scale)
            if self._mode == "train" and self.accelerator.sync_gradients:
                self._metrics["train"]["entropy_coef"].append(coefficient)
        return found

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        mode = self._mode
        for name, value in self._unread[mode].take(over_ranks=self.accelerator.num_processes > 1):
            self._metrics[mode][name].append(value)
        super().log(logs, start_time)


def _doubts(config: GRPOConfig) -> list[str]:
    """What is allowed, and may not be what was meant."""
    found: list[str] = []
    if not trl.__version__.startswith(TESTED):
        found.append(f"ContractGRPOTrainer was compared with TRL {TESTED}x; this is {trl.__version__}")
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
    changed = [f"{name}={getattr(config, name)}" for name, value in neutral.items() if getattr(config, name) != value]
    if config.use_vllm and config.vllm_importance_sampling_correction and changed:
        found.append(
            f"{', '.join(changed)}: the sampler renormalises its log-probs and the trainer does not, so every "
            "importance ratio is off; sample from the whole distribution, or turn the correction off"
        )
    return found
