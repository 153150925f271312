"""What a run of each method costs, as a multiple of Softmax's: `Method.cost`.

Processor time of a training step of ResNet-32 on random images, one thread, fastest of
a few, times the steps of each stage of a 30-epoch run. Finding a head without training
it, as NCM does, costs a pass over the images, which is left out.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from tailshift.methods import METHODS
from tailshift.recipes import load_recipe
from tailshift.runs.network import build_network, freeze

COUNTS = torch.linspace(500, 5, 100).long()
BATCH, STEPS = 64, 8
RECIPE = "cifar100_lt_ir100_softmax_quick"


def stepper(method: str, stage_number: int) -> Callable[[], None]:
    """Return a function that makes one step of a stage."""
    config = load_recipe(RECIPE, [f"method.name={method}"])
    stage = config.method.stages()[stage_number]
    model = build_network(
        config, num_classes=100, in_channels=3, image_size=32, stage=stage_number
    )
    model.to(memory_format=torch.channels_last)
    frozen = freeze(model, stage.frozen)
    model.train()
    for part in frozen:
        part.eval()
    loss = stage.loss(config.sampled_counts(COUNTS, stage))
    size = BATCH * len(config.samplers(stage))
    images, labels = torch.randn(size, 3, 32, 32), torch.randint(100, (size,))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-4, momentum=0.9)

    def step() -> None:
        value: Tensor = loss(model(images), labels)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds(step: Callable[[], None]) -> float:
    """Return the processor time of the fastest of a few steps."""
    step()
    times = []
    for _ in range(STEPS):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return min(times)


def run_seconds(method: str) -> float:
    """Return the processor time of a step in every stage, times the epochs of each."""
    config = load_recipe(RECIPE, [f"method.name={method}"])
    epochs = [config.stage_epochs(stage) for stage in config.method.stages()]
    return sum(
        count * seconds(stepper(method, number))
        for number, count in enumerate(epochs)
        if count
    )


def main() -> None:
    """Print one line a method."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    softmax = run_seconds("softmax")
    print(f"torch {torch.__version__}, one thread, ResNet-32, batch {BATCH}")
    print(f"{'method':20}{'measured':>9}{'stated':>8}  × Softmax")
    for method in METHODS:
        measured = run_seconds(method) / softmax
        print(f"{method:20}{measured:9.2f}{METHODS.get(method).cost:8.1f}")


if __name__ == "__main__":
    main()
