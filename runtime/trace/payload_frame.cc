#include "runtime/trace/payload_frame.h"

#include <algorithm>
#include <cstring>

#include "graph/base/bytes.h"

namespace primerl {
bool take_part(std::span<const std::byte>& left, uint64_t size, std::span<const std::byte>& part) {
  if (size > left.size()) return false;
  part = left.first(size);
  left = left.subspan(std::min<uint64_t>(padded(size), left.size()));
  return true;
}

Result<PayloadParts> payload_parts(const Frame& frame) {
  const auto& fixed = frame.as<PayloadFrame>();
  const auto torn = [&] {
    return error(Code::kCorrupt, "the payload at {} does not fill its frame", frame.offset);
  };
  std::span<const std::byte> left = frame.after<PayloadFrame>();
  PayloadParts parts;
  parts.body.num_bytes = fixed.body_bytes;
  parts.body.in_store = (fixed.header.flags & kBodyInStore) != 0;
  if (!take_part(left, parts.body.in_store ? kHashBytes : fixed.body_bytes, parts.body.bytes))
    return torn();
  for (uint16_t i = 0; i < fixed.header.count; ++i) {
    BlobWord word;
    if (left.size() < sizeof word) return torn();
    std::memcpy(&word, left.data(), sizeof word);
    left = left.subspan(sizeof word);
    PayloadParts::Part part{
        .num_bytes = word.num_bytes(), .bytes = {}, .in_store = word.in_store()};
    if (!take_part(left, part.in_store ? kHashBytes : part.num_bytes, part.bytes)) return torn();
    parts.blobs.push_back(part);
  }
  if (!left.empty()) return torn();
  return parts;
}

}  // namespace primerl
