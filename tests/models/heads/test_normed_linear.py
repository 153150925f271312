"""The head of τ-normalisation, and τ chosen on what is held out."""

import pytest
import torch
from torch import Tensor

from tailshift.models import LinearHead, NormedLinearHead
from tailshift.models.heads.normed_linear import TAUS, best_tau


class HeldOut:
    """Features whose training part must not be looked at."""

    def __init__(self, held_out: tuple[Tensor, Tensor] | None) -> None:
        self.held_out = held_out

    def train(self) -> tuple[Tensor, Tensor]:
        raise AssertionError("τ is chosen on held-out images alone")

    def val(self) -> tuple[Tensor, Tensor] | None:
        return self.held_out


def _begun(
    before: LinearHead, tau: float | None, held_out: tuple[Tensor, Tensor] | None = None
) -> NormedLinearHead:
    head = NormedLinearHead(before.feature_dim, before.num_classes, tau=tau)
    head.begin(before, HeldOut(held_out))
    return head


def test_normed_linear_head__tau_0_leaves_the_weights_unchanged() -> None:
    before, x = LinearHead(5, 4), torch.randn(6, 5)
    torch.nn.init.zeros_(before.bias)  # which the head leaves out
    torch.testing.assert_close(_begun(before, 0.0)(x), before(x))


def test_normed_linear_head__tau_1_makes_all_vectors_as_long() -> None:
    before, x = LinearHead(5, 4), torch.randn(6, 5)
    with torch.no_grad():
        before.weight.mul_(torch.tensor([[100.0], [10.0], [1.0], [0.1]]))
    cosines = torch.nn.functional.cosine_similarity(x[:, None], before.weight, dim=2)
    expected = cosines * x.norm(dim=1, keepdim=True)
    torch.testing.assert_close(_begun(before, 1.0)(x), expected)


@pytest.mark.parametrize("tau", [0.0, 0.7, 1.0, 2.0])
def test_normed_linear_head__agrees_with_the_loop(tau: float) -> None:
    before = LinearHead(5, 4).double()
    head, x = _begun(before, tau).double(), torch.randn(6, 5).double()
    own = head.tau.item()  # kept in float32
    head.weight.copy_(before.weight)  # in full precision
    for i, row in enumerate(x):
        for c, w in enumerate(before.weight.detach()):
            length = sum(float(a) ** 2 for a in w) ** 0.5
            dot = sum(float(a) * float(b) for a, b in zip(w, row, strict=True))
            assert head(x)[i, c].item() == pytest.approx(dot / length**own, abs=1e-10)


def test_best_tau__classes_count_alike() -> None:
    """The rare class needs τ > 0.5; nine images of the other are right below τ = 2."""
    weight = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
    features = torch.tensor([[1.0, 0.9]] * 9 + [[1.0, 2.1]])
    labels = torch.tensor([0] * 9 + [1])
    # 4^(1−τ) > 0.9 for the nine, so τ < 1.076; 4^(1−τ) < 2.1 for the one, so τ > 0.465
    assert best_tau(weight, features, labels) == 0.5


def test_best_tau__is_the_first_of_equals_and_leaves_absent_classes_out() -> None:
    weight = torch.eye(3)
    assert best_tau(weight, torch.eye(3)[:1], torch.tensor([0])) == TAUS[0] == 0.0
    assert TAUS[-1] == 2.0
    assert len(TAUS) == 21


def test_normed_linear_head__chooses_tau_on_held_out_features_only() -> None:
    before = LinearHead(2, 2)
    with torch.no_grad():
        before.weight.copy_(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
    held_out = torch.tensor([[1.0, 2.1]]), torch.tensor([1])
    head = _begun(before, None, held_out)
    assert head.tau.item() == 0.5
    assert _begun(before, 1.3, held_out).tau.item() == pytest.approx(
        1.3
    )  # a given one stays
    other = NormedLinearHead(2, 2)
    other.load_state_dict(head.state_dict())  # τ is kept with the weights
    assert other.tau.item() == 0.5


class TrainingOnly:
    """Features of a split without validation images."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self.split = features, labels

    def train(self) -> tuple[Tensor, Tensor]:
        return self.split

    def val(self) -> None:
        return None


def _chosen_on_training(features: Tensor, labels: Tensor) -> float:
    before = LinearHead(2, 2)
    with torch.no_grad():
        before.weight.copy_(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
        before.bias.zero_()
    head = NormedLinearHead(2, 2, choose_on_training=True)
    head.begin(before, TrainingOnly(features, labels))
    return head.tau.item()


def test_normed_linear_head__chooses_tau_on_training_features_without_others() -> None:
    """As test_best_tau__classes_count_alike: the rare class is wrong without τ."""
    features = torch.tensor([[1.0, 0.9]] * 30 + [[1.0, 2.1]])
    labels = torch.tensor([0] * 30 + [1])
    assert _chosen_on_training(features, labels) == 0.5


def test_normed_linear_head__warns_if_rare_classes_are_learnt_by_heart() -> None:
    features = torch.tensor([[1.0, 0.0]] * 30 + [[0.0, 1.0]])
    labels = torch.tensor([0] * 30 + [1])
    with pytest.warns(UserWarning, match="τ was chosen") as caught:
        _chosen_on_training(features, labels)
    assert str(caught[0].message) == (
        "τ was chosen on training images, but 100% of those of the rarest classes are "
        "already right, so that they say little. Train once with "
        "method.tau=held_out, and set method.tau to the `model.head.tau` of that run."
    )


def test_normed_linear_head__nothing_to_choose_tau_on() -> None:
    with pytest.raises(ValueError, match=r"method\.tau") as error:
        _begun(LinearHead(2, 2), None)
    assert str(error.value) == (
        "`method.tau` is chosen on validation images, but the data has none that the "
        "first stage did not train on. Set it, such as to 1, or train the first stage "
        "in this run (without --from)."
    )
