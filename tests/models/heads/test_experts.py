import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from tailshift.models import BranchedBackbone, DigitsNet, ExpertHead, ExpertOutput


def _head() -> ExpertHead:
    return ExpertHead(6, 4).double()


def _features(num: int = 5) -> Tensor:
    return torch.randn(num, 6, dtype=torch.float64)


def test_expert_head__agrees_with_the_loop() -> None:
    """Expert k reads features 2k and 2k + 1 alone: 30 cos(w, piece)."""
    head, x = _head(), _features()
    v = head.experts(x)
    assert v.shape == (3, 5, 4)
    for k in range(3):
        for i in range(5):
            for c in range(4):
                w, piece = head.heads[k].weight[c], x[i, 2 * k : 2 * k + 2]
                cosine = w @ piece / (w.square().sum() * piece.square().sum()).sqrt()
                assert v[k, i, c].item() == pytest.approx(30 * cosine.item(), abs=1e-10)


def test_expert_head__training_gives_the_mean_and_each_expert() -> None:
    head, x = _head(), _features()
    head.shares.copy_(torch.tensor([0.7, 0.2, 0.1]))  # only evaluation weights
    output = head(x)
    assert isinstance(output, ExpertOutput)
    assert torch.equal(output.experts, head.experts(x))
    torch.testing.assert_close(output.logits, sum(output.experts) / 3)


def test_expert_head__evaluation_weights_by_shares() -> None:
    head, x = _head().eval(), _features()
    v = head.experts(x)
    torch.testing.assert_close(head(x), v.mean(0), rtol=0, atol=1e-6)
    head.shares.copy_(torch.tensor([0.5, 0.25, 0.25]))
    torch.testing.assert_close(head(x), 0.5 * v[0] + 0.25 * v[1] + 0.25 * v[2])
    head.shares.copy_(torch.tensor([0.0, 0.0, 1.0]))
    assert torch.equal(head(x), v[2])


def test_expert_head__gradient_agrees_with_numerical_differentiation() -> None:
    head = _head()
    names, values = zip(*head.named_parameters(), strict=True)

    def experts(x: Tensor, *values: Tensor) -> Tensor:
        output: ExpertOutput = functional_call(
            head, dict(zip(names, values, strict=True)), (x,)
        )
        return output.experts

    assert len(names) == 3
    assert torch.autograd.gradcheck(experts, (_features(2).requires_grad_(), *values))


def test_expert_head__shares_are_saved_and_not_trained() -> None:
    head = _head()
    head.shares.copy_(torch.tensor([0.5, 0.25, 0.25]))
    other = _head()
    other.load_state_dict(head.state_dict())
    assert other.shares.tolist() == [0.5, 0.25, 0.25]
    assert "shares" not in dict(head.named_parameters())


def test_expert_head__reads_a_branched_backbone() -> None:
    """What a tail gives reaches its own expert only."""
    backbone = BranchedBackbone(DigitsNet(), 3, at="last_block").eval()
    head, images = ExpertHead(backbone.feature_dim, 10), torch.randn(4, 1, 8, 8)
    before = head.experts(backbone(images))
    with torch.no_grad():
        next(backbone.tails[1].parameters()).add_(1.0)
    after = head.experts(backbone(images))
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.allclose(before[1], after[1])


def test_expert_head__features_that_cannot_be_shared_out() -> None:
    with pytest.raises(ValueError, match="num_experts") as error:
        ExpertHead(64, 10)
    assert str(error.value) == "`num_experts` must divide the 64 features, but is 3."
