/// RecentTable: values by name, for the most recently used names.
///
/// All entries are in one block of memory, linked by age, because a cut must copy the table within
/// a few milliseconds. Look-up is by open addressing: one or two cache misses per name, and no
/// allocation once the table is full. A value; not thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace primerl {

template <class Name, class Value, class Hash>
class RecentTable {
 public:
  /// Null for an unknown or forgotten name. Does not change its age.
  const Value* find(const Name& name) const {
    if (entries_.empty()) return nullptr;
    index();
    const uint32_t position = slots_[slot_of(name)].position;
    return position == kNone ? nullptr : &entries_[position].value;
  }

  /// Sets the value; the name becomes the newest. Above `entries_max` names, the oldest is
  /// forgotten.
  void put(const Name& name, Value value, size_t entries_max) {
    index();
    uint32_t position = slots_[slot_of(name)].position;
    if (position != kNone) {
      unlink(position);
    } else if (entries_.size() < entries_max) {
      position = static_cast<uint32_t>(entries_.size());
      entries_.emplace_back();
      entries_[position].name = name;
      index();
    } else {
      position = oldest_;
      unlink(position);
      empty_slot(slot_of(entries_[position].name));
      entries_[position].name = name;
      slots_[slot_of(name)] = {position, mark_of(name)};
    }
    entries_[position].value = std::move(value);
    link_newest(position);
  }

  /// Forgets the names for which `is_gone` is true. It looks at every entry.
  template <class IsGone>
  void forget_if(const IsGone& is_gone) {
    const auto is_entry_gone = [&](const Entry& entry) { return is_gone(entry.name); };
    if (std::ranges::none_of(entries_, is_entry_gone)) return;
    RecentTable kept;
    kept.entries_.reserve(entries_.capacity());
    for (uint32_t position = oldest_; position != kNone; position = entries_[position].newer) {
      Entry& entry = entries_[position];
      if (is_entry_gone(entry)) continue;
      kept.entries_.push_back({std::move(entry.name), std::move(entry.value), kNone, kNone});
      kept.link_newest(static_cast<uint32_t>(kept.entries_.size()) - 1);
    }
    *this = std::move(kept);
  }

  /// Prefetches the slot of `name` for a later find() or put(). Changes nothing. Always inlined,
  /// because gcc would remove a call to a function without effect.
  [[gnu::always_inline]] void expect(const Name& name) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[home_of(mark_of(name))], 1);
  }
  /// Prefetches everything that the next put() of all `names` reads and writes. That memory is
  /// scattered; here the cache misses overlap, in put() they would follow each other. Inlined for
  /// the same reason.
  [[gnu::always_inline]] void expect_all(std::span<const Name> names, size_t entries_max) const {
    for (const Name& name : names) expect(name);
    // The slots of the entries that may be forgotten for the new ones.
    uint32_t position = entries_.size() < entries_max ? kNone : oldest_;
    for (size_t i = 0; i < names.size() && position != kNone;
         ++i, position = entries_[position].newer)
      expect(entries_[position].name);
    for (const Name& name : names)
      if (const uint32_t at = slots_.empty() ? kNone : slots_[home_of(mark_of(name))].position;
          at != kNone)
        __builtin_prefetch(&entries_[at], 1);
  }

  size_t size() const { return entries_.size(); }

  template <class F>
  static void fields(F& f) {
    using T = RecentTable;
    f("entries", &T::entries_)("oldest", &T::oldest_)("newest", &T::newest_);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    Name name{};
    Value value{};
    uint32_t older = kNone, newer = kNone;  // index of an entry
    template <class F>
    static void fields(F& f) {
      f("name", &Entry::name)("value", &Entry::value)("older", &Entry::older)("newer",
                                                                              &Entry::newer);
    }
  };

  /// A look-up reads an entry only if the mark in its slot equals the mark of the name.
  struct Slot {
    uint32_t position = kNone;  // index of an entry
    uint32_t mark = 0;          // mark of its name
  };

  void unlink(uint32_t position) {
    const Entry& entry = entries_[position];
    (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
    (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  }
  void link_newest(uint32_t position) {
    entries_[position].older = newest_;
    entries_[position].newer = kNone;
    (newest_ == kNone ? oldest_ : entries_[newest_].newer) = position;
    newest_ = position;
  }
  /// Half of a name's hash. Names may differ in few bits; the multiplication spreads them.
  static uint32_t mark_of(const Name& name) {
    constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
    return static_cast<uint32_t>((uint64_t{Hash()(name)} * kSpread) >> 32);
  }
  size_t home_of(uint32_t mark) const { return mark >> (32 - std::countr_zero(slots_.size())); }
  /// The slot of the name, or the free slot where it would be. Half of the slots are empty, so the
  /// search is short.
  size_t slot_of(const Name& name) const {
    const uint32_t mark = mark_of(name);
    size_t slot = home_of(mark);
    while (slots_[slot].position != kNone &&
           !(slots_[slot].mark == mark && entries_[slots_[slot].position].name == name))
      slot = after(slot);
    return slot;
  }
  size_t after(size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
  /// Empties a slot. Later entries that could not be found across the gap are moved into it.
  void empty_slot(size_t gap) {
    const size_t mask = slots_.size() - 1;
    for (size_t slot = after(gap); slots_[slot].position != kNone; slot = after(slot)) {
      const size_t home = home_of(slots_[slot].mark);
      if (((slot - home) & mask) < ((slot - gap) & mask)) continue;
      slots_[gap] = slots_[slot];
      gap = slot;
    }
    slots_[gap] = {};
  }
  /// Adds the entries that have no slot yet: a new entry, or all entries of a table that was read
  /// from a cut.
  void index() const {
    if (num_indexed_ == entries_.size() && !slots_.empty()) return;
    if (slots_.size() < 2 * entries_.size() || slots_.empty()) {
      slots_.assign(std::bit_ceil(4 * entries_.size() + kSlotsMin), Slot());
      num_indexed_ = 0;
    }
    for (; num_indexed_ < entries_.size(); ++num_indexed_) {
      const Name& name = entries_[num_indexed_].name;
      slots_[slot_of(name)] = {static_cast<uint32_t>(num_indexed_), mark_of(name)};
    }
  }

  std::vector<Entry> entries_;
  uint32_t oldest_ = kNone, newest_ = kNone;
  // Built from entries_ when needed, so it is not saved.
  static constexpr size_t kSlotsMin = 16;
  mutable std::vector<Slot> slots_;  // the size is a power of two
  mutable size_t num_indexed_ = 0;
};

}  // namespace primerl
