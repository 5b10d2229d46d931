"""The families of GET /metrics for a text model, as data: kinds, names, help, and labels of their own.

Source: a running vLLM 0.32.0, recorded in fixtures/vllm-0.32.0-http/metrics.json; a test holds them to it.
"""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """name: without `vllm:` and a counter's `_total`. label, values: the label beside engine and model."""

    kind: str
    name: str
    help: str
    label: str = ""
    values: tuple[str, ...] = ()


FAMILIES = (
    Family(
        "counter",
        "estimated_flops_per_gpu",
        ("Estimated number of floating point operations per GPU (for Model Flops Utilization calculations)."),
    ),
    Family(
        "counter",
        "estimated_read_bytes_per_gpu",
        ("Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations)."),
    ),
    Family(
        "counter",
        "estimated_write_bytes_per_gpu",
        ("Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations)."),
    ),
    Family("gauge", "num_requests_running", "Number of requests in model execution batches."),
    Family("gauge", "num_requests_waiting", "Number of requests waiting to be processed."),
    Family(
        "gauge",
        "num_requests_waiting_by_reason",
        (
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling "
            "capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked "
            "status). Sum of all reasons equals vllm:num_requests_waiting."
        ),
        "reason",
        ("capacity", "deferred"),
    ),
    Family(
        "gauge",
        "engine_sleep_state",
        (
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2."
        ),
        "sleep_state",
        ("awake", "weights_offloaded", "discard_all"),
    ),
    Family("gauge", "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
    Family("counter", "prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."),
    Family("counter", "prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."),
    Family(
        "counter",
        "external_prefix_cache_queries",
        (
            "External prefix cache queries from KV connector cross-instance cache sharing, in terms of "
            "number of queried tokens."
        ),
    ),
    Family(
        "counter",
        "external_prefix_cache_hits",
        (
            "External prefix cache hits from KV connector cross-instance cache sharing, in terms of "
            "number of cached tokens."
        ),
    ),
    Family("counter", "mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items."),
    Family("counter", "mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items."),
    Family("counter", "num_preemptions", "Cumulative number of preemption from the engine."),
    Family("counter", "prompt_tokens", "Number of prefill tokens processed."),
    Family(
        "counter",
        "prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    Family("counter", "prompt_tokens_cached", "Number of cached prompt tokens (local + external)."),
    Family(
        "counter",
        "prompt_tokens_cached_by_source",
        (
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host "
            "(offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or "
            "external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + "
            "vllm:external_prefix_cache_hits."
        ),
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    Family("counter", "generation_tokens", "Number of generation tokens processed."),
    Family("counter", "request_success", "Count of successfully processed requests.", "finished_reason"),
    Family(
        "counter",
        "admission_rejections",
        "Number of admission attempts rejected by a queue limit, by reason.",
        "reason",
        ("max_num_queued_reqs", "max_num_queued_tokens"),
    ),
    Family("histogram", "request_prompt_tokens", "Number of prefill tokens processed."),
    Family("histogram", "request_generation_tokens", "Number of generation tokens processed."),
    Family("histogram", "iteration_tokens_total", "Histogram of number of tokens per engine_step."),
    Family(
        "histogram", "request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens."
    ),
    Family("histogram", "request_params_n", "Histogram of the n request parameter."),
    Family("histogram", "request_params_max_tokens", "Histogram of the max_tokens request parameter."),
    Family("histogram", "time_to_first_token_seconds", "Histogram of time to first token in seconds."),
    Family("histogram", "inter_token_latency_seconds", "Histogram of inter-token latency in seconds."),
    Family(
        "histogram", "request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request."
    ),
    Family("histogram", "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds."),
    Family("histogram", "request_queue_time_seconds", "Histogram of time spent in WAITING phase for request."),
    Family("histogram", "request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request."),
    Family("histogram", "request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request."),
    Family("histogram", "request_decode_time_seconds", "Histogram of time spent in DECODE phase for request."),
    Family("histogram", "request_num_preemptions", "Histogram of the number of times a request was preempted."),
    Family(
        "histogram",
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
)
"""In the order in which vLLM shows them."""

NO_ENGINE = ("admission_rejections",)
"""Those that are counted before a request has an engine."""

CACHE_CONFIG = {
    "_block_size_resolved": "True",
    "block_size": "128",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "effective_attention_block_size": "128",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "False",
    "gpu_memory_utilization": "0",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_max_concurrency": "0",
    "kv_cache_memory_bytes": "0",
    "kv_cache_size_tokens": "0",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks": "0",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}
"""The labels of `vllm:cache_config_info`: vLLM's defaults, but that there is no cache."""
