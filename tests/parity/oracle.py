"""The real vLLM, from an installation of it: a model of the recordings' logits, and a server of that model."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

FIXTURE = Path(__file__).parents[2] / "fixtures" / "bigram512"

HEADS, HEAD_SIZE, INNER_SIZE = 8, 64, 64

KEPT_HEADERS = ("allow", "vary", "location")

SECONDS_TO_START = 300


def make_model(directory: Path) -> None:
    """Write a checkpoint whose logits after token u are row u of the fixture's table.

    The embedding of u is a unit vector times √V, the one layer adds nothing, the last norm leaves it as it is, and
    column u of the head is the row divided by √V. The format is safetensors: a length, a JSON header, the numbers.
    """
    directory.mkdir(parents=True, exist_ok=True)
    table = np.load(FIXTURE / "logits.npz")["table"]
    size = len(table)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURE / name, directory / name)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": size,
        "intermediate_size": INNER_SIZE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_SIZE,
        "vocab_size": size,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-12,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": 0,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "attention_bias": False,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}), encoding="utf-8")
    layer = "model.layers.0."
    _write_safetensors(
        directory / "model.safetensors",
        {
            "model.embed_tokens.weight": np.eye(size) * size**0.5,
            "model.norm.weight": np.ones(size),
            "lm_head.weight": table.T / size**0.5,
            layer + "self_attn.q_proj.weight": np.zeros((HEADS * HEAD_SIZE, size)),
            layer + "self_attn.k_proj.weight": np.zeros((HEAD_SIZE, size)),
            layer + "self_attn.v_proj.weight": np.zeros((HEAD_SIZE, size)),
            layer + "self_attn.o_proj.weight": np.zeros((size, HEADS * HEAD_SIZE)),
            layer + "self_attn.q_norm.weight": np.ones(HEAD_SIZE),
            layer + "self_attn.k_norm.weight": np.ones(HEAD_SIZE),
            layer + "mlp.gate_proj.weight": np.zeros((INNER_SIZE, size)),
            layer + "mlp.up_proj.weight": np.zeros((INNER_SIZE, size)),
            layer + "mlp.down_proj.weight": np.zeros((size, INNER_SIZE)),
            layer + "input_layernorm.weight": np.ones(size),
            layer + "post_attention_layernorm.weight": np.ones(size),
        },
    )


def _write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    end = 0
    for name, values in tensors.items():
        data = np.ascontiguousarray(values, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [end, end := end + len(data)]}
        parts.append(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


@contextmanager
def served(installation: Path, model: Path, port: int, flags: Sequence[str], log: Path) -> Iterator[None]:
    """`vllm serve` of an installation on this port of this machine, with a group of processes of its own."""
    quiet = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        *(str(installation / "bin" / "vllm"), "serve", str(model), "--served-model-name", "bigram"),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "16"),
        *("--host", "127.0.0.1", "--port", str(port), *flags),
    ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | quiet
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        _wait(process, port, log)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until the server answers. Raises RuntimeError if it doesn't."""
    for _ in range(SECONDS_TO_START):
        if process.poll() is not None:
            raise RuntimeError(f"vLLM has ended with status {process.returncode}; its words are in {log}")
        try:
            ask(port, {"method": "GET", "path": "/health"})
        except OSError:
            time.sleep(1)
        else:
            return
    raise RuntimeError(f"vLLM doesn't answer after {SECONDS_TO_START} s; its words are in {log}")


def ask(port: int, request: dict[str, Any], seconds: float = 120) -> dict[str, Any]:
    """The reply to a request, in the form of the recordings. Raises OSError if there is none."""
    raw = request.get("raw")
    content = raw.encode() if raw is not None else json.dumps(request["body"]).encode() if "body" in request else None
    headers = {name.lower(): value for name, value in (request.get("headers") or {}).items()}
    if content is not None:
        headers.setdefault("content-type", "application/json")
        headers["content-length"] = str(len(content))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.putrequest(request["method"], request["path"], skip_host=True, skip_accept_encoding=True)
        for name, value in {"host": "testserver", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(content)
        reply = connection.getresponse()
        text = reply.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
    kind = reply.headers.get("content-type", "")
    kept = {
        name.lower(): value
        for name, value in reply.getheaders()
        if name.lower() in KEPT_HEADERS or name.lower().startswith("access-control-")
    }
    return {"status": reply.status, "content_type": kind, "headers": kept, **_read(kind, text)}


def _read(kind: str, text: str) -> dict[str, Any]:
    if kind.startswith("text/event-stream"):
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
        return {"events": [event if event == "[DONE]" else json.loads(event) for event in events]}
    try:
        return {"body": json.loads(text)}
    except ValueError:
        return {"text": text}
