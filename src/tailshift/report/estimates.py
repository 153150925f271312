"""What would be trained and how long it would take: a table for the terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from tailshift.training.estimate import Estimate


def estimate_table(estimates: Sequence[Estimate]) -> Table:
    """Return one line for each run that would be trained, and their sum."""
    table = Table(
        title="To be trained, with the time of its steps on this machine",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_footer=True,
    )
    num_runs = f"{len(estimates)} run{'' if len(estimates) == 1 else 's'}"
    total = duration(sum(estimate.seconds for estimate in estimates))
    table.add_column("Recipe", footer=Text(num_runs))
    for name, footer in (("Seed", ""), ("Steps", ""), ("ms/step", ""), ("Time", total)):
        table.add_column(name, footer=Text(footer), justify="right", no_wrap=True)
    for estimate in estimates:
        table.add_row(
            Text(estimate.recipe),
            f"{estimate.seed}",
            f"{estimate.num_steps:,}",
            f"{1000 * estimate.seconds_per_step:,.0f}",
            duration(estimate.seconds),
        )
    return table


def duration(seconds: float) -> str:
    """Return a time in its two largest units.

    Example:
        >>> duration(42), duration(750), duration(12_000), duration(200_000)
        ('42 s', '12 min 30 s', '3 h 20 min', '2 d 7 h')
    """
    rest = round(seconds)
    units = []
    for name, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        amount, rest = divmod(rest, length)
        units.append((amount, name))
    first = next((i for i, (amount, _) in enumerate(units) if amount), len(units) - 1)
    shown = [f"{amount} {name}" for amount, name in units[first : first + 2] if amount]
    return " ".join(shown) or "0 s"
