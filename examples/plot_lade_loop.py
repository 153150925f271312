"""
LADE in a plain PyTorch loop
============================

The loss takes the prior of the training labels; the rest of the loop is your own. LADE
leaves a uniform prior in the logits, so one model can be re-targeted to any class
distribution.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import tailshift as ts

# %%
# Digits with a long tail: 100 zeros, 2 nines.
torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
counts = ts.priors.long_tailed_counts(100, imbalance_ratio=50, num_classes=10)
train = torch.cat([torch.where(y == c)[0][: counts[c]] for c in range(10)])
test = torch.cat([torch.where(y == c)[0][100:] for c in range(10)])

# %%
p_s = ts.priors.from_counts(counts)
uniform = ts.priors.uniform(10)


def fit(loss):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        batch = train[torch.randint(len(train), (128,))]
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return model


softmax = fit(torch.nn.CrossEntropyLoss())
lade = fit(ts.LADELoss(p_s, alpha=0.1, lam=0.01))

# %%
# Accuracy of each class under the uniform prior.
served = ts.PostCompensated(lade, logit_prior=uniform, target_prior=uniform)
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for k, (name, model) in enumerate({"softmax": softmax, "LADE": served}.items()):
    right = model(x[test]).argmax(-1) == y[test]
    by_class = [right[y[test] == c].float().mean().item() for c in range(10)]
    ax.bar(torch.arange(10) + 0.4 * k - 0.2, by_class, 0.4, label=name)
    print(f"{name}: {sum(by_class) / 10:.1%}")
ax.set(xlabel="digit, by training images", ylabel="accuracy", xticks=range(10))
_ = ax.legend(frameon=False, loc="lower left")
