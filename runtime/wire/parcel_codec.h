/// A Parcel as bytes: what the frames of a link carry. docs/formats/wire.md has the layout.
///
/// Encoding reuses its memory, so that a message of a few fields costs no allocation; decoding
/// costs one for the message and one per Blob. Large pieces (Blobs and bodies from bulk_bytes_min
/// on) are left out and handed over beside the bytes, to travel as bulk; the bytes name them by
/// their order. Values, one thread each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/parcel.h"
#include "runtime/wire/wire_message.h"

namespace primerl {

inline constexpr size_t kParcelHeaderBytes = 40;
inline constexpr size_t kGrantBytes = 24;
inline constexpr size_t kMessageHeaderBytes = 64;
/// Once a parcel has so many bytes, pieces of a KiB and more travel as bulk too.
inline constexpr size_t kParcelInlineBytes = size_t{256} << 10;

/// The header of an encoded parcel.
struct ParcelShape {
  uint32_t num_bytes = 0;  // of the encoded parcel, this header included
  HostId from;
  HostId to;
  uint32_t epoch = 0;
  uint32_t num_messages = 0;
  uint32_t num_grants = 0;
  uint32_t num_bulk = 0;    // pieces that travel as bulk
  uint64_t first_bulk = 0;  // number of the first of them
};

struct ParcelEncoderLimits {
  uint64_t bulk_bytes_min = uint64_t{64} << 10;
  uint64_t parcel_bytes_max = uint64_t{16} << 20;
  uint64_t blob_bytes_max = uint64_t{1} << 30;
};

class ParcelEncoder {
 public:
  /// Replaces what was encoded before. kExhausted: a limit was passed; nothing is kept.
  Status encode(const Parcel& parcel, const WireTypes& types, const ParcelEncoderLimits& limits);

  /// Valid until the next encode(). The number of the first bulk piece is zero: see number_bulk().
  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<Blob>& bulk() { return bulk_; }
  uint64_t bulk_bytes() const { return bulk_bytes_; }

 private:
  Status add(const ParcelMessage& message, const WireTypes& types,
             const ParcelEncoderLimits& limits);
  bool goes_inline(size_t size, const ParcelEncoderLimits& limits) const;
  void add_bulk(Blob piece);
  std::byte* grow(size_t size);
  void append(std::span<const std::byte> piece);

  MsgpackWriter writer_;
  std::vector<std::byte> bytes_;
  std::vector<Blob> bulk_;
  uint64_t bulk_bytes_ = 0;
};

/// Writes the number of a parcel's first bulk piece into its encoded bytes.
void number_bulk(std::span<std::byte> parcel, uint64_t first_bulk);

/// The parcel at the front of `bytes`: kNone only when it fits, with everything it announces.
FrameRefusal decode_parcel_shape(std::span<const std::byte> bytes, ParcelShape& shape);

/// What a decoder holds a parcel against.
struct ParcelRules {
  const WireTypes* types = nullptr;
  std::span<const TenantSlot> tenants;  // allowed besides shared traffic; empty: all
  uint64_t blob_bytes_max = uint64_t{1} << 30;
};

struct DecodedParcel {
  FrameRefusal refusal = FrameRefusal::kNone;
  std::optional<Error> error;  // the words, of kTenant and kBody
  Parcel parcel;
};

/// Decodes exactly one parcel. `owner` keeps `bytes` alive and is `owner_bytes` large: a Blob that
/// is a good part of it shares it, a small one is copied, so that it does not hold a whole frame.
/// `bulk` are the pieces that came beside it, in order; they are moved from.
DecodedParcel decode_parcel(const ParcelShape& shape, std::span<const std::byte> bytes,
                            const std::shared_ptr<const void>& owner, size_t owner_bytes,
                            std::span<Blob> bulk, const ParcelRules& rules);

/// The grants alone: they may be delivered before the messages, whose bulk is on its way.
std::vector<Grant> decode_grants(const ParcelShape& shape, std::span<const std::byte> bytes);

}  // namespace primerl
