"""Recipes: what is read, what is refused, and in which words."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tailshift import recipes
from tailshift.config import (
    ConfigError,
    EvalConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    machine_settings,
)
from tailshift.data import CIFAR100LT, DATASETS, DigitsLT
from tailshift.methods import LADE, METHODS, Softmax
from tailshift.models import MODELS
from tailshift.recipes import (
    load_recipe,
    parse_override,
    recipe_names,
    recipe_sentence,
)

TinyConfig = Callable[..., RunConfig]

KEPT_RECIPES = Path(__file__).parent / "data" / "kept" / "resolved_recipes.json"


def _faults(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_recipe("digits_lt", overrides)
    assert str(error.value) == "\n".join(error.value.faults)
    return list(error.value.faults)


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("recipe", recipe_names())
def test_recipe__is_valid_and_described(recipe: str) -> None:
    config = load_recipe(recipe)
    assert config.recipe == recipe
    assert recipe_sentence(recipe).endswith(".")
    assert "sentence" not in config.to_mapping()


def test_recipes__resolve_to_what_they_always_were() -> None:
    """Compared with kept values: the same names, sentences and settings.

    A setting that came later is not in the kept file and is skipped. A change on
    purpose is made in that file too, with a line in the changelog.
    """
    kept = json.loads(KEPT_RECIPES.read_text(encoding="utf-8"))
    assert set(recipe_names()) == set(kept)
    for recipe, before in kept.items():
        settings = load_recipe(recipe).to_mapping()
        now = {"sentence": recipe_sentence(recipe), **settings}
        assert _kept_part(json.loads(json.dumps(now)), before) == before, recipe


def _kept_part(now: Any, before: Any) -> Any:
    """Return the part of a nested mapping that another one has keys for."""
    if not isinstance(now, dict) or not isinstance(before, dict):
        return now
    return {key: _kept_part(now[key], before[key]) for key in before if key in now}


def test_recipe_files__open_with_a_command_that_runs_one_of_their_rows() -> None:
    files = sorted(Path(recipes.__file__).parent.glob("*.toml"))
    for file in files:
        comment, command, *rest = file.read_text(encoding="utf-8").split(maxsplit=4)
        assert (comment, command, rest[0]) == ("#", "tailshift", "train"), file
        named = rest[1]
        assert file.stem in named or named == "--data", file
        assert named in recipe_names() or named == "--data", file
    assert len(files) == 7


def test_load_recipe__an_override_does_not_stay() -> None:
    """The files are parsed once; what is read of them must not be changed."""
    before = load_recipe("cifar100_lt_ir100_lade")
    changes = ["method.alpha=0.5", "optim.lr=3", "data.imbalance_ratio=7", "seed=4"]
    assert load_recipe("cifar100_lt_ir100_lade", changes) != before
    assert load_recipe("cifar100_lt_ir100_lade") == before


def test_recipes__are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = recipe_names()

    def refuse(text: str) -> None:
        raise AssertionError(f"parsed again: {text}")

    monkeypatch.setattr("tailshift.recipes.tomllib.loads", refuse)
    assert len({recipe_sentence(name) for name in names}) == len(names)


def test_load_recipe__paper_schedule() -> None:
    """The settings of the CIFAR-100-LT rows, the file's, the form's and the row's."""
    config = load_recipe("cifar100_lt_ir100_lade")
    assert config.data == CIFAR100LT(imbalance_ratio=100)
    assert config.method == LADE(alpha=0.1, lam=0.01, mode="official")
    assert config.model.name == "resnet32_two_branch"
    assert config.optim.model_dump() == {
        "name": "sgd",
        "backbone_lr": None,
        "layer_decay": 1.0,
        "clip_norm": None,
        "lr": 0.2,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 5e-4,
        "schedule": "multi_step",
        "warmup_epochs": 5,
        "warmup_start": 1 / 3,
        "milestones": (120, 160),
        "decay": 0.01,
    }
    assert (config.train.epochs, config.train.batch_size) == (200, 256)
    assert config.train.drop_last


@pytest.mark.parametrize(
    "settings",
    [
        ("model.name=resnet32",),
        ("model.name=timm:test_vit", "model.frozen=true"),
        ("model.name=timm:test_resnet", "method.name=bbn"),
    ],
)
def test_layer_decay__needs_a_whole_network_of_timm(settings: tuple[str, ...]) -> None:
    assert _faults("optim.layer_decay=0.75", *settings) == [
        "`optim.layer_decay` must be 1, since it is for a network of timm that is "
        "trained as a whole, but is 0.75. Name one with model.name=timm:NAME, and "
        "leave model.frozen out."
    ]


@pytest.mark.parametrize(
    ("settings", "epochs", "own_epochs"),
    [
        (["method.name=softmax"], 30, 30),
        (["method.name=crt", "method.epochs=4"], 34, 34),
        (["method.name=crt", "method.epochs=4", "train.start_from=run"], 34, 4),
        (["method.name=ncm", "train.start_from=run"], 30, 0),
    ],
)
def test_epochs__of_all_stages_and_of_those_to_train(
    settings: list[str], epochs: int, own_epochs: int
) -> None:
    config = load_recipe("digits_lt", ["train.epochs=30", *settings])
    assert (config.epochs, config.own_epochs) == (epochs, own_epochs)


def test_load_recipe__every_row_differs_in_what_its_name_says() -> None:
    by_ratio = {10: 0.01, 50: 0.01, 100: 0.1}
    for ratio, alpha in by_ratio.items():
        config = load_recipe(f"cifar100_lt_ir{ratio}_lade")
        assert config.data == CIFAR100LT(imbalance_ratio=ratio)
        assert config.method == LADE(alpha=alpha, lam=0.01, mode="official")
        ours = load_recipe(f"cifar100_lt_ir{ratio}_lade_paper")
        assert ours.method == LADE(alpha=0.01, lam=0.01, mode="paper")


def _flat(recipe: str, *keys: str) -> list[Any]:
    """Return some settings of a recipe by their dotted names."""
    mapping = load_recipe(recipe).to_mapping()
    return [mapping[section][name] for section, name in (k.split(".") for k in keys)]


RATES = ("optim.lr", "optim.nesterov", "optim.weight_decay", "optim.milestones")
BATCH = ("optim.decay", "train.epochs", "train.batch_size")


@pytest.mark.paper
@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("cifar100_lt_ir100_bbn", [0.1, True, 2e-4, [120, 160], 0.01, 200, 128]),
        ("cifar100_lt_ir50_ldam_drw", [0.1, False, 2e-4, [161, 181], 0.01, 200, 128]),
        ("cifar100_lt_ir10_sade", [0.1, True, 5e-4, [161, 181], 0.1, 200, 128]),
        ("cifar100_lt_ir10_mislas", [0.1, False, 2e-4, [161, 181], 0.1, 200, 128]),
        ("inaturalist2018_bbn", [0.05, True, 1e-4, [120, 160], 0.1, 180, 128]),
        ("places_lt_lade", [0.05, False, 5e-4, [10, 20, 30], 0.1, 30, 128]),
        ("imagenet_lt_crt_90ep", [0.2, False, 5e-4, [], 0.1, 90, 512]),
    ],
)
def test_recipes__have_their_authors_settings(recipe: str, expected: list[Any]) -> None:
    assert _flat(recipe, *RATES, *BATCH) == expected


@pytest.mark.paper
def test_recipes__have_their_authors_methods() -> None:
    cb_focal = ("method.beta", "method.gamma", "method.form")
    assert _flat("inaturalist2018_cb_focal", *cb_focal) == [0.999, 0.5, "sigmoid"]
    oltr = ("method.lr", "method.backbone_lr", "method.schedule")
    assert _flat("places_lt_oltr", *oltr) == [0.01, 1e-4, "multi_step"]
    lws = ("method.lr", "train.batch_size")
    assert _flat("places_lt_lws", *lws) == [0.1, 256]
    assert _flat("imagenet_lt_lws_90ep", *lws) == [0.2, 512]
    assert _flat("inaturalist2018_crt", "method.epochs") == [30]
    assert _flat("inaturalist2018_bbn", "method.t_max") == [200]
    ldam = ("model.name", "train.drop_last", "optim.warmup_start")
    assert _flat("cifar100_lt_ir100_ldam_drw", *ldam) == ["resnet32", False, 0.0]
    smoothing = ("method.mixup", "method.smooth_head", "method.smooth_tail")
    for ratio, head, tail in ((100, 0.4, 0.1), (50, 0.3, 0.0), (10, 0.2, 0.0)):
        recipe = f"cifar100_lt_ir{ratio}_mislas"
        assert _flat(recipe, *smoothing) == [1.0, head, tail]


def test_load_recipe__another_name_begins_its_section_afresh() -> None:
    """The α of the recipe's LADE would be no setting of Softmax."""
    config = load_recipe("cifar100_lt_ir100_lade", ["method.name=softmax"])
    assert config.method == Softmax()


def test_load_recipe__order_of_overrides_does_not_lose_settings() -> None:
    config = load_recipe("digits_lt", ["method.alpha=0.5", "method.name=lade"])
    assert config.method == LADE(alpha=0.5)


def test_load_recipe__the_last_of_two_overrides_holds() -> None:
    assert load_recipe("digits_lt", ["seed=1", "seed=2"]).seed == 2


def test_load_recipe__own_file_extends_another(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    _write(
        tmp_path / "base.toml",
        'extends = "digits_lt"\n[train]\nepochs = 7\n[optim]\nlr = 0.5\n',
    )
    recipe = _write(
        tmp_path / "mine" / "größe 1.toml",
        'extends = "../base.toml"\n[optim]\nlr = 0.25\n',
    )
    config = load_recipe(recipe)
    assert config.recipe == "größe 1"
    assert (config.train.epochs, config.optim.lr) == (7, 0.25)
    assert config.data == DigitsLT(imbalance_ratio=50)


def test_run_config__goes_through_json(tiny_config: TinyConfig) -> None:
    for config in (tiny_config(), load_recipe("cifar100_lt_ir50_lade")):
        text = json.dumps(config.to_mapping())
        assert RunConfig.from_mapping(json.loads(text)) == config


def test_run_config__names_its_parts(tiny_config: TinyConfig) -> None:
    config = tiny_config("method.name=lade")
    assert (config.data_name, config.method_name) == ("digits_lt", "lade")
    assert config.to_mapping()["method"]["name"] == "lade"


def test_run_config__softmax_carries_what_the_sampler_serves(
    tiny_config: TinyConfig,
) -> None:
    """Class counts 16, 4, 1: shares 16/21 …, square roots 4/7, 2/7, 1/7, or thirds."""
    counts = torch.tensor([16, 4, 1])
    for sampler, prior in (
        ("instance", [16 / 21, 4 / 21, 1 / 21]),
        ("square_root", [4 / 7, 2 / 7, 1 / 7]),
        ("class_balanced", [1 / 3, 1 / 3, 1 / 3]),
    ):
        config = tiny_config(f"train.sampler={sampler}")
        assert config.logit_prior(counts).tolist() == pytest.approx(prior)
        [stage] = config.method.stages()
        sampled = config.sampled_counts(counts, stage)
        assert sampled.tolist() == pytest.approx([21 * share for share in prior])


def test_run_config__cannot_change(tiny_config: TinyConfig) -> None:
    config = tiny_config()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
    with pytest.raises(ValueError, match="frozen"):
        config.train.epochs = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.data.imbalance_ratio = 3  # type: ignore[attr-defined] # that is the test


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=1", 1),
        ("a.b=0.05", 0.05),
        ("a.b=true", True),
        ("a.b=[1, 2]", [1, 2]),
        ("a.b=lade", "lade"),
        ('a.b="lade"', "lade"),
        ("a.b=timm:resnet50", "timm:resnet50"),
        (" a . b = x=y ", "x=y"),
        ("a.b=", ""),
    ],
)
def test_parse_override__reads_toml_or_a_bare_word(override: str, value: Any) -> None:
    assert parse_override(override) == {"a": {"b": value}}


@pytest.mark.parametrize("override", ["", "alpha", "=3", ".a=3", "a.=3", "a..b=3"])
def test_parse_override__malformed(override: str) -> None:
    with pytest.raises(ValueError, match="KEY=VALUE") as error:
        parse_override(override)
    assert str(error.value) == f"`--set` takes KEY=VALUE, but got {override!r}."


def test_load_recipe__unknown() -> None:
    with pytest.raises(ValueError, match="unknown") as error:
        load_recipe("digit_lt")
    assert str(error.value) == (
        "unknown recipe 'digit_lt'; did you mean 'digits_lt'? "
        "`tailshift list recipes` shows all."
    )
    with pytest.raises(ValueError, match="unknown") as error:
        load_recipe("zzz")
    assert str(error.value) == (
        "unknown recipe 'zzz'; `tailshift list recipes` shows all."
    )


def test_load_recipe__no_such_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    with pytest.raises(FileNotFoundError) as error:
        load_recipe(path)
    assert str(error.value) == f"there is no recipe file {path}."


def test_load_recipe__not_toml(tmp_path: Path) -> None:
    path = _write(tmp_path / "mine.toml", "lr = \n")
    with pytest.raises(ValueError, match="TOML") as error:
        load_recipe(path)
    assert str(error.value) == (
        f"{path} is not valid TOML: Invalid value (at line 1, column 6)."
    )
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="UTF-8") as error:
        load_recipe(path)
    assert str(error.value) == (
        f"`{path}` must be text in UTF-8, but byte 0 is not. Save it as UTF-8."
    )


@pytest.mark.parametrize("base", ["a.toml", "b.toml"])
def test_load_recipe__extends_itself(tmp_path: Path, base: str) -> None:
    a = _write(tmp_path / "a.toml", f'extends = "{base}"')
    b = _write(tmp_path / "b.toml", 'extends = "a.toml"')
    chain = f"{a}" if base == "a.toml" else f"{a} → {b}"
    with pytest.raises(ValueError, match="extends itself") as error:
        load_recipe(a)
    assert str(error.value) == f"recipe '{a}' extends itself: {chain}."


def test_load_recipe__extends_nothing_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown") as error:
        load_recipe(_write(tmp_path / "a.toml", "extends = 3"))
    assert str(error.value) == "unknown recipe '3'; `tailshift list recipes` shows all."


def test_load_recipe__all_faults_at_once(tmp_path: Path) -> None:
    recipe = _write(
        tmp_path / "mine.toml",
        """
        sead = 3
        [data]
        name = "digits_lt"
        imbalance_ratio = 0.01
        imbalance = 4
        [model]
        name = "digits_nett"
        [method]
        name = "lade"
        lambda = 0.1
        alpha = -1
        [optim]
        lr = -0.1
        momentun = 0.5
        [train]
        epochs = 0
        """,
    )
    with pytest.raises(ConfigError) as error:
        load_recipe(recipe)
    lade = ", ".join(sorted(field.name for field in dataclasses.fields(LADE)))
    assert str(error.value).splitlines() == [
        "`sead` is not a setting; did you mean 'seed'? Known: data, eval, method, "
        "model, optim, recipe, seed, train",
        "`data.imbalance` is not a setting of `data`; did you mean 'imbalance_ratio'? "
        "Known: imbalance_ratio, profile",
        "`imbalance_ratio` must be >= 1 (largest / smallest count), but is 0.01. "
        "Did you mean 100?",
        "`method.lambda` is not a setting of `method`; did you mean 'lam'? Known: "
        f"{lade}",
        "`method.alpha` must be greater than or equal to 0, but is -1.",
        "`model.name`: unknown model 'digits_nett'; did you mean 'digits_net'? Known: "
        f"{', '.join(MODELS)}",
        "`optim.momentun` is not a setting of `optim`; did you mean 'momentum'? Known: "
        f"{', '.join(sorted(OptimConfig.model_fields))}",
        "`optim.lr` must be greater than 0, but is -0.1.",
        "`train.epochs` must be greater than 0, but is 0.",
        "`train.batch_size` is missing.",
    ]


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        (
            "method.name=lad",
            "`method.name`: unknown method 'lad'; did you mean 'lade'? Known: "
            f"{', '.join(METHODS)}",
        ),
        (
            "data.name=digits",
            "`data.name`: unknown data set 'digits'; did you mean 'digits_lt'? Known: "
            f"{', '.join(DATASETS)}",
        ),
        (
            "model.name=resnet50",
            "`model.name`: unknown model 'resnet50'; did you mean 'timm:resnet50'?",
        ),
        (
            "model.name=timm:resnet5",
            "`model.name`: unknown timm model 'resnet5'; did you mean 'resnet50'?",
        ),
        ("optim.lr=-1", "`optim.lr` must be greater than 0, but is -1."),
        ("optim.lr=fast", "`optim.lr` must be a valid number, but is 'fast'."),
        ("optim.lr=inf", "`optim.lr` must be a finite number, but is inf."),
        ("optim.momentum=1", "`optim.momentum` must be less than 1, but is 1."),
        (
            "optim.momentum=0",
            "`optim.nesterov` needs `optim.momentum` > 0, but it is 0. Drop "
            "`optim.nesterov`, or set a momentum such as 0.9.",
        ),
        ("train.ema=1", "`train.ema` must be less than 1, but is 1."),
        (
            "optim.schedule=linear",
            "`optim.schedule`: unknown schedule 'linear'; Known: constant, cosine, "
            "multi_step, one_cycle",
        ),
        ("optim.milestones=5", "`optim.milestones` must be a valid array, but is 5."),
        (
            "optim.milestones=[1, 0]",
            "`optim.milestones.1` must be greater than 0, but is 0.",
        ),
        ('train.epochs="5"', "`train.epochs` must be a valid integer, but is '5'."),
        ("train.epochs=true", "`train.epochs` must be a valid integer, but is True."),
        ("train.epochs=2.5", "`train.epochs` must be a valid integer, but is 2.5."),
        (
            "train.epochs.x=3",
            "`train.epochs` must be a valid integer, but is {'x': 3}.",
        ),
        (
            "train.epochs=2024-01-01",
            "`train.epochs` must be a valid integer, but is '2024-01-01'.",
        ),
        (
            "train.sampler=clas_balanced",
            "`train.sampler`: unknown sampler 'clas_balanced'; did you mean "
            "'class_balanced'? Known: class_balanced, instance, progressive, reverse, "
            "square_root",
        ),
        (
            "train.num_workers=-1",
            "`train.num_workers` must be greater than or equal to 0, but is -1.",
        ),
        (
            "model.pretrained=maybe",
            "`model.pretrained` must be True, False or 'if_available', but is 'maybe'.",
        ),
        (
            "optim.backbone_lr=0",
            "`optim.backbone_lr` must be greater than 0, but is 0.",
        ),
        (
            "train.drop_last=yes",
            "`train.drop_last` must be a valid boolean, but is 'yes'.",
        ),
        ("train=5", "`train` must be a table of settings, but is 5."),
        ("data=5", f"`data.name` is missing. Known: {', '.join(DATASETS)}"),
        ("seed=-1", "`seed` must be an integer in 0..2**32-1, but is -1."),
        ("seed=true", "`seed` must be an integer in 0..2**32-1, but is True."),
        ("seed=1.5", "`seed` must be an integer in 0..2**32-1, but is 1.5."),
        (
            "data.imbalance_ratio=0.01",
            "`imbalance_ratio` must be >= 1 (largest / smallest count), but is 0.01. "
            "Did you mean 100?",
        ),
        (
            "data.profile=stepp",
            "`data.profile` must be 'exponential' or 'step', but is 'stepp'.",
        ),
    ],
)
def test_load_recipe__fault(override: str, fault: str) -> None:
    assert _faults(override) == [fault]


def test_load_recipe__average_of_sharded_weights() -> None:
    assert _faults("train.ema=0.9", "train.shard=true") == [
        "`train.ema` needs whole weights on every process, but `train.shard` spreads "
        "them. Drop one of the two."
    ]


def test_load_recipe__none_unsets_what_can_be_none_and_is_a_word_elsewhere() -> None:
    settings = ["train.ema=none", "train.label_smoothing=none", "optim.clip_norm=none"]
    config = load_recipe("cifar100_lt_ir100_softmax_quick", settings)
    assert (config.train.ema, config.optim.clip_norm) == (None, None)
    assert config.train.label_smoothing == "none"
    assert _faults("train.epochs=none") == [
        "`train.epochs` must be a valid integer, but is 'none'."
    ]


def test_from_mapping__nothing_given() -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig.from_mapping({})
    assert str(error.value).splitlines() == [
        f"`data.name` is missing. Known: {', '.join(DATASETS)}",
        f"`method.name` is missing. Known: {', '.join(METHODS)}",
        "`model.name` is missing.",
        "`optim.lr` is missing.",
        "`train.epochs` is missing.",
        "`train.batch_size` is missing.",
    ]


FREE = {
    *("checkpoint_every", "checkpoint_minutes", "checkpoint_steps", "detect_anomaly"),
    *("devices", "num_nodes", "num_workers", "shard", "tensorboard", "timeout_minutes"),
    "track",
}
FIXED = {"accelerator", "channels_last", "precision", "start_from"}
DECISIVE = {
    *("epochs", "batch_size", "drop_last", "sampler", "mixup", "label_smoothing"),
    *("accumulate", "exact_accumulation", "sync_batch_norm", "keep", "patience"),
    *("cross_fit", "ema"),
}


def test_machine_settings__every_setting_of_train_is_classified() -> None:
    """A new setting belongs in one of the three sets, and gets the mark to match."""
    assert set(TrainConfig.model_fields) == FREE | FIXED | DECISIVE
    of_train = {f"train.{name}" for name in FREE}
    assert machine_settings(is_fixed=False) == of_train
    of_eval = {f"eval.{name}" for name in EvalConfig.model_fields if name != "views"}
    of_train = {f"train.{name}" for name in FIXED}
    assert machine_settings(is_fixed=True) == of_train | of_eval
    assert machine_settings() == (
        machine_settings(is_fixed=True) | machine_settings(is_fixed=False)
    )
