/// TextSearch: finds a regular expression (PCRE2 syntax, UTF-8) in texts that a model has written.
///
/// The number of match steps and the memory of a search are bounded, so a pattern with catastrophic
/// backtracking gives an error, not a hang. Immutable; safe from any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

class TextSearch {
 public:
  struct Found {
    std::string_view text;                  // the whole match
    std::optional<std::string_view> group;  // of the first group, if the pattern has one
  };

  /// kInvalid with the offset of the fault in the pattern.
  static Result<TextSearch> compile(const std::string& pattern);
  /// The first match; none if there is none. `text` must be valid UTF-8 and stay valid while the
  /// result is used. kExhausted: the search reached its limit.
  Result<std::optional<Found>> find(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace primerl
