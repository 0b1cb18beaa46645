#include "graph/base/result.h"

namespace primerl {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kInvalid:
      return "invalid";
    case Code::kNotFound:
      return "not_found";
    case Code::kExists:
      return "exists";
    case Code::kExhausted:
      return "exhausted";
    case Code::kDeadline:
      return "deadline";
    case Code::kCancelled:
      return "cancelled";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kIo:
      return "io";
    case Code::kInternal:
      return "internal";
    case Code::kDeviceLost:
      return "device_lost";
  }
  return "internal";
}

std::string Error::text() const {
  std::string text = message_;
  for (const auto& note : notes_) text += "\n   " + note;
  return text;
}

}  // namespace primerl
