"""Flags of `vllm serve` that aren't settings here: accepted without effect, or refused because they would have one.

Source: the parser of vLLM 0.32.0; tests/vllm_flags.json has all its flags, and a test compares.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


VALUES = _words("""
    additional-config all2all-backend allowed-local-media-path anthropic-disabled-thinking-effort
    api-server-count attention-backend attention-config aux-output-config block-size code-revision cohere-format
    compilation-config config-format cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb
    custom-histogram-buckets data-parallel-address data-parallel-backend data-parallel-rank
    data-parallel-rpc-port data-parallel-size data-parallel-size-local data-parallel-start-rank
    data-parallel-supervisor-port dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
    dcp-kv-cache-interleave-size decode-context-parallel-size device-ids diffusion-config
    disable-access-log-for-endpoints distributed-executor-backend distributed-timeout-seconds download-dir
    dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
    dp-sync-interval dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size engram-config eplb-config
    expert-placement-strategy fault-tolerance-config gdn-prefill-backend generation-config
    gpu-memory-utilization h11-max-header-count h11-max-incomplete-event-size hf-config-path hf-overrides
    hf-token io-processor-plugin ir-op-priority jit-monitor-mode kda-decode-backend kda-prefill-backend
    kernel-config kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics-sample kv-events-config
    kv-offloading-backend kv-offloading-size kv-transfer-config limit-mm-per-prompt linear-backend load-format
    log-config-file log-level logging-config long-prefill-token-threshold lora-dtype mamba-backend
    mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype
    mamba-ssu-algorithm master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len
    max-lora-cls-labels max-lora-rank max-loras max-num-active-seqs max-num-batched-tokens max-num-queued-reqs
    max-num-queued-tokens max-num-scheduled-tokens max-num-seqs max-parallel-loading-workers media-io-kwargs
    mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
    mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb
    mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs
    mm-shm-cache-max-object-size-mb mm-tensor-ipc model-class-overrides model-impl model-loader-extra-config
    moe-backend nnodes node-rank num-gpu-blocks-override offload-backend offload-group-size offload-num-in-group
    offload-prefetch-step optimization-level otlp-traces-endpoint per-request-spec-decode-metrics
    performance-mode pipeline-parallel-size prefill-context-parallel-size prefill-schedule-interval
    prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit profiler-config
    pt-load-map-location quantization quantization-config reasoning-config reasoning-parser-plugin
    renderer-num-workers replayssm-buffer-len revision safetensors-load-strategy safetensors-prefetch-block-size
    safetensors-prefetch-num-threads scheduler-cls scheduling-policy show-hidden-metrics-for-version
    shutdown-timeout sparse-indexer-topk-backend spec-method spec-model spec-tokens sse-keep-alive-interval
    stream-interval tensor-parallel-size tokenizer-mode tokenizer-revision
    tool-parser-plugin tool-strict-level ubatch-size uvicorn-log-level video-pruning-method video-pruning-rate
    watermark weight-transfer-config worker-cls worker-extension-cls
""")
"""Without effect, with a value each: how the model is loaded, computed, spread and logged."""

SWITCHES = _words("""
    aggregate-engine-logging allow-deprecated-quantization async-scheduling cohere-is-reasoning-model
    cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb dcp-q-replicate disable-cascade-attn
    disable-chunked-mm-input disable-custom-all-reduce disable-hybrid-kv-cache-manager disable-log-stats
    disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log
    enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator enable-dbo enable-elastic-ep
    enable-ep-weight-filter enable-eplb enable-expert-parallel enable-flash-late-interaction
    enable-flashinfer-autotune enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs
    enable-log-requests enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding
    enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds
    enable-moe-shared-loras enable-nccl-comm-suspend enable-prefix-caching enable-server-load-tracking
    enable-shm-tensor-arena enable-sleep-mode enable-tower-connector-lora enforce-eager
    fail-on-environ-validation fully-sharded-loras interleave-mm-strings jit-monitor-verbose kv-cache-metrics
    kv-sharing-fast-prefill language-model-only log-error-stack long-prefill-token-threshold-adaptive
    mm-device-do-normalize mm-encoder-only numa-bind ray-workers-use-nsight scheduler-reserve-full-isl
    skip-mm-profiling sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay trust-remote-code
    trust-request-mm-kwargs use-fp64-gumbel use-replayssm use-tqdm-on-load
""")
"""Without effect, turned off with `--no-…`."""

LISTS = _words("""
    allowed-media-domains collect-detailed-traces cpu-offload-params cudagraph-capture-sizes ignore-patterns
    kv-cache-dtype-skip-layers lora-target-modules numa-bind-cpus numa-bind-nodes offload-params
    sleep-preserve-parameter-names
""")
"""Without effect, with several values."""

ALIASES = {
    "api-server-count": ("-asc",),
    "quantization": ("-q",),
    "pipeline-parallel-size": ("-pp",),
    "nnodes": ("-n",),
    "node-rank": ("-r",),
    "tensor-parallel-size": ("-tp",),
    "decode-context-parallel-size": ("-dcp",),
    "prefill-context-parallel-size": ("-pcp",),
    "data-parallel-size": ("-dp",),
    "data-parallel-rank": ("-dpn",),
    "data-parallel-start-rank": ("-dpr",),
    "data-parallel-size-local": ("-dpl",),
    "data-parallel-address": ("-dpa",),
    "data-parallel-rpc-port": ("-dpp",),
    "data-parallel-backend": ("-dpb",),
    "data-parallel-hybrid-lb": ("-dph",),
    "data-parallel-external-lb": ("-dpe",),
    "enable-expert-parallel": ("-ep",),
    "gpu-memory-utilization": ("--device-memory-utilization",),
    "diffusion-config": ("-dc",),
    "compilation-config": ("-cc",),
    "attention-config": ("-ac",),
    "optimization-level": ("-O",),
}
"""Other names of these."""

REFUSED = _words("""
    chat-template-content-format config convert data-parallel-multi-port-external-lb
    default-chat-template-kwargs default-mm-loras enable-fault-tolerance enable-offline-docs
    enable-per-request-metrics enable-prompt-embeds enable-return-routed-experts enable-ssl-refresh
    exclude-tools-when-tool-choice-none fingerprint-mode fingerprint-value grpc grpc-port headless lora-modules
    middleware pooler-config response-role runner skip-tokenizer-init ssl-ca-certs ssl-cert-reqs ssl-certfile
    ssl-ciphers ssl-keyfile tokens-only tool-server uds watermark-config
""")
"""They change what clients get, or how they get to it, in a way that isn't imitated."""
