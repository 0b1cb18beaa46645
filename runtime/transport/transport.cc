#include "runtime/transport/transport.h"

namespace primerl {

std::string_view to_string(ConnectionState state) {
  switch (state) {
    case ConnectionState::kConnecting:
      return "connecting";
    case ConnectionState::kUp:
      return "up";
    case ConnectionState::kBroken:
      return "broken";
    case ConnectionState::kFailed:
      return "failed";
    case ConnectionState::kEnded:
      return "ended";
  }
  return "none";
}

std::string ConnectionRefusal::text() const {
  const std::string who = fmt::format("'{}' (process {})", peer_name, peer);
  const std::string what = fmt::format("{}: ours {}, theirs {}", field, ours, theirs);
  if (by_peer) return fmt::format("{} refused this process: {}", who, what);
  return fmt::format("{} was refused: {}", who, what);
}

}  // namespace primerl
