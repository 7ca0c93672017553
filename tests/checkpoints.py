"""Small checkpoints of several families, and folders of Qwen's without weights: special tokens, chat template, config.json.

The templates say what the families' own do, in fewer words.
"""

import json
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

SPECIAL = [f"<|{name}|>" for name in (
    "endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start",
    "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad",
)]  # fmt: skip
ADDED = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
         "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]  # fmt: skip
"""Not special to the tokenizer: decoding keeps them. Qwen2.5 has the first eight."""

_TOOLS = r"""# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>{%- for tool in tools %}{{ '\n' + (tool | tojson) }}{%- endfor %}{{ '\n' }}</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
_XML_TOOLS = _TOOLS.replace("return a json object with", "reply in XML with")
_DIALOGUE = (
    "{%- if tools %}{{ '<|im_start|>system\n' }}TOOLS{{ '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}BEGIN{%- endif %}"
)
_EMPTY_THOUGHT = (
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{%- endif %}"
)
_QWEN2 = r"""
{%- set given = messages[0].content if messages[0].role == 'system' else 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' %}
{{- '<|im_start|>system\n' + given }}
{%- if tools %}{{- '\n\n' }}TOOLS{% endif %}
{{- '<|im_end|>\n' }}
{%- for m in (messages[1:] if messages[0].role == 'system' else messages) %}
    {%- if m.role == 'tool' %}
        {%- if loop.previtem is not defined or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + m.role }}
        {%- if m.content or not m.tool_calls %}{{- '\n' + m.content }}{% endif %}
        {%- for call in m.tool_calls %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
TEMPLATES = {
    "qwen2.5": _QWEN2.replace("TOOLS", _TOOLS),
    "qwen3": _DIALOGUE.replace("TOOLS", _TOOLS).replace("BEGIN", _EMPTY_THOUGHT),
    "instruct-2507": _DIALOGUE.replace("TOOLS", _TOOLS).replace("BEGIN", ""),
    "thinking-2507": _DIALOGUE.replace("TOOLS", _TOOLS).replace("BEGIN", "{{ '<think>\n' }}"),
    "qwen3.5": _DIALOGUE.replace("TOOLS", _XML_TOOLS).replace("BEGIN", _EMPTY_THOUGHT),
}
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


_DENSE = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "num_key_value_heads": 8,
          "rms_norm_eps": 1e-6, "rope_theta": 1000000, "vocab_size": 151936}  # fmt: skip
_DENSE2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1000000}
CONFIGS = {
    "Qwen2.5-1.5B-Instruct": {**_DENSE2, "num_hidden_layers": 28, "hidden_size": 1536, "intermediate_size": 8960,
                              "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
                              "tie_word_embeddings": True},
    "Qwen2.5-Coder-7B-Instruct": {**_DENSE2, "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944,
                                  "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
                                  "tie_word_embeddings": False},
    "Qwen3-0.6B": {**_DENSE, "num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072,
                   "num_attention_heads": 16, "tie_word_embeddings": True},
    "Qwen3-4B": {**_DENSE, "num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728,
                 "num_attention_heads": 32, "tie_word_embeddings": True},
    "Qwen3-30B-A3B": {**_DENSE, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
                      "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
                      "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4,
                      "num_experts": 128, "num_experts_per_tok": 8, "tie_word_embeddings": False},
}  # fmt: skip


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


def qwen_tokenizer(template="qwen3", added=ADDED):
    """Every byte is a token; the special tokens are Qwen3's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(list(added))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATES[template]
    return fast


def qwen_checkpoint(folder: Path) -> Path:
    """Write the checkpoint that the folder's name says, without weights."""
    family = "qwen2.5" if folder.name.startswith("Qwen2.5") else "qwen3"
    chat_tokenizer(family).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIGS[folder.name]))
    return folder
