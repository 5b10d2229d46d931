"""The settings, declared once: flags, environment variables, keys of a script file and their docs all come from here.

Names and meanings are those of `vllm serve`. What is set where wins in this order: flag, environment variable
(`STUBSERVER_` + the name in capitals), key of the script file, default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic import ValidationError as PydanticError

from stubserver.config.profile import Profile, ProfileSetting
from stubserver.errors import SettingsError
from stubserver.sampling.logprobs import LogprobsMode

ENV_PREFIX = "STUBSERVER_"


def _one_or_more(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str) and value[0].startswith("["):
        value = value[0]
    if isinstance(value, str) and value.startswith("["):
        return json.loads(value)
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _json_object(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_more, json_schema_input_type=str | tuple[str, ...])]
"""One string or a list; in an environment variable, separated by commas, or JSON text of a list."""

ModelRunner = Literal["v1", "v2"]

_PACES = {"instant": 0.0, "recorded": 1.0}

Pace = Annotated[float, BeforeValidator(lambda value: _PACES.get(value, value) if isinstance(value, str) else value)]
"""A factor of recorded delays, or a word for one."""

JsonObject = Annotated[dict[str, Any], BeforeValidator(_json_object)]
"""An object; as a flag or an environment variable, JSON text."""


class GenerationDefaults(BaseModel):
    """What requests get that leave a field out. `max_new_tokens` also caps max_tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_new_tokens: int | None = Field(default=None, ge=1)


class StructuredOutputsConfig(BaseModel):
    """How structured outputs are made. `auto`: xgrammar, and guidance for what vLLM knows that xgrammar can't do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Literal["auto", "xgrammar", "guidance"] = "auto"
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    @model_validator(mode="after")
    def _check_backend(self) -> Self:
        """Refuse what vLLM has for other backends only."""
        if self.disable_any_whitespace and self.backend == "auto":
            raise ValueError("disable_any_whitespace is only supported for xgrammar and guidance backends.")
        if self.disable_additional_properties and self.backend != "guidance":
            raise ValueError("disable_additional_properties is only supported for the guidance backend.")
        return self


class Settings(BaseModel):
    """How the server behaves. The script says what the model says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    served_model_name: Names = Field(
        ("stub",),
        min_length=1,
        description="The names that a request's `model` may have. The first one is shown in replies.",
    )
    tokenizer: str = Field(
        "builtin",
        description="`builtin`, a tokenizer.json, or a directory with one. In a script file, relative to that file.",
    )
    max_model_len: int = Field(4096, ge=1, description="Context length: prompt and output tokens together.")
    max_logprobs: int = Field(
        20, ge=-1, description="Most `logprobs` that a request may ask for; -1 allows the whole vocabulary."
    )
    logprobs_mode: LogprobsMode = Field(
        "raw_logprobs",
        description="What logprobs report: before (`raw_`) or after (`processed_`) masks, penalties, temperature and "
        "top-k/top-p; `_logits` instead of `_logprobs` for unnormalised values.",
    )
    api_key: Names = Field(
        (),
        description="Keys; a request to /v1/*, /v2/*, /inference/*, /cohere/* or /stub/* must carry one as bearer "
        "token.",
    )
    root_path: str = Field(
        "", description="Beginning of paths that a proxy leaves there, such as `/api`; paths without it are served too."
    )
    allowed_origins: Names = Field(
        (), description="Origins whose pages may read replies in a browser (CORS), or `*`; as with vLLM, none at first."
    )
    allowed_methods: Names = Field(("*",), description="Methods that such a page may use.")
    allowed_headers: Names = Field(("*",), description="Headers that such a page may send.")
    allow_credentials: bool = Field(False, description="Let such a page send cookies and the like.")
    enable_request_id_headers: bool = Field(
        False, description="Send `X-Request-Id` with every reply: the request's own, or a random one."
    )
    disable_fastapi_docs: bool = Field(False, description="Serve neither /openapi.json nor /docs and /redoc.")
    embeddings_endpoint: bool = Field(
        True,
        description="Serve /v1/embeddings, which vLLM has only where an embedding model is served and no other. "
        "Without it, it is a 404, as there.",
    )
    enable_tokenizer_info_endpoint: bool = Field(False, description="Serve /tokenizer_info, which is a 404 otherwise.")
    chat_template: str = Field(
        "", description="A file with the chat template, or the template itself, in place of the tokenizer's own."
    )
    return_tokens_as_token_ids: bool = Field(
        False, description="Show tokens as `token_id:N` in logprobs, unless the request says otherwise."
    )
    enable_force_include_usage: bool = Field(False, description="Send usage in every stream, asked for or not.")
    enable_prompt_tokens_details: bool = Field(False, description="Report `prompt_tokens_details` in usage.")
    override_generation_config: Annotated[GenerationDefaults, BeforeValidator(_json_object)] = Field(
        GenerationDefaults(),
        description="Defaults for requests that leave a field out: temperature, top_k, top_p, min_p, "
        "repetition_penalty, presence_penalty, frequency_penalty; `max_new_tokens` also caps max_tokens.",
    )
    structured_outputs_config: Annotated[StructuredOutputsConfig, BeforeValidator(_json_object)] = Field(
        StructuredOutputsConfig(),
        description="How structured outputs are made: `backend` (auto, xgrammar or guidance), "
        "`disable_any_whitespace`, `disable_additional_properties`; see docs/structured-outputs.md.",
    )
    logits_processors: Names = Field(
        (),
        description="Custom logits processors, `module:Class` or `module:function` (or `file.py:…`): "
        "numpy row in, row out.",
    )
    model_runner: ModelRunner = Field(
        "v2",
        description="Whose order of stages to follow; "
        "they differ where a custom processor meets penalties or bad words.",
    )
    enable_auto_tool_choice: bool = Field(
        False, description="Accept `tools` with `tool_choice` auto, which gets a 400 otherwise."
    )
    tool_call_parser: str = Field(
        "",
        description="With `--enable-auto-tool-choice`: calls of tools are taken out of what is generated. `hermes` "
        "reads it as vLLM does, and a required call is held to its grammar; behind any other name stands the script's "
        "message.",
    )
    reasoning_parser: str = Field(
        "",
        description="Reasoning is taken out of what is generated, and usage reports `reasoning_tokens`. `qwen3` and "
        "`deepseek_r1` read it as vLLM does; behind any other name stands the script's message.",
    )
    trust_request_chat_template: bool = Field(
        False, description="Accept a `chat_template` in a request, which gets a 400 otherwise."
    )
    enable_scale_out: bool = Field(False, description="Serve /inference/v1/*, which answers 403 otherwise.")
    return_sampling_mask: bool = Field(
        False,
        description="Return the ids that each token of /inference/v1/generate was drawn from, and refuse what that "
        "doesn't go with, as vLLM does.",
    )
    speculative_config: JsonObject = Field(
        {},
        description="Pretend to decode speculatively: the checks at start and of requests see it, tokens don't.",
    )
    diffusion: bool = Field(
        False, description="Pretend to serve a diffusion model: the checks at start see it, replies don't."
    )
    enable_trace_replay: bool = Field(
        False, description="Accept `trace_decode_token_ids`, the tokens that decoding has to follow."
    )
    journal: bool = Field(
        False, description="Keep requests and replies for `GET /stub/requests`; in tests it is on (docs/testing.md)."
    )
    journal_size: int = Field(1000, ge=1, description="Most requests that the journal keeps; the oldest go first.")
    control: Literal["loopback", "any", "off"] = Field(
        "loopback", description="Who may use /stub/*: clients on this machine, any client, or nobody."
    )
    cassette: str = Field("", description="Play back the exchanges of this file; see docs/playback.md.")
    cassette_on_miss: Literal["error", "script", "upstream"] = Field(
        "error", description="Who answers what the cassette doesn't: nobody (404), the script, or the real server."
    )
    cassette_repeat: Literal["last", "loop", "error"] = Field(
        "last",
        description="What follows when all recordings of a request were played: the last one again, the first one "
        "again, or a miss.",
    )
    cassette_pace: Pace = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Times the recorded delays: 0 (or `instant`) plays at once, 1 (or `recorded`) as recorded, 0.5 "
        "twice as fast.",
    )
    cassette_ignore: Names = Field(
        ("user", "request_id", "session_id", "cache_salt", "safety_identifier", "prompt_cache_key"),
        description="Fields of a body that don't count when it is compared; a dot leads into an object.",
    )
    cassette_redact: Names = Field(
        (), description="Regular expressions for what is secret, beside what is known to be; for recording and playing."
    )
    cassette_convert: bool = Field(
        False,
        description="Answer a stream from a recorded full reply, and the other way round, where that is all there is.",
    )
    record_mode: Literal["none", "once", "new_episodes", "all"] = Field(
        "none",
        description="What to record from `upstream`: nothing; all, if the cassette has nothing yet; what it doesn't "
        "have; or all of it anew.",
    )
    upstream: str = Field("", description="URL of the real server, to record from or to ask on a miss.")
    unrecorded: Literal["allow", "mark", "refuse"] = Field(
        "allow",
        description="Where the script was made from recordings: whether values may rest on tokens that no recording "
        "has. `mark` says so in the header `x-stub-recorded`, `refuse` answers 404 instead.",
    )
    profile: ProfileSetting = Field(
        Profile.model_validate({}),
        description="How parameters are treated: a profile's name, or parameter → honour, ignore, reject or truncate "
        "(docs/profiles.md).",
    )
    workers: int = Field(
        1,
        ge=1,
        description="Processes of `stubserver serve` that answer on one port. Each counts for itself: metrics, faults, "
        "repeats of a cassette. So /stub/*, the journal and recording are for one process only.",
    )
    seed: int = Field(0, description="Seeds requests without a seed of their own, and pseudo-random rows of a script.")


def resolve_settings(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file_keys: Mapping[str, Any],
    file_name: str = "script",
) -> Settings:
    """Settings from what was given: names → values of flags and of file keys, and the process's environment.

    Raises SettingsError, which names the flag, variable or key that can't be used.
    """
    sources: dict[str, tuple[str, Any]] = {}
    for name, value in file_keys.items():
        sources[name] = (f"{file_name}: {name}", value)
    for name in Settings.model_fields:
        variable = ENV_PREFIX + name.upper()
        if variable in environ:
            sources[name] = (variable, environ[variable])
    for name, value in flags.items():
        sources[name] = (flag_name(name), value)
    try:
        settings = Settings.model_validate({name: value for name, (_, value) in sources.items()})
        return settings if settings.workers == 1 else _for_workers(settings)
    except PydanticError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        where = sources[name][0] if name in sources else name
        raise SettingsError(f"{where}: {first['msg']} (got {first['input']!r})") from None


def _for_workers(settings: Settings) -> Settings:
    """Without the control routes, which would reach one process of several. Raises SettingsError if that matters."""
    asked_for = {
        "journal": settings.journal,
        "control": settings.control != "off" and "control" in settings.model_fields_set,
        "record_mode": settings.record_mode != "none",
    }
    for name, asked in asked_for.items():
        if asked:
            value = str(getattr(settings, name)).lower()
            raise SettingsError(
                f"{flag_name(name)} ({value}) doesn't go with --workers {settings.workers}: it would be about one of "
                "the processes only; leave one of the two out"
            )
    return settings.model_copy(update={"control": "off"})


def shown_default(setting: str) -> str:
    """The default as people write it; "none" if nothing is set."""
    default = Settings.model_fields[setting].default
    if isinstance(default, tuple):
        return ",".join(default) or "none"
    if isinstance(default, Profile):
        return default.base
    if isinstance(default, BaseModel) or default in ("", {}):
        return "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def flag_name(setting: str) -> str:
    """`max_logprobs` → `--max-logprobs`."""
    return "--" + setting.replace("_", "-")
