#include "kernels/engine/engine.h"

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

}  // namespace primerl
