/// Typed reads of the JSON body of a request. A member that is missing or null is none. An error
/// names the member. Pure, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl::tinker {

class Body {
 public:
  /// Refuses what is not an object.
  static Result<Body> read(std::string_view text);
  explicit Body(Json json) : json_(std::move(json)) {}

  /// Null if it is missing or null.
  const Json* find(std::string_view key) const;
  Result<std::optional<int64_t>> integer(std::string_view key, int64_t least, int64_t most) const;
  Result<int64_t> needed_integer(std::string_view key, int64_t least, int64_t most) const;
  /// Refuses numbers that are not finite.
  Result<double> number(std::string_view key, double otherwise) const;
  Result<bool> boolean(std::string_view key, bool otherwise) const;
  /// Empty if it is missing.
  Result<std::string> text(std::string_view key) const;
  Result<std::string> needed_name(std::string_view key) const;
  /// An object inside.
  Result<std::optional<Body>> object(std::string_view key) const;

 private:
  Json json_;
};

}  // namespace primerl::tinker
