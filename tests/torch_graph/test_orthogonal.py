"""Steps that move all directions of a matrix alike."""

import pytest

torch = pytest.importorskip("torch")
from onnxfold.torch_graph import orthogonal  # noqa: E402
from onnxfold.torch_graph.orthogonal import RelativeSteps, orthogonalise  # noqa: E402


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (4, 4)])
def test_singular_values_are_alike(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    left, values, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    skewed = left @ torch.diag(values * torch.logspace(0, -1.5, len(values))) @ right
    after = torch.linalg.svdvals(orthogonalise(skewed))
    assert after.min() > 0.5
    assert after.max() < 1.4


@pytest.mark.parametrize("is_fast", [True, False])
def test_large_matrices_are_multiplied_in_bfloat16_where_that_is_fast(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orthogonal, "multiplies_bfloat16", lambda: is_fast)
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(512, 600), full_matrices=False)
    matrix = left @ torch.diag(torch.logspace(0, -1.5, 512)) @ right
    after = orthogonalise(matrix)
    values = torch.linalg.svdvals(after)
    assert after.dtype == torch.float32
    assert bool((after.bfloat16().float() == after).all()) == is_fast
    assert values.min() > 0.4
    assert values.max() < 1.4


def test_a_step_is_relative_to_the_weight_whatever_the_gradient() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(8, 12) * 100, torch.randn(8, 4, 3, 3) * 1e-3, torch.randn(8), torch.randn(8, 1, 3, 3)]
    before = [weight.clone() for weight in weights]
    steps = RelativeSteps(weights)
    for weight, scale in zip(weights, (1e-6, 1e4, 1.0, 1e-5), strict=True):
        weight.grad = torch.randn_like(weight) * scale
    steps.step(0.01)
    for weight, old in zip(weights, before, strict=True):
        moved = (weight - old).square().mean().sqrt() / old.square().mean().sqrt()
        assert float(moved) == pytest.approx(0.01, rel=0.02)
        assert weight.grad is None


def test_ill_conditioned_fits_come_close_in_few_steps() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(256, 16) * torch.logspace(0, -1.5, 16)
    wanted = inputs @ torch.randn(16, 8)
    weight = torch.randn(16, 8).requires_grad_()
    steps, losses = RelativeSteps([weight]), []
    for i in range(60):
        loss = (inputs @ weight - wanted).square().mean()
        losses.append(loss.item())
        loss.backward()
        steps.step(0.1 * (1 - i / 60))
    assert losses[-1] < 0.01 * losses[0]
