/// What a graph file may say of an engine: `[resource.x] kind = "engine"`. Plain values; the option
/// registry with ranges and docs is in runtime/backends/resource_catalog.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace primerl {

/// For who looks for a broken number.
struct EngineDebugOptions {
  bool check_finite = false;  // name the first activation that is not a number
};

struct EngineOptions {
  int32_t kv_blocks = 512;             // blocks of KV memory
  int32_t block_size = 16;             // tokens a block
  int32_t max_running = 256;           // sequences decoded in one batch
  int32_t max_waiting = 1024;          // prompts queued; more wait outside
  int32_t max_batched_tokens = 4096;   // tokens of one step, prefill and decode together
  int32_t max_prefill_tokens = 1024;   // of them, of prompts while others decode; 0 = no limit
  bool prefix_cache = true;            // blocks are found again by what they hold
  int32_t max_sequence_tokens = 0;     // 0 = what the model's config says
  int32_t threads = 0;                 // 0 = decided by the plan
  std::string numerics = "invariant";  // or "fast", which a CUDA device needs
  std::string dtype = "auto";          // of weights and KV: "float32", "bfloat16"
  std::string products = "dtype";      // of layers: in `dtype`, or "fp8" on a CUDA device
  int32_t adapter_slots = 0;           // adapters that rows may have; 0 = whole weights change
  int32_t adapters_max = 0;            // that it knows, in a slot or beside; 0 = as many as slots
  int32_t max_adapter_rank = 64;       // where there are slots
  int64_t kv_events_bytes_max = 0;     // file of what its prefix cache holds; 0 = no such events
  EngineDebugOptions debug = {};
  std::string device = "cpu";  // of its process, which the plan decides
  /// On the CPU: of weights that versions replace, one to use while the next version fills the
  /// other. The plan decides, by the memory that there is.
  bool has_second_set = true;
  /// Of all adapters that come, as AdapterConfig has them, which the plan decides; empty: all.
  std::vector<std::string> adapter_targets = {};
  std::vector<double> shares = {};  // by tenant slot, which the plan decides; empty: all alike
};

}  // namespace primerl
