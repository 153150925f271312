"""An MLflow model whose parameter is the target prior, loaded by MLflow itself."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tailshift import Run
from tailshift.hooks import save_mlflow_model

pyfunc = pytest.importorskip("mlflow.pyfunc", reason="mlflow is not installed")


@pytest.mark.filterwarnings("ignore:.*An input example was not provided")
def test_mlflow_model__answers_for_the_mix_in_its_parameters(
    digits_run: Run, tmp_path: Path
) -> None:
    save_mlflow_model(digits_run, tmp_path / "model")
    model = pyfunc.load_model(str(tmp_path / "model"))
    facts = digits_run.facts
    shape = (6, facts.in_channels, facts.image_size, facts.image_size)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    x = torch.from_numpy(images).float() / 255
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (facts.mean, facts.std))
    counts = [0.0, 5.0, *[1.0] * 8]
    for prior, target in ((None, "source"), (counts, counts)):
        retargeted = digits_run.retarget(
            target if isinstance(target, str) else torch.tensor(counts) / 13
        ).eval()
        with torch.no_grad():
            expected = retargeted((x - mean) / std).softmax(1)
        params = None if prior is None else {"target_prior": prior}
        probs = model.predict(images, params=params)
        assert probs == pytest.approx(expected.numpy(), abs=1e-5)
    assert model.metadata.metadata["class_names"] == list(digits_run.class_names)
    assert not list((tmp_path / "model").rglob("*.pkl"))
