#include "runtime/transport/transport.h"

namespace primerl {

std::string_view to_string(LinkState state) {
  switch (state) {
    case LinkState::kConnecting:
      return "connecting";
    case LinkState::kUp:
      return "up";
    case LinkState::kBroken:
      return "broken";
    case LinkState::kFailed:
      return "failed";
    case LinkState::kEnded:
      return "ended";
  }
  return "none";
}

std::string LinkRefusal::text() const {
  const std::string who = fmt::format("'{}' (process {})", peer_name, peer);
  const std::string what = fmt::format("{}: ours {}, theirs {}", field, ours, theirs);
  if (by_peer) return fmt::format("{} refused this process: {}", who, what);
  return fmt::format("{} was refused: {}", who, what);
}

}  // namespace primerl
