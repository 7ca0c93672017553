"""Checkpoint folders of Qwen as its users have them, without weights: special tokens, chat template, config.json.

The template says of a dialogue's beginning what Qwen3's does; the variants are those of its successors and of Qwen2.5.
"""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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


def qwen_checkpoint(folder):
    """Write the checkpoint that the folder's name says, without weights."""
    older = folder.name.startswith("Qwen2.5")
    qwen_tokenizer(*(("qwen2.5", ADDED[:8]) if older else ("qwen3", ADDED))).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIGS[folder.name]))
    return folder
