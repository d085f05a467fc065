"""Log-probs and entropy from logits and from hidden states."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rollout_contract.errors import ContractError, DeviceError, DTypeError, MetadataError, ShapeError
from rollout_contract.log_probs import score_hidden_states, score_logits

TOKENS, VOCAB, WIDTH = 7, 11, 5
IDS = torch.tensor([0, 3, 10, 3, 7, 1, 9])
TOPK_IDS = torch.stack([IDS, (IDS + 1) % VOCAB], -1)


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def live(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return random(*shape, dtype=dtype, seed=seed).requires_grad_()


def plain(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The textbook form, which autograd differentiates."""
    log_p = (logits / temperature).log_softmax(-1)
    found = log_p.gather(-1, ids if ids.dim() == 2 else ids.unsqueeze(-1))
    return found.view(ids.shape), -(log_p.exp() * log_p).sum(-1)


def mixed(log_probs: Tensor, entropy: Tensor) -> Tensor:
    """A scalar that depends on every entry differently."""
    weights = torch.arange(1, log_probs.numel() + 1, dtype=log_probs.dtype).view(log_probs.shape)
    return (weights * log_probs).sum() + (
        entropy * torch.arange(1, entropy.numel() + 1, dtype=entropy.dtype).sin()
    ).sum()


# -- the same numbers as the textbook ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 3.0])
@pytest.mark.parametrize("ids", [IDS, TOPK_IDS], ids=["sampled", "topk"])
def test_logits(ids: Tensor, temperature: float, chunk_size: int) -> None:
    logits = live(TOKENS, VOCAB)
    found = score_logits(logits, ids, temperature=temperature, chunk_size=chunk_size)
    expected = plain(logits, ids, temperature)
    torch.testing.assert_close(tuple(found), expected)
    gradient, wanted = (torch.autograd.grad(mixed(*pair), logits)[0] for pair in (found, expected))
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("chunk_size", [2, 1024])
def test_hidden_states(chunk_size: int) -> None:
    hidden, weight = live(TOKENS, WIDTH), live(VOCAB, WIDTH, seed=1)
    found = score_hidden_states(hidden, weight, IDS, temperature=0.8, chunk_size=chunk_size)
    expected = plain(hidden @ weight.T, IDS, 0.8)
    torch.testing.assert_close(tuple(found), expected)
    for leaf in (hidden, weight):
        gradient, wanted = (torch.autograd.grad(mixed(*pair), leaf, retain_graph=True)[0] for pair in (found, expected))
        torch.testing.assert_close(gradient, wanted)


def test_only_what_needs_a_gradient_gets_one() -> None:
    hidden, weight = random(TOKENS, WIDTH), live(VOCAB, WIDTH, seed=1)
    score_hidden_states(hidden, weight, IDS).log_probs.sum().backward()
    assert hidden.grad is None
    assert weight.grad is not None
    hidden.requires_grad_()
    score_hidden_states(hidden, weight.detach(), IDS).entropy.sum().backward()
    assert hidden.grad is not None


@pytest.mark.parametrize("part", ["log_probs", "entropy"])
def test_either_result_alone(part: str) -> None:
    logits = live(TOKENS, VOCAB)
    index = ["log_probs", "entropy"].index(part)
    gradient = torch.autograd.grad(getattr(score_logits(logits, IDS), part).sum(), logits)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(plain(logits, IDS)[index].sum(), logits)[0])


def test_gradcheck() -> None:
    keep = random(TOKENS, VOCAB, seed=3) > -0.5
    heat = torch.linspace(0.5, 2.0, TOKENS, dtype=torch.float64)

    def scores(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        found = score_hidden_states(hidden, weight, TOPK_IDS, temperature=heat, keep_mask=keep, chunk_size=3)
        return found.log_probs, found.entropy

    assert torch.autograd.gradcheck(scores, (live(TOKENS, WIDTH), live(VOCAB, WIDTH, seed=1)))


def test_the_case_with_numbers() -> None:
    """Logits [2, 1, 0] at temperature 0.6: processed, not raw, and not raw / temperature."""
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    first = torch.tensor([0])
    assert score_logits(logits, first, temperature=0.6).log_probs.item() == pytest.approx(-0.2026, abs=1e-4)
    assert score_logits(logits, first).log_probs.item() == pytest.approx(-0.4076, abs=1e-4)


def test_a_temperature_per_token() -> None:
    logits = random(TOKENS, VOCAB)
    heat = torch.tensor([0.5, 1.0, 2.0, 1.0, 1.0, 0.7, 3.0])
    found = score_logits(logits, IDS, temperature=heat, chunk_size=2).log_probs
    expected = [score_logits(logits[i : i + 1], IDS[i : i + 1], temperature=float(heat[i])).log_probs for i in range(7)]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-6, atol=1e-6)


def test_a_keep_mask_renormalises_log_probs_and_leaves_the_entropy() -> None:
    logits = live(TOKENS, VOCAB)
    keep = random(TOKENS, VOCAB, seed=3) > 0.0
    found = score_logits(logits, IDS, keep_mask=keep)
    always = keep.scatter(1, IDS.unsqueeze(-1), True)
    expected = plain(logits.masked_fill(~always, -math.inf), IDS)[0]
    torch.testing.assert_close(found.log_probs, expected)
    torch.testing.assert_close(found.entropy, plain(logits, IDS)[1])
    gradient = torch.autograd.grad(found.log_probs.sum(), logits)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), logits)[0])
    assert (gradient[~always] == 0).all()


# -- extremes ----------------------------------------------------------------------------------------------------------


def test_impossible_tokens_cost_nothing() -> None:
    """A vocabulary that is padded with -inf gives the numbers of the plain one."""
    logits = random(TOKENS, VOCAB)
    padded = torch.cat([logits, torch.full((TOKENS, 3), -math.inf)], -1).requires_grad_()
    found = score_logits(padded, IDS)
    torch.testing.assert_close(tuple(found), plain(logits, IDS))
    mixed(*found).backward()
    assert padded.grad is not None
    assert torch.isfinite(padded.grad).all()
    assert (padded.grad[:, VOCAB:] == 0).all()


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e4, 1e30])
def test_huge_and_equal_logits(scale: float) -> None:
    logits = (random(TOKENS, VOCAB, dtype=torch.float32) * scale).requires_grad_()
    found = score_logits(logits, IDS)
    mixed(*found).backward()
    for tensor in (*found, logits.grad):
        assert tensor is not None
        assert torch.isfinite(tensor).all()
    assert (found.entropy >= 0).all()


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_rows_that_no_loss_reads_get_exactly_zero(garbage: float) -> None:
    hidden, weight = random(TOKENS, WIDTH), live(VOCAB, WIDTH, seed=1)
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1]).bool()
    clean = weight_gradient(hidden, weight, mask)
    poisoned = hidden.masked_fill(~mask.unsqueeze(-1), garbage)
    for found, expected in zip(weight_gradient(poisoned, weight, mask), clean, strict=True):
        assert torch.equal(found, expected)


def weight_gradient(hidden: Tensor, weight: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    hidden = hidden.clone().requires_grad_()
    scores = score_hidden_states(hidden, weight, IDS, chunk_size=3)
    read = (torch.where(mask, scores.log_probs, 0.0) + torch.where(mask, scores.entropy, 0.0)).sum()
    return torch.autograd.grad(read, (hidden, weight))


def test_no_token_and_one_token() -> None:
    for count in (0, 1):
        hidden, weight = live(count, WIDTH), live(VOCAB, WIDTH, seed=1)
        scores = score_hidden_states(hidden, weight, IDS[:count])
        assert scores.log_probs.shape == scores.entropy.shape == (count,)
        (scores.log_probs.sum() + scores.entropy.sum()).backward()
        assert hidden.grad is not None
        assert hidden.grad.shape == (count, WIDTH)
        assert weight.grad is not None
        assert bool((weight.grad == 0).all()) == (count == 0)


# -- dtypes, memory, surroundings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_before_the_softmax(dtype: torch.dtype) -> None:
    logits = live(TOKENS, VOCAB, dtype=dtype)
    found = score_logits(logits, IDS)
    assert found.log_probs.dtype == found.entropy.dtype == torch.float32
    torch.testing.assert_close(tuple(found), plain(logits.float(), IDS))
    mixed(*found).backward()
    assert logits.grad is not None
    assert logits.grad.dtype == dtype


def test_half_precision_weights_get_a_gradient_summed_in_float32() -> None:
    hidden, weight = live(512, WIDTH, dtype=torch.bfloat16), live(VOCAB, WIDTH, dtype=torch.bfloat16, seed=1)
    ids = torch.arange(512) % VOCAB
    score_hidden_states(hidden, weight, ids, chunk_size=1).log_probs.sum().backward()
    exact = weight.detach().double().requires_grad_()
    plain(hidden.detach().double() @ exact.T, ids)[0].sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
    assert exact.grad is not None
    error = (weight.grad.double() - exact.grad).norm() / exact.grad.norm()
    assert error < 0.01  # 512 additions in bfloat16 would be off by several percent


def test_nothing_of_size_tokens_times_vocab_is_kept() -> None:
    hidden, weight = live(64, WIDTH), live(1000, WIDTH, seed=1)
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        score_hidden_states(hidden, weight, torch.arange(64), chunk_size=8)
    assert max(kept) == weight.numel()


def test_autocast_changes_nothing() -> None:
    hidden, weight = live(TOKENS, WIDTH, dtype=torch.float32), live(VOCAB, WIDTH, dtype=torch.float32, seed=1)
    expected = score_hidden_states(hidden, weight, IDS)
    with torch.autocast("cpu", torch.bfloat16):
        found = score_hidden_states(hidden, weight, IDS)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_bfloat16_states_and_a_float32_output_layer() -> None:
    """What autocast leaves: activations in bfloat16, master weights in float32."""
    hidden, weight = live(TOKENS, WIDTH, dtype=torch.bfloat16), live(VOCAB, WIDTH, dtype=torch.float32, seed=1)
    score_hidden_states(hidden, weight, IDS).log_probs.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant: bool) -> None:
    hidden, weight = live(TOKENS, WIDTH), live(VOCAB, WIDTH, seed=1)

    def loss(hidden: Tensor) -> Tensor:
        return mixed(*score_hidden_states(hidden, weight, IDS))

    found = (
        torch.autograd.grad(checkpoint(loss, hidden, use_reentrant=use_reentrant), hidden)
        if not use_reentrant
        else None
    )
    if found is None:
        checkpoint(loss, hidden, use_reentrant=True).backward()
        found = (hidden.grad,)
    torch.testing.assert_close(found[0], torch.autograd.grad(loss(hidden), hidden)[0])


def test_functional_gradients() -> None:
    hidden, weight = random(TOKENS, WIDTH), random(VOCAB, WIDTH, seed=1)

    def loss(hidden: Tensor) -> Tensor:
        return mixed(*score_hidden_states(hidden, weight, IDS))

    leaf = hidden.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(loss)(hidden), torch.autograd.grad(loss(leaf), leaf)[0])


def test_a_second_backward_works() -> None:
    logits = live(TOKENS, VOCAB)
    loss = mixed(*score_logits(logits, IDS))
    first = torch.autograd.grad(loss, logits, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, logits)[0])


def test_second_derivatives() -> None:
    def scores(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(score_hidden_states(hidden, weight, IDS, chunk_size=3))

    assert torch.autograd.gradgradcheck(scores, (live(TOKENS, WIDTH), live(VOCAB, WIDTH, seed=1)))


def test_the_curvature_of_a_kl_at_its_minimum() -> None:
    """(l - l_ref)^2 / 2 has no gradient where both agree, but its curvature is the outer product of d l."""
    logits = live(1, VOCAB)
    reference = score_logits(logits.detach(), IDS[:1]).log_probs
    loss = (score_logits(logits, IDS[:1]).log_probs - reference).square().sum() / 2
    gradient = torch.autograd.grad(loss, logits, create_graph=True)[0]
    assert torch.equal(gradient, torch.zeros_like(gradient))
    direction = random(1, VOCAB, seed=5)
    found = torch.autograd.grad((gradient * direction).sum(), logits)[0]
    slope = torch.autograd.grad(plain(logits, IDS[:1])[0].sum(), logits)[0]
    torch.testing.assert_close(found, (slope * direction).sum() * slope)


@pytest.mark.uninstrumented("compiles with fullgraph=True")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_it_compiles_as_one_graph() -> None:
    hidden, weight = live(TOKENS, WIDTH), live(VOCAB, WIDTH, seed=1)

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return mixed(*score_hidden_states(hidden, weight, IDS, chunk_size=3))

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(loss(hidden, weight), (hidden, weight))
    torch.testing.assert_close(torch.autograd.grad(compiled(hidden, weight), (hidden, weight)), expected)


def test_inference() -> None:
    with torch.inference_mode():
        assert not score_logits(random(TOKENS, VOCAB), IDS).log_probs.requires_grad


# -- what it refuses ---------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[ContractError], str]] = [
    ({"logits": random(1, TOKENS, VOCAB)}, ContractError, "tokens first"),
    ({"token_ids": IDS[:-1]}, ShapeError, r"\[7\] or \[7, topk\]"),
    ({"token_ids": IDS.float()}, DTypeError, "integers"),
    ({"temperature": 0.0}, MetadataError, "a greedy sampler has no log-probs"),
    ({"temperature": -1.0}, MetadataError, "above 0"),
    ({"temperature": math.nan}, MetadataError, "above 0"),
    ({"temperature": torch.tensor([1.0, 1.0])}, ShapeError, "one per token"),
    ({"temperature": torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0])}, MetadataError, "for every token"),
    ({"keep_mask": torch.ones(TOKENS, 3, dtype=torch.bool)}, ShapeError, "keep_mask"),
    ({"keep_mask": torch.ones(TOKENS, VOCAB)}, DTypeError, "torch.bool"),
    ({"token_ids": IDS.to("meta")}, DeviceError, "cpu, as logits"),
]


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_wrong_arguments(change: dict[str, Any], error: type[ContractError], message: str) -> None:
    arguments = {"logits": random(TOKENS, VOCAB), "token_ids": IDS} | change
    with pytest.raises(error, match=message):
        score_logits(**arguments)


@pytest.mark.uninstrumented("gives wrong arguments on purpose")
def test_an_output_layer_of_another_width() -> None:
    with pytest.raises(ShapeError, match=r"\[vocab, 5\], the width of hidden_states"):
        score_hidden_states(random(TOKENS, WIDTH), random(VOCAB, WIDTH + 1), IDS)
