/// OrdinalSet: the ordinals of consumed tasks, as sorted ranges that do not touch. A plain value.
#pragma once

#include <cstdint>
#include <map>

#include "graph/base/json.h"

namespace primerl {

class OrdinalSet {
 public:
  /// Adding an ordinal twice changes nothing.
  void add(uint64_t ordinal);
  bool contains(uint64_t ordinal) const;
  /// The smallest ordinal >= `from` that is not in the set.
  uint64_t next_free(uint64_t from) const;
  uint64_t size() const;
  size_t num_ranges() const { return ranges_.size(); }

  /// [[first, last], ...], both ends included.
  Json to_json() const;
  static Result<OrdinalSet> from_json(const Json& json);

  friend bool operator==(const OrdinalSet&, const OrdinalSet&) = default;

  template <class F>
  static void fields(F& f) {
    f("ranges", &OrdinalSet::ranges_);
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // first -> last
};

}  // namespace primerl
