#include "runtime/exec/flow.h"

#include <algorithm>

namespace primerl {
namespace {

bool waits_for_credit(const WiredLink& link) { return !link.is_feedback || link.latest_wins; }

bool has_credit(const OutLink& out, uint64_t num_bytes) {
  if (out.num_shipped.get() - out.num_settled.get() >= static_cast<uint64_t>(out.link->capacity))
    return false;
  const uint64_t in_window = out.bytes_shipped - out.bytes_settled;
  // Without this rule a message larger than the whole window would wait forever.
  return in_window == 0 || in_window + num_bytes <= static_cast<uint64_t>(out.link->bytes_max);
}

}  // namespace

uint64_t OutLink::blocked_until(Time now) const {
  const auto time = static_cast<uint64_t>(now.to_nanoseconds());
  while (true) {
    const uint64_t before = blocked_ns.get();
    const uint64_t since = full_since_ns.get();
    // A full period that ended meanwhile is now in the sum. Read again, or it would count twice.
    if (blocked_ns.get() == before) return before + (since != 0 && time > since ? time - since : 0);
  }
}

Flow::Flow(const Plan& plan, const Wiring& wiring, GroupId group, bool is_replaying)
    : num_slots_(wiring.num_slots), is_replaying_(is_replaying) {
  const PlanGroup& planned = plan.group(group);
  const GroupWiring& wires = wiring.groups[group.index()];
  num_full_.resize(planned.instances.size(), 0);
  outputs.resize(planned.instances.size());
  for (size_t a = 0; a < planned.instances.size(); ++a) {
    for (const OutputPort& port : plan.contract_of(planned.instances[a]).outputs) {
      OutputFlow& output = outputs[a].emplace_back();
      output.port = &port;
      output.any_blocks = port.routing != Routing::kAddressed;
    }
  }
  for (LinkId id : wires.out) {
    const WiredLink& link = wiring.links[id.index()];
    OutLink& out = links.emplace_back();
    out.link = &link;
    out.id = id;
    const auto position =
        std::find(planned.instances.begin(), planned.instances.end(), link.sender);
    out.actor = static_cast<uint32_t>(position - planned.instances.begin());
    OutputFlow& output = outputs[out.actor][link.output];
    output.links.push_back(link.out_index);
    if (!link.is_feedback) ++output.num_forward;
  }
  for (auto& of_actor : outputs) {
    for (auto& output : of_actor) {
      std::stable_sort(output.links.begin(), output.links.end(), [this](uint32_t a, uint32_t b) {
        return links[a].link->target < links[b].link->target;
      });
      rebuild_targets(output);
    }
  }
}

void Flow::rebuild_targets(OutputFlow& output) {
  output.targets.assign(num_slots_ + 1, {});
  for (uint32_t index : output.links) {
    const OutLink& out = links[index];
    if (!out.is_live) continue;
    for (uint32_t slot = 0; slot <= num_slots_; ++slot) {
      const TenantSlot only = out.link->target_tenant;
      if (slot < num_slots_ && !only.is_none() && only.value != slot) continue;
      auto& targets = output.targets[slot];
      if (targets.empty() || targets.back() != out.link->target)
        targets.push_back(out.link->target);
    }
  }
}

void Flow::count_shipped(OutLink& out, const Envelope& envelope) {
  out.num_shipped.add(1);
  out.bytes_shipped += envelope.blob_bytes;
  if (out.link->is_remote) out.unacknowledged.push(envelope);
}

bool Flow::emit(OutLink& out, Envelope& envelope, EmissionFate fate) {
  if (!out.is_live) {
    out.past_sent.add(1);
    out.num_returned.add(1);
    return false;
  }
  out.num_emitted.add(1);
  out.bytes_emitted += envelope.blob_bytes;
  const bool needs_credit = !is_replaying_ || fate == EmissionFate::kSendLater;
  const bool waits = needs_credit && waits_for_credit(*out.link) &&
                     (!out.outbox.empty() || !has_credit(out, envelope.blob_bytes));
  if (!waits) {
    count_shipped(out, envelope);
  } else {
    if (out.link->latest_wins) {
      for (uint64_t i = out.outbox.head(); i != out.outbox.tail(); ++i) {
        Envelope& older = out.outbox.at(i);
        if (older.tenant != envelope.tenant) continue;
        out.num_overwritten.add(1);
        out.bytes_emitted -= older.blob_bytes;
        // The newer message goes to the end, because sequence numbers must rise.
        out.outbox.remove(i);
        out.outbox.push(std::move(envelope));
        return false;
      }
    }
    out.outbox.push(std::move(envelope));
    ++num_in_outboxes_;
  }
  update_full(out);
  if (!out.link->is_feedback) out.waiting_max.raise_to(out.unsettled());
  return !waits;
}

void Flow::emit_known(OutLink& out, const Envelope& envelope, EmissionFate fate) {
  out.num_emitted.add(1);
  out.bytes_emitted += envelope.blob_bytes;
  (void)count_known(out, envelope, fate);
}

bool Flow::emit_again(OutLink& out, Envelope& envelope, EmissionFate fate) {
  const bool waits = fate == EmissionFate::kSendLater && waits_for_credit(*out.link) &&
                     (!out.outbox.empty() || !has_credit(out, envelope.blob_bytes));
  if (!waits) return count_known(out, envelope, fate);
  out.outbox.push(std::move(envelope));
  ++num_in_outboxes_;
  return false;
}

bool Flow::count_known(OutLink& out, const Envelope& envelope, EmissionFate fate) {
  CHECK(is_replaying_, "only a replaying group knows what becomes of its messages");
  if (fate == EmissionFate::kOverwritten) {
    out.num_overwritten.add(1);
    out.bytes_emitted -= envelope.blob_bytes;
    return false;
  }
  count_shipped(out, envelope);
  if (fate == EmissionFate::kHandled) settle(out, out.num_shipped.get(), out.bytes_shipped);
  update_full(out);
  return fate == EmissionFate::kSend || fate == EmissionFate::kSendLater;
}

bool Flow::may_settle(const OutLink& out, uint64_t num_messages, uint64_t num_bytes) const {
  if (num_messages <= out.num_settled.get()) return true;
  if (num_messages > out.num_shipped.get()) return is_replaying_;
  return num_bytes >= out.bytes_settled && num_bytes <= out.bytes_shipped;
}

bool Flow::settle(OutLink& out, uint64_t num_messages, uint64_t num_bytes) {
  // The receiver may be further in its record than this group: it has handled everything that was
  // sent.
  if (is_replaying_ && num_messages > out.num_shipped.get()) {
    num_messages = out.num_shipped.get();
    num_bytes = out.bytes_shipped;
  }
  if (num_messages <= out.num_settled.get()) return false;
  CHECK(num_messages <= out.num_shipped.get(), "a grant covers messages that were never shipped");
  if (out.link->is_remote)
    for (uint64_t i = out.num_settled.get(); i < num_messages; ++i) {
      Envelope&& settled = out.unacknowledged.pop();
      out.last_settled_sequence = settled.sequence;
      settled.payload = {};
    }
  out.num_settled.set(num_messages);
  out.bytes_settled = num_bytes;
  return true;
}

bool Flow::may_leave_outbox(const OutLink& out) const {
  return !out.outbox.empty() && has_credit(out, out.outbox.front().blob_bytes);
}

void Flow::count_full(uint32_t actor, int change) {
  const bool was_blocked = num_full_[actor] > 0;
  num_full_[actor] += static_cast<uint32_t>(change);
  const bool is_blocked = num_full_[actor] > 0;
  if (is_blocked && !was_blocked) ++num_blocked_;
  if (!is_blocked && was_blocked) --num_blocked_;
  if (change < 0) got_capacity_ = true;
}

void Flow::update_full(OutLink& out) {
  if (out.link->is_feedback) return;
  const bool full = out.is_live && (out.unsettled() >= static_cast<uint64_t>(out.link->capacity) ||
                                    out.bytes_emitted - out.bytes_settled >=
                                        static_cast<uint64_t>(out.link->bytes_max));
  if (full == out.is_full) return;
  out.is_full = full;
  if (!full) got_capacity_ = true;
  // Never 0, because 0 means "not full" and a virtual clock begins at 0.
  const auto time = static_cast<uint64_t>(std::max<int64_t>(now_.to_nanoseconds(), 1));
  const uint64_t since = out.full_since_ns.get();
  if (full) {
    if (since == 0) out.full_since_ns.set(time);
  } else {
    out.full_since_ns.set(0);
    if (since != 0 && time > since) out.blocked_ns.add(time - since);
  }
  OutputFlow& output = outputs[out.actor][out.link->output];
  output.num_full += full ? 1u : -1u;
  if (output.any_blocks) return count_full(out.actor, full ? 1 : -1);
  const bool blocks = output.num_full > 0 && output.num_full == output.num_forward;
  if (blocks != output.is_counted) count_full(out.actor, blocks ? 1 : -1);
  output.is_counted = blocks;
}

void Flow::put_back(OutLink& out, std::vector<Envelope> outbox,
                    std::vector<Envelope> unacknowledged) {
  num_in_outboxes_ += outbox.size();
  for (Envelope& envelope : outbox) out.outbox.push(std::move(envelope));
  for (Envelope& envelope : unacknowledged) out.unacknowledged.push(std::move(envelope));
  const uint64_t full_since_ns = out.full_since_ns.get();
  const uint64_t blocked_ns = out.blocked_ns.get();
  update_full(out);
  // A link that was not full when it was saved counts as full from now on.
  if (full_since_ns != 0 || !out.is_full) out.full_since_ns.set(full_since_ns);
  out.blocked_ns.set(blocked_ns);
}

void Flow::close(OutLink& out) {
  if (!out.is_live) return;
  out.past_sent.add(out.num_emitted.get());
  out.past_handled.add(out.num_settled.get());
  out.past_dropped.add(out.num_overwritten.get());
  out.num_returned.add(out.unsettled());
  num_in_outboxes_ -= out.outbox.size();
  out.outbox.clear();
  out.unacknowledged.clear();
  for (Counter* counter :
       {&out.num_emitted, &out.num_shipped, &out.num_settled, &out.num_overwritten})
    counter->set(0);
  out.last_settled_sequence = 0;
  out.bytes_emitted = out.bytes_shipped = out.bytes_settled = 0;
  update_full(out);  // while it still counts as live
  out.is_live = false;
  OutputFlow& output = outputs[out.actor][out.link->output];
  if (!out.link->is_feedback) --output.num_forward;
  rebuild_targets(output);
  // Now all remaining targets may be full.
  if (!output.any_blocks)
    for (uint32_t index : output.links) {
      OutLink& other = links[index];
      if (!other.is_full) continue;
      other.is_full = false;
      --output.num_full;
      update_full(other);
    }
}

void Flow::reopen(OutLink& out) {
  if (out.is_live) return;
  out.is_live = true;
  OutputFlow& output = outputs[out.actor][out.link->output];
  if (!out.link->is_feedback) {
    ++output.num_forward;
    if (std::exchange(output.is_counted, false)) count_full(out.actor, -1);
  }
  rebuild_targets(output);
  got_capacity_ = true;
}

void Flow::resume() {
  is_replaying_ = false;
  for (OutLink& out : links) out.waiting_max.set(out.link->is_feedback ? 0 : out.unsettled());
}

int64_t Flow::room(uint32_t actor, uint32_t output, InstanceId target) const {
  int64_t most = 0;
  for (uint32_t index : outputs[actor][output].links) {
    const OutLink& out = links[index];
    if (!target.is_none() && out.link->target != target) continue;
    if (!out.is_live) continue;
    most = std::max(most, out.link->capacity - static_cast<int64_t>(out.unsettled()));
  }
  return most;
}

int64_t Flow::capacity(uint32_t actor, uint32_t output, InstanceId target) const {
  int64_t most = 0;
  for (const uint32_t index : outputs[actor][output].links) {
    const OutLink& out = links[index];
    if (out.is_live && (target.is_none() || out.link->target == target))
      most = std::max(most, out.link->capacity);
  }
  return most;
}

std::span<const InstanceId> Flow::targets(uint32_t actor, uint32_t output,
                                          TenantSlot tenant) const {
  const auto& by_slot = outputs[actor][output].targets;
  return by_slot[tenant.is_none() ? num_slots_ : tenant.value];
}

}  // namespace primerl
