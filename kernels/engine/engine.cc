#include "kernels/engine/engine.h"

#include <cmath>

namespace primerl {

Status validate(const SamplingParams& sampling) {
  if (!(sampling.temperature >= 0) || !std::isfinite(sampling.temperature))
    return error(Code::kInvalid, "temperature {} is not valid", sampling.temperature)
        .note("temperature is 0 (greedy) or above");
  if (sampling.top_k < 0)
    return error(Code::kInvalid, "top_k {} is not valid", sampling.top_k)
        .note("top_k is 0 (off) or above");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    return error(Code::kInvalid, "top_p {} is not valid", sampling.top_p)
        .note("top_p is in (0, 1]");
  if (!(sampling.min_p >= 0 && sampling.min_p < 1))
    return error(Code::kInvalid, "min_p {} is not valid", sampling.min_p)
        .note("min_p is in [0, 1)");
  if (sampling.max_tokens < 1)
    return error(Code::kInvalid, "max_tokens {} is not valid", sampling.max_tokens)
        .note("max_tokens is at least 1");
  if (sampling.stop.size() > kStopsMax || sampling.stop_ids.size() > kStopIdsMax)
    return error(Code::kInvalid, "{} stop texts and {} stop ids are too many", sampling.stop.size(),
                 sampling.stop_ids.size())
        .note(fmt::format("at most {} texts and {} ids", kStopsMax, kStopIdsMax));
  for (const std::string& text : sampling.stop)
    if (text.empty() || text.size() > kStopBytesMax)
      return error(Code::kInvalid, "a stop text has {} bytes", text.size())
          .note(fmt::format("a stop text has 1 to {} bytes", kStopBytesMax));
  return ok();
}

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
  }
  return "refused";
}

}  // namespace primerl
