/// A reward of 1 when the last turn is JSON that fits a schema, else 0. A fence (```json ... ```)
/// around it does not count.
///
/// A bounded part of JSON Schema: type, enum, const, properties, required, additionalProperties
/// (true or false), items (one schema), minItems, maxItems, minLength, maxLength, minimum, maximum.
/// Other keys that change what fits are refused by name; title, description, default, examples and
/// keys that begin with `$` are ignored.
#pragma once

#include <memory>
#include <string>

#include "actors/env/reward.h"
#include "graph/base/json.h"

namespace primerl {

struct JsonSchemaOptions {
  std::string schema;  // JSON text
};

/// Refuses keys that fits_schema() does not know, and values of another type than they need.
Status check_schema(const Json& schema);
/// `schema` was accepted by check_schema().
bool fits_schema(const Json& value, const Json& schema);

OptionSet json_schema_options();
Result<std::unique_ptr<Reward>> make_json_schema(const JsonSchemaOptions& options);

}  // namespace primerl
