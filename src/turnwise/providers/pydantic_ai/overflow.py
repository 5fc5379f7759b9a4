"""Overflow: how providers say that a prompt is longer than the context window, where pydantic-ai does not know it."""

from __future__ import annotations

import re
from typing import Final

_TOO_LARGE: Final = 413
_CODES: Final = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded", "request_too_large"}
)
_WORDS: Final = (
    "exceeds? (?:the )?context (?:length|limit|size|window)",  # Anthropic, OpenAI, Ollama
    "exceeds the available context size|context size has been exceeded",  # llama.cpp
    "prompt is too long|input is too long",  # Anthropic, Bedrock
    "prompt too long; exceeded",  # Ollama
    "input token count.{0,40}exceeds|exceeds the maximum number of tokens allowed",  # Gemini
    "maximum context length|model's maximum context limit",  # OpenAI, Mistral, OpenRouter, LiteLLM
    "maximum model length of",  # vLLM
    "input length .{0,40}exceeds the maximum (?:allowed input )?length",  # DeepSeek
    "(?:greater|longer) than the (?:model's )?context length",  # LM Studio, Together
    "maximum prompt length is",  # xAI
    "reduce the length of the messages|reduce your message size",  # Groq
    "context window exceeds limit",  # MiniMax
    "exceeded model token limit",  # Moonshot
    "prompt token count of .{0,40}exceeds the limit",  # Copilot
    "input tokens exceed the configured limit",  # OpenAI
    r"`inputs` tokens \+ `max_new_tokens` must be",  # Hugging Face
    "range of input length should be",  # Qwen
)
_SAYS_TOO_LONG: Final = re.compile("|".join(_WORDS))
_LIMIT_AND_REQUESTED: Final = re.compile(r"request too large\b.*?\blimit (\d{1,15}), requested (\d{1,15})\b", re.DOTALL)
"""How OpenAI and Groq refuse one request that takes more tokens than an account has for a minute."""


def says_too_long(text: str, status: int | None, *codes: str | None) -> bool:
    """Return whether a refusal says that the prompt was too long.

    Args:
        text: what the provider said.
        status: of HTTP.
        codes: the provider's code and type of the error.
    """
    return status == _TOO_LARGE or not _CODES.isdisjoint(codes) or _SAYS_TOO_LONG.search(text.lower()) is not None


def says_never_enough(text: str) -> bool:
    """Return whether a refusal for the rate says that this request alone exceeds it, however long one waits."""
    figures = _LIMIT_AND_REQUESTED.search(text.lower())
    return figures is not None and int(figures[2]) > int(figures[1])
