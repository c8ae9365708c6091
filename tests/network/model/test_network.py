"""Invariants of the network: order, padding and other samples change no output."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aam.contract.options.groups import AttnImplementation
from aam.network.model.attention import AUTO, AttentionMask, Backend, Backends, attention, named
from aam.network.model.community_profile import CommunityProfile
from aam.network.model.covariate_embedding import CovariateInputs
from aam.network.model.network import PairwiseDistance, Predictor
from aam.network.model.shape import CovariateShape, NetworkShape
from aam.network.numerics.backends import runs
from aam.nucleotide_codes import WIDTH

SHAPE = NetworkShape(max_bp=32, embedding_dim=16, attention_heads=2, outputs=1, profile_features=24)


def network(
    shape: NetworkShape = SHAPE, backends: Backends = AUTO, recompute: bool = False
) -> Predictor:
    torch.manual_seed(0)
    return Predictor(shape, "unweighted", backends, recompute).eval()


def embed(net: Predictor, tokens_UL: Tensor, slots_BS: Tensor, counts_BS: Tensor) -> Tensor:
    """Embeddings and outputs of samples, side by side."""
    with torch.no_grad():
        asvs_UD, _ = net.encoder.nucleotides(tokens_UL, net.encoder.nucleotides.ragged(tokens_UL))
        attend_BS = None if (counts_BS > 0).all() else counts_BS > 0
        embedding_BD, members_BSD = net.encoder.samples(asvs_UD, slots_BS, counts_BS, attend_BS)
        outputs_XBC = net.target(
            embedding_BD, members_BSD, attend_BS, tokens_UL, slots_BS, counts_BS
        )
        return torch.cat([embedding_BD, *outputs_XBC], dim=1)


def sequences(number: int, seed: int, shortest: int = 20) -> Tensor:
    """Random tokens of unequal length, padded on the right to 32."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 6, size=(number, 32)).astype(np.uint8)
    for row, length in enumerate(rng.integers(shortest, 33, size=number)):
        tokens[row, length:] = 0
    return torch.from_numpy(tokens)


def samples(sizes: list[int], asvs: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    slots = np.zeros((len(sizes), max(sizes)), dtype=np.int64)
    counts = np.zeros((len(sizes), max(sizes)), dtype=np.float32)
    for row, size in enumerate(sizes):
        slots[row, :size] = rng.choice(asvs, size, replace=False)
        counts[row, :size] = rng.integers(1, 500, size)
    return torch.from_numpy(slots), torch.from_numpy(counts)


@given(st.integers(0, 10_000), st.sampled_from([1, 3, 5]))
@settings(max_examples=20, deadline=None)
def test_order_padding_and_neighbours_change_no_embedding(seed: int, patch: int) -> None:
    net = network(dataclasses.replace(SHAPE, nucleotide_patch=patch))
    tokens = sequences(12, seed)
    rng = np.random.default_rng(seed)
    slots, counts = samples([int(n) for n in rng.integers(1, 9, size=4)], 12, seed)
    expected = embed(net, tokens, slots, counts)

    order = torch.from_numpy(rng.permutation(slots.shape[1]))
    torch.testing.assert_close(
        embed(net, tokens, slots[:, order], counts[:, order]), expected, rtol=0, atol=1e-5
    )
    wide = (torch.nn.functional.pad(slots, (0, 5)), torch.nn.functional.pad(counts, (0, 5)))
    torch.testing.assert_close(embed(net, tokens, *wide), expected, rtol=0, atol=1e-5)
    size = int((counts[0] > 0).sum())
    alone = embed(net, tokens, slots[:1, :size], counts[:1, :size])
    torch.testing.assert_close(alone, expected[:1], rtol=0, atol=1e-5)


@given(st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_distinct_asvs_encoded_once_equal_every_copy_encoded(seed: int) -> None:
    net = network()
    tokens = sequences(6, seed)
    slots, counts = samples([6, 4, 3], 6, seed)
    copies = tokens[slots.reshape(-1)]
    own_slots = torch.arange(slots.numel()).view_as(slots)
    torch.testing.assert_close(
        embed(net, copies, own_slots, counts), embed(net, tokens, slots, counts), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(("shortest", "ragged"), [(32, False), (31, False), (30, True), (20, True)])
def test_no_mask_where_sequences_differ_within_the_last_patch(shortest: int, ragged: bool) -> None:
    """With 32 nucleotides and patches of 5 the last patch has two."""
    encoder = network().encoder.nucleotides
    tokens = sequences(6, 3, shortest=32)
    tokens[2, shortest:] = 0
    assert encoder.ragged(tokens) == ragged
    with torch.no_grad():
        masked, plain = encoder(tokens, True)[0], encoder(tokens, ragged)[0]
    torch.testing.assert_close(masked, plain, rtol=0, atol=1e-6)


def test_every_nucleotide_of_a_patch_matters() -> None:
    net = network()
    tokens = sequences(1, 5, shortest=32)
    expected = net.encoder.nucleotides(tokens, False)[0]
    for place in range(32):
        changed = tokens.clone()
        changed[0, place] = tokens[0, place] % 4 + 1
        assert (net.encoder.nucleotides(changed, False)[0] - expected).abs().max() > 1e-5


@pytest.mark.parametrize("patch", [1, 3])
def test_logits_stand_at_their_nucleotides(patch: int) -> None:
    net = network(dataclasses.replace(SHAPE, nucleotide_patch=patch)).encoder.nucleotides
    _, hidden = net(sequences(4, 2), True)
    found = net.logits(hidden, 32)
    assert found.shape == (4, 32, 4)
    for row, place in ((0, 7), (2, 11), (3, 31)):
        bases = net.head(hidden[row, place // patch]).view(patch, 4)[place % patch]
        torch.testing.assert_close(found[row, place], bases)


@pytest.mark.parametrize("dim", [8, 768])
@pytest.mark.parametrize("bounded", [True, False])
def test_distances(dim: int, bounded: bool) -> None:
    torch.manual_seed(0)
    head = PairwiseDistance(bounded)
    embeddings = torch.nn.functional.layer_norm(torch.randn(40, dim), (dim,))
    matrix = head(embeddings[:, None], embeddings)
    assert (matrix.diagonal() == 0).all()
    torch.testing.assert_close(matrix, matrix.T, rtol=0, atol=0)
    apart = matrix[~torch.eye(40, dtype=torch.bool)]
    # The range of independent embeddings is the same whatever their width.
    assert 0.75 < apart.mean() < (0.95 if bounded else 1.5)
    if bounded:
        assert (head(embeddings * 1e6, -embeddings * 1e6) <= 1).all()


def test_sets_without_members_give_zeros() -> None:
    q = torch.randn(3, 2, 5, 4)
    attend = torch.tensor([[True] * 5, [False] * 5, [True, False, True, False, False]])
    for name in ("auto", "math"):
        out = attention(q, q, q, AttentionMask.of(attend), Backends(named(name), named(name)))
        assert (out[1] == 0).all()
        assert out.isfinite().all()
        torch.testing.assert_close(out[0], attention(q, q, q)[0])
        kept = q[2:, :, [0, 2]]
        torch.testing.assert_close(out[2:, :, [0, 2]], attention(kept, kept, kept))


@pytest.mark.parametrize("name", ["auto", "flash", "math"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputation_gives_the_same_gradients(
    name: AttnImplementation, dtype: torch.dtype
) -> None:
    """The pair of math and checkpointing is one that failed on ROCm."""
    shape = dataclasses.replace(SHAPE, dropout=0.0, profile_dropout=0.0)
    tokens, (slots, counts) = sequences(8, 4), samples([5, 8], 8, 4)
    gradients = []
    for recompute in (False, True):
        net = network(shape, Backends(named(name), named(name)), recompute).train()
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            asvs, _ = net.encoder.nucleotides(tokens, True)
            embedding, members = net.encoder.samples(asvs, slots, counts, counts > 0)
            outputs = net.target(embedding, members, counts > 0, tokens, slots, counts)
        outputs.float().sum().backward()
        gradients.append([p.grad for p in net.parameters() if p.grad is not None])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_gradients_are_the_same_bits_on_several_threads() -> None:
    net, tokens = network(dataclasses.replace(SHAPE, embedding_dim=64)), sequences(300, 6)
    slots, counts = samples([200] * 8, 300, 6)
    gradients = set()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(5):
            net.zero_grad()
            asvs, _ = net.encoder.nucleotides(tokens, True)
            net.encoder.samples(asvs, slots, counts, None)[0].sum().backward()
            gradients.add(
                b"".join(p.grad.numpy().tobytes() for p in net.parameters() if p.grad is not None)
            )
    finally:
        torch.set_num_threads(before)
    assert len(gradients) == 1


def test_recomputation_runs_the_backend_that_ran_before() -> None:
    ran = []

    def counted(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        ran.append(mask is not None)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)

    backends = Backends(Backend("one", counted), Backend("one", counted))
    net = network(backends=backends, recompute=True).train()
    asvs, _ = net.encoder.nucleotides(sequences(8, 4, shortest=32), False)
    slots, counts = samples([5, 8], 8, 4)
    net.encoder.samples(asvs, slots, counts, counts > 0)[0].sum().backward()
    assert ran == [False, False, True, True, True, True, False, False]


def test_a_backend_that_cannot_run_is_detected_before_use() -> None:
    cpu = torch.device("cpu")
    assert runs(named("auto"), cpu, masked=True)
    assert runs(named("sdpa"), cpu, masked=False)
    assert runs(named("math"), cpu, masked=True)
    # torch has no memory-efficient kernel for the CPU.
    assert not runs(named("mem_efficient"), cpu, masked=False)


@pytest.mark.parametrize("fusion", ["concat", "add"])
@pytest.mark.parametrize("profile", [0, 24])
def test_covariates_change_nothing_at_the_start_and_are_trained(fusion: str, profile: int) -> None:
    sizes = CovariateShape((4, 3), 2, 5, fusion)  # type: ignore[arg-type]
    shape = dataclasses.replace(SHAPE, dropout=0.0, profile_features=profile)
    torch.manual_seed(0)
    plain = Predictor(shape, "unweighted").eval()
    net = Predictor(dataclasses.replace(shape, covariates=sizes), "unweighted").eval()
    net.load_state_dict(plain.state_dict(), strict=False)
    tokens, (slots, counts) = sequences(8, 4), samples([5, 8, 3], 8, 4)
    codes = torch.tensor([[1, 2], [3, 1], [0, 0]])
    known = CovariateInputs(codes, torch.tensor([[0.5, 0.0], [-2.0, 0.0], [0.0, 1.0]]))

    def outputs(of: Predictor, covariates: CovariateInputs | None) -> Tensor:
        asvs, _ = of.encoder.nucleotides(tokens, True)
        embedding, members = of.encoder.samples(asvs, slots, counts, counts > 0)
        return of.target(embedding, members, counts > 0, tokens, slots, counts, covariates)

    torch.testing.assert_close(outputs(net, known), outputs(plain, None))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):  # the first step makes the weights of the covariates other than 0
        optimizer.zero_grad()
        outputs(net, known).square().sum().backward()
        optimizer.step()
    assert net.covariates is not None
    first = net.covariates.categories[0].weight
    assert isinstance(first, Tensor)
    assert first.grad is not None
    assert first.grad.abs().sum(dim=1).gt(0).tolist() == [True, True, False, True]
    changed = outputs(net, known)
    unknown = CovariateInputs(torch.zeros_like(codes), torch.tensor([[0.0, 1.0]] * 3))
    torch.testing.assert_close(outputs(net, unknown), outputs(net, None))
    torch.testing.assert_close(changed[:, 2], outputs(net, None)[:, 2])
    assert (changed[:, :2] - outputs(net, None)[:, :2]).abs().min() > 0


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
