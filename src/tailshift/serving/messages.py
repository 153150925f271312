"""Requests and answers of the server: what they hold, and what is refused."""

import base64
import binascii
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tailshift.serving.site import Adapt, EvidenceLevel, MixFrom
from tailshift.text import cut, printable

if TYPE_CHECKING:
    from starlette.requests import Request

MOST_BODY = 2**16  # bytes of a request that carries no image
MOST_NAME = 100  # characters of a site's name


@dataclass(frozen=True)
class Limits:
    """What one request, and all at once, may take."""

    upload_bytes: int = 2**24
    """Bytes of a request."""

    pixels: int = 40_000_000
    """Pixels of an image, before it is resized."""

    images: int = 64
    """Images of a request."""

    queued_images: int = 512
    """Images of all requests, from parsing to the response."""

    queued_pixels: int = 400_000_000
    """Pixels of all images that are decoded or wait for it."""

    held_bytes: int = 2**28
    """Bytes of all requests that are read and not yet answered."""

    seconds: float = 30.0
    """Time for a request to arrive."""

    sites: int = 1000
    """Sites that are kept."""


class RequestError(Exception):
    """A request that is refused, with a status and a sentence.

    Args:
        status: Status of HTTP.
        text: The sentence.
        limit: Name of the limit that it breaks, a field of `Limits`.
    """

    def __init__(self, status: int, text: str, limit: str | None = None) -> None:
        super().__init__(text)
        self.status, self.limit = status, limit


Body = TypeVar("Body", bound=BaseModel)
SiteName = Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Shares = Annotated[list[Share], Field(fail_fast=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PredictRequest(_Strict):
    """Images as base64 (JPEG, PNG, WebP, BMP, TIFF, GIF or PPM), and whose they are."""

    images: list[str] = Field(min_length=1, fail_fast=True)
    site: SiteName | None = None
    mix: Shares | dict[str, Share] | None = None


class ApproveRequest(_Strict):
    """The mix that a site's answers are for from now on."""

    site: SiteName
    mix: Literal["estimate", "training"]
    version: str | None = Field(None, max_length=MOST_NAME)
    """Version of the estimate that was shown; without one, the current estimate."""


class AdaptRequest(_Strict):
    """Adaptation policy: the estimate, a person's approval, or no change."""

    site: SiteName
    adapt: Adapt


class Problem(BaseModel):
    """Why a request was refused, in a sentence, and by which limit."""

    error: str
    limit: str | None = None


class Ranked(BaseModel):
    """A class and its probability."""

    name: str = Field(serialization_alias="class")
    probability: float


class Answer(BaseModel):
    """The likeliest class of an image, and the five likeliest."""

    name: str = Field(serialization_alias="class")
    probability: float
    top: list[Ranked]


class AnsweredMix(BaseModel):
    """The mix that answers are for, in the order of the classes."""

    origin: MixFrom = Field(serialization_alias="from")
    shares: list[float]


class SiteSummary(BaseModel):
    """A site in short."""

    site: str
    adapt: Adapt
    mix_from: MixFrom
    images_seen: int
    distinct_images: int
    """Distinct images among the latest ones, which the estimate rests on."""
    evidence: EvidenceLevel
    """What the last certificate says; "none" before the first one."""
    p_value: float | None
    reason: str
    """What the last test says of the estimate."""
    moved: float | None
    """Share of the images in which the estimate and the training mix differ."""
    alarms: list[str]


class PredictResponse(BaseModel):
    """Answers in the order of the images."""

    answers: list[Answer]
    mix: AnsweredMix
    site: SiteSummary | None


class SitesResponse(BaseModel):
    """All sites, the classes, and why nothing is estimated, if so."""

    classes: list[str]
    training: list[float]
    adaptation: str
    sites: list[SiteSummary]


class Point(BaseModel):
    """An estimate with its 95 % band, in the order of the classes."""

    images_seen: int
    at: float
    estimate: list[float]
    low: list[float]
    high: list[float]


class ExpectedAccuracy(BaseModel):
    """Expected share of right answers, with a 95 % interval."""

    value: float
    low: float
    high: float


class SiteResponse(BaseModel):
    """A site in full."""

    summary: SiteSummary
    mix: AnsweredMix
    approved: list[float] | None
    estimate: list[float] | None
    version: str | None
    """Version of the estimate, for `POST /approve`."""
    low: list[float] | None
    high: list[float] | None
    expected_as_trained: ExpectedAccuracy | None
    """If the answers were for the training mix."""
    expected_retargeted: ExpectedAccuracy | None
    """If they were for the estimate."""
    doubt: str
    """Why no accuracy can be foretold, or empty."""
    history: list[Point]


class Health(BaseModel):
    """Whether the server answers, and what it has lost if anything."""

    status: Literal["ok", "degraded"]
    reason: str


class Given(NamedTuple):
    """What a request to predict holds."""

    images: list[bytes]
    site: str | None
    mix: Any


def quoted(text: str) -> str:
    """Return the beginning of a stranger's text, in quotes, for messages."""
    return repr(printable(cut(text, 80)))


def check_site(name: str) -> str:
    """Return a site's name, and refuse one that cannot be shown."""
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        raise RequestError(
            422,
            f"`site` must be 1 to {MOST_NAME} characters that can be shown, but is "
            f"{quoted(name)}.",
        )
    return name


def parse_body(kind: type[Body], body: bytes | str) -> Body:
    """Return the request in a JSON body, and reject any other in a sentence."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _fault(error) from None


def _fault(error: ValidationError, field: str = "") -> RequestError:
    """Return the first of the errors of a body, or of one of its fields."""
    fault = error.errors(include_url=False, include_input=False)[0]
    parts = [field] if field else [str(part) for part in fault["loc"][:2]]
    place = ".".join(printable(cut(part, 40)) for part in parts)
    where = f"`{place}`" if place else "the body"
    return RequestError(422, f"{where} is wrong: {printable(cut(fault['msg']))}.")


def from_json(body: bytes, max_values: int) -> Given:
    """Return what JSON holds: base64 in `images`, and `site` or `mix`.

    Args:
        body: The body.
        max_values: Maximum number of commas. A parser makes an object of each value
            before any limit on lists applies, and 16 MB hold millions of values.
    """
    if body.count(b",") > max_values:
        raise RequestError(
            413,
            f"A JSON body must have at most {max_values:,} images and shares, but has "
            "more.",
            "images",
        )
    given = parse_body(PredictRequest, body)
    images = []
    for i, text in enumerate(given.images):
        try:
            images.append(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            raise RequestError(422, f"image {i} of `images` is not base64.") from None
    return Given(images, given.site, given.mix)


_MIX: TypeAdapter[Any] = TypeAdapter(Shares | dict[str, Share])


async def from_form(request: "Request", body: bytes, limits: Limits) -> Given:
    """Return what a form holds: files `images`, and texts `site` or `mix`."""
    images: list[bytes] = []
    texts: dict[str, str] = {}
    for name, value in await _fields(request, body, limits):
        is_file = isinstance(value, bytes)
        if name not in ("images", "site", "mix") or is_file != (name == "images"):
            raise RequestError(
                422,
                "a form must have files `images` and a text `site` or `mix`, but has "
                f"{quoted(name)}.",
            )
        if isinstance(value, bytes):
            images.append(value)
        elif name in texts:
            raise RequestError(422, f"`{name}` must come once, but came twice.")
        else:
            texts[name] = value
    if not images:
        raise RequestError(422, "a form must have files `images`, but has none.")
    mix = None
    if "mix" in texts:
        try:
            mix = _MIX.validate_json(texts["mix"])
        except ValidationError as error:
            raise _fault(error, "mix") from None
    return Given(images, texts.get("site"), mix)


async def _fields(
    request: "Request", body: bytes, limits: Limits
) -> list[tuple[str, str | bytes]]:
    """Return the parts of a form: bytes of files, and texts."""
    from python_multipart.multipart import parse_options_header
    from starlette.formparsers import MultiPartException, MultiPartParser

    _, options = parse_options_header(request.headers["content-type"])
    charset = options.get(b"charset", b"utf-8").lower()
    if charset not in (b"utf-8", b"utf8", b"us-ascii"):  # some take seconds to decode
        raise RequestError(415, "the charset of a form must be utf-8.")

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        request.headers,
        stream(),
        max_files=limits.images,
        max_fields=2,
        max_part_size=MOST_BODY,
    )
    parser.spool_max_size = limits.upload_bytes  # nothing goes to the disk
    try:
        form = await parser.parse()
        fields = [
            (name, value if isinstance(value, str) else await value.read())
            for name, value in form.multi_items()
        ]
        await form.close()
    except MultiPartException as error:
        raise _form_error(error.message, limits) from None
    except Exception:  # the headers of a part may raise almost anything
        raise _form_error("it is malformed", limits) from None
    return fields


def _form_error(reason: str, limits: Limits) -> RequestError:
    if reason.startswith("Too many files"):
        return RequestError(
            413,
            f"a request must have at most {limits.images} images, but has more.",
            "images",
        )
    text = printable(cut(reason)).rstrip(".")
    return RequestError(422, f"the form cannot be read ({text}).")
