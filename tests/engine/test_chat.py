"""Prompts: the template where there is one, a plain one where there is none, ids as they are."""

from __future__ import annotations

import pytest

from halcyon.engine.chat import PromptEncoder
from halcyon.engine.loading import LoadedModel
from halcyon.errors import InvalidRequest

TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé?"}]


@pytest.fixture
def prompts(tiny: LoadedModel) -> PromptEncoder:
    """The tiny model's prompts."""
    return PromptEncoder(tiny.tokenizer)


def test_plain_text_begins_as_the_tokenizer_begins(prompts: PromptEncoder, tiny: LoadedModel) -> None:
    """Text gets the begin token that the tokenizer adds by default, once."""
    assert prompts.text("Hi")[0] == tiny.tokenizer.bos_token_id
    assert len(prompts.text("Hi")) == 3


def test_a_tokenizer_without_template_gets_a_plain_one(prompts: PromptEncoder, tiny: LoadedModel) -> None:
    """Each turn is a line named by its role, and the prompt ends where the assistant speaks."""
    assert not prompts.has_chat_template
    text = tiny.tokenizer.decode(prompts.messages(TALK), skip_special_tokens=True)
    assert text == "system: Be brief.\nuser: Hé?\nassistant:"


def test_the_tokenizer_s_own_template_is_used(tiny: LoadedModel) -> None:
    """With a template, exactly what it renders is encoded: no second begin token."""
    import copy

    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    ids = PromptEncoder(tokenizer).messages(TALK)
    assert tokenizer.decode(ids) == "<s>Be brief.<s>Hé?>"


def test_a_template_that_refuses_is_the_client_s_error(tiny: LoadedModel) -> None:
    """A template that raises on the roles ends in invalid_request naming `messages`, without a word of the conversation."""
    import copy

    tokenizer = copy.deepcopy(tiny.tokenizer)
    tokenizer.chat_template = "{{ raise_exception('no system: ' + messages[0]['content']) }}"
    with pytest.raises(InvalidRequest) as refused:
        PromptEncoder(tokenizer).messages(TALK)
    assert refused.value.param == "messages"
    assert "Be brief" not in str(refused.value)


def test_ids_outside_the_vocabulary_are_refused(prompts: PromptEncoder) -> None:
    """Ids pass verbatim; one that is no token, or none at all, is named."""
    assert prompts.token_ids((5, 6, 256)) == (5, 6, 256)
    for wrong in ((5, 259), (-1,), ()):
        with pytest.raises(InvalidRequest, match="token_ids"):
            prompts.token_ids(wrong)
