/// RecentTable: values by name, for the names that were used last.
///
/// As a cut must copy it within a few milliseconds, all entries are in one block of memory, linked
/// by age. A value; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace primerl {

template <class Name, class Value, class Hash>
class RecentTable {
 public:
  /// None for a name that is not known, or was forgotten. Does not make it newer.
  const Value* find(const Name& name) const {
    index();
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : &entries_[found->second].value;
  }

  /// The newest name from now on. When there are more than `entries_max`, the one that was not used
  /// for longest is forgotten.
  void put(const Name& name, Value value, size_t entries_max) {
    index();
    const auto known = places_.find(name);
    uint32_t place = 0;
    if (known != places_.end()) {
      place = known->second;
      unlink(place);
    } else if (entries_.size() < entries_max) {
      place = static_cast<uint32_t>(entries_.size());
      entries_.emplace_back();
      places_.emplace(name, place);
    } else {
      place = oldest_;
      // The same node under another name: nothing is allocated.
      auto node = places_.extract(entries_[place].name);
      node.key() = name;
      places_.insert(std::move(node));
      unlink(place);
    }
    entries_[place].name = name;
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
  /// Of a table that was read from a cut.
  void index() const {
    if (places_.size() == entries_.size()) return;
    places_.clear();
    for (uint32_t place = 0; place < entries_.size(); ++place)
      places_.emplace(entries_[place].name, place);
  }

  std::vector<Entry> entries_;
  uint32_t oldest_ = kNone, newest_ = kNone;
  // Follows from entries_, so it is not saved; made when it is needed.
  mutable std::unordered_map<Name, uint32_t, Hash> places_;
};

}  // namespace primerl
