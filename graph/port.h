/// Out<T>: a typed output port, the only way for an actor to send. Input ports are handlers
/// (contract.h).
///
/// An Out is a member of its actor, and the group connects it before start(). send() never blocks
/// and never fails: messages are buffered and leave together when the handler returns, or not at
/// all if it fails. The group does the flow control: while an outgoing forward edge is full, it
/// delivers no forward input and makes no work call.
#pragma once

#include <optional>
#include <span>

#include "graph/base/ids.h"
#include "graph/message_type.h"

namespace primerl {

/// The target and tenant of a message, and what it answers. Can be chained:
/// `to(engine).answering(ref)`.
struct SendOptions {
  InstanceId target;  // for addressed() outputs
  TenantSlot tenant;  // none = the tenant of the handled message
  StepRef cause;      // none = the input of this step
  InstanceId origin;  // none = the origin of the handled message, else this instance

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

/// The receiver of an actor's outputs; implemented by a group, or by a NodeRunner.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void emit(uint32_t output, Payload payload, const SendOptions& options) = 0;
  /// How many messages still fit before the edge to `target` is full; without a target, the largest
  /// number over all edges.
  virtual int64_t room(uint32_t output, InstanceId target) const = 0;
  /// The answer of room() when the receiver has handled or overwritten everything that was sent to
  /// `target`.
  virtual int64_t capacity(uint32_t output, InstanceId target) const = 0;
  /// Live instances that this output can reach, in instance order; if a tenant is given, only its
  /// own.
  virtual std::span<const InstanceId> targets(uint32_t output, TenantSlot tenant) const = 0;
};

/// The untyped half, which the group connects.
class OutBase {
 public:
  void wire(OutputSink* sink, uint32_t output) {
    sink_ = sink;
    output_ = output;
  }
  int64_t room(InstanceId target = {}) const { return sink().room(output_, target); }
  /// Whether every live target has handled or overwritten all that was sent to it.
  bool has_arrived() const {
    for (const InstanceId target : targets())
      if (room(target) < sink().capacity(output_, target)) return false;
    return true;
  }
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
  /// Sends a shared message again without copying it (to several addressed targets).
  void send(const Payload& payload, const SendOptions& options = {}) {
    CHECK(payload.type == &message_type<T>(), "a payload was sent as another type");
    sink().emit(output_, payload, options);
  }
};

}  // namespace primerl
