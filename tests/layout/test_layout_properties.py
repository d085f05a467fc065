"""Layouts of every shape: each map equals plain slicing, and what goes there comes back."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rollout_contract import Layout
from tests.properties.compare import FEW

LENGTHS = st.lists(st.integers(0, 5), max_size=6)
SIDES = st.sampled_from(["left", "right"])


@st.composite
def layouts(draw: st.DrawFn, min_prompt: int = 0) -> Layout:
    responses = draw(LENGTHS)
    size = {"min_size": len(responses), "max_size": len(responses)}
    prompts = draw(st.lists(st.integers(min_prompt, 4), **size))
    groups = draw(st.none() | st.lists(st.integers(0, 2), **size))
    return Layout(responses, prompt_lengths=prompts, group_ids=groups)


def packed(layout: Layout, width: int = 0) -> Tensor:
    count = layout.num_tokens
    numbers = torch.arange(1.0, count + 1)
    return numbers if not width else torch.stack([numbers + 100 * k for k in range(width)], 1)


def rows(layout: Layout, values: Tensor) -> list[list[float]]:
    """The reference: plain slices."""
    found, start = [], 0
    for length in layout.response_lengths:
        found.append(values[start : start + length].tolist())
        start += length
    return found


@given(layout=layouts())
@FEW
def test_index_tensors(layout: Layout) -> None:
    pairs = [(i, t) for i, length in enumerate(layout.response_lengths) for t in range(length)]
    assert list(zip(layout.sample_ids().tolist(), layout.positions().tolist(), strict=True)) == pairs


@given(layout=layouts(), width=st.integers(0, 2))
@FEW
def test_lists(layout: Layout, width: int) -> None:
    values = packed(layout, width)
    assert [row.tolist() for row in layout.split(values)] == rows(layout, values)
    if layout.num_samples:
        assert torch.equal(layout.cat(layout.split(values)), values)


@given(layout=layouts(), side=SIDES, extra=st.integers(0, 3), width=st.integers(0, 2))
@FEW
def test_padding(layout: Layout, side: str, extra: int, width: int) -> None:
    values, columns = packed(layout, width), layout.max_length + extra
    padded = layout.pad(values, -7.0, side=side, width=columns)
    for row, expected in zip(padded, rows(layout, values), strict=True):
        start = columns - len(expected) if side == "left" else 0
        assert row[start : start + len(expected)].tolist() == expected
        assert bool((torch.cat([row[:start], row[start + len(expected) :]]) == -7.0).all())
    assert torch.equal(layout.pack(padded, side=side), values)


@given(layout=layouts(), side=SIDES, extra=st.integers(0, 2))
@FEW
def test_responses_of_padded_sequences(layout: Layout, side: str, extra: int) -> None:
    values = packed(layout)
    columns = max(layout.sequence_lengths, default=0) + extra
    padded = torch.full((layout.num_samples, columns), -7.0)
    for row, (expected, total) in enumerate(zip(rows(layout, values), layout.sequence_lengths, strict=True)):
        end = columns if side == "left" else total
        padded[row, end - len(expected) : end] = torch.tensor(expected)
    assert torch.equal(layout.pack(padded, side=side, frame="sequence"), values)


@given(layout=layouts(), width=st.integers(0, 2))
@FEW
def test_jagged(layout: Layout, width: int) -> None:
    values = packed(layout, width)
    if layout.num_samples:
        nested = layout.to_nested(values)
        assert [row.tolist() for row in nested.unbind()] == rows(layout, values)
        assert torch.equal(layout.from_nested(nested), values)


@given(layout=layouts(min_prompt=1), width=st.integers(0, 2))
@FEW
def test_whole_sequences(layout: Layout, width: int) -> None:
    values = packed(layout, width)
    aligned = layout.sequence_from_response(values, -7.0)
    shifted = layout.predictions_from_response(values, -7.0)
    assert torch.equal(layout.response_from_sequence(aligned), values)
    assert torch.equal(layout.response_from_predictions(shifted), values)
    # Entry i of the one predicts token i + 1 of the other, within each sample.
    start = 0
    for total in layout.sequence_lengths:
        assert torch.equal(shifted[start : start + total - 1], aligned[start + 1 : start + total])
        start += total
    assert int((aligned == -7.0).sum()) == (sum(layout.prompt_lengths or ())) * max(width, 1)


@given(layout=layouts(), data=st.data())
@FEW
def test_select(layout: Layout, data: st.DataObject) -> None:
    if not layout.num_samples:
        return
    chosen = data.draw(st.lists(st.integers(0, layout.num_samples - 1), max_size=8))
    part = layout.select(chosen)
    values = packed(layout)
    expected = [rows(layout, values)[row] for row in chosen]
    assert part.response_lengths == tuple(map(len, expected))
    assert part.sequence_lengths == tuple(layout.sequence_lengths[row] for row in chosen)
    if layout.group_ids is not None:
        assert part.group_ids == tuple(layout.group_ids[row] for row in chosen)


@given(layout=layouts(), seed=st.integers(0, 99))
@FEW
def test_reductions_equal_loops(layout: Layout, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(layout.num_tokens, generator=generator, dtype=torch.float64)
    mask = torch.rand(layout.num_tokens, generator=generator) < 0.5
    plain, kept = rows(layout, values), rows(layout, mask)
    assert torch.allclose(layout.sum(values), torch.tensor([sum(row) for row in plain], dtype=torch.float64))
    assert layout.max(values, -9.0).tolist() == [max(row, default=-9.0) for row in plain]
    assert layout.min(values, 9.0).tolist() == [min(row, default=9.0) for row in plain]
    means = []
    for row, keep in zip(plain, kept, strict=True):
        chosen = [x for x, k in zip(row, keep, strict=True) if k]
        means.append(sum(chosen) / len(chosen) if chosen else 0.0)
    assert torch.allclose(layout.mean(values, mask), torch.tensor(means, dtype=torch.float64))


@given(layout=layouts())
@FEW
def test_expansion(layout: Layout) -> None:
    per_sample = torch.arange(float(layout.num_samples))
    lengths = layout.response_lengths
    assert layout.expand(per_sample).tolist() == [float(i) for i, n in enumerate(lengths) for _ in range(n)]
    per_group = torch.arange(float(layout.num_groups))
    ids = layout.group_ids if layout.group_ids is not None else layout.groups
    assert layout.expand_groups(per_group).tolist() == [float(layout.groups.index(g)) for g in ids]
