/// The protobuf body of a Tinker client's pass: one datum of two tokens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "actors/tinker/protobuf.h"

namespace primerl::testing {

inline std::string tinker_chunk(const std::vector<int32_t>& tokens) {
  tinker::ProtoWriter text, chunk;
  text.bytes(1, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4});
  chunk.bytes(1, std::move(text).finish());
  return std::move(chunk).finish();
}

inline std::string tinker_pass_body(const std::string& model, int64_t seq, bool is_forward = false,
                                    const std::vector<int32_t>& tokens = {97, 98}) {
  using tinker::ProtoWriter;
  std::vector<int64_t> targets;
  for (const int32_t token : tokens) targets.push_back(token + 1);
  ProtoWriter tensor, entry, datum, body;
  tensor.bytes(1, {reinterpret_cast<const char*>(targets.data()), targets.size() * 8});
  tensor.number(3, targets.size());
  tensor.number(4, 2);
  entry.bytes(1, "target_tokens");
  entry.bytes(2, std::move(tensor).finish());
  datum.bytes(1, tinker_chunk(tokens));
  datum.bytes(2, std::move(entry).finish());
  body.bytes(1, model);
  body.number(2, static_cast<uint64_t>(seq));
  body.bytes(3, std::move(datum).finish());
  body.bytes(4, "cross_entropy");
  if (is_forward) body.number(6, 1);
  return std::move(body).finish();
}

}  // namespace primerl::testing
