r"""Cross the two differences between LADER's modes, at several batch sizes.

Run ``python experiments/lade_crossed.py DATA_ROOT``. It writes
``results/lade_crossed.csv``, and ``python docs/tables.py`` fills the table of
``docs/results.md`` from it.

``paper`` and ``official`` differ in the weight (that of the sample's class, or of the
logit's) and in the set (classes of the batch, or all). A network of one hidden layer
is trained on frozen ImageNet features of CIFAR-100-LT, imbalance ratio 100, with each
of the four forms, several :math:`\alpha` and seeds, and with Balanced Softmax
(:math:`\alpha = 0`). Networks of one seed see the same batches and start from the same
weights, so that differences are paired; all are trained at once, as one batched
product. A tenth of each class is held out to choose :math:`\alpha` by. As a control,
Balanced Softmax and the paper's form have more weight decay.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from result_tables import ROOT, read_rows, write_rows
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, relu

from tailshift import load_recipe, priors
from tailshift.data import LongTailedData
from tailshift.losses import lader
from tailshift.metrics import expected_calibration_error
from tailshift.training.resolve import banked, with_validation

RESULTS = ROOT / "results" / "lade_crossed.csv"
RECIPE = "cifar100_lt_ir100_lite0_lade"
BATCH_SIZES = (64, 128, 256)
ALPHAS = (0.01, 0.03, 0.1, 0.3)
FORMS = tuple(itertools.product(("sample", "logit"), ("batch", "all")))
MODES = {
    ("sample", "batch"): "paper",
    ("sample", "all"): "all_classes",
    ("logit", "all"): "official",
}
"""The forms that `tailshift.losses.lader` has."""
SEEDS = (0, 1, 2)
LAM, EPOCHS, HIDDEN, DIMENSIONS = 0.01, 20, 256, 256
LR, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4  # the rate is that of batches of 64
DECAYS = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


class Case(NamedTuple):
    """One of the networks that are trained side by side."""

    weight: str = ""
    set: str = ""
    alpha: float = 0.0
    weight_decay: float = WEIGHT_DECAY


Cases = Sequence[Case]
CROSSED: Cases = (Case(), *(Case(*form, alpha) for form in FORMS for alpha in ALPHAS))
"""The four forms, to be compared with Balanced Softmax."""
DECAYED: Cases = tuple(
    Case(*form, alpha, decay)
    for form, alpha in ((("", ""), 0.0), (("sample", "batch"), 0.03))
    for decay in DECAYS
)
"""Whether more weight decay does what the regulariser does."""
EXPERIMENTS = (*((size, CROSSED) for size in BATCH_SIZES), (128, DECAYED))


def regulariser(f: Tensor, y: Tensor, log_p_s: Tensor, cases: Cases) -> Tensor:
    """Return LADER of every network on its seed's batch, shape (S, F).

    Args:
        f: Logits, shape (S, F, N, C).
        y: Labels, shape (S, N).
        log_p_s: Log source prior, shape (C,).
        cases: The F networks.
    """
    num_samples, num_classes = f.shape[2:]
    log_u = torch.tensor(float(num_classes)).log()
    is_class = one_hot(y, num_classes).to(f)  # (S, N, C)
    n = is_class.sum(dim=1)[:, None]  # (S, 1, C)
    positive = (f * is_class[:, None]).sum(dim=2) / n.clamp(min=1)  # (S, F, C)
    log_w = -log_u - log_p_s[y]  # (S, N)
    by_sample = (f + log_w[:, None, :, None]).logsumexp(dim=2)
    by_logit = f.logsumexp(dim=2) - log_u - log_p_s
    is_sample = torch.tensor([case.weight == "sample" for case in cases])[:, None]
    t = by_sample.where(is_sample, by_logit) - torch.tensor(num_samples).log()
    is_all = torch.tensor([case.set == "all" for case in cases])[:, None]
    alpha_c = log_p_s.exp() * (is_all | (n > 0))  # (S, F, C)
    return (alpha_c * (t + LAM * t.square() - positive)).sum(dim=-1)


def check_forms(log_p_s: Tensor) -> None:
    """Compare the regulariser with the package's, for the forms that it has."""
    num_classes = len(log_p_s)
    f = torch.randn(1, 1, 64, num_classes).expand(1, len(CROSSED), -1, -1)
    y = torch.randint(num_classes, (1, 64))
    values = regulariser(f, y, log_p_s, CROSSED)[0]
    for case, value in zip(CROSSED, values, strict=True):
        if mode := MODES.get((case.weight, case.set)):
            known = lader(f[0, 0], y[0], log_p_s.exp(), lam=LAM, mode=mode)
            torch.testing.assert_close(value, known)


def start(num_classes: int, num_cases: int) -> list[Tensor]:
    """Return the weights of all networks: equal within a seed."""
    layers = []
    for rows, columns in ((DIMENSIONS, HIDDEN), (HIDDEN, num_classes)):
        drawn = [
            torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
            for seed in SEEDS
        ]
        weights = torch.stack(drawn)[:, None] * (2 / rows) ** 0.5  # (S, 1, in, out)
        layers.append(weights.repeat(1, num_cases, 1, 1).requires_grad_())
    return layers


def logits(x: Tensor, layers: list[Tensor]) -> Tensor:
    """Return the logits (S, F, N, C) of features (S, N, D)."""
    first, second = layers
    return relu(x[:, None] @ first) @ second


def fit(
    x: Tensor, y: Tensor, log_p_s: Tensor, batch_size: int, cases: Cases
) -> list[Tensor]:
    """Train every network; return their weights."""
    layers = start(len(log_p_s), len(cases))
    rate = LR * batch_size / 64
    optimizer = torch.optim.SGD(
        layers, lr=rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    num_steps = len(y) // batch_size * EPOCHS
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rate, total_steps=num_steps, cycle_momentum=False
    )
    orders = [torch.Generator().manual_seed(1000 + seed) for seed in SEEDS]
    alpha = torch.tensor([case.alpha for case in cases])
    more_decay = torch.tensor([case.weight_decay for case in cases]) - WEIGHT_DECAY
    for _ in range(EPOCHS):
        order = torch.stack([torch.randperm(len(y), generator=g) for g in orders])
        for rows in order.split(batch_size, dim=1):
            if rows.shape[1] < batch_size:
                break
            f, labels = logits(x[rows], layers), y[rows]
            balanced = cross_entropy(
                (f + log_p_s).flatten(0, 2),
                labels[:, None].expand(f.shape[:3]).flatten(),
                reduction="none",
            ).view(f.shape[:3])
            loss = balanced.mean(dim=2) + alpha * regulariser(f, labels, log_p_s, cases)
            for layer in layers:
                loss = loss + more_decay / 2 * layer.square().sum(dim=(2, 3))
            optimizer.zero_grad()
            loss.sum().backward()  # the networks do not touch each other
            optimizer.step()
            schedule.step()
    return [layer.detach() for layer in layers]


def class_mean(f: Tensor, y: Tensor) -> float:
    """Return the accuracy with every class weighted alike, in percent."""
    correct, n = (f.argmax(1) == y).double(), torch.bincount(y, minlength=f.shape[1])
    hits = torch.zeros(f.shape[1]).double().index_add_(0, y, correct)
    return 100 * (hits / n)[n > 0].mean().item()


def read(data: LongTailedData) -> dict[str, tuple[Tensor, Tensor]]:
    """Return features and labels of each split, on the main axes of the training's."""
    splits = {"train": data.train, "val": data.val, "test": data.test}
    parts = {
        name: [torch.cat(column) for column in zip(*split.chunks(4096), strict=True)]
        for name, split in splits.items()
    }
    known = parts["train"][0]
    mean = known.mean(dim=0)
    axes = torch.linalg.svd(known - mean, full_matrices=False)[2][:DIMENSIONS].T
    scale = ((known - mean) @ axes).std()
    return {name: ((x - mean) @ axes / scale, y) for name, (x, y) in parts.items()}


def measured(
    parts: dict[str, tuple[Tensor, Tensor]],
    log_p_s: Tensor,
    batch_size: int,
    cases: Cases,
) -> Iterator[dict[str, str]]:
    """Yield a row for each seed and network of an experiment."""
    layers = fit(*parts["train"], log_p_s, batch_size, cases)
    for (s, seed), (k, case) in itertools.product(enumerate(SEEDS), enumerate(cases)):
        own = [layer[s, k][None, None] for layer in layers]
        (f, y), (g, z) = (
            (logits(x[None], own)[0, 0], y) for x, y in (parts["test"], parts["val"])
        )
        t = f.logsumexp(dim=0) - torch.tensor(len(f)).log()  # log E[e^f], (C,)
        yield {
            "batch_size": str(batch_size),
            **{key: str(value) for key, value in case._asdict().items()},
            "seed": str(seed),
            "held_out": f"{class_mean(g, z):.2f}",
            "uniform": f"{class_mean(f, y):.2f}",
            "ece": f"{expected_calibration_error(f, y):.4f}",
            "log_mean_exp": f"{t.mean():.2f}",
        }


def main() -> None:
    """Write a row for each batch size, network and seed; those that are there stay."""
    config = load_recipe(RECIPE)
    data = config.data.load(root=Path(sys.argv[1]), seed=0)
    data = with_validation(banked(data, config.model, is_verbose=True), seed=0)
    log_p_s = priors.from_counts(data.class_counts).log().float()
    check_forms(log_p_s)
    parts, rows = read(data), read_rows(RESULTS)
    for batch_size, cases in EXPERIMENTS:
        first = {"batch_size": str(batch_size), "weight_decay": str(cases[0][-1])}
        if any(first.items() <= row.items() for row in rows):
            continue
        rows += measured(parts, log_p_s, batch_size, cases)
        write_rows(RESULTS, rows)


if __name__ == "__main__":
    main()
