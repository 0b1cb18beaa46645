/// One input of the schema fuzzer: the schema text of a message type, a line end, and a body. The
/// body is decoded by the schema, as for a trace without the message's struct.
/// tests/trace/decoder_fuzz_test.cc runs it over its corpus and mutations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include "runtime/trace/schema.h"

namespace primerl {

inline void fuzz_schema(std::span<const std::byte> bytes) {
  const auto end = std::find(bytes.begin(), bytes.end(), std::byte{'\n'});
  const auto size = static_cast<size_t>(end - bytes.begin());
  const auto schema =
      read_schema(std::string_view(reinterpret_cast<const char*>(bytes.data()), size));
  if (!schema.ok()) return;
  const auto body = bytes.subspan(std::min(size + 1, bytes.size()));
  const std::vector<Blob> blobs(2, Blob(std::vector<std::byte>(3)));
  const auto json = body_json(*schema, body, blobs);
  // If one function accepts the body, all must accept it.
  CHECK(body_check(*schema, 7, body, blobs).ok() == json.ok(), "a check of what is no body");
  CHECK(body_versions(*schema, body, blobs).ok() == json.ok(), "versions of what is no body");
  CHECK(body_steps(*schema, body, blobs).ok() == json.ok(), "steps of what is no body");
}

}  // namespace primerl
