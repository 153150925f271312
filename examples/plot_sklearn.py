"""
Re-target a scikit-learn model
==============================

A classifier predicts for the class distribution that it was trained on. Wrap it once to
predict for any other, without training again.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import tailshift as ts

# %%
# A long tail: 85 zeros, 8 nines. The test set is balanced.
X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.5, stratify=y, random_state=0
)
counts = ts.priors.long_tailed_counts(85, imbalance_ratio=10, num_classes=10).numpy()
tail = np.concatenate([np.flatnonzero(y_train == c)[: counts[c]] for c in range(10)])

model = ts.sklearn.PriorShiftClassifier(LogisticRegression(C=0.01, max_iter=2000))
model.fit(X_train[tail], y_train[tail])  # calibrates on folds that it holds out

# %%
# ``target_prior`` takes shares, a name, or a file of counts.
accuracy = {
    name: np.mean(model.predict(X_test, target_prior=name) == y_test)
    for name in ("source", "uniform")
}
print({name: f"{value:.1%}" for name, value in accuracy.items()})

# %%
# If you do not know the target prior, estimate it from unlabelled samples. Here nines
# are the most frequent:
rng = np.random.default_rng(0)
mix = counts[::-1] / counts.sum()
new = rng.choice(len(y_test), size=400, p=mix[y_test] / mix[y_test].sum())
model.adapt(X_test[new])
print(model.adaptation_.reason)

# %%
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
shares = {
    "trained on": model.source_prior_,
    "true": np.bincount(y_test[new]) / len(new),
    "estimated": model.target_prior_,
}
for k, (label, share) in enumerate(shares.items()):
    ax.bar(np.arange(10) + 0.27 * (k - 1), share, 0.27, label=label)
ax.set(xlabel="digit", ylabel="share", xticks=range(10))
_ = ax.legend(frameon=False)
