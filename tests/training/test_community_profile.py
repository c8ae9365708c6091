"""The community profile: a kernel of sequences, weighted by abundance, standardised on a split."""

from __future__ import annotations

import math

import torch

from aam.model.profile import WIDTH, CommunityProfile


def test_products_of_features_are_the_kernel_of_differences() -> None:
    torch.manual_seed(0)
    profile = CommunityProfile(60, 20_000)
    sequence = torch.randint(1, 5, (60,))
    near = [sequence]
    for differences in (1, 3, 12):
        other = sequence.clone()
        other[:differences] = other[:differences] % 4 + 1
        near.append(other)
    tokens = torch.stack(near)
    alone = torch.arange(4)[:, None]
    counts = torch.ones(4, 1)
    raw = profile.raw(profile.features(tokens), alone, counts) / math.log10(1 + 1e4)
    kernel = 2 * raw @ raw.T / raw.shape[1]
    expected = torch.tensor([math.exp(-d / WIDTH) for d in (0, 1, 3, 12)])
    torch.testing.assert_close(kernel[0], expected, rtol=0, atol=0.03)


def test_a_profile_is_a_weighted_sum_that_padding_does_not_change() -> None:
    torch.manual_seed(0)
    profile = CommunityProfile(40, 32)
    tokens = torch.randint(1, 5, (5, 40))
    features = profile.features(tokens)
    one = profile.raw(features, torch.tensor([[3]]), torch.tensor([[7.0]]))
    both = profile.raw(features, torch.tensor([[3, 1, 0]]), torch.tensor([[50.0, 50.0, 0.0]]))
    half = math.log10(1 + 5e3) / math.log10(1 + 1e4)
    other = profile.raw(features, torch.tensor([[1]]), torch.tensor([[7.0]]))
    torch.testing.assert_close(both, half * (one + other))


def test_the_training_profiles_become_standard() -> None:
    torch.manual_seed(0)
    profile = CommunityProfile(40, 16)
    tokens = torch.randint(1, 5, (9, 40))
    slots = torch.stack([torch.randperm(9)[:4] for _ in range(30)])
    counts = torch.randint(1, 100, (30, 4)).float()
    raw = profile.raw(profile.features(tokens), slots, counts)
    profile.fit([raw[:20], raw[20:]])
    standard = profile(profile.features(tokens), slots, counts)
    torch.testing.assert_close(standard.mean(dim=0), torch.zeros(16), rtol=0, atol=1e-4)
    torch.testing.assert_close(standard.std(dim=0, correction=0), torch.ones(16), rtol=0, atol=1e-4)


def test_mixed_precision_leaves_profiles_alone() -> None:
    torch.manual_seed(0)
    profile = CommunityProfile(150, 16)
    tokens = torch.randint(1, 5, (5, 150))
    slots, counts = torch.tensor([[0, 1, 2]]), torch.tensor([[5.0, 2.0, 9.0]])
    plain = profile.raw(profile.features(tokens), slots, counts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(profile.raw(profile.features(tokens), slots, counts), plain)
