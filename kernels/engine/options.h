/// Options of an engine in a graph file: `[resource.x] kind = "engine"`. Plain values; the option
/// registry with ranges and docs is in runtime/backends/resource_catalog.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace primerl {

/// Options that help to find NaN or infinity.
struct EngineDebugOptions {
  bool check_finite = false;  // name the first activation that is not finite
};

struct EngineOptions {
  int32_t kv_blocks = 512;             // blocks of KV memory
  int32_t block_size = 16;             // tokens per block
  int32_t max_running = 256;           // sequences decoded in one batch
  int32_t max_waiting = 1024;          // queued prompts; further prompts wait outside
  int32_t max_batched_tokens = 4096;   // tokens per step, prefill and decode together
  int32_t max_prefill_tokens = 1024;   // limit for prompt tokens while others decode; 0 = no limit
  bool prefix_cache = true;            // find equal blocks again by content
  int32_t max_sequence_tokens = 0;     // 0 = the limit of the model's config
  int32_t threads = 0;                 // 0 = decided by the plan
  std::string numerics = "invariant";  // or "fast" (CUDA only)
  std::string dtype = "auto";          // of weights and KV: "float32", "bfloat16"
  std::string products = "dtype";      // numbers that GEMMs read: "dtype", "bf16", "fp8"
  int32_t adapter_slots = 0;           // adapters that can be used in one step; 0 = whole weights
                                       // are applied
  int32_t adapters_max = 0;            // adapters that it knows, loaded or not; 0 = as many as
                                       // slots
  int64_t adapter_host_bytes_max = 0;  // of adapters that may have no slot, in host memory; the
                                       // others are in files; 0 = no limit
  int32_t max_adapter_rank = 64;       // only with adapter_slots
  int64_t kv_events_bytes_max = 0;     // size limit of the file of prefix cache events; 0 = no
                                       // events
  bool routed_experts = false;         // of a mixture: keep the experts of each token, for requests
                                       // that ask for them
  EngineDebugOptions debug = {};
  std::string adapter_folder = {};  // where such files are, the run folder; "": temporary files
  std::string device = "cpu";       // device of its process, set by the plan
  /// CPU only: two sets of the replaceable weights, one in use while the next version fills the
  /// other. The plan decides, by available memory.
  bool has_second_set = true;
  /// Targets of all adapters to expect, as in AdapterConfig, set by the plan; empty: all targets.
  std::vector<std::string> adapter_targets = {};
  std::vector<double> shares = {};  // by tenant slot, set by the plan; empty: equal shares
};

}  // namespace primerl
