"""The principal of a token: static, signed, and forged ones."""

import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
import structlog
from fastapi import FastAPI
from joserfc import jwk, jwt
from starlette.requests import Request

from support.clock import StillClock
from support.gated_model import GatedModel
from support.served import GENEROUS, TOKENS, Served, served
from support.sql_by_hand import poison_facts
from turnwise import Engine, SettingsError
from turnwise.http_problems import NotAuthenticated
from turnwise.service import JWTs, Principal, ServiceSettings, StaticTokens, add_problem_handlers, caller, router
from turnwise.service.app import build_policy
from turnwise.service.caller import Caller
from turnwise.service.service import Service
from turnwise.states.errors import ChatNotFound
from turnwise.states.events import Event

KEY: Final = jwk.RSAKey.generate_key(2048, {"kid": "ours"})
OTHER: Final = jwk.RSAKey.generate_key(2048, {"kid": "ours"})
CURVE: Final = jwk.ECKey.generate_key("P-256")
PUBLIC: Final = KEY.as_pem(private=False)
NOW: Final = int(time.time())
LONG: Final = 10 * 365 * 24 * 3600
"""Seconds: longer than any run of the tests on a slow machine."""
CLAIMS: Final = {"sub": "ada", "exp": NOW + LONG, "iss": "https://login.example", "aud": "chats"}
KNOWN: Final = JWTs(key=PUBLIC, issuer="https://login.example", audience="chats")


def request_with(header: str | None) -> Request:
    headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
    return Request({"type": "http", "headers": headers})


def signed(key: Any = KEY, algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    whole = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return str(jwt.encode({"alg": algorithm, **(header or {})}, whole, key, algorithms=[algorithm]))


def by_hand(header: dict[str, Any], claims: dict[str, Any], signature: bytes | None = None, secret: bytes = b"") -> str:
    """Return a token that no library would make."""
    body = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
    code = hmac.digest(secret, body.encode(), "sha256") if signature is None else signature
    return f"{body}.{_encoded(code)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("role", ["owner", "operator", "auditor"])
def test_jwt_names_a_principal(role: Any) -> None:
    assert KNOWN(request_with(f"Bearer {signed(role=role)}")) == Principal("ada", role)
    assert KNOWN(request_with(f"bearer  {signed(role=role)} ")) == Principal("ada", role)


def test_role_rights_and_actor() -> None:
    principals = [Principal("ada"), Principal("ops", "operator"), Principal("eve", "auditor")]
    rights = [(principal.actor, principal.sees_all) for principal in principals]
    assert rights == [("user:ada", False), ("operator:ops", True), ("auditor:eve", True)]


def test_name_and_role_of_principal_are_checked() -> None:
    for name in ("a", "a" * 512, "€" * 170 + "aa"):
        assert Principal(name).name == name
    odd: Any
    for odd in ("", "a" * 513, "€" * 171, 7, None, b"ada"):
        with pytest.raises(SettingsError, match=r"^name: must (be|say) .*; it was"):
            Principal(odd)
    for odd in ("", "admin", None):
        with pytest.raises(SettingsError, match=r"^role: must be one of 'owner', 'operator', 'auditor'; it was"):
            Principal("ada", odd)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: StaticTokens({"t": "ada"}), "tokens"),
        (lambda: StaticTokens({"\ud800": Principal("ada")}), "tokens"),
        (lambda: StaticTokens({"a long random word": Principal("ada")}), "tokens"),
        (lambda: JWTs(key=PUBLIC, leeway=-1), "leeway"),
    ],
)
def test_wrong_settings_are_refused_by_field(wrong: Callable[[], Any], field: str) -> None:
    with pytest.raises(SettingsError) as refused:
        wrong()
    assert refused.value.field == field


FORGED: Final = {
    "no token at all": "Bearer ",
    "another scheme": f"Basic {signed()}",
    "bytes beyond ASCII": "Bearer \xff\xfe",
    "another key of the same name": f"Bearer {signed(OTHER)}",
    "expired": f"Bearer {signed(exp=NOW - 31)}",
    "an end that is text": f"Bearer {signed(exp='never')}",
    "an end that is no number": f"Bearer {signed(exp=float('nan'))}",
    "of another issuer": f"Bearer {signed(iss='https://evil.example')}",
    "of nobody": f"Bearer {signed(sub=None)}",
    "another algorithm of the same key": f"Bearer {signed(algorithm='RS512')}",
    "no signature, and none is said": f"Bearer {by_hand({'alg': 'none'}, CLAIMS, b'')}",
    "signed with the public key as a secret": f"Bearer {by_hand({'alg': 'HS256'}, CLAIMS, secret=PUBLIC)}",
    "signed with an empty secret": f"Bearer {by_hand({'alg': 'HS256'}, CLAIMS)}",
    "a key of its own in the header": "Bearer "
    + signed(OTHER, header={"jwk": OTHER.as_dict(private=False), "jku": "https://evil.example"}),
    "something critical that nobody knows": "Bearer "
    + by_hand({"alg": "RS256", "crit": ["b64"], "b64": False}, CLAIMS),
    "a header that is a list": f"Bearer {by_hand([], CLAIMS)}",  # type: ignore[arg-type] # on purpose
}


@pytest.mark.parametrize("header", FORGED.values(), ids=FORGED)
def test_forged_token_is_rejected(header: str) -> None:
    assert KNOWN(request_with(header)) is None


def test_leeway_covers_clock_skew() -> None:
    patient = JWTs(key=PUBLIC, leeway=LONG)
    assert patient(request_with(f"Bearer {signed(exp=NOW - 5, nbf=NOW + LONG // 2)}")) == Principal("ada")
    strict = JWTs(key=PUBLIC, leeway=0)
    assert strict(request_with(f"Bearer {signed(exp=NOW - 5)}")) is None
    assert KNOWN.leeway == 30


def test_unlisted_algorithm_is_rejected() -> None:
    rare = JWTs(key=PUBLIC, algorithms=["RS512"])
    assert rare(request_with(f"Bearer {signed(algorithm='RS512')}")) == Principal("ada")
    assert rare(request_with(f"Bearer {signed()}")) is None


def test_keys_of_every_kind_are_read() -> None:
    secret = "a secret of thirty-two bytes at least"  # noqa: S105 - of a test
    shared = JWTs(key=secret, algorithms=["HS256"])
    assert shared(request_with(f"Bearer {signed(jwk.OctKey.import_key(secret), 'HS256')}")) == Principal("ada")
    assert JWTs(key=CURVE.as_pem(private=False), algorithms=["ES256"])(
        request_with(f"Bearer {signed(CURVE, 'ES256')}")
    ) == Principal("ada")
    both = {**KEY.as_dict(private=False), "use": "sig", "alg": "RS256"}
    for same in (PUBLIC.decode(), both, b"\n" + PUBLIC, KEY.as_dict(private=False)):
        assert JWTs(key=same)(request_with(f"Bearer {signed()}")) == Principal("ada")
    several = JWTs(key={"keys": [KEY.as_dict(private=False), CURVE.as_dict(private=False)]})
    assert several(request_with(f"Bearer {signed(header={'kid': 'ours'})}")) == Principal("ada")
    assert several(request_with(f"Bearer {signed(header={'kid': 'unknown'})}")) is None


WRONG_KEYS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "no key in it": ("key", {"key": b"-----BEGIN PUBLIC KEY-----\nnonsense\n-----END PUBLIC KEY-----"}),
    "a public key as a secret": ("key", {"key": PUBLIC, "algorithms": ["HS256"]}),
    "no signature": ("algorithms", {"key": PUBLIC, "algorithms": ["none"]}),
    "no algorithm": ("algorithms", {"key": PUBLIC, "algorithms": []}),
    "an empty secret": ("key", {"key": "", "algorithms": ["HS256"]}),
    "a secret that can be guessed": ("key", {"key": "nonsense", "algorithms": ["HS256"]}),
    "one for a longer digest": (
        "key",
        {"key": "a nonsense of thirty-two bytes at least", "algorithms": ["HS256", "HS512"]},
    ),
    "one in a set": (
        "key",
        {"key": {"keys": [{"kty": "oct", "k": "bm9uc2Vuc2U", "kid": "a"}]}, "algorithms": ["HS256"]},
    ),
    "a secret for a public key's algorithm": ("key", {"key": "a nonsense of thirty-two bytes at least"}),
    "a secret as a JWK": ("key", {"key": {"kty": "oct", "k": "YWFh"}}),
    "one algorithm too many": ("key", {"key": PUBLIC, "algorithms": ["RS256", "ES256"]}),
    "a set without one for an algorithm": ("key", {"key": {"keys": [CURVE.as_dict(private=False)]}}),
    "a key that does not sign": ("key", {"key": {**KEY.as_dict(private=False), "use": "enc"}}),
}


@pytest.mark.parametrize(("field", "wrong"), WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_key_that_fits_no_algorithm_is_refused(field: str, wrong: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        JWTs(**wrong)
    assert refused.value.field == field
    assert "nonsense" not in str(refused.value)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(SettingsError, match=r"^auth: needs the extra `service`: pip install 'turnwise\[service\]'"):
        JWTs(key=PUBLIC)


def test_repr_shows_no_key() -> None:
    assert "secret" not in repr(JWTs(key="a secret of thirty-two bytes at least", algorithms=["HS256"]))
    assert "s3cret" not in repr(StaticTokens({"s3cret-token": Principal("ada")}).__dict__)
    assert repr(JWTs(key=PUBLIC)) == (
        "JWTs(algorithms=('RS256',), issuer=None, audience=None, name_claim='sub', role_claim='role', leeway=30)"
    )


async def test_service_answers_every_bad_token_alike() -> None:
    async with (
        served(Engine("sqlite://", model="demo"), auth=KNOWN) as service,
        httpx.AsyncClient(base_url=service.url, timeout=60) as client,
    ):
        chat = (await client.post("/chats", json={}, headers={"Authorization": f"Bearer {signed()}"})).json()
        answers = [
            await client.get(f"/chats/{chat['id']}", headers=[(b"Authorization", header.encode("latin-1"))])
            for header in FORGED.values()
            if len(header) < 10_000 and header == header.strip()
        ]
        other = await client.get(f"/chats/{chat['id']}", headers={"Authorization": f"Bearer {signed(sub='bob')}"})

    assert chat["owner"] == "ada"
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1, "an expired token and a forged one are answered alike"
    assert {answer.headers["WWW-Authenticate"].split()[0] for answer in answers} == {"Bearer"}
    assert other.status_code == 404


def entries(text: str, folder: Path) -> StaticTokens:
    path = folder / "tokens.toml"
    path.write_text(text, encoding="utf-8")
    return StaticTokens.from_file(path)


def test_token_file_holds_tokens_or_digests(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"t2").hexdigest()
    known = entries(
        f"""
        [[tokens]]
        token = "t1"
        name = "ada"
        [[tokens]]
        sha256 = "{digest}"
        name = "ops"
        role = "operator"
        """,
        tmp_path,
    )
    assert known(request_with("Bearer t1")) == Principal("ada")
    assert known(request_with("Bearer t2")) == Principal("ops", "operator")
    for wrong in (f"Bearer {digest}", f"Bearer sha256:{digest}", "Bearer t", "Bearer t1t", "Basic t1", "t1", None):
        assert known(request_with(wrong)) is None


NEITHER: Final = "must hold either token or sha256"
ENTRY: Final = "must hold token or sha256, name, and role, and nothing else"
DIGEST: Final = "a digest must be 'sha256:' and 64 hexadecimal digits"
WORD: Final = "a token must be one word of printable ASCII"
ROLE: Final = "role must be one of 'owner', 'operator', 'auditor'"
ONE: Final = '[[tokens]]\ntoken = "t1"\nname = "ada"\n'
WRONG_FILES: Final = {
    "": "must hold tables named [[tokens]]",
    "not toml at all, s3cret": "cannot be read: TOMLDecodeError",
    '[[tokens]]\nname = "s3cret"': f"entry 1 {NEITHER}",
    '[[tokens]]\ntoken = "s3cret"\nname = "ada"\nrole = "admin"': f"entry 1: {ROLE}",
    '[[tokens]]\ntoken = "s3cret"\nname = "ada"\nrule = "owner"': f"entry 1 {ENTRY}",
    ONE + '[[tokens]]\nname = "s3cret"': f"entry 2 {NEITHER}",
    '[[tokens]]\nsha256 = "00"\nname = "ada"': DIGEST,
    '[[tokens]]\ntoken = "a s3cret"\nname = "ada"': WORD,
    '[[tokens]]\ntoken = "s3crét"\nname = "ada"': WORD,
    ONE + ONE: "entry 2 has the token of an entry before it",
    ONE + f'[[tokens]]\nsha256 = "{hashlib.sha256(b"t1").hexdigest()}"\nname = "bob"': (
        "must name each token once, as itself or as its digest"
    ),
}


@pytest.mark.parametrize(("text", "problem"), WRONG_FILES.items())
def test_wrong_token_file_is_refused_without_secrets(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        entries(text, tmp_path)
    assert refused.value.field == "tokens"
    assert problem in refused.value.problem
    assert "s3cret" not in str(refused.value)


# Callers


@pytest.mark.parametrize("page", [None, 2], ids=["all at once", "two at a time"])
async def test_unreadable_chat_is_shown_to_its_owner(
    tmp_path: Path, page: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get the same answer as for an unknown chat, although the owner is unreadable."""
    if page is not None:
        monkeypatch.setattr(caller, "_PAGE", page)
    path = tmp_path / "chats.db"
    async with (
        served(Engine(f"sqlite:///{path}", model="demo")) as service,
        service.client("ada") as ada,
        service.client("bob") as bob,
        service.client("operator") as operator,
        service.client("auditor") as auditor,
    ):
        chats = [(await ada.post("/chats", json={})).json()["id"] for _ in range(5)]
        await bob.post("/chats", json={})
        for place in (0, 2, 4):
            poison_facts(path, chats[place])
            responses = [await who.get(f"/chats/{chats[place]}") for who in (ada, bob, operator, auditor)]
            none = await bob.get(f"/chats/c{'0' * 25}")
            assert [answer.status_code for answer in responses] == [500, 404, 500, 500], place
            assert responses[0].json()["type"] == "urn:turnwise:problem:chat-unreadable"
            assert responses[1].text.replace(chats[place], "...") == none.text.replace(f"c{'0' * 25}", "...")
            explained = [await who.get(f"/chats/{chats[place]}/explain") for who in (ada, bob, operator, auditor)]
            assert [answer.status_code for answer in explained] == [200, 404, 200, 200], place
            assert "chats.facts" in explained[0].json()["reason"]


@pytest.mark.parametrize(
    ("passed", "waited"),
    [
        # of seconds since the request came, those until it has taken two, or twice as long, or three times
        (0, 2),
        (1.75, 0.25),
        (2, 2),
        (5, 1),
    ],
)
async def test_404_takes_a_multiple_of_the_delay(passed: float, waited: float, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(caller, "time", StillClock(64 + passed))
    monkeypatch.setattr(caller.anyio, "sleep", sleep)
    async with Engine("sqlite://", model="demo") as engine:
        hers = await engine.create_chat(owner="ada")
        settings = ServiceSettings(not_found_seconds=2)
        service = Service(engine, TOKENS, settings, build_policy(settings))
        bob = Caller(service, Principal("bob"), since=64)
        for chat_id in ("c1", hers.id):
            with pytest.raises(ChatNotFound):
                await bob.chat(chat_id)
        assert (await Caller(service, Principal("ada"), since=64).chat(hers.id)).id == hers.id
    assert slept == [waited, waited]


async def test_own_authenticator_may_be_sync_or_async() -> None:
    """An application's function, which may await."""
    principals: dict[str | None, Principal] = {"ada": Principal("ada")}

    async def by_header(request: Request) -> Principal | None:
        return principals.get(request.headers.get("x-user"))

    for auth in (by_header, lambda request: principals.get(request.headers.get("x-user"))):
        async with (
            served(Engine("sqlite://", model="demo"), auth=auth, settings=GENEROUS) as service,
            httpx.AsyncClient(base_url=service.url, timeout=60) as client,
        ):
            answers = [await client.get("/principal", headers={"X-User": name}) for name in ("ada", "bob")]
        assert [answer.status_code for answer in answers] == [200, 401]
        assert answers[0].json().items() >= {"name": "ada", "role": "owner", "until": None}.items()


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        (lambda _: "ada", "TypeError: auth returned 'str'; it has to return a Principal, or None"),
        (lambda _: Principal(""), "RuntimeError: auth failed: name: must say something; it was empty; "),
        (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
async def test_broken_authenticator_is_an_internal_error(auth: Any, problem: str) -> None:
    """The request is not at fault: its sender gets an internal error, and no access."""
    async with Engine("sqlite://", model="demo") as engine:
        app = FastAPI()
        add_problem_handlers(app)
        app.include_router(router(engine, auth=auth))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        with structlog.testing.capture_logs() as logs:
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                answer = await client.get("/chats")
    assert (answer.status_code, answer.json()["detail"]) == (500, "the service's log says what happened")
    (failed,) = [log["error"] for log in logs if log["event"] == "request_failed"]
    assert failed.startswith(problem)


class ShortPasses:
    """Names ada for a second after the first request, then no principal."""

    def __init__(self) -> None:
        self.until: datetime | None = None

    def __call__(self, _request: Request) -> Principal:
        self.until = self.until or datetime.now(UTC) + timedelta(seconds=1.5)
        return Principal("ada", until=self.until)


RUN = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}
HELLO = {"id": "u1", "role": "user", "content": "Hello!"}


@pytest.mark.parametrize(
    ("method", "path", "body", "last"),
    [
        ("GET", "/chats/{chat}/events", None, 'event: reconnect\ndata: {{"after": {seq}}}'),
        pytest.param("GET", "/ai-sdk/chat/{chat}/stream", None, "{expired}data: [DONE]", marks=pytest.mark.deep),
        pytest.param("POST", "/agui", {**RUN, "messages": [HELLO]}, "{agui}", marks=pytest.mark.deep),
    ],
)
async def test_stream_ends_when_the_token_expires(
    method: str, path: str, body: dict[str, Any] | None, last: str
) -> None:
    """The working chat would not end the stream, and events after the expiry reach no reader."""
    words = "your token has expired; come back with another"
    expired = f'data: {{"type": "error", "errorText": "{words}"}}\n\n'
    agui = f'data: {{"type": "RUN_ERROR", "message": "{words}", "code": "reconnect"}}'
    model = GatedModel("Too late.")
    async with served(Engine("sqlite://", model=model), auth=ShortPasses()) as service, service.client() as ada:
        chat = await service.engine.create_chat(owner="ada")
        await service.engine.send_message(chat.id, "Hello!")
        with anyio.fail_after(60):
            await service.engine.wait(chat.id, until={"streaming"})
            answer = await ada.request(method, path.format(chat=chat.id), json=body)
            seq = (await service.engine.transcript(chat.id)).seq
            model.gate.set()
            await service.engine.wait(chat.id)
            again = await ada.request(method, path.format(chat=chat.id), json=body)
    assert answer.status_code == 200
    assert answer.text.rstrip().endswith(last.format(seq=seq, expired=expired, agui=agui)), answer.text
    assert "Too late." not in answer.text
    assert (again.status_code, again.json()["type"]) == (401, "urn:turnwise:problem:not-authenticated")


async def test_sign_in_by_cookie_asks_for_no_token() -> None:
    def by_cookie(request: Request) -> Principal | None:
        return Principal("ada") if request.cookies.get("session") == "s3cret" else None

    async with (
        served(Engine("sqlite://", model="demo"), auth=by_cookie) as service,
        httpx.AsyncClient(base_url=service.url, timeout=60) as client,
    ):
        stranger = await client.get("/chats")
        client.cookies.set("session", "s3cret")
        known = await client.get("/chats")
    assert (stranger.status_code, known.status_code) == (401, 200)
    assert "www-authenticate" not in stranger.headers
    assert "sign in" in stranger.json()["detail"]
    assert "oken" not in stranger.text


async def test_expired_token_reads_no_stored_events(demo: Served) -> None:
    chat = await demo.engine.create_chat(owner="ada")
    await demo.engine.ask(chat.id, "Hello!")
    service = Service(demo.engine, TOKENS, ServiceSettings(), build_policy(ServiceSettings()))
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    for until, last_chat in ((None, chat.id), (now + hour, chat.id), (now - hour, None)):
        ada = Caller(service, Principal("ada", until=until), 0.0)
        events: list[Event] = []
        with suppress(NotAuthenticated) if last_chat is None else nullcontext():
            events += [event async for event in ada.events(chat.id, follow=False)]
        assert events == ([] if last_chat is None else [one async for one in demo.engine.events(chat.id, follow=False)])
