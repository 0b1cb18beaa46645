/// Hands prompts to its engine and passes each on when its KV is complete.
///
///   request ->  [ prefill ]  -> done
///   abort  ~~~>              ~~~> refused
///   update ~~~>              ~~~> applied, load
///
/// Threads: the engine's. State: where answers go, per request. Order: `done` follows the engine's
/// order. A request that the engine took in is answered by Decode, also when it ends here: the
/// engine tells the end of a sequence once, and Decode asks. Prefill answers only what the engine
/// never took in.
#pragma once

#include <deque>
#include <map>
#include <optional>

#include "actors/common/apply_policy.h"
#include "actors/common/request_name.h"
#include "actors/messages/generation.h"
#include "actors/messages/load.h"
#include "actors/messages/policy.h"
#include "graph/contract.h"

namespace primerl {

struct PrefillOptions {
  std::string engine;
  std::string weights;
};

class Prefill final : public Actor {
 public:
  using Options = PrefillOptions;
  static Contract contract();
  explicit Prefill(const PrefillOptions& options) : options_(options) {}

  Status start(Resources& resources) override;
  Result<bool> work() override;
  Status drain() override;
  bool idle() const override;

 private:
  /// What PrefillDone must say, kept until the prompt is complete.
  struct Submitted {
    uint64_t session = 0;
    uint32_t attempt = 0;
    int32_t num_prompt_tokens = 0;
    StepRef cause;
    InstanceId origin;
  };

  Status on_request(const GenerateRequest& request);
  Status on_abort(const Abort& abort);
  Status on_update(const PolicyUpdate& update);
  Status take_weights();
  void refuse_request(const GenerateRequest& request, const Error& error);

  void answer(const GenerateRequest& request, CompletionEnd end, std::string detail);
  EngineLoad load() const;
  void tell_load();

  const PrefillOptions options_;
  Engine* engine_ = nullptr;
  WeightChannel* weights_ = nullptr;
  TenantSlot load_tenant_;  // any one: loads concern all tenants alike
  // Touched only by handlers.
  std::map<RequestName, Submitted> submitted_;
  std::deque<PrefillEvent> prefilled_;  // taken from the engine, not passed on yet
  CancelledEarly cancelled_;
  PolicyVersion applied_;
  std::optional<ComingPolicy> coming_;
  uint64_t num_received_ = 0;
  std::optional<EngineLoad> told_load_;
  Out<PrefillDone> done_;
  Out<Completion> refused_;
  Out<PolicyApplied> applied_out_;
  Out<EngineLoad> load_;
};

}  // namespace primerl
