// Checks whether a saved state fits a group: every index in it must be valid here.
#include "runtime/exec/group_body.h"

namespace primerl {

Status ActorGroup::Body::check_fits(const GroupState& state) const {
  const auto strange = [&](std::string_view what) {
    return error(Code::kCorrupt, "the saved state of '{}' is of another graph: {}", planned_.name,
                 what);
  };
  if (state.group != setup().group) return strange("it is another group's");
  if (state.actors.size() != slots_.size()) return strange("it has other actors");
  if (state.in_links.size() != inbox_.links.size() ||
      state.out_links.size() != common_->flow->links.size())
    return strange("it has other edges");
  if (state.peers.size() != batches_.size()) return strange("it has other neighbours");
  const auto has_timer = [&](uint32_t actor, uint32_t timer) {
    return actor < slots_.size() && timer < slots_[actor].timer_generations.size();
  };
  for (size_t i = 0; i < slots_.size(); ++i)
    if (state.actors[i].timer_generations.size() != slots_[i].timer_generations.size())
      return strange("an actor has other timers");
  for (const SavedTimer& timer : state.timers)
    if (!has_timer(timer.actor, timer.timer)) return strange("it has other timers");
  for (const SavedInput& input : state.inputs) {
    const auto kind = static_cast<StepKind>(input.kind);
    const bool has_message = kind == StepKind::kMessage || kind == StepKind::kCommand;
    if (input.kind >= kNumStepKinds || input.actor >= slots_.size() ||
        input.message.has_value() != has_message)
      return strange("an input is none");
    if (kind == StepKind::kCommand &&
        input.timer >= slots_[input.actor].running->contract().inputs.size())
      return strange("it has other inputs");
    if (input.kind == static_cast<uint8_t>(StepKind::kTimer) &&
        !has_timer(input.actor, input.timer))
      return strange("it has other timers");
  }
  return ok();
}

}  // namespace primerl
