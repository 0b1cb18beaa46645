/// RoutePolicy: which engine gets a request. A new policy is one class and one line in catalog.cc,
/// or a RoutePolicyContract of a plugin.
/// Pure but for its own counter: no clock, no unordered iteration.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/ids.h"
#include "graph/base/result.h"

namespace primerl {

/// An engine that may be chosen, as the router sees it.
struct EngineView {
  InstanceId engine;
  uint64_t num_requests = 0;  // sent and not finished: the load guards
  int32_t num_free_blocks = 0;
  int32_t num_blocks = 0;  // 0 = not told yet
};

struct RouteQuestion {
  uint64_t session = 0;
  uint64_t session_key = 0;  // hash of tenant and session
  int32_t num_prompt_tokens = 0;
  int32_t sticky = -1;  // index of the engine that holds the session's prefix; -1 = none
  /// [engines], leading tokens of the prompt that each was sent before and may still have. Only for
  /// a policy that wants it and in choose() alone; empty else.
  std::vector<int32_t> num_known_tokens = {};
};

class RoutePolicy {
 public:
  virtual ~RoutePolicy() = default;
  /// The engine that alone may take the session, of all in use whether they have room or not: a
  /// request waits for it. Nothing: any will do. Index into `in_use`, which is not empty.
  virtual std::optional<size_t> home(const RouteQuestion& question,
                                     std::span<const InstanceId> in_use) const {
    (void)question;
    (void)in_use;
    return std::nullopt;
  }
  /// Of those that can take the request now. Index into `engines`, which is not empty and in
  /// instance order.
  virtual size_t choose(const RouteQuestion& question, std::span<const EngineView> engines) = 0;
  /// True: choose() gets `num_known_tokens`. The router then names the blocks of every prompt and
  /// remembers which engine was sent which.
  virtual bool wants_known_tokens() const { return false; }
  /// What choose() changes, as text that restore() of a fresh policy of the same kind takes: a
  /// recovered router goes on with it. Empty: it changes nothing.
  virtual std::string state() const { return {}; }
  virtual Status restore(std::string_view state) {
    if (state.empty()) return ok();
    return error(Code::kCorrupt, "a routing policy without a state got one: '{}'", state);
  }
};

/// One value of a router's `policy`.
struct RoutePolicyContract {
  std::string name;
  std::string doc;
  std::function<std::unique_ptr<RoutePolicy>()> make;
};

/// The built-in ones; the first is the default.
std::vector<RoutePolicyContract> route_policies();
/// Of `policies`; null for an unknown name.
std::unique_ptr<RoutePolicy> make_route_policy(
    std::string_view name, const std::vector<RoutePolicyContract>& policies = route_policies());

}  // namespace primerl
