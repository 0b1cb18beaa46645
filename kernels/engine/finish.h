/// How a sequence ended and which policy version made its tokens: what engines tell and messages
/// carry.
#pragma once

#include <cstdint>
#include <string_view>

#include "graph/base/ids.h"

namespace primerl {

/// Why a sequence ended; of a request that no engine answered, too.
enum class FinishReason : uint8_t {
  kStop,
  kLength,
  kCancelled,
  kRefused,
  kEngineLost,
  kUnknownSession,  // its prompt began where the engine's copy of the session does not: ask whole
  kFailed,          // the engine could not compute it, which says nothing against the request
};
std::string_view to_string(FinishReason reason);  // "stop", "length", ...
/// It ended as was asked: its tokens may be used.
inline bool is_complete(FinishReason reason) {
  return reason == FinishReason::kStop || reason == FinishReason::kLength;
}

/// Tokens [begin, end) of a completion were made by `version` of the weights it was asked of.
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
