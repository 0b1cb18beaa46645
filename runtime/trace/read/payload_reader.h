/// PayloadReader: converts the contents of many messages to JSON. It parses the schema of each type
/// only once, because parsing costs more than converting a small message. Not thread-safe; the
/// catalog must stay valid while it exists.
#pragma once

#include <optional>
#include <vector>

#include "runtime/trace/read/trace.h"
#include "runtime/trace/schema.h"

namespace primerl {

class PayloadReader {
 public:
  explicit PayloadReader(const TraceCatalog& catalog)
      : catalog_(catalog), schemas_(catalog.types.size()) {}

  /// Same result as payload_json().
  Result<Json> json(const StoredPayload& payload);

 private:
  const TraceCatalog& catalog_;
  std::vector<std::optional<FieldSchema>> schemas_;  // by type, parsed at first use
};

}  // namespace primerl
