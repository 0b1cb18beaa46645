/// How a sequence ended and which policy version generated its tokens, as engines report and
/// messages carry it.
#pragma once

#include <cstdint>
#include <string_view>

#include "graph/base/ids.h"

namespace primerl {

/// Why a sequence ended; also used for a request that no engine answered.
enum class FinishReason : uint8_t {
  kStop,
  kLength,
  kCancelled,
  kRefused,
  kEngineLost,
  kUnknownSession,  // its prompt does not continue the engine's copy of the session: send the whole
                    // prompt
  kFailed,          // the engine could not compute it; the request itself is valid
};
std::string_view to_string(FinishReason reason);  // "stop", "length", ...
/// It ended as requested: its tokens may be used.
inline bool is_complete(FinishReason reason) {
  return reason == FinishReason::kStop || reason == FinishReason::kLength;
}

/// `version` of the requested weights generated the tokens [begin, end) of a completion.
struct VersionSpan {
  PolicyVersion version;
  int32_t begin = 0;
  int32_t end = 0;

  template <class F>
  static void fields(F& f) {
    f("version", &VersionSpan::version)("begin", &VersionSpan::begin)("end", &VersionSpan::end);
  }
  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};

}  // namespace primerl
