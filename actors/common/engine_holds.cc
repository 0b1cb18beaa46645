#include "actors/common/engine_holds.h"

#include <algorithm>

namespace primerl {

Status EngineHolds::hold(const std::string& owner, Duration lease, Time now) {
  if (owner.empty() || owner.size() > kOwnerBytesMax)
    return error(Code::kInvalid, "the name of an owner has {} bytes", owner.size())
        .note(fmt::format("1 to {} bytes are valid", kOwnerBytesMax));
  if (lease <= Duration() || lease > kLeaseMax)
    return error(Code::kInvalid, "'{}' asks to pause an engine for {:.3f} s", owner,
                 lease.to_seconds())
        .note(fmt::format(
            "a lease is above 0 and at most {:.0f} s; renew it to pause the engine longer",
            kLeaseMax.to_seconds()));
  if (ends_.size() >= kOwnersMax && !ends_.contains(owner))
    return error(Code::kExhausted, "'{}' cannot pause the engine: {} owners have paused it already",
                 owner, ends_.size())
        .note(fmt::format("the owners are {}; end one of their pauses first", owners()));
  ends_.insert_or_assign(owner, now + lease);
  return ok();
}

std::vector<std::string> EngineHolds::expire(Time now) {
  std::vector<std::string> ended;
  std::erase_if(ends_, [&](const auto& each) {
    if (each.second > now) return false;
    ended.push_back(each.first);
    return true;
  });
  return ended;
}

std::optional<Time> EngineHolds::next_end() const {
  std::optional<Time> next;
  for (const auto& [owner, end] : ends_) next = std::min(next.value_or(end), end);
  return next;
}

std::vector<EngineHolder> EngineHolds::holders(Time now) const {
  std::vector<EngineHolder> holders;
  for (const auto& [owner, end] : ends_) holders.push_back({owner, end - now});
  return holders;
}

std::string EngineHolds::owners() const {
  std::vector<std::string> names;
  for (const auto& [owner, end] : ends_) names.push_back(owner);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace primerl
