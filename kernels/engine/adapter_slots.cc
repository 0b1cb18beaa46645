#include "kernels/engine/adapter_slots.h"

#include "graph/base/result.h"

namespace primerl {

AdapterSlots::Slot& AdapterSlots::slot_held(int32_t adapter) {
  const int32_t slot = slot_of(adapter);
  CHECK(slot != kNone, "a sequence computes with an adapter that has no slot");
  return slots_[static_cast<size_t>(slot)];
}

void AdapterSlots::hold(int32_t adapter) {
  Slot& slot = slot_held(adapter);
  ++slot.num_holds;
  slot.last_use = slot.last_hold = ++num_uses_;
}

void AdapterSlots::release(int32_t adapter) {
  Slot& slot = slot_held(adapter);
  CHECK(slot.num_holds > 0, "an adapter's slot was released twice");
  --slot.num_holds;
  slot.last_use = ++num_uses_;
}

int32_t AdapterSlots::slot_for(const std::function<bool(int32_t adapter)>& may_evict) const {
  int32_t best = kNone;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.adapter == kNone) return static_cast<int32_t>(i);
    if (slot.num_holds > 0 || slot.is_coming || !may_evict(slot.adapter)) continue;
    if (best == kNone || slot.last_use < slots_[static_cast<size_t>(best)].last_use)
      best = static_cast<int32_t>(i);
  }
  return best;
}

int32_t AdapterSlots::longest_held() const {
  const Slot* longest = nullptr;
  for (const Slot& slot : slots_)
    if (slot.num_holds > 0 && (longest == nullptr || slot.last_hold < longest->last_hold))
      longest = &slot;
  return longest == nullptr ? kNone : longest->adapter;
}

void AdapterSlots::put(int32_t adapter, int32_t slot) {
  if (static_cast<size_t>(adapter) >= slot_of_.size())
    slot_of_.resize(static_cast<size_t>(adapter) + 1, kNone);
  slot_of_[static_cast<size_t>(adapter)] = slot;
  slots_[static_cast<size_t>(slot)] = {};
  slots_[static_cast<size_t>(slot)].adapter = adapter;
  slots_[static_cast<size_t>(slot)].last_use = ++num_uses_;
}

void AdapterSlots::begin(int32_t adapter, int32_t slot) {
  CHECK(!coming_ && slots_[static_cast<size_t>(slot)].num_holds == 0, "a slot that is in use");
  const int32_t before = slots_[static_cast<size_t>(slot)].adapter;
  if (before != kNone) {
    slot_of_[static_cast<size_t>(before)] = kNone;
    ++num_evictions_;
  }
  ++num_loads_;
  put(adapter, slot);
  slots_[static_cast<size_t>(slot)].is_coming = true;
  coming_ = Load{adapter, slot};
}

void AdapterSlots::finish() {
  slots_[static_cast<size_t>(coming_->slot)].is_coming = false;
  coming_.reset();
}

void AdapterSlots::remove(int32_t adapter) {
  const int32_t slot = slot_with(adapter);
  if (slot == kNone) return;
  CHECK(slots_[static_cast<size_t>(slot)].num_holds == 0, "an adapter in use lost its slot");
  if (coming_ && coming_->adapter == adapter) coming_.reset();
  slots_[static_cast<size_t>(slot)] = {};
  slot_of_[static_cast<size_t>(adapter)] = kNone;
}

bool AdapterSlots::place(int32_t adapter) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].adapter != kNone) continue;
    put(adapter, static_cast<int32_t>(i));
    return true;
  }
  return false;
}

}  // namespace primerl
