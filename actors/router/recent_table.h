/// RecentTable: values by name, for the names that were used last.
///
/// As a cut must copy it within a few milliseconds, all entries are in one block of memory, linked
/// by age. They are found by open addressing, which is one or two cache misses a name and allocates
/// nothing once the table is full. A value; not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace primerl {

template <class Name, class Value, class Hash>
class RecentTable {
 public:
  /// None for a name that is not known, or was forgotten. Does not make it newer.
  const Value* find(const Name& name) const {
    if (entries_.empty()) return nullptr;
    index();
    const uint32_t place = slots_[slot_of(name)];
    return place == kNone ? nullptr : &entries_[place].value;
  }

  /// The newest name from now on. When there are more than `entries_max`, the one that was not used
  /// for longest is forgotten.
  void put(const Name& name, Value value, size_t entries_max) {
    index();
    uint32_t place = slots_[slot_of(name)];
    if (place != kNone) {
      unlink(place);
    } else if (entries_.size() < entries_max) {
      place = static_cast<uint32_t>(entries_.size());
      entries_.emplace_back();
      entries_[place].name = name;
      index();
    } else {
      place = oldest_;
      unlink(place);
      empty_slot(slot_of(entries_[place].name));
      entries_[place].name = name;
      slots_[slot_of(name)] = place;
    }
    entries_[place].value = std::move(value);
    link_newest(place);
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

  void unlink(uint32_t place) {
    const Entry& entry = entries_[place];
    (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
    (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  }
  void link_newest(uint32_t place) {
    entries_[place].older = newest_;
    entries_[place].newer = kNone;
    (newest_ == kNone ? oldest_ : entries_[newest_].newer) = place;
    newest_ = place;
  }
  size_t home_of(const Name& name) const {
    // Names may differ in a few bits only: the product spreads them over its highest ones.
    constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
    return (uint64_t{Hash()(name)} * kSpread) >> (64 - std::countr_zero(slots_.size()));
  }
  /// Where the name is, or would be. A slot in two is empty, so it is found soon.
  size_t slot_of(const Name& name) const {
    size_t slot = home_of(name);
    while (slots_[slot] != kNone && !(entries_[slots_[slot]].name == name)) slot = after(slot);
    return slot;
  }
  size_t after(size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
  /// Those behind it that would not be found over the gap move into it.
  void empty_slot(size_t gap) {
    const size_t mask = slots_.size() - 1;
    for (size_t slot = after(gap); slots_[slot] != kNone; slot = after(slot)) {
      const size_t home = home_of(entries_[slots_[slot]].name);
      if (((slot - home) & mask) < ((slot - gap) & mask)) continue;
      slots_[gap] = slots_[slot];
      gap = slot;
    }
    slots_[gap] = kNone;
  }
  /// Takes in the entries that have no slot yet: a new one, or all of a table read from a cut.
  void index() const {
    if (num_indexed_ == entries_.size() && !slots_.empty()) return;
    if (slots_.size() < 2 * entries_.size() || slots_.empty()) {
      slots_.assign(std::bit_ceil(4 * entries_.size() + kSlotsMin), kNone);
      num_indexed_ = 0;
    }
    for (; num_indexed_ < entries_.size(); ++num_indexed_)
      slots_[slot_of(entries_[num_indexed_].name)] = static_cast<uint32_t>(num_indexed_);
  }

  std::vector<Entry> entries_;
  uint32_t oldest_ = kNone, newest_ = kNone;
  // Follows from entries_, so it is not saved; made when it is needed.
  static constexpr size_t kSlotsMin = 16;
  mutable std::vector<uint32_t> slots_;  // places; a power of two
  mutable size_t num_indexed_ = 0;
};

}  // namespace primerl
