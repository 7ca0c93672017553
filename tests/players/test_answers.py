"""Answers as services give them: refusals of a form or of one dialogue, replies with parts left out, thoughts."""

import re
from contextlib import suppress

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slim_rl.core.errors import PlayerFailed, UserError
from slim_rl.core.message import heard, said
from slim_rl.games.matching.partner import one_turn
from slim_rl.players.chat_player import ChatPlayer
from slim_rl.players.config import ServiceConfig

SHORT, LONG = ([{"role": "user", "content": "Hi" * times}] for times in (1, 1000))
TURN = "[message] Hard to say."


@pytest.fixture
def service(run, services):
    """service(answer, ...): a service whose server says answer(body), a JSON value or a status and one; and the bodies."""
    servers = []

    def start(answer, folder=None, **config):
        bodies = []

        async def handle(request):
            bodies.append(await request.json())
            answered = answer(bodies[-1])
            given = answered if isinstance(answered, tuple) else (200, answered)
            status, value, headers = (*given, {"retry-after": "0"})[:3]
            return web.json_response(value, status=status, headers=headers)

        app = web.Application()
        app.router.add_post("/chat/completions", handle)
        servers.append(TestServer(app))
        run(servers[-1].start_server())
        config = ServiceConfig(base_url=str(servers[-1].make_url("")).rstrip("/"), **config)
        return services(partner=config, folder=folder)["partner"], bodies

    yield start
    for server in servers:
        run(server.close())


def completion(content=TURN, ended="stop", usage=(300, 12), **message):
    given = {} if usage is None else {"usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": ended}
    return {"id": "c", "object": "chat.completion", "choices": [choice], **given}


def refuses(status, **error):
    """Accepts short dialogues alone."""
    return lambda body: completion() if len(body["messages"][0]["content"]) < 100 else (status, {"error": error})


@pytest.mark.parametrize(
    "answer",
    [
        refuses(400, message="This model's maximum context length is 4096 tokens.", type="BadRequestError", code=400),
        refuses(400, message="the request exceeds the available context size", type="exceed_context_size_error"),
        refuses(400, message="prompt is too long: 205000 tokens > 200000 maximum", type="invalid_request_error"),
        refuses(400, message="'max_tokens' or 'max_completion_tokens' is too large: 120.", param="max_tokens"),
        refuses(422, message="Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048"),
        refuses(413, message="Request too large for model on tokens per minute (TPM)", code="rate_limit_exceeded"),
        refuses(403, message="Your input was flagged", code=403),
        refuses(400, message="filtered", code="content_filter"),
        refuses(400, message="Invalid prompt: your prompt was flagged", code="invalid_prompt"),
        lambda body: completion() if len(body["messages"][0]["content"]) < 100 else (400, "too long"),
    ],
)
@pytest.mark.parametrize("first", [SHORT, LONG])
def test_a_dialogue_that_is_refused_fails_alone_and_is_not_sent_again(service, run, answer, first):
    one, bodies = service(answer)
    for messages in (first, LONG, LONG, SHORT):
        if messages is LONG:
            with pytest.raises(PlayerFailed, match=r"Error: "):
                run(one.reply(messages, 0))
        else:
            assert run(one.reply(messages, 0)).text == TURN
    assert [body["messages"] for body in bodies].count(LONG) == 1
    assert {"max_tokens", "seed"} <= set(bodies[-1])


def unknown(name, words):
    def answer(body):
        told = {"message": words, "param": name, "code": "unsupported_parameter"}
        return (400, {"error": told}) if name in body else completion()

    return answer


@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        (unknown("max_tokens", "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
         {"max_completion_tokens", "seed"}),
        (unknown("seed", 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'), {"max_tokens"}),
        (lambda body: unknown("seed", "seed: Extra inputs are not permitted")(body)
         if "seed" in body else unknown("max_tokens", "Use 'max_completion_tokens'.")(body), {"max_completion_tokens"}),
        (lambda body: completion(), {"max_tokens", "seed"}),
    ],
)  # fmt: skip
def test_the_form_of_a_request_follows_what_the_service_refuses(service, run, answer, sent):
    one, bodies = service(answer)
    assert [run(one.reply(SHORT, seed)).text for seed in range(3)] == [TURN] * 3
    assert [set(body) & {"max_tokens", "max_completion_tokens", "seed"} for body in bodies[-3:]] == [sent] * 3


def test_a_parameter_that_no_call_may_have_stops_the_run_and_is_named(service, run):
    words = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported."
    one, bodies = service(unknown("temperature", words))
    with pytest.raises(UserError, match=rf"{re.escape(words)}.*; set services.partner.temperature"):
        run(one.reply(LONG, 0))
    assert len(bodies) == 2  # the second one is the smallest there is
    other, _ = service(unknown("temperature", words), temperature=None)
    assert run(other.reply(SHORT, 0)).text == TURN


PRICE = {"prompt": 2.0, "cached_prompt": 1.0, "completion": 1.0}
THOUGHT = [{"type": "thinking", "thinking": [{"type": "text", "text": "First"}]}]


@pytest.mark.parametrize("content", [None, "", "<think>First of all", "[THINK]First of all", THOUGHT])
def test_a_reply_that_is_all_thought_is_paid_for_once_and_the_parameter_is_named(service, run, tmp_path, content):
    answer = completion(content, "length", reasoning_content="First of all")
    one, bodies = service(lambda body: answer, tmp_path)
    for _ in range(2):
        told = r"NoReply: .* all of its 120 tokens .* services.partner.max_reply_tokens"
        with pytest.raises(PlayerFailed, match=told):
            run(one.reply(SHORT, 0))
    assert len(bodies) == 1 and one.ledger.totals["calls"] == 1


def without(name, value=...):
    whole = completion()
    for holder in (whole, whole["choices"][0], whole["choices"][0]["message"], whole["usage"]):
        if name in holder:
            del holder[name]
            if value is not ...:
                holder[name] = value
    return whole


@pytest.mark.parametrize(
    "answer",
    [
        completion(usage=None),
        completion(usage=(None, None)),
        {**completion(), "usage": {}},
        {**completion(), "usage": {"total_tokens": 7}},
        {**completion(), "usage": 7},
        completion(usage=(10**400, 12)),
        {**completion(), "error": None, "provider": "X"},
        *(without(name) for name in ("id", "object", "index", "role", "finish_reason", "prompt_tokens")),
        without("finish_reason", None),
        without("finish_reason", "eos"),
        completion(refusal=None, tool_calls=[], annotations=[]),
        completion(refusal="I had better not."),
        completion([{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": TURN}]),
        completion([{"type": "text", "text": TURN[:5]}, {"type": "text", "text": TURN[5:]}]),
        {**completion(), "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached": 1}}},
    ],
)
def test_a_reply_that_can_be_read_is_used(service, run, answer):
    one, bodies = service(lambda body: answer)
    assert run(one.reply(SHORT, 0)).text == TURN
    assert len(bodies) == 1


def test_tokens_that_are_unknown_or_impossible_cost_the_most_that_can_be(service, run):
    one, _ = service(lambda body: completion(usage=None), price=PRICE)
    for _ in range(2):  # the second time from the ledger
        assert run(one.reply(SHORT, 0)).text == TURN
    totals = one.ledger.totals
    assert (totals["calls_without_usage"], totals["unanswered"], totals["calls"]) == (1, 0, 1) and totals["dollars"] > 0
    cached = {"prompt_tokens": 1, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 10**9}}
    one, _ = service(lambda body: {**completion(), "usage": cached}, price=PRICE)
    run(one.reply(SHORT, 0))
    assert one.ledger.totals["dollars"] == pytest.approx(2e-6)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ({"error": {"message": "Provider returned error", "code": 502}}, "Provider returned error"),
        ({"choices": [], "error": {"message": "overloaded"}}, "overloaded"),
        (completion(7), "BadReply"),
        (completion({"text": TURN}), "BadReply"),
        (completion([7]), "BadReply"),
        (completion([{"type": "text", "text": TURN}, {"type": "image", "data": ""}]), "BadReply"),
        ({"choices": [{"message": 3}]}, "BadReply"),
        ({"choices": [None]}, "NoReply"),
        ([], "NoReply"),
        ("Hello", "NoReply"),
        (None, "NoReply"),
        (completion(None, "content_filter"), "NoReply: empty, content_filter"),
    ],
)
def test_what_is_no_reply_is_asked_for_again_and_told_in_the_services_words(service, run, answer, named):
    one, bodies = service(lambda body: answer, max_retries=1)
    with pytest.raises(PlayerFailed, match=named):
        run(one.reply(SHORT, 0))
    assert len(bodies) == 2


@pytest.mark.parametrize(
    ("error", "told", "calls"),
    [
        ({"code": 429, "message": "slow down"}, "is down: .* RateLimitError: Error code: 429 - slow down", 3),
        (
            {"code": "503", "message": "No provider"},
            "is down: .* InternalServerError: Error code: 503 - No provider",
            12,
        ),
        ({"message": "overloaded"}, "is down: .* overloaded", 12),
        ("overloaded", "is down: .* InternalServerError: Error code: 500", 12),
        ({"code": 402, "message": "Insufficient credits"}, "no quota left .*Insufficient credits", 1),
        ({"code": 401, "message": "User not found"}, "refuses the key in OPENAI_API_KEY", 1),
        ({"code": 404, "message": "No endpoints found"}, "has no model gpt-4.1", 1),
    ],
)
def test_an_error_that_comes_with_the_status_200_is_free_and_stops_the_run_as_its_own_status_does(
    service, run, monkeypatch, error, told, calls
):
    monkeypatch.setattr("slim_rl.players.limits.FIRST_PAUSE_SECONDS", 0.001)
    one, bodies = service(lambda body: {"error": error}, max_retries=0, price=PRICE)

    async def play():
        for seed in range(calls):
            with suppress(PlayerFailed):
                await one.reply(SHORT, seed)

    with pytest.raises(UserError, match=told):
        run(play())
    assert len(bodies) == calls
    assert one.ledger.totals["dollars"] == one.ledger.totals["refused_replies"] == 0


def test_a_dialogue_that_is_refused_with_the_status_200_fails_alone(service, run):
    told = {"error": {"code": 400, "message": "This model's maximum context length is 4096 tokens."}}
    one, bodies = service(lambda body: completion() if len(body["messages"][0]["content"]) < 100 else told)
    for _ in range(2):
        with pytest.raises(PlayerFailed, match=r"BadRequestError: .* maximum context length"):
            run(one.reply(LONG, 0))
    assert run(one.reply(SHORT, 0)).text == TURN
    assert [body["messages"] for body in bodies].count(LONG) == 1


@pytest.mark.parametrize(
    "reply",
    [
        f"<think>A reply is exactly one turn, [message] and what I say, or [accept].</think>{TURN}",
        f"\n<think>\n\n</think>\n\n{TURN}\n",
        f"[message] would be one turn, [accept] another.</think>\n{TURN}",
        f"<thinking>[accept]</thinking>\n{TURN}",
        f"[THINK][accept][/THINK]{TURN}",
        f"{TURN}<Thoughts>[accept]",
        f"<seed:think>[accept]</seed:think>{TURN}",
        f"<mm:think>[accept]</mm:think>{TURN}",
        f"◁think▷[accept]◁/think▷{TURN}",
        f"<|START_THINKING|>[accept]<|END_THINKING|>{TURN}",
        f"<|begin_of_thought|>[accept]<|end_of_thought|>{TURN}",
        f"<|channel|>analysis<|message|>[accept]<|end|><|start|>assistant<|channel|>final<|message|>{TURN}",
        f"{TURN}<think>Was that right? [accept]",
    ],
)
def test_a_thought_is_no_part_of_a_turn(service, run, reply):
    one, bodies = service(lambda body: completion(reply))
    player = ChatPlayer(one, "You are shy.", one_turn, seed=0)
    for _ in range(2):
        assert run(player.respond(heard("Partner: [message] Hi"))) == said(TURN)
    assert bodies[1]["messages"][2]["content"] == TURN
    assert len(bodies) == 2


def test_no_message_to_the_service_is_empty_and_a_recalled_dialogue_is_the_one_that_was_paid_for(service, run):
    """Some services refuse an empty message."""
    one, bodies = service(lambda body: completion(""))
    first, later = (ChatPlayer(one, "You are shy.", one_turn, seed=0) for _ in range(2))
    for _ in range(2):
        assert run(first.respond(heard("Partner: [message] Hi"))) == said("")
    assert [message["content"] for message in bodies[2]["messages"]] == [
        "You are shy.", "Partner: [message] Hi", "(nothing)", "Partner: [message] Hi",
    ]  # fmt: skip
    assert len(bodies) == 4 and all(message["content"] for body in bodies for message in body["messages"])
    later.recall(heard("Partner: [message] Hi"), said(""))
    run(later.respond(heard("Partner: [message] Hi")))
    assert len(bodies) == 4


DATES = {"retry-after": "Wed, 21 Oct 2099 07:28:09 GMT", "date": "Wed, 21 Oct 2099 07:28:00 GMT"}


@pytest.mark.parametrize(("headers", "seconds"), [({"retry-after": "0"}, None), (DATES, 9.0)])
def test_a_service_that_says_when_to_ask_again_is_given_a_pause(service, run, monkeypatch, headers, seconds):
    """After 0 seconds it would refuse again, so the pause doubles each time. A date is of the service's clock."""
    waits = []
    monkeypatch.setattr("slim_rl.players.limits.Limits.pause", lambda self, entered, seconds: waits.append(seconds))
    refusal = 429, {"error": {"message": "slow down", "type": []}}, headers
    one, bodies = service(lambda body: completion() if len(bodies) > 2 else refusal)
    assert run(one.reply(SHORT, 0)).text == TURN
    assert waits == [seconds] * 2
