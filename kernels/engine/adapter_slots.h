/// AdapterSlots: which adapters are loaded in the slots of an engine, and which is evicted next.
///
/// Adapters are numbered from 0. Sequences that compute with an adapter retain its slot. A slot
/// that no sequence retains may be given to another adapter, the least recently used first. At most
/// one adapter is loading at a time. This class only keeps numbers: it moves no weights. Bound: at
/// most one adapter per slot. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace primerl {

class AdapterSlots {
 public:
  static constexpr int32_t kNone = -1;

  /// An adapter that is being loaded into a slot.
  struct Load {
    int32_t adapter = kNone;
    int32_t slot = kNone;
  };

  explicit AdapterSlots(int32_t num_slots) : slots_(static_cast<size_t>(num_slots)) {}

  /// The slot where `adapter` can be used; kNone: it has no slot, or is still loading.
  int32_t slot_of(int32_t adapter) const {
    const int32_t slot = slot_with(adapter);
    return slot == kNone || slots_[static_cast<size_t>(slot)].is_coming ? kNone : slot;
  }
  bool is_in_a_slot_or_coming(int32_t adapter) const { return slot_with(adapter) != kNone; }

  /// A sequence begins (hold) or stops (release) to compute with `adapter`, which is in a slot.
  void hold(int32_t adapter);
  void release(int32_t adapter);

  /// A slot for `adapter`, which has none yet: an empty slot, else the least recently used slot
  /// that no sequence retains and whose adapter `may_evict` accepts. kNone: there is no such slot.
  int32_t slot_for(const std::function<bool(int32_t adapter)>& may_evict) const;
  /// The adapter that has been in use for the longest time without a new hold(); kNone: none is.
  int32_t longest_held() const;

  /// `adapter` begins to load into `slot`, which slot_for() returned. The slot's old adapter is
  /// gone.
  void begin(int32_t adapter, int32_t slot);
  const std::optional<Load>& coming() const { return coming_; }
  /// The load that begin() started is complete.
  void finish();
  /// Puts `adapter` into an empty slot, ready at once. False: no slot is empty.
  bool place(int32_t adapter);

  /// Empties the slot of `adapter`, which no sequence retains, also while it is being loaded.
  /// Nothing happens if it has none.
  void remove(int32_t adapter);

  uint64_t num_loads() const { return num_loads_; }  // loads that begin() started
  uint64_t num_evictions() const { return num_evictions_; }

 private:
  struct Slot {
    int32_t adapter = kNone;
    int32_t num_holds = 0;
    uint64_t last_use = 0;  // rises with each hold() and release()
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
