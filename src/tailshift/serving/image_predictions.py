"""Predictions of image files under a prior, per site if wanted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from tailshift.compensation import post_compensate
from tailshift.data.images import Views
from tailshift.estimators import Adaptation, ConformalSets, SitePriors
from tailshift.estimators import adapt as adapt_to
from tailshift.estimators.known_classes import ClassList, named_classes
from tailshift.predictions import Predictions
from tailshift.runs.run import Run, as_run
from tailshift.serving.estimation import held_out_logits
from tailshift.serving.image_sites import open_book, place_of, read_sites, sites_of
from tailshift.serving.images import (
    ImageLogits,
    PathLike,
    Track,
    image_logits,
    image_paths,
)
from tailshift.serving.prediction_table import AnswerRow, table_rows, write_answers
from tailshift.target_names import SOURCE
from tailshift.targets import Target


@dataclass(frozen=True, eq=False)
class Answers:
    """A run's answers for images.

    Attributes:
        rows: One per image, in the order requested: ``path``, ``predicted``,
            ``probability``, and the next four classes with theirs; ``set`` and
            ``set_size`` if sets were asked for, ``site`` if sites were named.
        target_prior: :math:`p_t` that they are for, shape (C,); with several sites that
            of all of them together.
        reason: Why this prior, in a sentence, if it was to be estimated; else empty.
        broken: Why each of the other images could not be read, by its path.
        site_priors: With several sites, :math:`p_t` of each, shape (C,).
    """

    rows: list[AnswerRow]
    target_prior: Tensor
    reason: str
    broken: dict[str, str]
    site_priors: dict[str, Tensor] = field(default_factory=dict)

    def save(self, path: PathLike) -> None:
        """Write the rows as CSV or Parquet, by the file's suffix."""
        write_answers(Path(path), self.rows)


def predict(
    run: Run | PathLike,
    images: PathLike | Iterable[PathLike],
    *,
    target: Target | None = None,
    adapt: bool = False,
    site: str | None = None,
    sites: Mapping[str, str] | PathLike | None = None,
    book: SitePriors | PathLike | None = None,
    sets: float | None = None,
    classes: ClassList | None = None,
    held_out: Predictions | PathLike | None = None,
    views: Views | None = None,
    track: Track = iter,
    announce: Callable[[str], None] = lambda phase: None,
) -> Answers:
    """Classify image files under a target prior, as ``tailshift predict`` does.

    Args:
        run: A finished run, or its directory.
        images: Files, and folders that are searched with all below them.
        target: The class distribution to answer for: a prior, a name (``"uniform"``,
            ``"backward:10"`` …) or a file; by default that of the training data.
        adapt: Whether to estimate the target prior from these images. The estimate is
            followed if that is expected to help (:func:`~tailshift.estimators.adapt`).
        site: A site of ``book`` whose mix to answer for.
        sites: The site of each image by its path, or a CSV file with the columns
            ``path`` and ``site``: each is answered for the mix of its own.
        book: A book of priors, or its file, for ``site`` and ``sites``.
        sets: Share of images whose set of classes shall hold the right one
            (:class:`~tailshift.estimators.ConformalSets`).
        classes: Names or ids of the classes that can occur, or a text file with one
            name per line; all others get probability 0.
        held_out: Labelled logits to calibrate on, or their file; by default the run's
            validation logits. For ``adapt`` and ``sets``.
        views: See :func:`image_logits`; several to adapt with need the run's held-out
            logits to have them too.
        track: See :func:`image_logits`.
        announce: See :func:`~tailshift.estimators.adapt`.
    """
    _check_choice(target, adapt, site, sites, book)
    run = as_run(run)
    if (adapt or sets is not None) and held_out is None:
        _check_views(run, views, "adapt" if adapt else "sets")
    prior, reason = run.target_prior(SOURCE if target is None else target), ""
    paths = image_paths(images)
    by_path: dict[str, str] = {}
    by_site: dict[str, Tensor] = {}
    if book is not None:
        opened = open_book(book, run)
        prior = opened.prior("all" if site is None else site)
        by_path = _by_path(paths, sites)
        by_site = {name: opened.prior(name) for name in by_path.values()}
    known = None if classes is None else named_classes(classes, run.class_names)
    if known is not None:
        prior = known.expand(known.prior(prior), 0.0)
        by_site = {
            name: known.expand(known.prior(q), 0.0) for name, q in by_site.items()
        }
    conformal = None if sets is None else ConformalSets(sets)
    if conformal is not None:
        conformal.fit(held_out_logits(run if held_out is None else held_out))
    found = image_logits(run, paths, views=views, track=track)
    adaptation = None
    if adapt and held_out is None and not run.has_val_logits:
        reason = (
            f"{run.directory} has no validation logits to calibrate on, so predictions "
            "stay as trained. Give labelled logits (`held_out`, --held-out)."
        )
    elif adapt:
        labelled = held_out_logits(run if held_out is None else held_out)
        adaptation = adapt_to(
            labelled, found.logits, classes=classes, announce=announce
        )
        prior, reason = adaptation.target_prior, adaptation.reason
        if adaptation.status == "refused" and sets is not None:
            reason += " Prediction sets have no guaranteed coverage on these images."
    rows = _rows_by_site(run, found, prior, by_path, by_site, conformal, adaptation)
    return Answers(rows, prior, reason, found.broken, by_site)


def _check_choice(
    target: object, adapt: bool, site: object, sites: object, book: object
) -> None:
    """Reject more than one target prior, and a site without its site priors."""
    named = {"target": target, "adapt": adapt or None, "site": site, "sites": sites}
    given = [name for name, value in named.items() if value is not None]
    if given == ["target", "adapt"]:
        raise ValueError(
            "`target` names a target prior and `adapt` estimates one: give one of them."
        )
    if len(given) > 1:
        names = " and ".join(f"`{name}`" for name in given)
        raise ValueError(f"{names} each choose a target prior: give one of them.")
    if (site is None and sites is None) != (book is None):
        have, lack = ("`book`", "a site (`site`) or the site of each image (`sites`)")
        if book is None:
            have, lack = f"`{given[0]}`", "a book of priors (`book`)"
        raise ValueError(f"{have} needs {lack}, but there is none.")


def _check_views(run: Run, views: Views | None, use: str) -> None:
    if views not in (None, run.config.eval.views):
        raise ValueError(
            f"`views` must be {run.config.eval.views!r} with `{use}`, as the run's "
            f"held-out logits have it, but is {views!r}. Leave one of the two out, or "
            "train with eval.views set."
        )


def _by_path(
    paths: Sequence[str], sites: Mapping[str, str] | PathLike | None
) -> dict[str, str]:
    """Return the site of each image by its path; nothing if none are named."""
    if sites is None:
        return {}
    if isinstance(sites, Mapping):
        known = {place_of(path): site for path, site in sites.items()}
        source = "it"
    else:
        known, source = read_sites(sites), str(sites)
    return dict(zip(paths, sites_of(paths, known, source), strict=True))


def _rows_by_site(
    run: Run,
    found: ImageLogits,
    prior: Tensor,
    by_path: Mapping[str, str],
    by_site: Mapping[str, Tensor],
    conformal: ConformalSets | None,
    adaptation: Adaptation | None,
) -> list[AnswerRow]:
    """Return the rows in the order of the images, each under the prior of its site."""
    groups: dict[str, list[int]] = {}
    for i, path in enumerate(found.paths):
        groups.setdefault(by_path.get(path, ""), []).append(i)
    rows: dict[int, AnswerRow] = {}
    for name, chosen in groups.items():
        q, f = by_site.get(name, prior), found.logits[chosen]
        if adaptation is None:
            log_p = post_compensate(
                f.double(), logit_prior=run.logit_prior, target_prior=q
            ).log_softmax(dim=1)
        else:
            log_p = adaptation.retarget(f)
        answers = table_rows(
            [found.paths[i] for i in chosen], log_p.exp(), run.class_names
        )
        if conformal is not None:
            # The level of sets holds for the prior of the images, whether or not
            # predictions follow its estimate.
            estimated = adaptation is not None and adaptation.status != "refused"
            q_sets = adaptation.estimated_prior if adaptation and estimated else q
            _add_sets(answers, conformal, f, q_sets, run.class_names)
        site: AnswerRow = {"site": name} if by_path else {}
        rows |= {i: row | site for i, row in zip(chosen, answers, strict=True)}
    return [rows[i] for i in range(len(rows))]


def _add_sets(
    rows: Sequence[AnswerRow],
    conformal: ConformalSets,
    logits: Tensor,
    target_prior: Tensor,
    class_names: Sequence[str],
) -> None:
    """Add to each row the classes of its set, the likeliest first, and their number."""
    are_in = conformal.predict_sets(logits, target_prior)  # (N, C)
    g = post_compensate(
        logits.double(),
        logit_prior=conformal.logit_prior_,
        target_prior=target_prior,
    )
    order = g.argsort(dim=1, descending=True).tolist()
    for row, is_in, classes in zip(rows, are_in.tolist(), order, strict=True):
        names = [class_names[c] for c in classes if is_in[c]]
        row |= {"set": "; ".join(names), "set_size": len(names)}
