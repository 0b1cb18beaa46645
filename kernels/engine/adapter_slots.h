/// AdapterSlots: which adapters lie in the slots of an engine, and which gives way to another.
///
/// Adapters are numbers from 0. A slot is held by the sequences that compute with its adapter; one
/// that nobody holds may be taken for another adapter, the least recently used first. One adapter
/// is on its way at a time. A book of numbers: it moves no weights. Bound: as many adapters in
/// slots as there are slots. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace primerl {

class AdapterSlots {
 public:
  static constexpr int32_t kNone = -1;

  /// An adapter on its way into a slot.
  struct Load {
    int32_t adapter = kNone;
    int32_t slot = kNone;
  };

  explicit AdapterSlots(int32_t num_slots) : slots_(static_cast<size_t>(num_slots)) {}

  /// The slot where `adapter` can be used; kNone: it is in none, or still on its way.
  int32_t slot_of(int32_t adapter) const {
    const int32_t slot = slot_with(adapter);
    return slot == kNone || slots_[static_cast<size_t>(slot)].is_coming ? kNone : slot;
  }
  bool is_in_a_slot_or_coming(int32_t adapter) const { return slot_with(adapter) != kNone; }

  /// A sequence begins to compute with `adapter`, which is in a slot, or stops.
  void hold(int32_t adapter);
  void release(int32_t adapter);

  /// A slot that `adapter`, which is in none, may have: an empty one, else the least recently used
  /// of those that nobody holds and `may_evict` says of their adapter. kNone: there is none.
  int32_t slot_for(const std::function<bool(int32_t adapter)>& may_evict) const;
  /// The adapter that has been held for longest without a new hold; kNone: nothing is held.
  int32_t longest_held() const;

  /// `adapter` is on its way into `slot`, which slot_for() gave, and what was there is gone.
  void begin(int32_t adapter, int32_t slot);
  const std::optional<Load>& coming() const { return coming_; }
  /// What was on its way is there.
  void finish();
  /// Puts `adapter` into an empty slot, ready at once. False: there is none.
  bool place(int32_t adapter);

  uint64_t num_loads() const { return num_loads_; }  // that begin() began
  uint64_t num_evictions() const { return num_evictions_; }

 private:
  struct Slot {
    int32_t adapter = kNone;
    int32_t num_holds = 0;
    uint64_t last_use = 0;  // rises with holds and releases
    uint64_t last_hold = 0;
    bool is_coming = false;
  };

  int32_t slot_with(int32_t adapter) const {
    const auto index = static_cast<size_t>(adapter);
    return adapter < 0 || index >= slot_of_.size() ? kNone : slot_of_[index];
  }
  Slot& slot_held(int32_t adapter);
  void put(int32_t adapter, int32_t slot);

  std::vector<Slot> slots_;
  std::vector<int32_t> slot_of_;  // by adapter
  std::optional<Load> coming_;
  uint64_t num_uses_ = 0;
  uint64_t num_loads_ = 0;
  uint64_t num_evictions_ = 0;
};

}  // namespace primerl
