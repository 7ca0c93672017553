"""The chat formats of Qwen2.5, Qwen3, Llama 3 and SmolLM2: what their own chat templates say of a whole dialogue."""

import asyncio
import json
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import Llama3RendererConfig, create_renderer
from tokenizers import pre_tokenizers

from slim_rl.core.errors import UserError
from slim_rl.core.message import Message, Tool, heard
from slim_rl.engines.engine import Sampling
from slim_rl.players.config import ModelConfig
from slim_rl.players.policy import PolicyPlayer
from slim_rl.players.renderer import Renderer
from slim_rl.players.renderer import renderer_of as renderer_from
from tests.babbler import Scripted
from tests.checkpoints import FAMILIES, chat_tokenizer
from tests.echo import TOOLS

PROFILE = yaml.safe_load((Path(__file__).parents[2] / "conf/smollm2-135m-calculator.yaml").read_text())
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
TOKENIZERS = {family: chat_tokenizer(family) for family in FAMILIES}
FORMATS = [*product(("qwen2.5", "qwen3"), (False, True)), ("llama3", False), ("smollm2", False)]
_PLAIN = FAMILIES["smollm2"][2]
LOOK = {"name": "look", "arguments": {"at": "3 < 4"}}
HERMES = f"<tool_call>\n{json.dumps(LOOK)}\n</tool_call>"
BARE = json.dumps({"name": LOOK["name"], "parameters": LOOK["arguments"]})
WITH_TOOLS = [("qwen2.5", HERMES), ("qwen3", HERMES), ("llama3", BARE), ("smollm2, given tools", json.dumps(LOOK))]
TOKENIZERS["smollm2, given tools"] = chat_tokenizer("smollm2", chat_template=PROFILE["model"]["chat_template"])


@cache
def renderer_of(family, thinking):
    return Renderer(TOKENIZERS[family], thinking)


def whole(tokenizer, dialogue, tools=(), **options):
    """The dialogue as the checkpoint's own template renders it at once, up to the model's next turn."""
    return tokenizer.apply_chat_template(
        dialogue,
        tools=list(tools) or None,
        add_generation_prompt=True,
        return_dict=False,
        chat_template="{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}" + tokenizer.chat_template,
        **options,
    )


def renderer_with(template):
    """The renderer of SmolLM2's tokenizer with another chat template."""
    return Renderer(chat_tokenizer("smollm2", chat_template=template), False)


# Turn by turn as at once

TEXT = st.text(st.sampled_from("ab 12\n.é漢🙂{}"), max_size=20)
SAID = TEXT.map(str.strip)


@pytest.mark.parametrize(("family", "thinking"), FORMATS)
@settings(max_examples=40, deadline=None)
@given(system=st.none() | TEXT, first=TEXT, turns=st.lists(st.tuples(SAID, TEXT), max_size=3))
def test_a_dialogue_turn_by_turn_has_the_tokens_of_the_whole_one(family, thinking, system, first, turns):
    tokenizer, renderer = TOKENIZERS[family], renderer_of(family, thinking)
    begin = [] if system is None else [Message("system", system)]
    ids = renderer.opening([*begin, *heard(first)])
    for said, answer in turns:
        ids += renderer.turn(said) + renderer.continuation(heard(answer))
    dialogue = [{"role": m.role, "content": m.text} for m in (*begin, *heard(first))]
    for said, answer in turns:
        dialogue += [{"role": "assistant", "content": said}, {"role": "user", "content": answer}]
    if family == "qwen3" and not thinking:  # its template drops the empty thoughts of earlier turns
        marked = [m | {"content": EMPTY_THOUGHT + m["content"]} if m["role"] == "assistant" else m for m in dialogue]
        assert ids == whole(tokenizer, marked, enable_thinking=False)
    else:
        assert ids == whole(tokenizer, dialogue, enable_thinking=thinking)


@pytest.mark.parametrize(("family", "thinking"), FORMATS)
def test_what_is_trained_on_is_what_was_sent_and_sampled(family, thinking):
    """Turns that no encoder would give, one that is cut, and one that ends with another of the model's end tokens."""
    tokenizer, renderer = TOKENIZERS[family], renderer_of(family, thinking)
    closed, other = renderer.stop_token_ids[:2]
    letters = tokenizer.convert_tokens_to_ids(list("hello"))
    turns = [[*letters, closed], letters, [*letters, other], [closed]]
    engine = Scripted(turns)
    player = PolicyPlayer(engine, renderer, Sampling(5, 1.0))
    said = [asyncio.run(player.respond(heard(f"Number {n}"))).text for n in range(len(turns))]
    assert said == ["hello", "hello", "hello", ""]
    ids, mask = player.trace.token_ids, player.trace.loss_mask
    for sent, turn in zip(engine.asked, turns, strict=True):
        assert ids[: len(sent) + len(turn)] == sent + turn
        assert mask[len(sent) : len(sent) + len(turn)] == [1] * len(turn)
    assert sum(mask) == sum(map(len, turns))
    assert ids[len(engine.asked[1]) + len(letters)] == closed  # the cut turn was closed, and that is not trained


@pytest.mark.parametrize("family", FAMILIES)
def test_markers_that_are_spelled_stay_text(family):
    tokenizer = TOKENIZERS[family]
    renderer = Renderer(tokenizer, False)
    markers = FAMILIES[family][0] + FAMILIES[family][1]
    text = "Well " + "".join(markers) + " said"
    plain, ids = renderer.continuation(heard("A")), renderer.continuation(heard(text))
    assert tokenizer.decode(ids) == tokenizer.decode(plain).replace("A", text)
    numbers = set(tokenizer.convert_tokens_to_ids(markers))
    assert [i for i in ids if i in numbers] == [i for i in plain if i in numbers]


def test_a_special_token_of_any_look_stays_text_where_it_is_spelled():
    tokenizer = chat_tokenizer("smollm2", chat_template=FAMILIES["smollm2"][2].replace("<|im_end|>", "[END]"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["[END]"]})
    renderer = Renderer(tokenizer, False)
    ids = renderer.continuation(heard("Well [END]"))
    assert tokenizer.decode(ids).count("[END]") == 2
    assert ids.count(tokenizer.convert_tokens_to_ids("[END]")) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_system_prompt_takes_the_place_of_the_templates_own(family):
    tokenizer = TOKENIZERS[family]
    renderer = Renderer(tokenizer, True, system_prompt="Play well. {game}")
    ids = renderer.opening([Message("system", "Chess."), Message("user", "Hi")])
    dialogue = [{"role": "system", "content": "Play well. Chess."}, {"role": "user", "content": "Hi"}]
    assert ids == whole(tokenizer, dialogue, enable_thinking=True)
    assert "You are" not in tokenizer.decode(ids)


def test_llama_3_has_the_tokens_of_the_librarys_own_renderer():
    tokenizer, tool = TOKENIZERS["llama3"], TOOLS[1]
    ours, library = Renderer(tokenizer, False), create_renderer(tokenizer, Llama3RendererConfig())
    begin = [Message("system", "Be brief."), Message("user", "Hi")]
    dicts = [{"role": m.role, "content": m.text} for m in begin]
    for tools in ((), (tool,)):
        specs = [json.loads(ours.spec(tool)) for tool in tools] or None
        assert ours.opening(begin, tools) == library.render_ids(dicts, tools=specs, add_generation_prompt=True)
    assert list(ours.stop_token_ids) == library.get_stop_token_ids()
    results = [{"role": "tool", "content": "7"}, {"role": "user", "content": "And?"}]
    turn = ours.turn("It is 7.")
    bridged = library.bridge_to_next_turn(ours.opening(begin), turn, results).token_ids
    after = ours.continuation([Message("tool", "7"), Message("user", "And?")])
    assert ours.opening(begin) + turn + after == bridged


def test_no_opening_tells_todays_date():
    """It would be another one tomorrow, and so would the episodes be."""
    tokenizer = chat_tokenizer("smollm2", chat_template="{{ strftime_now('%Y-%m-%d') }}" + _PLAIN)
    assert tokenizer.decode(Renderer(tokenizer, False).opening(heard("Hi"))).startswith("26 Jul 2024<|im_start|>")


# Tools


@pytest.mark.parametrize(("family", "written"), WITH_TOOLS)
def test_a_call_and_its_results_are_written_and_read_as_the_template_says(family, written):
    tokenizer = TOKENIZERS[family]
    renderer = Renderer(tokenizer, True)
    turn = renderer.turn(HERMES)
    assert tokenizer.decode(turn[:-1]) == written
    [call] = renderer.parse(turn).tool_calls
    assert (call.name, call.arguments, call.status) == (LOOK["name"], LOOK["arguments"], "ok")
    assert set(renderer.call_token_ids) & set(turn)
    if family == "qwen3":  # of its template only the beginning is made here; test_renderer.py has the rest
        return
    results = [Message("tool", "7"), Message("tool", "<8>")]
    ids = renderer.opening(heard("Hi"), TOOLS) + turn + renderer.continuation(results) + renderer.turn("It is 7.")
    ids += renderer.continuation(heard("Sure?"))
    dialogue = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": LOOK}]},
        *({"role": "tool", "content": result.text} for result in results),
        {"role": "assistant", "content": "It is 7."},
        {"role": "user", "content": "Sure?"},
    ]
    assert ids == whole(tokenizer, dialogue, [json.loads(renderer.spec(tool)) for tool in TOOLS])


def test_a_template_of_ones_own_takes_the_place_of_the_checkpoints():
    tokenizer = chat_tokenizer("smollm2")
    opening = renderer_from(ModelConfig(**PROFILE["model"]), tokenizer).opening(heard("Hi"), TOOLS)
    assert opening == renderer_of("smollm2, given tools", False).opening(heard("Hi"), TOOLS)
    assert tokenizer.chat_template == PROFILE["model"]["chat_template"]  # so it is saved with what is trained


def test_the_tiny_model_takes_no_template():
    with pytest.raises(ValueError, match="chat_template replaces that of a checkpoint"):
        ModelConfig(chat_template=PROFILE["model"]["chat_template"])


@pytest.mark.parametrize(
    "text",
    ["Look: " + BARE, '{"name": "Ava"}', '{"name": "look", "parameters": [1]}', '{"name": "look", "parameters": {',
     '{"move": 3}', "{}", "[1]"],
)  # fmt: skip
def test_what_is_not_a_whole_call_of_llama_3_is_text(text):
    renderer = Renderer(TOKENIZERS["llama3"], False)
    assert renderer.parse(renderer.turn(text)) == Message("assistant", text)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("smollm2", {}),
        ("qwen2.5", {"chat_template": FAMILIES["qwen2.5"][2].replace('"arguments": ', '"with" - ')}),
        ("qwen2.5", {"chat_template": FAMILIES["qwen2.5"][2].replace("<tool_response>", "' ~ loop.index ~ '")}),
    ],
)
def test_tools_are_refused_where_the_template_has_none_that_can_be_used(family, changes):
    renderer = Renderer(chat_tokenizer(family, **changes), False)
    assert renderer.opening(heard("Hi")) and not renderer.call_token_ids
    with pytest.raises(UserError, match=r"The game has tools \(look\), but the checkpoint's chat template has none"):
        renderer.opening(heard("Hi"), [Tool("look", "Looks.", {})])


# What cannot be used

REWRITING = {
    # DeepSeek-R1-Distill-Qwen as first published, QwQ-32B, Nemotron Nano: the thoughts of every turn, or of past ones.
    "R1-Distill": _PLAIN.replace("m.content +", "m.content.split('</think>')[-1] +"),
    "R1-Distill, later": _PLAIN.replace("m.content +", "m.content.split('</think>')[-1] +").replace(
        "assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif"),
    "QwQ": _PLAIN.replace("m.content +", "(m.content if loop.last else m.content.split('</think>')[-1].lstrip()) +"),
    "EXAONE Deep": _PLAIN.replace("m.content +", "(m.content | replace('<think>', '') if not loop.last else m.content) +"),
    "with a system message alone": _PLAIN.replace(
        "m.content +", "(m.content.split('</think>')[-1] if messages[0].role == 'system' else m.content) +"),
    # Mistral 7B v0.3: the system message stands in the last user turn.
    "Mistral": "{% for m in messages %}{% if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "joins users": _PLAIN.replace("+ m.role +", "+ (m.role if not loop.last or loop.length != 6 else 'human') +"),
    "forgets turns": _PLAIN.replace("m.content +", "(m.content if loop.last or m.role != 'assistant' else '') +"),
    "numbers users": _PLAIN.replace("+ m.role +", "+ m.role ~ (loop.index if m.role == 'user' else '') +"),
    "ends no turn": _PLAIN.replace("<|im_end|>", ""),
    "counts turns": _PLAIN.replace("<|im_end|>", "<|im_end|>' ~ (loop.length if loop.first) ~ '"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (None, "has no chat template.*Instruct"),
        *((template, "turn by turn is not the one that it renders at once") for template in REWRITING.values()),
        ("{{ raise_exception('no games') }}", "cannot render the dialogue: no games"),
        ("{% if", "cannot render the dialogue: unexpected 'end of template'"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_in_a_sentence(template, sentence):
    with pytest.raises(UserError, match=sentence):
        renderer_with(template)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ messages[0].content + 1 }}", "cannot render the dialogue: can only concatenate str"),
        ({"chat": _PLAIN, "tools": _PLAIN}, r"cannot render the dialogue: .*multiple chat templates.*[^.]\.$"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_where_the_markers_are_qwen3s_too(template, sentence):
    with pytest.raises(UserError, match=sentence):
        Renderer(chat_tokenizer("qwen3", chat_template=template), False)


@pytest.mark.parametrize(
    ("begins", "opening", "sentence"),
    [
        ("{% if messages[-1].role == 'tool' %}Tools!{% endif %}", [], "turn by turn is not the one"),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}",
         [Message("system", "Be brief.")], "cannot render the dialogue: no system"),
    ],
)  # fmt: skip
def test_a_dialogue_that_the_template_does_not_allow_is_refused_where_it_begins(begins, opening, sentence):
    renderer = renderer_with(begins + _PLAIN)
    assert renderer.continuation(heard("Hi"))
    with pytest.raises(UserError, match=sentence):
        renderer.opening([*opening, *heard("Hi")]) if opening else renderer.continuation([Message("tool", "7")])


def test_a_tokenizer_that_puts_spaces_into_what_is_cut_is_refused():
    """Its markers could not be told from text that spells them without another text."""
    bare = "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}<|im_start|>"
    tokenizer = chat_tokenizer("smollm2", chat_template=bare)
    assert Renderer(tokenizer, False).opening(heard("Hi"))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with pytest.raises(UserError, match="cannot be used"):
        Renderer(tokenizer, False)
