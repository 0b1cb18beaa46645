/// Out<T>: a typed output port, the only way an actor speaks. In ports are handlers (contract.h).
///
/// An Out is a member of its actor and is wired by the group before start(). send() never blocks
/// and never fails: emissions are buffered and leave together when the handler returns, whole or
/// not at all. Flow control is the group's: it gives no forward input and no work turn while an
/// outgoing forward edge is full.
#pragma once

#include <optional>
#include <span>

#include "graph/base/ids.h"
#include "graph/message_type.h"

namespace primerl {

/// Where, for whom and in answer to what an emission goes. Chain: `to(engine).answering(ref)`.
struct SendOptions {
  InstanceId target;  // for addressed() outputs
  TenantSlot tenant;  // none = the handled message's
  StepRef cause;      // none = this step's own input
  InstanceId origin;  // none = the handled message's origin, else this instance

  SendOptions for_tenant(TenantSlot slot) const {
    auto copy = *this;
    copy.tenant = slot;
    return copy;
  }
  SendOptions answering(StepRef ref) const {
    auto copy = *this;
    copy.cause = ref;
    return copy;
  }
  SendOptions to_origin_of(InstanceId instance) const {
    auto copy = *this;
    copy.origin = instance;
    return copy;
  }
};

inline SendOptions to(InstanceId target) {
  SendOptions options;
  options.target = target;
  return options;
}
inline SendOptions for_tenant(TenantSlot slot) { return SendOptions().for_tenant(slot); }
inline SendOptions answering(StepRef ref) { return SendOptions().answering(ref); }

/// What a group (or a NodeRunner) gives an actor's outputs to speak into.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void emit(uint32_t output, Payload payload, const SendOptions& options) = 0;
  /// Messages that still fit before the edge to `target` is full; the largest over all edges when
  /// none.
  virtual int64_t room(uint32_t output, InstanceId target) const = 0;
  /// Live instances this output can reach, in instance order; the tenant's only, when given.
  virtual std::span<const InstanceId> targets(uint32_t output, TenantSlot tenant) const = 0;
};

/// The untyped half that the group wires.
class OutBase {
 public:
  void wire(OutputSink* sink, uint32_t output) {
    sink_ = sink;
    output_ = output;
  }
  int64_t room(InstanceId target = {}) const { return sink().room(output_, target); }
  std::span<const InstanceId> targets(TenantSlot tenant = {}) const {
    return sink().targets(output_, tenant);
  }

 protected:
  OutputSink& sink() const {
    CHECK(sink_ != nullptr, "an output was used before start()");
    return *sink_;
  }
  uint32_t output_ = 0;

 private:
  OutputSink* sink_ = nullptr;
};

template <Message T>
class Out final : public OutBase {
 public:
  using Type = T;
  void send(T message, const SendOptions& options = {}) {
    sink().emit(output_, Payload::of(std::move(message)), options);
  }
  /// Sends one shared message again without copying it (to several addressed targets).
  void send(const Payload& payload, const SendOptions& options = {}) {
    CHECK(payload.type == &message_type<T>(), "a payload was sent as another type");
    sink().emit(output_, payload, options);
  }
};

}  // namespace primerl
