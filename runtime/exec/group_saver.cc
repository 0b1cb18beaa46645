#include "runtime/exec/group_saver.h"

#include <algorithm>

#include "runtime/exec/link_state.h"

namespace primerl {

GroupState GroupSaver::state() const {
  CHECK(!steps_.is_running() && links_.peers().is_empty(), "a group was saved within a step");
  GroupState state;
  state.group = common_.setup.group;
  state.at = links_.now();
  state.incarnation = common_.setup.incarnation;
  steps_.save(state);
  actors_.save(state);
  links_.save(state);
  const Inbox& inbox = links_.inbox();
  inbox.visit([&](const Input& input) { state.inputs.push_back(saved_input(input, inbox.links)); });
  std::sort(state.inputs.begin(), state.inputs.end(),
            [](const SavedInput& a, const SavedInput& b) { return a.arrival < b.arrival; });
  state.last_arrival = inbox.last_arrival();
  return state;
}

void GroupSaver::cut(uint64_t number, Time now) {
  if (common_.setup.cuts == nullptr || number <= newest_cut()) return;
  links_.set_now(now);
  links_.flush();  // under the old cut number
  links_.peers().set_cut(number);
  common_.setup.cuts->add_part(number, state());
}

void GroupSaver::follow_cut(uint32_t peer, const MessageBatch& batch, Time now) {
  if (common_.setup.cuts == nullptr || links_.peers().is_remote(peer)) return;
  if (batch.cut > newest_cut()) cut(batch.cut, now);
  if (batch.cut < newest_cut())
    for (const BatchedMessage& message : batch.messages)
      common_.setup.cuts->add_in_transit(newest_cut(),
                                         saved_message(message.link, message.envelope));
}

Status GroupSaver::restore(const GroupState& state) {
  RETURN_IF_ERROR(check_fits(state));
  RETURN_IF_ERROR(actors_.restore_actors(state));
  steps_.restore(state);
  // Each input and each actor with more work arms a work call.
  for (uint32_t i = 0; i < actors_.size() && !state.work_armed; ++i) actors_.set_may_work(i, false);
  links_.restore_counts(state);
  actors_.restore_tenants(state);
  links_.restore_peers(state);
  links_.restore_in(state);
  for (const SavedInput& saved : state.inputs) RETURN_IF_ERROR(put_back(saved));
  links_.inbox().set_last_arrival(state.last_arrival);
  RETURN_IF_ERROR(links_.restore_out(state));
  (void)common_.flow->take_got_capacity();
  return ok();
}

Status GroupSaver::receive(std::span<const SavedMessage> in_transit) {
  for (const SavedMessage& saved : in_transit) {
    ASSIGN_OR_RETURN(Input input, links_.restored_input(saved));
    RETURN_IF_ERROR(
        links_.inbox().receive(input.in_index, std::move(input.envelope), links_.now()));
  }
  return ok();
}

Status GroupSaver::put_back(const SavedInput& saved) {
  if (static_cast<StepKind>(saved.kind) == StepKind::kMessage) return put_back_message(saved);
  return actors_.put_back(saved);
}

Status GroupSaver::put_back_message(const SavedInput& saved) {
  ASSIGN_OR_RETURN(Input input, links_.restored_input(*saved.message));
  input.arrival = saved.arrival;
  input.arrived = saved.arrived;
  InLink& in = links_.inbox().links[input.in_index];
  const Envelope& envelope = input.envelope;
  const StepSource* source = common_.setup.step_source;
  if (source == nullptr || !in.link->is_remote ||
      !source->has_input(in.id, envelope.incarnation, envelope.sequence)) {
    links_.inbox().put_back(std::move(input));
    return ok();
  }
  // It is counted when its recorded step handles it.
  in.num_received.set(in.num_received.get() - 1);
  if (envelope.incarnation == in.incarnation) in.num_received_incarnation -= 1;
  return ok();
}

Status GroupSaver::check_fits(const GroupState& state) const {
  const auto strange = [&](std::string_view what) {
    return error(Code::kCorrupt, "the saved state of '{}' is of another graph: {}",
                 common_.planned().name, what);
  };
  if (state.group != common_.setup.group) return strange("it is another group's");
  if (state.actors.size() != actors_.size()) return strange("it has other actors");
  if (state.in_links.size() != links_.inbox().links.size() ||
      state.out_links.size() != common_.flow->links.size())
    return strange("it has other edges");
  const size_t num_slots = common_.tenants.num_slots();
  if (state.slot_shipped.size() != state.slot_received.size() ||
      state.slot_shipped.size() > num_slots)
    return strange("it has other tenant slots");
  if (state.peers.size() != links_.peers().size()) return strange("it has other neighbours");
  for (uint32_t i = 0; i < actors_.size(); ++i)
    if (state.actors[i].timer_generations.size() != actors_.num_timers(i))
      return strange("an actor has other timers");
  for (const SavedTimer& timer : state.timers)
    if (!actors_.has_timer(timer.actor, timer.timer)) return strange("it has other timers");
  for (const SavedInput& input : state.inputs) {
    const auto kind = static_cast<StepKind>(input.kind);
    const bool has_message = kind == StepKind::kMessage || kind == StepKind::kCommand;
    if (input.kind >= kNumStepKinds || input.actor >= actors_.size() ||
        input.message.has_value() != has_message ||
        input.tenant_change.has_value() != (kind == StepKind::kTenant))
      return strange("an input is none");
    if (kind == StepKind::kCommand && input.timer >= common_.contract_of(input.actor).inputs.size())
      return strange("it has other inputs");
    if (input.kind == static_cast<uint8_t>(StepKind::kTimer) &&
        !actors_.has_timer(input.actor, input.timer))
      return strange("it has other timers");
  }
  return ok();
}

}  // namespace primerl
