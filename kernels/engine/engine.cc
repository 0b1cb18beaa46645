#include "kernels/engine/engine.h"

#include "graph/base/assert.h"

namespace primerl {

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kRefused:
      return "refused";
    case FinishReason::kEngineLost:
      return "engine_lost";
    case FinishReason::kUnknownSession:
      return "unknown_session";
    case FinishReason::kFailed:
      return "failed";
  }
  return "refused";
}

void Engine::set_paused(bool is_paused) {
  CHECK(!is_paused, "an engine that cannot pause was asked to pause");
}

Result<std::optional<uint64_t>> Engine::apply_prepared(
    const std::shared_ptr<const WeightSnapshot>& snapshot) {
  if (!prepare(snapshot)) return std::optional<uint64_t>();
  ASSIGN_OR_RETURN(const uint64_t num_tensors, apply(*snapshot));
  return std::optional(num_tensors);
}

}  // namespace primerl
