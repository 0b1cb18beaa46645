#include "kernels/torch/memory.h"

#include <unistd.h>

namespace primerl {
namespace {

constexpr double kGigabyte = 1e9;

/// 0 where the system does not say.
double machine_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<double>(pages) * static_cast<double>(size) : 0;
}

}  // namespace

double bytes_needed_to_generate(const EngineOptions& options, const ModelConfig& config,
                                const TensorTable& table) {
  const double cache = 2.0 * config.num_layers() * static_cast<double>(options.kv_blocks) *
                       options.block_size * config.attention.num_kv_heads *
                       config.attention.head_dim;
  return sizeof(float) * (static_cast<double>(table.count()) + cache);
}

double bytes_needed_to_train(const TensorTable& table) {
  return 4.0 * sizeof(float) * static_cast<double>(table.count());
}

Status check_memory(std::string_view what, double bytes) {
  const double there = machine_bytes();
  if (there == 0 || bytes <= there) return ok();
  return error(Code::kExhausted, "{} needs {:.1f} GB, this machine has {:.1f} GB of memory", what,
               bytes / kGigabyte, there / kGigabyte)
      .note("`primerl-graph model DIR` says what a model needs");
}

}  // namespace primerl
