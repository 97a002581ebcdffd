"""Steps that move all directions of a matrix alike."""

import pytest

torch = pytest.importorskip("torch")
from onnxfold.torch_graph.orthogonal import RelativeSteps, orthogonalise  # noqa: E402


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (4, 4)])
def test_singular_values_are_alike(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    left, values, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    skewed = left @ torch.diag(values * torch.logspace(0, -1.5, len(values))) @ right
    after = torch.linalg.svdvals(orthogonalise(skewed))
    assert after.min() > 0.5
    assert after.max() < 1.4


@pytest.mark.parametrize("orthogonal", [True, False])
def test_a_step_is_relative_to_the_weight_whatever_the_gradient(orthogonal: bool) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(8, 12) * 100, torch.randn(8, 4, 3, 3) * 1e-3, torch.randn(8), torch.randn(8, 1, 3, 3)]
    before = [weight.clone() for weight in weights]
    steps = RelativeSteps(weights, orthogonal=orthogonal)
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
