/// A MessageBatch as bytes: the payload of batch frames. docs/formats/wire.md has the layout.
///
/// Encoding reuses its memory, so a message of a few fields costs no allocation. Decoding costs one
/// allocation for the message and one per Blob. Large pieces (Blobs and bodies of at least
/// bulk_bytes_min) are returned separately and sent on the bulk lane; the bytes refer to them by
/// their order. Values, one thread each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/wire/message_batch.h"
#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/wire_message.h"

namespace primerl {

inline constexpr size_t kBatchHeaderBytes = 40;
inline constexpr size_t kGrantBytes = 24;
inline constexpr size_t kMessageHeaderBytes = 72;
/// Once a batch has this many bytes, pieces of at least 1 KiB go to the bulk lane too.
inline constexpr size_t kBatchInlineBytes = size_t{256} << 10;

/// The header of an encoded batch.
struct BatchShape {
  uint32_t num_bytes = 0;  // of the encoded batch, this header included
  GroupId from;
  GroupId to;
  uint32_t incarnation = 0;
  uint32_t num_messages = 0;
  uint32_t num_grants = 0;
  uint32_t num_bulk = 0;    // pieces on the bulk lane
  uint64_t first_bulk = 0;  // number of the first piece
};

struct BatchEncoderLimits {
  uint64_t bulk_bytes_min = uint64_t{64} << 10;
  uint64_t batch_bytes_max = uint64_t{16} << 20;
  uint64_t blob_bytes_max = uint64_t{1} << 30;
};

class BatchEncoder {
 public:
  /// Replaces the last encoded batch. kExhausted: a limit was exceeded; nothing is encoded.
  Status encode(const MessageBatch& batch, const WireTypes& types,
                const BatchEncoderLimits& limits);

  /// Valid until the next encode(). The number of the first bulk piece is zero: see number_bulk().
  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<Blob>& bulk() { return bulk_; }
  uint64_t bulk_bytes() const { return bulk_bytes_; }

 private:
  Status add(const BatchedMessage& message, const WireTypes& types,
             const BatchEncoderLimits& limits);
  bool goes_inline(size_t size, const BatchEncoderLimits& limits) const;
  void add_bulk(Blob piece);
  std::byte* grow(size_t size);
  void append(std::span<const std::byte> piece);

  MsgpackWriter writer_;
  std::vector<std::byte> bytes_;
  std::vector<Blob> bulk_;
  uint64_t bulk_bytes_ = 0;
};

/// Writes the number of a batch's first bulk piece into its encoded bytes.
void number_bulk(std::span<std::byte> batch, uint64_t first_bulk);

/// The header of the batch at the front of `bytes`. kNone only when the whole batch is inside.
FrameRefusal decode_batch_shape(std::span<const std::byte> bytes, BatchShape& shape);

/// The rules that a decoder checks a batch against.
struct BatchRules {
  const WireTypes* types = nullptr;
  /// Whose messages are allowed, beside those of no tenant. Empty: all.
  std::span<const TenantSlot> tenants;
  uint64_t blob_bytes_max = uint64_t{1} << 30;
};

struct DecodedBatch {
  FrameRefusal refusal = FrameRefusal::kNone;
  std::optional<Error> error;  // the text, for kTenant and kBody
  MessageBatch batch;
};

/// Decodes exactly one batch. `owner` keeps `bytes` alive and has `owner_bytes` bytes. A Blob that
/// is a large part of it shares it. A small Blob is copied, so that it does not keep a whole frame
/// alive. `bulk` has the pieces from the bulk lane, in order; they are moved out.
DecodedBatch decode_batch(const BatchShape& shape, std::span<const std::byte> bytes,
                          const std::shared_ptr<const void>& owner, size_t owner_bytes,
                          std::span<Blob> bulk, const BatchRules& rules);

/// Only the grants: they may be delivered before the messages, which may still wait for bulk
/// pieces.
std::vector<Grant> decode_grants(const BatchShape& shape, std::span<const std::byte> bytes);

}  // namespace primerl
