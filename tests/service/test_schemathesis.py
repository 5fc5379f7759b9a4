"""Every answer to a drawn request follows the OpenAPI document, and never reports an internal error.

schemathesis draws good and bad requests from the document, one at a time and along the links. SERVICE_CASES sets their
number; the plain run draws the same 1,000 or so each time.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import FlakyStrategyDefinition

from support.served import TOKENS, served_beside
from turnwise import Engine
from turnwise.service import create_app
from turnwise.service.routes.streamed import JSON_LINES
from turnwise.service.routes.table import OPEN_ROUTES, ROUTES, RouteSpec

pytestmark = pytest.mark.deep

CASES: Final = int(os.environ.get("SERVICE_CASES", "1000"))
STEPS: Final = 10
LEFT_OUT: Final = frozenset(
    {
        "positive_data_acceptance",  # what fits the description may still not fit the chat: an agent that is not there
        "negative_data_rejection",  # takes what pydantic reads on purpose, such as "5" for 5 in a query, for a fault
        "object_level_authorization",  # needs two principals; test_routes.py has them for every route
    }
)
SOUND: Final = {"POST /chats": {"title": "A walk"}, "POST /chats/{chat_id}/messages": {"content": "Hello!"}}
"""On a walk, every other body of these is valid: most drawn ones lead to nothing that links could continue."""
AS_ADA: Final = {"Authorization": "Bearer ada-token"}


@pytest.fixture(scope="module")
def schema() -> Any:
    """Return the service's own document, with schemathesis set to draw the same cases every time."""
    import schemathesis  # noqa: PLC0415 - takes a second, in each of pytest's processes

    @schemathesis.serializer(JSON_LINES)
    def lines(_: Any, value: Any) -> Any:
        """Send the drawn text of a JSON Lines body unchanged."""
        return {"data": value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")}

    document = create_app(Engine("sqlite://", model="demo"), auth=TOKENS).openapi()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.generation.update(deterministic=True)
    return schema


@pytest.fixture(scope="module")
def checks() -> list[Any]:
    from schemathesis.checks import CHECKS  # noqa: PLC0415 - as above

    return [CHECKS.get_one(name) for name in CHECKS.get_all_names() if name not in LEFT_OUT]


def drawing(count: int, **options: Any) -> settings:
    return settings(
        max_examples=max(1, count),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        **options,
    )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served_beside(lambda: Engine("sqlite://", model="demo")) as address:
        yield address


def ending(case: Any) -> Any:
    """End streams after a short time."""
    if case.operation.label.endswith("/events"):
        case.query = {**(case.query or {}), "follow": "false"}
    return case


@pytest.mark.parametrize("row", [*ROUTES, *OPEN_ROUTES], ids=lambda row: f"{row.method} {row.path}")
def test_every_answer_of_a_route_is_as_described(url: str, schema: Any, checks: list[Any], row: RouteSpec) -> None:
    """Half of the requests concern existing chats, in the states that earlier requests left."""
    operation = schema[row.path][row.method]
    statuses: Counter[int] = Counter()

    with httpx.Client(base_url=url, headers=AS_ADA, timeout=60) as ada:

        def about_a_chat() -> dict[str, str]:
            chat_id = ada.post("/chats", json={"history": [{"role": "user", "content": "Hello?"}]}).json()["id"]
            ada.post(f"/chats/{chat_id}/messages", json={"content": "Hello!"})
            return {"chat_id": chat_id, "message_id": "m2", "queued_id": "m2", "id": "s1"}

        @drawing(CASES // 2 // len(ROUTES))
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            if "chat_id" in row.parameters and sum(statuses.values()) % 2:
                known = about_a_chat()
                case.path_parameters = {name: known[name] for name in row.parameters}
            answer = ending(case).call_and_validate(base_url=url, headers=AS_ADA, checks=checks)
            statuses[answer.status_code] += 1

        ask()
    assert sum(statuses.values()) >= min(CASES // 2 // len(ROUTES), 1)


def test_every_answer_along_the_links_is_as_described(url: str, schema: Any, checks: list[Any]) -> None:
    """Answers depend on the states of chats, so a walk may end in an unseen way: then another one starts."""
    reached: Counter[str] = Counter()
    asked: Counter[str] = Counter()

    leads_nowhere = "^/(budgets|chat-counts|consumers|inbox|owners|usage|workers)"
    of_chats = schema.exclude(path_regex=leads_nowhere)

    class Machine(of_chats.as_state_machine()):  # type: ignore[misc] # made at run time
        def before_call(self, case: Any) -> None:
            ending(case)
            sound = SOUND.get(case.operation.label)
            if sound is not None and asked[case.operation.label] % 2 == 0:
                case.body = dict(sound)

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"base_url": url, "headers": AS_ADA}

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            case.validate_response(response, checks=checks, headers=AS_ADA)

        def after_call(self, response: Any, case: Any) -> None:
            asked[case.operation.label] += 1
            if response.status_code < 300:
                reached[case.operation.label] += 1

    for number in range(100):
        left = CASES // 2 - asked.total()
        if left <= 0 and len(reached) > len(ROUTES) // 4:
            break
        with suppress(FlakyStrategyDefinition):
            walks = max(left // STEPS, 10)  # the first of a draw is always the simplest that there is
            seed(number)(Machine).run(settings=drawing(walks, stateful_step_count=STEPS))
    assert asked.total() >= CASES // 2
    assert len(reached) > len(ROUTES) // 4, reached
