/// Admission: which waiting sequence starts next, and which adapter gets a slot for it. A part of
/// BatchScheduler, whose page has the rules.
#pragma once

#include <optional>

#include "kernels/engine/sequence_table.h"

namespace primerl {

class Admission {
 public:
  /// `table` must stay valid while it exists.
  explicit Admission(SequenceTable& table) : table_(table) {}

  /// Whether there are enough free blocks for the next sequence to admit.
  bool can_admit() const;
  /// Admits the next sequence, and returns the prompt that computes its tokens.
  PrefillTask& admit();
  /// BatchScheduler::next_load().
  const std::optional<AdapterSlots::Load>& next_load();
  /// Whether an adapter can be loaded for a sequence that waits for a slot.
  bool can_load() const;

 private:
  /// The prompt in progress that `sequence` may wait for too; or null.
  PrefillTask* shared_prefill(const Sequence& sequence) const;
  PrefillTask& new_prefill(Sequence& sequence);
  /// The first waiting sequence whose tenant may have the blocks and slot it needs and whose
  /// adapter, if any, is in a slot; or null.
  Sequence* next_to_admit() const;
  bool may_admit(Sequence& sequence) const;
  /// Whether `may_take` allows the blocks it needs, in addition to `num_held` blocks, which may
  /// include its own prefix.
  template <class MayTake>
  bool has_room(Sequence& sequence, int32_t num_held, const MayTake& may_take) const;
  /// By how many the free blocks decrease if it is admitted and computes its prompt alone.
  int32_t num_blocks_needed(Sequence& sequence) const;
  /// How many sequences own blocks and will soon need another; of `tenant`, or of all tenants.
  int32_t num_growing(std::optional<TenantSlot> tenant) const;
  /// The blocks that stay free for growing sequences if `next` is admitted.
  int32_t num_reserved(const Sequence& next, std::optional<TenantSlot> tenant) const;
  /// The first sequence that waits for an adapter slot; or null.
  const Sequence* first_without_slot() const;
  int32_t slot_for(const Sequence& sequence) const;
  /// The adapter that admits no sequence until its slot is free; kNoAdapter: none.
  int32_t draining() const;

  SequenceTable& table_;
};

}  // namespace primerl
