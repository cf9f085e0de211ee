"""Turns what a client sent into prompt tokens: chat messages, plain text, or token ids as they are."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from halcyon.errors import InvalidRequest

DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""For tokenizers without a chat template: one line a turn, named by its role. Says nothing that a base model would not have read."""


class PromptEncoder:
    """Encodes prompts for one tokenizer (a `PreTrainedTokenizerFast`)."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - transformers is not typed for us
        self._tokenizer = tokenizer
        self.has_chat_template = bool(tokenizer.chat_template)
        self._vocabulary_size = len(tokenizer)

    def text(self, text: str) -> tuple[int, ...]:
        """Plain text, with the special tokens that the tokenizer adds by default."""
        return self._checked(self._tokenizer(text)["input_ids"], "input")

    def messages(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """A conversation of {"role", "content"}, ending where the model's turn begins.

        Raises:
            InvalidRequest: the model's template does not take these messages.
        """
        try:
            prompt = self._tokenizer.apply_chat_template(
                messages,
                chat_template=None if self.has_chat_template else DEFAULT_TEMPLATE,
                add_generation_prompt=True,
                tokenize=False,
            )
        except TemplateError as error:
            raise InvalidRequest(
                "messages: the model's chat template does not take this conversation; "
                "check the roles and their order (system, then user and assistant in turn, is taken by most models)",
                param="messages",
            ) from error
        return self._checked(self._tokenizer(prompt, add_special_tokens=not self.has_chat_template)["input_ids"], "messages")

    def token_ids(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Ids as they are.

        Raises:
            InvalidRequest: an id outside the vocabulary.
        """
        wrong = next((token_id for token_id in token_ids if not 0 <= token_id < self._vocabulary_size), None)
        if wrong is not None:
            raise InvalidRequest(
                f"token_ids: {wrong} is no token of this model; expected 0 to {self._vocabulary_size - 1}", param="token_ids"
            )
        return self._checked(list(token_ids), "token_ids")

    def _checked(self, token_ids: list[int], field: str) -> tuple[int, ...]:
        if not token_ids:
            raise InvalidRequest(f"{field}: the prompt has no tokens; expected at least one", param=field)
        return tuple(token_ids)
