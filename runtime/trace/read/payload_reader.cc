#include "runtime/trace/read/payload_reader.h"

namespace primerl {

Result<Json> PayloadReader::json(const StoredPayload& payload) {
  const TraceCatalog::Type& type = catalog_.types[payload.type];
  auto& schema = schemas_[payload.type];
  if (!schema) {
    auto read = read_schema(type.schema);
    // For a type without a readable schema, this returns the error at each call.
    if (!read.ok()) return payload_json(type, payload);
    schema = std::move(read).value();
  }
  auto json = body_json(*schema, payload.body, payload.blobs);
  if (!json.ok()) return Error(json.error()).while_doing(fmt::format("reading a '{}'", type.name));
  return json;
}

}  // namespace primerl
