#include "runtime/wire/message_batch_codec.h"

#include <algorithm>

#include "graph/base/bytes.h"

namespace primerl {
namespace {

constexpr uint32_t kBulkBody = uint32_t{1} << 31;
constexpr uint64_t kBulkBlob = uint64_t{1} << 63;
constexpr size_t kBulkAlwaysInline = 1024;
/// A Blob shares the memory of its frame when the frame is at most this many times larger.
constexpr size_t kFrameShareMax = 16;

void put_grant(std::byte* at, const Grant& grant) {
  put_number<uint32_t>(at, grant.link.value);
  put_number<uint32_t>(at + 4, grant.incarnation);
  put_number<uint64_t>(at + 8, grant.num_messages);
  put_number<uint64_t>(at + 16, grant.num_bytes);
}

Grant take_grant(const std::byte* at) {
  Grant grant;
  grant.link = LinkId(take_number<uint32_t>(at));
  grant.incarnation = take_number<uint32_t>(at + 4);
  grant.num_messages = take_number<uint64_t>(at + 8);
  grant.num_bytes = take_number<uint64_t>(at + 16);
  return grant;
}

void put_envelope(std::byte* at, LinkId link, const Envelope& envelope) {
  put_number<uint32_t>(at, link.value);
  put_number<uint32_t>(at + 4, envelope.edge.value);
  put_number<uint32_t>(at + 8, envelope.sender.value);
  put_number<uint32_t>(at + 12, envelope.target.value);
  put_number<uint32_t>(at + 16, envelope.tenant.value);
  put_number<uint32_t>(at + 20, envelope.origin.value);
  put_number<uint32_t>(at + 24, envelope.incarnation);
  put_number<uint32_t>(at + 28, envelope.cause.instance.value);
  put_number<uint64_t>(at + 32, envelope.cause.step);
  put_number<uint64_t>(at + 40, envelope.sequence);
  put_number<int64_t>(at + 48, envelope.sent_at.to_nanoseconds());
  put_number<uint64_t>(at + 56, envelope.sender_step);
}

void take_envelope(const std::byte* at, BatchedMessage& message) {
  message.link = LinkId(take_number<uint32_t>(at));
  Envelope& envelope = message.envelope;
  envelope.edge = EdgeId(take_number<uint32_t>(at + 4));
  envelope.sender = InstanceId(take_number<uint32_t>(at + 8));
  envelope.target = InstanceId(take_number<uint32_t>(at + 12));
  envelope.tenant = TenantSlot(take_number<uint32_t>(at + 16));
  envelope.origin = InstanceId(take_number<uint32_t>(at + 20));
  envelope.incarnation = take_number<uint32_t>(at + 24);
  envelope.cause.instance = InstanceId(take_number<uint32_t>(at + 28));
  envelope.cause.step = take_number<uint64_t>(at + 32);
  envelope.sequence = take_number<uint64_t>(at + 40);
  envelope.sent_at = Time::from_nanoseconds(take_number<int64_t>(at + 48));
  envelope.sender_step = take_number<uint64_t>(at + 56);
}

/// Decodes one batch; every size is checked against the bytes left.
class Decoder {
 public:
  Decoder(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner,
          size_t owner_bytes, std::span<Blob> bulk, const BatchRules& rules)
      : left_(bytes), owner_(owner), owner_bytes_(owner_bytes), bulk_(bulk), rules_(rules) {}

  DecodedBatch decode(const BatchShape& shape) {
    DecodedBatch decoded;
    MessageBatch& batch = decoded.batch;
    batch.from = shape.from;
    batch.to = shape.to;
    batch.incarnation = shape.incarnation;
    batch.grants = decode_grants(shape, left_);
    left_ = left_.subspan(kBatchHeaderBytes + shape.num_grants * kGrantBytes);
    batch.messages.reserve(shape.num_messages);
    for (uint32_t i = 0; i < shape.num_messages; ++i) {
      decoded.refusal = message(batch.messages.emplace_back(), decoded.error);
      if (decoded.refusal != FrameRefusal::kNone) return decoded;
    }
    if (!left_.empty()) decoded.refusal = FrameRefusal::kBytesDiffer;
    if (!bulk_.empty()) decoded.refusal = FrameRefusal::kFramesDiffer;
    return decoded;
  }

 private:
  FrameRefusal message(BatchedMessage& message, std::optional<Error>& words) {
    if (left_.size() < kMessageHeaderBytes) return FrameRefusal::kBytesDiffer;
    const std::byte* at = left_.data();
    take_envelope(at, message);
    const auto type_id = take_number<uint16_t>(at + 64);
    const auto num_blobs = take_number<uint16_t>(at + 66);
    const auto body_word = take_number<uint32_t>(at + 68);
    left_ = left_.subspan(kMessageHeaderBytes);
    const MessageType* type = rules_.types->find(type_id);
    if (type == nullptr) return FrameRefusal::kUnknownType;
    const TenantSlot tenant = message.envelope.tenant;
    if (!tenant.is_none() && !rules_.tenants.empty() &&
        std::find(rules_.tenants.begin(), rules_.tenants.end(), tenant) == rules_.tenants.end()) {
      words = error(Code::kInvalid, "a '{}' for tenant slot {}, which is not one of its connection",
                    type->name, tenant);
      return FrameRefusal::kTenant;
    }
    const size_t body_bytes = body_word & ~kBulkBody;
    if (body_bytes > kMessageBytesMax) return FrameRefusal::kTooLong;
    if (num_blobs > kFrameCountMax - kFrameCountMin) return FrameRefusal::kFrameCount;
    if (left_.size() < num_blobs * sizeof(uint64_t)) return FrameRefusal::kBytesDiffer;
    const auto table = left_.first(num_blobs * sizeof(uint64_t));
    left_ = left_.subspan(table.size());
    Blob bulk_body;
    std::span<const std::byte> body;
    if ((body_word & kBulkBody) != 0) {
      if (!take_bulk(body_bytes, bulk_body)) return FrameRefusal::kFramesDiffer;
      body = bulk_body.bytes();
    } else if (!take(body_bytes, body)) {
      return FrameRefusal::kBytesDiffer;
    }
    const FrameRefusal refusal = blobs(table, message.envelope);
    if (refusal != FrameRefusal::kNone) return refusal;
    auto payload = decode_message(*type, body, blobs_);
    if (!payload.ok()) {
      words = payload.error();
      return FrameRefusal::kBody;
    }
    message.envelope.payload = std::move(payload).value();
    return FrameRefusal::kNone;
  }

  FrameRefusal blobs(std::span<const std::byte> table, Envelope& envelope) {
    blobs_.clear();
    for (size_t at = 0; at < table.size(); at += sizeof(uint64_t)) {
      const auto word = take_number<uint64_t>(table.data() + at);
      const uint64_t size = word & ~kBulkBlob;
      if (size > rules_.blob_bytes_max) return FrameRefusal::kTooLong;
      Blob& blob = blobs_.emplace_back();
      if ((word & kBulkBlob) != 0) {
        if (!take_bulk(size, blob)) return FrameRefusal::kFramesDiffer;
      } else {
        std::span<const std::byte> bytes;
        if (!take(size, bytes)) return FrameRefusal::kBytesDiffer;
        blob = shared(bytes);
      }
      envelope.blob_bytes += size;
    }
    return FrameRefusal::kNone;
  }

  bool take(size_t size, std::span<const std::byte>& bytes) {
    if (padded(size) > left_.size()) return false;
    bytes = left_.first(size);
    left_ = left_.subspan(padded(size));
    return true;
  }

  bool take_bulk(uint64_t size, Blob& blob) {
    if (bulk_.empty() || bulk_.front().size() != size) return false;
    blob = std::move(bulk_.front());
    bulk_ = bulk_.subspan(1);
    return true;
  }

  Blob shared(std::span<const std::byte> bytes) const {
    const bool is_aligned = reinterpret_cast<uintptr_t>(bytes.data()) % 8 == 0;
    if (is_aligned && owner_ != nullptr && owner_bytes_ / kFrameShareMax <= bytes.size())
      return Blob(owner_, bytes);
    return Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }

  std::span<const std::byte> left_;
  const std::shared_ptr<const void>& owner_;
  const size_t owner_bytes_;
  std::span<Blob> bulk_;
  const BatchRules& rules_;
  std::vector<Blob> blobs_;  // of the current message
};

}  // namespace

Status BatchEncoder::encode(const MessageBatch& batch, const WireTypes& types,
                            const BatchEncoderLimits& limits) {
  bytes_.clear();
  bulk_.clear();
  bulk_bytes_ = 0;
  grow(kBatchHeaderBytes);
  for (const Grant& grant : batch.grants) put_grant(grow(kGrantBytes), grant);
  for (const BatchedMessage& message : batch.messages) RETURN_IF_ERROR(add(message, types, limits));
  if (bytes_.size() > limits.batch_bytes_max)
    return error(Code::kExhausted,
                 "a batch of {} messages has {} bytes without bulk, at most {} are allowed",
                 batch.messages.size(), bytes_.size(), limits.batch_bytes_max)
        .note("a step sends too much at once to one group");
  std::byte* at = bytes_.data();
  put_number<uint32_t>(at, static_cast<uint32_t>(bytes_.size()));
  put_number<uint32_t>(at + 4, batch.from.value);
  put_number<uint32_t>(at + 8, batch.to.value);
  put_number<uint32_t>(at + 12, batch.incarnation);
  put_number<uint32_t>(at + 16, static_cast<uint32_t>(batch.messages.size()));
  put_number<uint32_t>(at + 20, static_cast<uint32_t>(batch.grants.size()));
  put_number<uint32_t>(at + 24, static_cast<uint32_t>(bulk_.size()));
  put_number<uint32_t>(at + 28, 0);
  put_number<uint64_t>(at + 32, 0);
  return ok();
}

Status BatchEncoder::add(const BatchedMessage& message, const WireTypes& types,
                         const BatchEncoderLimits& limits) {
  const Payload& payload = message.envelope.payload;
  writer_.clear();
  RETURN_IF_ERROR(encode_message(payload, writer_));
  const auto blobs = writer_.blobs();
  if (blobs.size() > kFrameCountMax - kFrameCountMin)
    return error(Code::kExhausted, "a '{}' carries {} blobs, at most {} are allowed",
                 payload.type->name, blobs.size(), kFrameCountMax - kFrameCountMin);
  const auto body = writer_.body();
  const bool is_body_inline = goes_inline(body.size(), limits);
  const size_t place = bytes_.size();
  std::byte* at = grow(kMessageHeaderBytes + blobs.size() * sizeof(uint64_t));
  put_envelope(at, message.link, message.envelope);
  const uint32_t type_id = types.id_of(*payload.type);
  CHECK(type_id <= UINT16_MAX, "more message types than the wire can number");
  put_number<uint16_t>(at + 64, static_cast<uint16_t>(type_id));
  put_number<uint16_t>(at + 66, static_cast<uint16_t>(blobs.size()));
  put_number<uint32_t>(at + 68,
                       static_cast<uint32_t>(body.size()) | (is_body_inline ? 0 : kBulkBody));
  if (is_body_inline)
    append(body);
  else
    add_bulk(Blob(std::vector<std::byte>(body.begin(), body.end())));
  for (size_t i = 0; i < blobs.size(); ++i) {
    if (blobs[i].size() > limits.blob_bytes_max)
      return error(Code::kExhausted, "a '{}' carries a blob of {} bytes, at most {} are allowed",
                   payload.type->name, blobs[i].size(), limits.blob_bytes_max);
    const bool is_inline = goes_inline(blobs[i].size(), limits);
    if (is_inline)
      append(blobs[i].bytes());
    else
      add_bulk(blobs[i]);
    put_number<uint64_t>(bytes_.data() + place + kMessageHeaderBytes + i * sizeof(uint64_t),
                         blobs[i].size() | (is_inline ? 0 : kBulkBlob));
  }
  return ok();
}

bool BatchEncoder::goes_inline(size_t size, const BatchEncoderLimits& limits) const {
  if (size >= limits.bulk_bytes_min) return false;
  return size < kBulkAlwaysInline || bytes_.size() + size <= kBatchInlineBytes;
}

void BatchEncoder::add_bulk(Blob piece) {
  bulk_bytes_ += piece.size();
  bulk_.push_back(std::move(piece));
}

std::byte* BatchEncoder::grow(size_t size) {
  const size_t place = bytes_.size();
  bytes_.resize(place + size);
  return bytes_.data() + place;
}

void BatchEncoder::append(std::span<const std::byte> piece) {
  bytes_.insert(bytes_.end(), piece.begin(), piece.end());
  bytes_.resize(padded(bytes_.size()));
}

void number_bulk(std::span<std::byte> batch, uint64_t first_bulk) {
  CHECK(batch.size() >= kBatchHeaderBytes, "bytes that are no batch");
  put_number<uint64_t>(batch.data() + 32, first_bulk);
}

FrameRefusal decode_batch_shape(std::span<const std::byte> bytes, BatchShape& shape) {
  if (bytes.size() < kBatchHeaderBytes) return FrameRefusal::kBytesDiffer;
  const std::byte* at = bytes.data();
  BatchShape found;
  found.num_bytes = take_number<uint32_t>(at);
  found.from = GroupId(take_number<uint32_t>(at + 4));
  found.to = GroupId(take_number<uint32_t>(at + 8));
  found.incarnation = take_number<uint32_t>(at + 12);
  found.num_messages = take_number<uint32_t>(at + 16);
  found.num_grants = take_number<uint32_t>(at + 20);
  found.num_bulk = take_number<uint32_t>(at + 24);
  found.first_bulk = take_number<uint64_t>(at + 32);
  if (take_number<uint32_t>(at + 28) != 0) return FrameRefusal::kReservedZero;
  if (found.num_bytes > bytes.size()) return FrameRefusal::kBytesDiffer;
  const uint64_t least = kBatchHeaderBytes + uint64_t{found.num_grants} * kGrantBytes +
                         uint64_t{found.num_messages} * kMessageHeaderBytes;
  // Every bulk piece belongs to a message: it is the body, or an entry of the table of Blobs.
  const uint64_t pieces_max = found.num_messages + (found.num_bytes - kBatchHeaderBytes) / 8;
  if (found.num_bytes < least) return FrameRefusal::kBytesDiffer;
  if (found.num_bulk > pieces_max) return FrameRefusal::kFramesDiffer;
  shape = found;
  return FrameRefusal::kNone;
}

std::vector<Grant> decode_grants(const BatchShape& shape, std::span<const std::byte> bytes) {
  CHECK(bytes.size() >= kBatchHeaderBytes + shape.num_grants * kGrantBytes,
        "a batch's shape was not checked");
  std::vector<Grant> grants;
  grants.reserve(shape.num_grants);
  for (uint32_t i = 0; i < shape.num_grants; ++i)
    grants.push_back(take_grant(bytes.data() + kBatchHeaderBytes + i * kGrantBytes));
  return grants;
}

DecodedBatch decode_batch(const BatchShape& shape, std::span<const std::byte> bytes,
                          const std::shared_ptr<const void>& owner, size_t owner_bytes,
                          std::span<Blob> bulk, const BatchRules& rules) {
  return Decoder(bytes.first(shape.num_bytes), owner, owner_bytes, bulk, rules).decode(shape);
}

}  // namespace primerl
