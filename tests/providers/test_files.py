"""Files that a provider refuses: a note tells the model, and the chat continues."""

import pytest
from pydantic_ai import messages as theirs
from pydantic_ai.models.wrapper import WrapperModel

from turnwise.providers.from_name import model_named
from turnwise.providers.pydantic_ai import PydanticAIModel
from turnwise.providers.pydantic_ai.files import FileLimits, limits_of, sendable_file
from turnwise.states.messages import FilePart

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY")
NAMES = ("openai:gpt-5", "openai-responses:gpt-5", "anthropic:claude-sonnet-4-5", "google:gemini-2.5-flash")


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PydanticAIModel:
    for key in KEYS:
        monkeypatch.setenv(key, "a-test-key")
    return model_named(request.param)


TYPES = (
    *("image/png", "image/tiff", "audio/wav", "audio/ogg", "video/mp4"),
    *("application/pdf", "text/plain", "application/zip"),
)
REFUSED = {
    "openai:gpt-5": {"image/tiff", "audio/ogg", "video/mp4"},
    "openai-responses:gpt-5": {"image/tiff", "audio/wav", "audio/ogg", "video/mp4"},
    "anthropic:claude-sonnet-4-5": {"image/tiff", "audio/wav", "audio/ogg", "video/mp4", "application/zip"},
    "google:gemini-2.5-flash": set[str](),
}


def test_each_provider_gets_only_media_types_that_it_takes(
    model: PydanticAIModel, request: pytest.FixtureRequest
) -> None:
    refused, takes = REFUSED[request.node.callspec.params["model"]], model._writer.takes
    files = {kind: sendable_file(FilePart(media_type=kind, data="aGk="), takes) for kind in TYPES}
    assert {kind for kind, sent in files.items() if isinstance(sent, str)} == refused
    wrapped = PydanticAIModel(WrapperModel(WrapperModel(model._model)))
    for kind in TYPES:
        assert (wrapped.refuses_file(kind, 1) is None) == (kind not in refused)
        assert wrapped.refuses_file(kind, 10**8) == model.refuses_file(kind, 10**8)


@pytest.mark.parametrize(
    ("name", "window", "limits", "largest"),
    [
        ("anthropic:claude-sonnet-4-5", None, FileLimits(8000, 100), 3_932_160),
        ("anthropic:claude-sonnet-4-5", 200_000, FileLimits(8000, 100), 3_932_160),
        ("anthropic:claude-sonnet-4-5", 200_001, FileLimits(8000, 600), 3_932_160),
        ("google:gemini-2.5-flash", None, FileLimits(None, 1000), None),
        ("openai:gpt-5", None, FileLimits(None, None), None),
    ],
)
def test_limits_of_files_are_exact(
    name: str, window: int | None, limits: FileLimits, largest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the providers' documentation: of pictures, and of the pages of a PDF in a larger context window."""
    for key in KEYS:
        monkeypatch.setenv(key, "a-test-key")
    model = model_named(name)
    monkeypatch.setattr(type(model._model), "context_window", window)
    assert limits_of(model._model) == limits
    over = (largest or 10**9) + 1
    assert model.refuses_file("image/png", over - 1) is None
    assert (model.refuses_file("image/png", over) is None) is (largest is None)
    assert model.refuses_file("text/plain", over) is None


def everything(_media_type: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (FilePart(media_type="image/png", url="https://x.example/a"), theirs.ImageUrl),
        (FilePart(media_type="audio/wav", url="https://x.example/a"), theirs.AudioUrl),
        (FilePart(media_type="video/mp4", url="https://x.example/a"), theirs.VideoUrl),
        (FilePart(media_type="text/plain", url="https://x.example/a"), theirs.DocumentUrl),
    ],
)
def test_url_is_sent_by_its_media_type(part: FilePart, kind: type[theirs.ImageUrl]) -> None:
    sent = sendable_file(part, everything)
    assert isinstance(sent, kind)
    assert (sent.url, sent.media_type) == (part.url, part.media_type)


@pytest.mark.parametrize("where", [{"data": "aGk="}, {"url": "https://x.example/a"}])
@pytest.mark.parametrize(
    ("media_type", "kind"), [("text/plain;charset=UTF-8", "text/plain"), ("IMAGE/PNG", "image/png")]
)
def test_media_type_is_normalized_before_sending(
    model: PydanticAIModel, media_type: str, kind: str, where: dict[str, str]
) -> None:
    """Browsers add `;charset=UTF-8`, and adapters would raise in every later turn."""
    takes = model._writer.takes
    spelled = sendable_file(FilePart(media_type=media_type, **where), takes)
    assert spelled == sendable_file(FilePart(media_type=kind, **where), takes)
    assert getattr(spelled, "media_type", None) == kind


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        (FilePart(media_type="text/plain", data="?"), "must be base64"),
        (FilePart(media_type="image/png", data="aGk=", url="a.png"), "it had both"),
        (FilePart(media_type="image/png", url="a.png"), "its url is no address"),
        (FilePart(media_type="image/png", data="aGk="), "does not take files of that type"),
        (FilePart(media_type="text/plain", data="/w=="), "does not take files of that type"),
    ],
)
def test_invalid_file_becomes_a_note_with_the_first_fault(part: FilePart, fault: str) -> None:
    note = sendable_file(part, lambda _: False)
    assert isinstance(note, str)
    assert fault in note
    assert "without a name" in note
