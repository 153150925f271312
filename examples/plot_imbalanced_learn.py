"""
Undo a sampler of imbalanced-learn
==================================

Over-sampling balances the training set and changes what the probabilities mean: the
model predicts for a class distribution that does not exist. One argument undoes the
sampler's prior and keeps the ranking of the samples.
"""

import matplotlib.pyplot as plt
import numpy as np
from imblearn.over_sampling import RandomOverSampler
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import tailshift as ts

# %%
# Five in a hundred samples are positive, and hard to separate from the others.
X, y = make_classification(
    20_000, weights=[0.95], flip_y=0, class_sep=0.6, random_state=0
)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
X_even, y_even = RandomOverSampler(random_state=0).fit_resample(X_train, y_train)
classifier = LogisticRegression().fit(X_even, y_even)

# %%
# The logit prior is the class distribution that the sampler made. The test samples have
# another one.
p_even = ts.priors.from_labels(y_even, num_classes=2).numpy()
p_s = ts.priors.from_labels(y_train, num_classes=2).numpy()
sampled = classifier.predict_log_proba(X_test)
undone = ts.post_compensate(sampled, logit_prior=p_even, target_prior=p_s)
probs = {"sampled": sampled, "undone": undone}
probs = {
    name: np.exp(f - np.logaddexp.reduce(f, 1)[:, None]) for name, f in probs.items()
}

# %%
# Mean probability of the rare class, whose share is 5 %, and the calibration error:
for name, p in probs.items():
    ece = float(ts.metrics.expected_calibration_error(probs=p, labels=y_test))
    print(f"{name}: mean {p[:, 1].mean():.1%}, error {ece:.3f}")

# %%
fig, ax = plt.subplots(figsize=(4.5, 3.5), layout="constrained")
ax.plot([0, 1], [0, 1], color="grey", linestyle=":")
for name, p in probs.items():
    bins = np.digitize(p[:, 1], np.linspace(0, 1, 11)[1:-1])
    kept = [b for b in range(10) if (bins == b).sum() > 20]
    ax.plot(
        [p[bins == b, 1].mean() for b in kept],
        [y_test[bins == b].mean() for b in kept],
        marker="o",
        label=name,
    )
ax.set(xlabel="probability of the rare class", ylabel="its share")
_ = ax.legend(frameon=False)
