"""Tables from runs: what is found, what is missing, what is trained and compared.

Three recipes of iNaturalist 2018 (Table 5) stand in for all, cut down to digits.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailshift as ts
from tailshift.paper import reproduce as module
from tailshift.paper.numbers import paper_table, source_of
from tailshift.paper.reproduce import (
    PaperRequest,
    Plan,
    make_plan,
    reproduce,
    train_jobs,
)
from tailshift.recipes import recipe_names

DIGITS = ("data.name=digits_lt", "model.name=digits_net", "train.epochs=1")
RECIPES = [
    f"inaturalist2018_{name}" for name in ("balanced_softmax", "softmax", "lade")
]


@pytest.fixture(scope="module", autouse=True)
def _three_rows() -> Iterator[None]:
    """Leave Table 5 the recipes of three rows."""
    known = [
        name
        for name in recipe_names()
        if name in RECIPES or "lade" in name or not name.startswith("inaturalist2018")
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "recipe_names", lambda: known)
        yield


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_recipes__every_row_with_a_printed_number_has_one(number: int) -> None:
    asked = {source_of(cell).recipe for cell in paper_table(number).numbers}
    assert asked <= set(recipe_names())


def _plan(runs: Path, *, seeds: tuple[int, ...] = (0,), table: str = "table5") -> Plan:
    return make_plan(PaperRequest(table, runs, seeds, settings=DIGITS))


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two seeds of each recipe; read only."""
    runs = tmp_path_factory.mktemp("table5")
    assert train_jobs(_plan(runs, seeds=(0, 1)).missing) == []
    return runs


@pytest.fixture
def runs(shared_runs: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder, to change."""
    return Path(shutil.copytree(shared_runs, tmp_path / "runs"))


def test_make_plan__finds_nothing_in_an_empty_folder(tmp_path: Path) -> None:
    plan = _plan(tmp_path, seeds=(0, 3))
    assert [job.config.recipe for job in plan.missing] == [
        recipe for recipe in RECIPES for _ in range(2)
    ]
    assert plan.missing[1].config.seed == 3
    assert plan.missing[1].directory == tmp_path / RECIPES[0] / "balanced_softmax-seed3"
    assert plan.title == (
        "Table 5: Top-1 accuracy in % on iNaturalist 2018; ours: LADE in mode official"
    )


def test_make_plan__finds_what_was_trained(shared_runs: Path) -> None:
    plan = _plan(shared_runs, seeds=(0, 1))
    assert plan.missing == ()
    assert {recipe: list(runs) for recipe, runs in plan.found.items()} == {
        recipe: [0, 1] for recipe in RECIPES
    }


def test_comparisons__are_the_runs_accuracies(shared_runs: Path) -> None:
    cells = {cell.row: cell for cell in _plan(shared_runs).comparisons()}
    found: dict[tuple[str, bool], list[float]] = {}
    for method in ("softmax", "balanced_softmax", "lade"):
        for seed in (0, 1):
            folder = shared_runs / f"inaturalist2018_{method}" / f"{method}-seed{seed}"
            predictions = ts.load_run(folder).predictions("test")
            for record in ts.evaluate(predictions, ["uniform"]):
                key = (method, record.compensated)
                found.setdefault(key, []).append(100 * record.accuracy)
    for row, key in {
        "Softmax": ("softmax", False),
        "PC Softmax": ("softmax", True),
        "Balanced Softmax": ("balanced_softmax", False),
        "LADE": ("lade", True),
    }.items():
        assert cells[row].ours_mean == pytest.approx(sum(found[key]) / 2)
        assert cells[row].num_seeds == 2
    assert cells["LADE"].paper == 70.0
    assert [cells["LDAM"].num_seeds, cells["LDAM"].paper] == [0, 64.6]


def test_make_plan__counts_a_run_at_any_depth_once_a_seed(runs: Path) -> None:
    shutil.copytree(runs / RECIPES[2], runs / "elsewhere" / "deep")
    shutil.rmtree(runs / RECIPES[2] / "lade-seed0")
    plan = _plan(runs, seeds=(0, 1))
    assert plan.missing == ()
    assert list(plan.found[RECIPES[2]]) == [0, 1]


def test_make_plan__does_not_count_other_settings(runs: Path) -> None:
    settings = [*DIGITS, "optim.momentum=0.5"]
    plan = make_plan(PaperRequest("table5", runs, seeds=(7,), settings=settings))
    assert all(found == {} for found in plan.found.values())
    assert len(plan.missing) == 3


def test_make_plan__does_not_train_over_another_run(runs: Path) -> None:
    settings = [*DIGITS, "optim.momentum=0.5"]
    with pytest.raises(FileExistsError) as error:
        make_plan(PaperRequest("table5", runs, settings=settings))
    assert str(error.value) == (
        f"{runs / RECIPES[0] / 'balanced_softmax-seed0'} holds a run with other "
        f"settings than the recipe {RECIPES[0]}. Move it away, or name another folder "
        "of runs (--runs)."
    )


def test_make_plan__resumes_a_run_as_it_was_started(runs: Path) -> None:
    folder = runs / RECIPES[2] / "lade-seed0"
    text = (folder / "run.json").read_text(encoding="utf-8")
    (folder / "run.json").write_text(text.replace("finished", "interrupted"), "utf-8")
    settings = [*DIGITS, "train.checkpoint_every=5"]
    request = PaperRequest("table5", runs, settings=settings)
    plan = make_plan(request)
    [job] = plan.missing
    assert (job.directory, job.config.train.checkpoint_every) == (folder, 1)
    assert train_jobs(plan.missing) == []
    assert make_plan(request).missing == ()


def test_make_plan__quick_takes_the_quick_recipes(tmp_path: Path) -> None:
    plan = make_plan(PaperRequest("table2", tmp_path, quick=True))
    assert [job.config.recipe for job in plan.missing] == _recipes(2, quick=True)
    assert {job.config.train.epochs for job in plan.missing if _is_old(job)} == {30}
    assert all(job.config.recipe.endswith("_quick") for job in plan.missing)
    assert plan.title == (
        "Table 2: Top-1 accuracy in % on CIFAR-100-LT by imbalance ratio; "
        "ours: quick recipes, LADE in mode official"
    )


def test_make_plan__quick_trains_nothing_long(shared_runs: Path) -> None:
    request = PaperRequest("table5", shared_runs, (0, 9), quick=True, settings=DIGITS)
    plan = make_plan(request)
    assert plan.missing == ()
    assert len(plan.found[RECIPES[2]]) == 2


@pytest.mark.parametrize(
    ("number", "at_least"),
    [(2, 9), (3, 3), (4, 6), (5, 3), (6, 3), (8, 18), (9, 3), (10, 3), (11, 3)],
)
def test_make_plan__knows_the_tables(
    tmp_path: Path, number: int, at_least: int
) -> None:
    missing = make_plan(PaperRequest(f"table{number}", tmp_path)).missing
    assert len(missing) >= at_least  # Softmax, Balanced Softmax and LADE
    assert [job.config.recipe for job in missing] == _recipes(number)


def _recipes(number: int, *, quick: bool = False) -> list[str]:
    """Return the recipes that stand behind a table's rows, as far as there are any."""
    ending = "_quick" if quick else ""
    asked = [
        f"{source_of(cell).recipe}{ending}" for cell in paper_table(number).numbers
    ]
    return [
        recipe for recipe in dict.fromkeys(asked) if recipe in module.recipe_names()
    ]


@pytest.mark.parametrize(("table", "num_cells"), [("table1", 18), ("table7", 18)])
def test_make_plan__needs_no_runs_for_facts(
    tmp_path: Path, table: str, num_cells: int
) -> None:
    plan = make_plan(PaperRequest(table, tmp_path))
    assert plan.missing == ()
    assert len(plan.comparisons()) == num_cells


def test_estimates__are_one_a_missing_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tailshift.paper.duration.seconds_per_step", lambda config, shape: 0.5
    )
    estimates = reproduce("table2", runs=tmp_path, quick=True, dry_run=True).estimates()
    assert [found.recipe for found in estimates] == _recipes(2, quick=True)
    [softmax] = [found for found in estimates if "_ir100_softmax_" in found.recipe]
    assert softmax.num_steps == 30 * 170  # ⌈10,847 / 64⌉
    assert not any(tmp_path.iterdir())


def test_reproduce__trains_what_is_missing(runs: Path) -> None:
    shutil.rmtree(runs / RECIPES[2] / "lade-seed0")
    said: list[str] = []
    settings = {"runs": runs, "settings": DIGITS, "announce": said.append}
    plan = ts.reproduce("table5", **settings, dry_run=True)
    assert [job.config.recipe for job in plan.missing] == RECIPES[2:]
    assert (plan.faults, said) == ((), [])
    plan = ts.reproduce("table5", **settings)
    assert (plan.missing, plan.faults) == ((), ())
    assert said == [f"training {RECIPES[2]} with seed 0 (1 of 1)"]
    assert len(plan.found[RECIPES[2]]) == 2


def test_train_jobs__says_what_the_data_lacks_and_goes_on(tmp_path: Path) -> None:
    plan = make_plan(PaperRequest("table5", tmp_path / "runs"))
    digits = _plan(tmp_path / "runs").missing[-1]
    said: list[str] = []
    faults = train_jobs(
        (*plan.missing, digits),
        data_root=tmp_path / "data",
        announce=said.append,
    )
    [fault] = faults
    assert fault.startswith(f"{RECIPES[0]}: inaturalist2018 needs the public list")
    assert said == [
        f"training {RECIPES[0]} with seed 0 (1 of 4)",
        f"training {RECIPES[2]} with seed 0 (4 of 4)",
    ]
    assert ts.load_run(digits.directory).is_finished


def test_train_jobs__a_run_that_diverges_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def train(config: ts.RunConfig, **settings: object) -> object:
        trained.append(config.recipe)
        if len(trained) == 1:
            raise FloatingPointError("the loss is nan at step 3.")
        return type("Finished", (), {"is_finished": True})

    monkeypatch.setattr(module, "train", train)
    faults = train_jobs(_plan(tmp_path).missing)
    assert faults == [f"{RECIPES[0]}: the loss is nan at step 3."]
    assert trained == RECIPES


def test_train_jobs__stops_when_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = type("Unfinished", (), {"is_finished": False})
    monkeypatch.setattr(module, "train", lambda config, **settings: unfinished)
    with pytest.raises(KeyboardInterrupt) as stop:
        train_jobs(_plan(tmp_path).missing)
    assert str(stop.value) == ("interrupted: run the same command again to resume.")


def test_reproduce__names_the_tables_and_the_figures() -> None:
    with pytest.raises(ValueError, match="table") as error:
        ts.reproduce("table99")
    assert str(error.value) == (
        "`what` must be one of table1, table2, table3, table4, table5, table6, table7, "
        "table8, table9, table10, table11, figure2, figure3, figure4, figure6, but is "
        "'table99'."
    )


@pytest.fixture
def kept(shared_runs: Path, tmp_path: Path) -> Path:
    """Return a folder of logits as Table 9 wants them, from the runs on digits."""
    folder = tmp_path / "logits"
    folder.mkdir()
    for name in ("balanced_softmax", "softmax", "lade-official"):
        method = name.partition("-")[0]
        for seed in (0, 1):
            run = shared_runs / f"inaturalist2018_{method}" / f"{method}-seed{seed}"
            ts.load_run(run).predictions("test").half().save(
                folder / f"cifar100_lt_ir50_{name}-seed{seed}.safetensors"
            )
    return folder


def test_make_plan__kept_logits_stand_in_for_runs(tmp_path: Path, kept: Path) -> None:
    plan = make_plan(PaperRequest("table9", tmp_path / "runs", (0, 5), logits=kept))
    assert {job.config.seed for job in plan.missing if _is_old(job)} == {5}
    cells = {(cell.row, cell.column): cell for cell in plan.comparisons()}
    assert len(cells) == 7 * 11
    for row, name, is_compensated in (
        ("Softmax", "softmax", False),
        ("PC Softmax", "softmax", True),
        ("PC Balanced Softmax", "balanced_softmax", True),
        ("LADE", "lade-official", True),
    ):
        values = [
            100 * record.accuracy
            for seed in (0, 1)
            for record in ts.evaluate(
                ts.Predictions.load(
                    kept / f"cifar100_lt_ir50_{name}-seed{seed}.safetensors"
                ),
                ["backward:5"],
            )
            if record.compensated == is_compensated
        ]
        cell = cells[row, "backward:5"]
        assert cell.num_seeds == 2
        assert cell.ours_mean == pytest.approx(sum(values) / 2)
        assert cell.ours_sd == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert cells["PC Causal Norm", "uniform"].paper == 48.1


def _is_old(job: module.Job) -> bool:
    """Say whether a run is of one of the methods whose logits were kept."""
    return job.config.method_name in ("softmax", "balanced_softmax", "lade")


def test_comparisons__calibration_is_in_the_papers_unit(
    tmp_path: Path, kept: Path
) -> None:
    plan = make_plan(PaperRequest("table10", tmp_path / "runs", logits=kept))
    cells = {(cell.row, cell.column): cell for cell in plan.comparisons()}
    assert len(cells) == 7 * 5
    [_, *rest] = [
        record
        for seed in (0, 1)
        for record in ts.evaluate(
            ts.Predictions.load(
                kept / f"cifar100_lt_ir50_lade-official-seed{seed}.safetensors"
            ),
            ["uniform"],
        )
    ]
    first, second = rest[0], rest[2]
    for column, name, scale in (
        ("Accuracy", "accuracy", 100),
        ("ECE", "ece", 1),
        ("Classwise ECE", "classwise_ece", 1),
        ("Brier", "brier", 1),
        ("NLL", "nll", 1),
    ):
        mean = scale * (getattr(first, name) + getattr(second, name)) / 2
        assert cells["LADE", column].ours_mean == pytest.approx(mean)
    raw, same = (
        cells[row, "NLL"] for row in ("Balanced Softmax", "PC Balanced Softmax")
    )
    assert same.ours_mean == pytest.approx(raw.ours_mean)
    assert same.paper != same.paper  # NaN: not printed


def test_request__refuses_kept_logits_of_other_settings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="logits") as error:
        PaperRequest("table9", tmp_path, settings=DIGITS, logits=tmp_path)
    assert str(error.value) == (
        "`logits` must come without `settings`: the names of kept logits do not say "
        "which settings they were trained with."
    )
    with pytest.raises(FileNotFoundError) as missing:
        PaperRequest("table9", tmp_path, logits=tmp_path / "none")
    assert str(missing.value) == (
        f"There is no folder {tmp_path / 'none'} of kept logits."
    )
