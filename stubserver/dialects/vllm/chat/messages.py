"""What a message may look like: the union of shapes that vLLM 0.32.0 takes.

They are openai's typed dicts (3.57), vLLM's own (`renderers/chat_utils.py`), and harmony's message. The names, the
order of the branches and that of their keys count: an error tells of every branch by its name. Contents and tool calls
of openai's shapes are iterables, which pydantic looks into only when they are read: what is wrong with a part shows
then, in another form (`ValidatorIterator`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Literal, Required, TypeAlias, get_args

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypedDict

# Parts of a content, openai's -----------------------------------------------------------------------------------------


class PromptCacheBreakpoint(TypedDict, total=False):
    """Where a prefix that is used again ends."""

    mode: Required[Literal["explicit"]]
    ttl: Literal["30m", "12h"]


class ChatCompletionContentPartTextParam(TypedDict, total=False):
    """Text."""

    text: Required[str]
    type: Required[Literal["text"]]
    prompt_cache_breakpoint: PromptCacheBreakpoint


class ImageURL(TypedDict, total=False):
    """Where an image is."""

    url: Required[str]
    detail: Literal["auto", "low", "high", "original"]


class ChatCompletionContentPartImageParam(TypedDict, total=False):
    """An image."""

    image_url: Required[ImageURL]
    type: Required[Literal["image_url"]]
    prompt_cache_breakpoint: PromptCacheBreakpoint


class InputAudio(TypedDict, total=False):
    """A recording, in base64."""

    data: Required[str]
    format: Required[Literal["wav", "mp3"]]


class ChatCompletionContentPartInputAudioParam(TypedDict, total=False):
    """Sound."""

    input_audio: Required[InputAudio]
    type: Required[Literal["input_audio"]]
    prompt_cache_breakpoint: PromptCacheBreakpoint


class FileFile(TypedDict, total=False):
    """What is in a file, or its id."""

    file_data: str
    file_id: str
    filename: str


class File(TypedDict, total=False):
    """A file."""

    file: Required[FileFile]
    type: Required[Literal["file"]]
    prompt_cache_breakpoint: PromptCacheBreakpoint


class ChatCompletionContentPartRefusalParam(TypedDict, total=False):
    """What a model said when it refused."""

    refusal: Required[str]
    type: Required[Literal["refusal"]]


OpenAIContentPart: TypeAlias = (
    ChatCompletionContentPartTextParam
    | ChatCompletionContentPartImageParam
    | ChatCompletionContentPartInputAudioParam
    | File
)

# Parts of a content, vLLM's -------------------------------------------------------------------------------------------


class AudioURL(TypedDict, total=False):
    """Where a recording is."""

    url: Required[str]


class ChatCompletionContentPartAudioParam(TypedDict, total=False):
    """Sound, by its address."""

    audio_url: Required[AudioURL]
    type: Required[Literal["audio_url"]]


class VideoURL(TypedDict, total=False):
    """Where a film is."""

    url: Required[str]


class ChatCompletionContentPartVideoParam(TypedDict, total=False):
    """A film."""

    video_url: Required[VideoURL]
    type: Required[Literal["video_url"]]


Embeds: TypeAlias = str | dict[str, str | list[int | float]]


class ChatCompletionContentPartImageEmbedsParam(TypedDict, total=False):
    """An image's embeddings."""

    image_embeds: Embeds | None
    type: Required[Literal["image_embeds"]]
    uuid: str | None


class ChatCompletionContentPartAudioEmbedsParam(TypedDict, total=False):
    """A recording's embeddings."""

    audio_embeds: Embeds | None
    type: Required[Literal["audio_embeds"]]
    uuid: str | None


class ChatCompletionContentPartVideoEmbedsParam(TypedDict, total=False):
    """A film's embeddings."""

    video_embeds: Embeds | None
    type: Required[Literal["video_embeds"]]
    uuid: str | None


class ChatCompletionContentPartPromptEmbedsParam(TypedDict, total=False):
    """Embeddings in the place of text."""

    data: Required[str]
    type: Required[Literal["prompt_embeds"]]


class Image:
    """PIL's; none comes in JSON."""


class PILImage(BaseModel, arbitrary_types_allowed=True):
    """An image as an object."""

    image_pil: SkipJsonSchema[Image]


class CustomChatCompletionContentPILImageParam(TypedDict, total=False):
    """An image as an object, for who calls vLLM from Python."""

    image_pil: PILImage | None
    uuid: str | None


class CustomChatCompletionContentSimpleImageParam(TypedDict, total=False):
    """An image's address alone."""

    image_url: str | None
    uuid: str | None


class CustomChatCompletionContentSimpleAudioParam(TypedDict, total=False):
    """A recording's address alone."""

    audio_url: str | None


class CustomChatCompletionContentSimpleVideoParam(TypedDict, total=False):
    """A film's address alone."""

    video_url: str | None
    uuid: str | None


class CustomThinkCompletionContentParam(TypedDict, total=False):
    """What a model thought."""

    thinking: Required[str]
    closed: bool
    type: Required[Literal["thinking"]]


class CustomChatCompletionContentToolReferenceParam(TypedDict, total=False):
    """A tool's name."""

    name: str
    type: Literal["tool_reference"]


VLLMContentPart: TypeAlias = (
    OpenAIContentPart
    | ChatCompletionContentPartAudioParam
    | ChatCompletionContentPartInputAudioParam
    | ChatCompletionContentPartVideoParam
    | ChatCompletionContentPartRefusalParam
    | CustomChatCompletionContentPILImageParam
    | CustomChatCompletionContentSimpleImageParam
    | ChatCompletionContentPartImageEmbedsParam
    | ChatCompletionContentPartAudioEmbedsParam
    | ChatCompletionContentPartVideoEmbedsParam
    | ChatCompletionContentPartPromptEmbedsParam
    | CustomChatCompletionContentSimpleAudioParam
    | CustomChatCompletionContentSimpleVideoParam
    | CustomChatCompletionContentToolReferenceParam
    | str
    | CustomThinkCompletionContentParam
)

PART_KEYS: frozenset[str] = frozenset().union(
    *(each.__annotations__ for each in get_args(VLLMContentPart) if each is not str)
)
"""Every key that a part may have; others are the client's own, and reach the template."""

# Calls of tools, and tools --------------------------------------------------------------------------------------------


class CalledFunction(TypedDict, total=False):
    """The function that was called."""

    arguments: Required[str]
    name: Required[str]


class ChatCompletionMessageFunctionToolCallParam(TypedDict, total=False):
    """A call of a function."""

    id: Required[str]
    function: Required[CalledFunction]
    type: Required[Literal["function"]]


class CalledCustom(TypedDict, total=False):
    """The custom tool that was called."""

    input: Required[str]
    name: Required[str]


class ChatCompletionMessageCustomToolCallParam(TypedDict, total=False):
    """A call of a custom tool."""

    id: Required[str]
    custom: Required[CalledCustom]
    type: Required[Literal["custom"]]


class DefinedFunction(TypedDict, total=False):
    """A function that may be called."""

    name: Required[str]
    description: str
    parameters: dict[str, object]
    strict: bool | None


class ChatCompletionFunctionToolParam(TypedDict, total=False):
    """A tool in a developer's message."""

    function: Required[DefinedFunction]
    type: Required[Literal["function"]]


# Messages, openai's ---------------------------------------------------------------------------------------------------


class ChatCompletionDeveloperMessageParam(TypedDict, total=False):
    """By a developer."""

    content: Required[str | Iterable[ChatCompletionContentPartTextParam]]
    role: Required[Literal["developer"]]
    name: str


class ChatCompletionSystemMessageParam(TypedDict, total=False):
    """By the system."""

    content: Required[str | Iterable[ChatCompletionContentPartTextParam]]
    role: Required[Literal["system"]]
    name: str


class ChatCompletionUserMessageParam(TypedDict, total=False):
    """By a user."""

    content: Required[str | Iterable[OpenAIContentPart]]
    role: Required[Literal["user"]]
    name: str


class Audio(TypedDict, total=False):
    """What a model said aloud."""

    id: Required[str]


class FunctionCall(TypedDict, total=False):
    """The older way to call."""

    arguments: Required[str]
    name: Required[str]


class ChatCompletionAssistantMessageParam(TypedDict, total=False):
    """By a model."""

    role: Required[Literal["assistant"]]
    audio: Audio | None
    content: str | Iterable[ChatCompletionContentPartTextParam | ChatCompletionContentPartRefusalParam] | None
    function_call: FunctionCall | None
    name: str
    refusal: str | None
    tool_calls: Iterable[ChatCompletionMessageFunctionToolCallParam | ChatCompletionMessageCustomToolCallParam]


class ChatCompletionToolMessageParam(TypedDict, total=False):
    """What a tool gave."""

    content: Required[str | Iterable[ChatCompletionContentPartTextParam]]
    role: Required[Literal["tool"]]
    tool_call_id: Required[str]


class ChatCompletionFunctionMessageParam(TypedDict, total=False):
    """What a function gave, the older way."""

    content: Required[str | None]
    name: Required[str]
    role: Required[Literal["function"]]


# Messages, vLLM's and harmony's ---------------------------------------------------------------------------------------


class CustomChatCompletionMessageParam(TypedDict, total=False):
    """By whomever."""

    role: Required[str]
    content: str | list[VLLMContentPart]
    name: str
    tool_call_id: str | None
    tool_calls: list[ChatCompletionMessageFunctionToolCallParam] | None
    reasoning: str | None
    tools: list[ChatCompletionFunctionToolParam] | None
    task: str | None


class Role(StrEnum):
    """Harmony's roles."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    DEVELOPER = "developer"
    TOOL = "tool"


class Author(BaseModel):
    """Who wrote it."""

    role: Role
    name: str | None = None


class Content(BaseModel):
    """What was written: any object."""


class Message(BaseModel):
    """Harmony's message; vLLM fails on it, having taken it."""

    author: Author
    content: list[Content] = Field(default_factory=list)
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None


ChatMessage: TypeAlias = (
    ChatCompletionDeveloperMessageParam
    | ChatCompletionSystemMessageParam
    | ChatCompletionUserMessageParam
    | ChatCompletionAssistantMessageParam
    | ChatCompletionToolMessageParam
    | ChatCompletionFunctionMessageParam
    | CustomChatCompletionMessageParam
    | Message
)

Conversation: TypeAlias = Sequence[Any]
"""Messages, checked: each a dict, its parts still to be read (once), or harmony's Message."""
