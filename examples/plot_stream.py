"""
A stream that drifts
====================

The class distribution changes over the day. An online estimator follows it batch by
batch and forgets old samples. Predictions are re-targeted to each new estimate.
"""

import matplotlib.pyplot as plt
import torch

import tailshift as ts

# %%
# Three clouds, and a model that is calibrated for its training data.
p_s = ts.priors.from_counts([600, 300, 100])


def sample(prior, size, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(prior, size, replacement=True, generator=generator)
    x = 1.5 * torch.eye(3)[y] + torch.randn(size, 3, generator=generator)
    return 1.5 * x + p_s.log().float(), y


logits, labels = sample(p_s, 1000, seed=0)
online = ts.OnlineEstimator(source_prior=p_s, half_life=500).fit(logits, labels)

# %%
# A hundred batches of 50: the rare class becomes the most frequent one, then less so.
true, followed = [], []
right = {"as trained": 0, "followed": 0}
prior = p_s
for t in range(100):
    share = 0.1 + 0.7 * torch.sin(torch.tensor(3.14 * t / 100)).item()
    p_t = torch.tensor([0.67 * (1 - share), 0.33 * (1 - share), share])
    batch, y = sample(p_t, 50, seed=1 + t)
    answers = ts.post_compensate(batch, logit_prior=p_s, target_prior=prior)
    right["as trained"] += int((batch.argmax(1) == y).sum())
    right["followed"] += int((answers.argmax(1) == y).sum())
    prior = online.update(batch)  # for the next batch
    true.append(share)
    followed.append(float(prior[2]))
print({name: f"{count / 5000:.1%}" for name, count in right.items()})

# %%
fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.plot(true, color="black", linestyle=":", label="true")
ax.plot(followed, label="followed")
ax.set(xlabel="batch", ylabel="share of the rare class", ylim=(0, 1))
_ = ax.legend(frameon=False)
