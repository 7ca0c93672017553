"""Small checkpoints of other families: the special tokens and chat templates of their tokenizers, random weights.

The templates say what the families' own do, in fewer words.
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    set_seed,
)

from tests.slime.checkpoints import ADDED, SPECIAL, TEMPLATES

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEXT = "system\nuser\nassistant\n\nYou are a helpful assistant. The words of it: hello, there, 1 2 3.\n\n" * 3

_CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nDEFAULT<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA3 = r"""
{%- macro said(role) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + caller() + '<|eot_id|>' }}{% endmacro %}
{%- set given = messages[0].content | trim if messages[0].role == 'system' else '' %}
{%- set messages = messages[1:] if messages[0].role == 'system' else messages %}
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools %}{{- 'Environment: ipython\n' }}{% endif %}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: ' + strftime_now('%d %b %Y') + '\n\n' + given + '<|eot_id|>' }}
{%- for m in messages %}
    {%- if loop.first and tools %}
        {{- '<|start_header_id|>user<|end_header_id|>\n\nGiven the following functions, please respond with a JSON for a function call with its proper arguments that best answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of argument name and its value}.Do not use variables.\n\n' }}
        {%- for tool in tools %}{{- tool | tojson(indent=4) + '\n\n' }}{% endfor %}
        {{- m.content | trim + '<|eot_id|>' }}
    {%- elif m.role == 'tool' %}{% call said('ipython') %}{{- m.content | tojson }}{% endcall %}
    {%- elif m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
        {%- set called = m.tool_calls[0].function %}
        {%- call said('assistant') %}{{- '{"name": "' + called.name + '", "parameters": ' + called.arguments | tojson + '}' }}{% endcall %}
    {%- else %}{% call said(m.role) %}{{- m.content | trim }}{% endcall %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""
_LLAMA3_SPECIAL = [f"<|{name}|>" for name in (
    "begin_of_text", "end_of_text", "reserved_special_token_0", "finetune_right_pad_id", "start_header_id",
    "end_header_id", "eom_id", "eot_id", "python_tag",
)]  # fmt: skip
_SMOLLM2_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>"]

FAMILIES = {
    "qwen2.5": (SPECIAL, ADDED[:8], TEMPLATES["qwen2.5"],
                dict(eos_token="<|im_end|>", pad_token="<|endoftext|>")),
    "qwen3": (SPECIAL, ADDED, TEMPLATES["qwen3"], dict(eos_token="<|im_end|>", pad_token="<|endoftext|>")),
    "llama3": (_LLAMA3_SPECIAL, [], _LLAMA3, dict(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")),
    "smollm2": (_SMOLLM2_SPECIAL, [],
                _CHATML.replace("DEFAULT", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
                dict(bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<|endoftext|>", pad_token="<|im_end|>")),
}  # fmt: skip
"""Special tokens, other added tokens, chat template and names of the tokenizers."""


def chat_tokenizer(family: str, **changes: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE of a few hundred tokens; `changes` are its other attributes, such as `chat_template`."""
    special, added, template, names = FAMILIES[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.chat_template = template
    for name, value in changes.items():
        setattr(fast, name, value)
    return fast


def chat_checkpoint(folder: Path, family: str) -> Path:
    """A checkpoint of `family` with random weights, fewer than 100,000, in `folder`."""
    tokenizer = chat_tokenizer(family)
    shape = dict(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
                 tie_word_embeddings=family != "llama3", eos_token_id=tokenizer.eos_token_id)  # fmt: skip
    set_seed(0)
    kinds = {"qwen2.5": (Qwen2ForCausalLM, Qwen2Config), "qwen3": (Qwen3ForCausalLM, Qwen3Config)}
    make, config = kinds.get(family, (LlamaForCausalLM, LlamaConfig))
    make(config(**shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
