"""On-policy distillation: sampled-token forms in rows, and divergences over a vocabulary of one token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from tests.reference.scalars import Mask, Row, Rows, clamp, clamp_log, per_token, scalar, total


def opd_advantages(advantages: Rows, old: Rows, teacher: Rows, mask: Mask, *, coef: float) -> Rows:
    """A - coef (old student - teacher)."""
    return per_token(mask, lambda i, t: advantages[i][t] - coef * (old[i][t] - teacher[i][t]))


def reverse_kl_advantages(advantages: Rows, reverse_kl: Rows, mask: Mask, *, coef: float) -> Rows:
    """A - coef x a reverse KL that was computed before."""
    return per_token(mask, lambda i, t: advantages[i][t] - coef * reverse_kl[i][t])


def teacher_minus_old(teacher: Rows, old: Rows, mask: Mask) -> Rows:
    """The advantage teacher - old (MOPD, arXiv 2601.02780)."""
    return per_token(mask, lambda i, t: teacher[i][t] - old[i][t])


def sampled_token(
    log_probs: Rows,
    teacher: Rows,
    mask: Mask,
    *,
    old: Rows | None = None,
    ratio_max: float | None = None,
    log_ratio_clamp: float = 20.0,
) -> Rows:
    """sg(l - teacher) l: the score-function form of the reverse KL; optionally times sg(min(exp(l - old), max))."""

    def term(i: int, t: int) -> Tensor:
        new = log_probs[i][t]
        loss = (new - teacher[i][t]).detach() * new
        if old is None:
            return loss
        return clamp(clamp_log(new - old[i][t], log_ratio_clamp).exp(), high=ratio_max).detach() * loss

    return per_token(mask, term)


def ref_kl(
    log_probs: Rows,
    behaviour: Rows,
    teacher: Rows,
    mask: Mask,
    *,
    delta_low: float,
    drift: float,
    log_ratio_clamp: float | None = None,
) -> Rows:
    """-keep sg(teacher - l) exp(l - b) + drift (l - b)^2, keep iff p - q >= -delta_low (prime-rl)."""

    def term(i: int, t: int) -> Tensor:
        new, old = log_probs[i][t], behaviour[i][t]
        keep = bool((new.exp() - old.exp()) >= -delta_low)
        ratio = clamp_log(new - old, log_ratio_clamp).exp()
        return (-(teacher[i][t] - new).detach() * ratio if keep else 0.0) + drift * (new - old) ** 2

    return per_token(mask, term)


def ratio_weighted(log_probs: Rows, behaviour: Rows, teacher: Rows, mask: Mask, *, coef: float) -> Rows:
    """-coef exp(l - b) sg(teacher - l) (AReaL)."""

    def term(i: int, t: int) -> Tensor:
        new = log_probs[i][t]
        return -coef * (new - behaviour[i][t]).exp() * (teacher[i][t] - new).detach()

    return per_token(mask, term)


def iw_opd(log_probs: Rows, behaviour: Rows, teacher: Rows, mask: Mask, *, gamma: float, eps: float = 1e-8) -> Rows:
    """-l w a: a = sg(teacher - b), w = 1 + gamma (1 - sum over s < t of |a_s| / sum |a|) (arXiv 2606.22600)."""

    def advantage(i: int, t: int) -> float:
        return float(teacher[i][t] - behaviour[i][t]) if mask[i][t] else 0.0

    def term(i: int, t: int) -> Tensor:
        sizes = [abs(advantage(i, s)) for s in range(len(mask[i]))]
        weight = 1 + gamma * (1 - sum(sizes[:t]) / max(sum(sizes), eps))
        return -log_probs[i][t] * weight * advantage(i, t)

    return per_token(mask, term)


def minillm_advantages(
    log_probs: Rows, teacher: Rows, mask: Mask, *, gamma: float, absolute: bool, length_norm: bool
) -> Rows:
    """sum over i >= t of gamma^(i - t) (teacher - l)_i (arXiv 2306.08543); ``absolute``: gamma^i, as TRL has it.

    ``length_norm``: over the sum of the same powers, a masked token counting 1e-4.
    """

    def term(i: int, t: int) -> Tensor:
        powers = {s: gamma ** (s if absolute else s - t) for s in range(t, len(mask[i]))}
        value = total(p * (teacher[i][s] - log_probs[i][s]) for s, p in powers.items() if mask[i][s])
        return value / sum(p * (1.0 if mask[i][s] else 1e-4) for s, p in powers.items()) if length_norm else value

    return per_token(mask, term)


# -- one token, over the vocabulary ------------------------------------------------------------------------------------


def log_softmax(logits: Row, temperature: float = 1.0) -> Row:
    """z / T - log sum exp(z / T)."""
    scaled = [logit / temperature for logit in logits]
    largest = max(float(logit.detach()) for logit in scaled)
    norm = largest + total((logit - largest).exp() for logit in scaled).log()
    return [logit - norm for logit in scaled]


def entropy(logits: Row, temperature: float = 1.0) -> Tensor:
    """-sum p log p."""
    return -total(log_p.exp() * log_p for log_p in log_softmax(logits, temperature))


def divergence(log_p: Row, log_q: Row) -> Tensor:
    """KL(p || q) = sum p (log p - log q)."""
    return total(p.exp() * (p - q) for p, q in zip(log_p, log_q, strict=True))


def jensen_shannon(student: Row, teacher: Row, beta: float) -> Tensor:
    """beta KL(T || M) + (1 - beta) KL(S || M), M = (1 - beta) S + beta T (GKD, arXiv 2306.13649).

    beta = 0 means KL(T || S), beta = 1 means KL(S || T). Both arguments are log-probs.
    """
    if beta == 0:
        return divergence(teacher, student)
    if beta == 1:
        return divergence(student, teacher)
    pairs = zip(student, teacher, strict=True)
    mixture = [((1 - beta) * s.exp() + beta * t.exp()).log() for s, t in pairs]
    return beta * divergence(teacher, mixture) + (1 - beta) * divergence(student, mixture)


def top_k(log_probs: Row, k: int) -> list[int]:
    """The k most likely tokens."""
    return sorted(range(len(log_probs)), key=lambda v: -float(log_probs[v].detach()))[:k]


def renormalised(log_probs: Row) -> Row:
    """Log-probs of a few tokens as a distribution over these alone."""
    return log_softmax(log_probs)


def with_tail(log_probs: Row) -> Row:
    """Log-probs of a few tokens and of all others together, log(1 - sum p)."""
    log_sum = clamp(total(log_p.exp() for log_p in log_probs).log(), high=-1e-7)
    return [*log_probs, (-log_sum.expm1()).log()]


def top_k_set(student: Row, teacher: Row, k: int, support: str) -> set[int]:
    """The student's or teacher's own k tokens, their union, intersection, or symmetric difference."""
    of_student, of_teacher = set(top_k(student, k)), set(top_k(teacher, k))
    match support:
        case "student":
            return of_student
        case "teacher":
            return of_teacher
        case "union":
            return of_student | of_teacher
        case "intersection":
            return of_student & of_teacher
        case "xor":
            return of_student ^ of_teacher
    raise ValueError(support)


def between(student: Row, teacher: Row, beta: float) -> Tensor:
    """(1 - beta) KL(T || S) + beta KL(S || T)."""
    return (1 - beta) * divergence(teacher, student) + beta * divergence(student, teacher)


def top_k_divergence(
    student: Row,
    teacher: Row,
    support: Collection[int],
    *,
    beta: float,
    tail: bool | None,
    of: Callable[[Row, Row, float], Tensor] = jensen_shannon,
) -> Tensor:
    """The generalised JSD on a few tokens: with a tail bucket, renormalised (``tail=False``), or as they are (None)."""
    chosen = [[row[v] for v in sorted(support)] for row in (student, teacher)]
    if not support:
        return scalar(0.0)
    if tail is not None:
        chosen = [with_tail(row) if tail else renormalised(row) for row in chosen]
    return of(chosen[0], chosen[1], beta)


def top_k_reverse_kl(student: Row, teacher: Row, support: Sequence[int], weights: str, *, normalised: bool) -> Tensor:
    """sum over the set of w (log p_S - log p_T); w from the student, the teacher or uniform, normalised or raw.

    The value is a constant; the gradient is sum of sg(w (log p_S - log p_T)) d log p_S.
    """
    if not support:
        return scalar(0.0)
    logs = {"student": [student[v] for v in support], "teacher": [teacher[v] for v in support]}
    chosen = logs.get(weights, [scalar(0.0)] * len(support))
    w = [log_w.exp() for log_w in (log_softmax(chosen) if normalised else chosen)]
    gaps = [(w_v * (student[v] - teacher[v])).detach() for w_v, v in zip(w, support, strict=True)]
    scores = total(gap * student[v] for gap, v in zip(gaps, support, strict=True))
    return scores - scores.detach() + total(gaps)


def teacher_top_k_loss(
    student: Row,
    teacher: Row,
    k: int,
    *,
    kl: str,
    mixed_weight: float = 0.5,
    zero_outside: bool = False,
    log_zero: float = -100.0,
) -> Tensor:
    """NeMo-RL: forward, reverse or mixed KL on the teacher's top-k, not renormalised.

    ``zero_outside`` adds, to the reverse part, sum over the rest of p_S (log p_S - log_zero).
    """
    support = top_k(teacher, k)
    forward = divergence([teacher[v] for v in support], [student[v] for v in support])
    reverse = divergence([student[v] for v in support], [teacher[v] for v in support])
    if zero_outside:
        rest = [student[v] for v in range(len(student)) if v not in support]
        reverse = reverse + total(log_p.exp() * (log_p - log_zero) for log_p in rest)
    if kl == "mixed":
        return mixed_weight * forward + (1 - mixed_weight) * reverse
    return forward if kl == "forward" else reverse
