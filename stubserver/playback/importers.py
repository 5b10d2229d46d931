"""Other recordings made into cassettes: vcrpy and pytest-recording (YAML or JSON), HAR, and JSONL of a vLLM server."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from stubserver.playback.asgi_messages import passed_on
from stubserver.playback.cassette import Header, make_header, read_cassette
from stubserver.playback.encodings import unpack
from stubserver.playback.errors import CassetteError
from stubserver.playback.exchange import Exchange, Headers, RecordedEvent, Reply, Request
from stubserver.playback.recorder import OF_THE_WIRE
from stubserver.serving.framing import EVENTS, EventCutter


@dataclass(frozen=True)
class Recording:
    """What was read. left_out: what couldn't be, and why."""

    header: Header
    exchanges: tuple[Exchange, ...]
    left_out: tuple[str, ...] = field(default=())


def import_recording(path: Path) -> Recording:
    """Read a recording of any known kind, which its content tells. Raises CassetteError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CassetteError(f"{path}: {error}") from None
    try:
        return _read(path, text)
    except (KeyError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CassetteError(f"{path}: can't be read as a recording: {problem}") from None


def _read(path: Path, text: str) -> Recording:
    first = _json_or_none(text.partition("\n")[0])
    if isinstance(first, dict) and "cassette" in first:
        cassette = read_cassette(path)
        return Recording(cassette.header, cassette.exchanges)
    if isinstance(first, dict) and ("server" in first or "request" in first):
        return _read_jsonl(text)
    whole = _json_or_none(text)
    if whole is None:
        whole = yaml.load(text, Loader=_VcrLoader)  # a safe loader
    if isinstance(whole, dict) and "log" in whole:
        return _read_entries(whole["log"]["entries"], _har_exchange)
    if isinstance(whole, dict) and "interactions" in whole:
        return _read_entries(whole["interactions"], _vcr_exchange)
    raise CassetteError(f"{path}: is neither a vcrpy cassette, nor a HAR file, nor JSONL of requests and replies")


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


class _VcrLoader(yaml.SafeLoader):
    """vcrpy's YAML: plain values, and bodies as !!binary or, of older versions, !!python/… texts."""


_VcrLoader.add_constructor("tag:yaml.org,2002:python/unicode", lambda loader, node: str(node.value))


def _read_entries(entries: list[Any], read: Callable[[Any], tuple[str, Exchange]]) -> Recording:
    found = [read(entry) for entry in entries]
    origins = sorted({origin for origin, _ in found})
    return Recording(make_header({"url": ", ".join(origins)}), tuple(exchange for _, exchange in found))


# vcrpy ----------------------------------------------------------------------------------------------------------------


def _vcr_exchange(entry: Mapping[str, Any]) -> tuple[str, Exchange]:
    asked, answered = entry["request"], entry["response"]
    headers = _vcr_headers(asked.get("headers"))
    origin, request = _request(asked["method"], asked["uri"], headers, _vcr_body(asked.get("body")))
    status = answered["status"]
    code = status["code"] if isinstance(status, Mapping) else status
    body = answered.get("body")
    # vcrpy keeps the body under `string`; httpx cassettes of older versions have it under `content`.
    content = body.get("string", b"") if isinstance(body, Mapping) else body or answered.get("content")
    return origin, Exchange(request, _reply(int(code), _vcr_headers(answered.get("headers")), _vcr_body(content)))


def _vcr_headers(headers: Any) -> Headers:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return tuple(
        (str(name).lower(), _text(value))
        for name, values in pairs
        for value in (values if isinstance(values, list) else [values])
    )


def _vcr_body(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if body is None else str(body).encode()


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


# HAR ------------------------------------------------------------------------------------------------------------------


def _har_exchange(entry: Mapping[str, Any]) -> tuple[str, Exchange]:
    asked, answered = entry["request"], entry["response"]
    posted = (asked.get("postData") or {}).get("text", "")
    origin, request = _request(asked["method"], asked["url"], _har_headers(asked), posted.encode())
    content = answered.get("content") or {}
    text = content.get("text", "")
    body = b64decode(text) if content.get("encoding") == "base64" else text.encode()
    waited = (entry.get("timings") or {}).get("wait", 0)
    return origin, Exchange(
        request, _reply(int(answered["status"]), _har_headers(answered), body, max(waited, 0) / 1000)
    )


def _har_headers(message: Mapping[str, Any]) -> Headers:
    # HTTP/2's own (":path") are no headers.
    pairs = ((str(header["name"]).lower(), str(header["value"])) for header in message.get("headers", ()))
    return tuple(pair for pair in pairs if not pair[0].startswith(":"))


# JSONL of a vLLM server -----------------------------------------------------------------------------------------------


def _read_jsonl(text: str) -> Recording:
    header: Mapping[str, Any] = {}
    exchanges: list[Exchange] = []
    left_out: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = json.loads(line) if line.strip() else {}
        if "request" not in entry:
            header = header or entry
        elif "response" not in entry:
            left_out.append(f"line {number}: there is no response")
        else:
            exchanges.append(_jsonl_exchange(entry))
    known = {"version": {"version": header["vllm"]}} if "vllm" in header else {}
    settings = {"settings": header["server"]} if "server" in header else {}
    return Recording(make_header({**known, **settings}), tuple(exchanges), tuple(left_out))


def _jsonl_exchange(entry: Mapping[str, Any]) -> Exchange:
    asked, answered = entry["request"], entry["response"]
    body = asked["raw"].encode() if "raw" in asked else _dump(asked["body"]) if "body" in asked else b""
    given = asked.get("headers") or ({"content-type": "application/json"} if body else {})
    _, request = _request(asked["method"], asked["path"], tuple((k.lower(), v) for k, v in given.items()), body)
    headers = (("content-type", answered["content_type"]),) if answered.get("content_type") else ()
    if "events" in answered:
        content = b"".join(EVENTS.write(_event(event)) for event in answered["events"])
    else:
        content = _dump(answered["body"]) if "body" in answered else str(answered.get("text", "")).encode()
    return Exchange(request, _reply(int(answered["status"]), headers, content))


def _event(event: Any) -> bytes:
    return event.encode() if isinstance(event, str) else _dump(event)


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


# Both sides -----------------------------------------------------------------------------------------------------------


def _request(method: str, url: str, headers: Headers, body: bytes) -> tuple[str, Request]:
    """Where it went to, and the request."""
    parts = urlsplit(url)
    encoding = dict(headers).get("content-encoding", "")
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
    return origin, Request(method.upper(), parts.path or "/", parts.query, headers, unpack(encoding, body))


def _reply(status: int, headers: Headers, body: bytes, seconds: float = 0.0) -> Reply:
    """The reply; a body that other recorders kept decoded beside the header of its encoding is taken as it is."""
    known = dict(headers)
    encoding = known.get("content-encoding", "").strip().lower()
    kept = tuple(pair for pair in passed_on(headers) if pair[0] not in OF_THE_WIRE)
    content = unpack(encoding, body)
    encoding = encoding if encoding in ("gzip", "deflate") else ""
    if EVENTS.is_stream(known.get("content-type", "")):
        events = tuple(RecordedEvent(seconds, event) for event in _cut(content))
        return Reply(status, kept, events=events, encoding=encoding, seconds=seconds)
    return Reply(status, kept, content, encoding=encoding, seconds=seconds)


def _cut(content: bytes) -> Iterator[bytes]:
    cutter = EventCutter()
    yield from cutter.feed(content)
    if cutter.rest():
        yield cutter.rest()
