/// RoutePolicy: which engine gets a request. To add a policy, write one class and one line in
/// catalog.cc, or a RoutePolicyContract in a plugin. Its only state is its own counter: it uses no
/// clock and no unordered iteration.
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

/// An engine that may be chosen, as the router knows it.
struct EngineView {
  InstanceId engine;
  uint64_t num_requests = 0;  // sent and not finished
  int32_t num_free_blocks = 0;
  int32_t num_blocks = 0;  // 0 = not reported yet
};

struct RouteQuestion {
  uint64_t session = 0;
  uint64_t session_key = 0;  // hash of tenant and session
  int32_t num_prompt_tokens = 0;
  int32_t sticky = -1;  // index of the engine that holds the session's prefix; -1 = none
  /// [engines] The number of leading tokens of the prompt that each engine was sent before and may
  /// still have. Filled in only for a policy that asks for it, and only in choose(); otherwise
  /// empty.
  std::vector<int32_t> num_known_tokens = {};
};

class RoutePolicy {
 public:
  virtual ~RoutePolicy() = default;
  /// The only engine that may get the session, chosen from all engines in use, with or without free
  /// space: a request waits for it. Empty: any engine. Index into `in_use`, which is not empty.
  virtual std::optional<size_t> home(const RouteQuestion& question,
                                     std::span<const InstanceId> in_use) const {
    (void)question;
    (void)in_use;
    return std::nullopt;
  }
  /// Chooses from the engines that can accept the request now. Index into `engines`, which is not
  /// empty and in instance order.
  virtual size_t choose(const RouteQuestion& question, std::span<const EngineView> engines) = 0;
  /// True: choose() gets `num_known_tokens`. The router then names the blocks of every prompt and
  /// remembers which engine was sent which block.
  virtual bool wants_known_tokens() const { return false; }
  /// The state that choose() changes, as text for restore() of a new policy of the same kind; a
  /// recovered router continues with it. Empty: the policy has no state.
  virtual std::string state() const { return {}; }
  virtual Status restore(std::string_view state) {
    if (state.empty()) return ok();
    return error(Code::kCorrupt, "a routing policy without a state got one: '{}'", state);
  }
};

/// One value of the router's option `policy`.
struct RoutePolicyContract {
  std::string name;
  std::string doc;
  std::function<std::unique_ptr<RoutePolicy>()> make;
};

/// The built-in policies; the first is the default.
std::vector<RoutePolicyContract> route_policies();
/// The policy with this name in `policies`; null for an unknown name.
std::unique_ptr<RoutePolicy> make_route_policy(
    std::string_view name, const std::vector<RoutePolicyContract>& policies = route_policies());

}  // namespace primerl
