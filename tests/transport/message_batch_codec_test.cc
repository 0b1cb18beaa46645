#include "runtime/wire/message_batch_codec.h"

#include <gmock/gmock.h>

#include "graph/base/bytes.h"
#include "graph/base/random.h"
#include "runtime/wire/peer_frame.h"
#include "tests/conformance/transport_stage.h"

namespace primerl {
namespace {

using Bytes = std::vector<std::byte>;

Bytes encoded(const MessageBatch& batch, std::vector<Blob>* bulk = nullptr) {
  BatchEncoder encoder;
  BatchEncoderLimits limits;
  limits.bulk_bytes_min = 1000;
  EXPECT_TRUE(encoder.encode(batch, *note_types(), limits).ok());
  if (bulk != nullptr) *bulk = encoder.bulk();
  return {encoder.bytes().begin(), encoder.bytes().end()};
}

FrameRefusal refusal_of(const Bytes& bytes, std::vector<Blob> bulk = {},
                        std::vector<TenantSlot> tenants = {}) {
  BatchShape shape;
  const FrameRefusal refusal = decode_batch_shape(bytes, shape);
  if (refusal != FrameRefusal::kNone) return refusal;
  const auto types = note_types();
  return decode_batch(shape, bytes, nullptr, 0, bulk, {types.get(), tenants, 5000}).refusal;
}

template <class T>
Bytes with(Bytes bytes, size_t at, T value) {
  put_number<T>(bytes.data() + at, value);
  return bytes;
}

TEST(BatchCodec, LiesInMemoryAsTheFormatSays) {
  MessageBatch batch = note_batch(3, 4, 5);
  batch.incarnation = 6;
  batch.grants.push_back({LinkId(7), 8, 9, 10});
  const Bytes bytes = encoded(batch);
  const auto u32 = [&](size_t at) { return take_number<uint32_t>(bytes.data() + at); };
  const auto u64 = [&](size_t at) { return take_number<uint64_t>(bytes.data() + at); };
  EXPECT_EQ(u32(0), bytes.size());
  EXPECT_EQ(u32(4), 3u);
  EXPECT_EQ(u32(8), 4u);
  EXPECT_EQ(u32(12), 6u);
  EXPECT_EQ(u32(16), 1u);
  EXPECT_EQ(u32(20), 1u);
  EXPECT_EQ(u32(24), 0u);
  EXPECT_EQ(u32(40), 7u);  // the grant
  EXPECT_EQ(u32(44), 10u);
  EXPECT_EQ(u64(48), 8u);
  EXPECT_EQ(u64(56), 9u);
  EXPECT_EQ(u32(64), 3u);                                        // the message's link
  EXPECT_EQ(u32(64 + 16), 0xffffffffu);                          // no tenant
  EXPECT_EQ(u64(64 + 40), 5u);                                   // sequence
  EXPECT_EQ(take_number<uint16_t>(bytes.data() + 64 + 64), 1u);  // type
  EXPECT_EQ(take_number<uint16_t>(bytes.data() + 64 + 66), 1u);  // one Blob
  EXPECT_EQ(bytes.size() % 8, 0u);
}

TEST(BatchCodec, LeavesOutWhatIsLargeFromItsBoundOn) {
  std::vector<Blob> bulk;
  encoded(note_batch(0, 1, 1, 999), &bulk);
  EXPECT_TRUE(bulk.empty());
  const Bytes bytes = encoded(note_batch(0, 1, 1, 1000), &bulk);
  ASSERT_EQ(bulk.size(), 1u);
  EXPECT_EQ(bulk[0].size(), 1000u);
  EXPECT_EQ(refusal_of(bytes, bulk), FrameRefusal::kNone);
  EXPECT_EQ(refusal_of(bytes), FrameRefusal::kFramesDiffer);
  EXPECT_EQ(refusal_of(bytes, {bulk[0], bulk[0]}), FrameRefusal::kFramesDiffer);
  EXPECT_EQ(refusal_of(bytes, {Blob(Bytes(999))}), FrameRefusal::kFramesDiffer);
  encoded(text_batch(0, 1, 1, 2000), &bulk);  // a body
  EXPECT_EQ(bulk.size(), 1u);
}

TEST(BatchCodec, SendsTheRestAsBulkOnceABatchIsLarge) {
  MessageBatch batch;
  for (uint64_t number = 1; number <= 1000; ++number)
    batch.messages.push_back(note_batch(0, 1, number, number % 2 == 0 ? 999 : 500).messages[0]);
  BatchEncoder encoder;
  BatchEncoderLimits limits;
  limits.bulk_bytes_min = 100'000;
  ASSERT_TRUE(encoder.encode(batch, *note_types(), limits).ok());
  EXPECT_TRUE(encoder.bulk().empty());  // all smaller than 1 KiB
  batch.messages.push_back(note_batch(0, 1, 1001, 2000).messages[0]);
  ASSERT_TRUE(encoder.encode(batch, *note_types(), limits).ok());
  EXPECT_EQ(encoder.bulk().size(), 1u);
}

TEST(BatchCodec, NamesEveryRefusal) {
  const Bytes good = encoded(note_batch(0, 1, 1, 64));
  ASSERT_EQ(refusal_of(good), FrameRefusal::kNone);
  EXPECT_EQ(refusal_of(with<uint32_t>(good, 0, static_cast<uint32_t>(good.size() + 1))),
            FrameRefusal::kBytesDiffer);
  EXPECT_EQ(refusal_of(with<uint32_t>(good, 16, 0)), FrameRefusal::kBytesDiffer);
  EXPECT_EQ(refusal_of(with<uint32_t>(good, 16, 0xffffffff)), FrameRefusal::kBytesDiffer);
  EXPECT_EQ(refusal_of(with<uint32_t>(good, 20, 0xffffffff)), FrameRefusal::kBytesDiffer);
  EXPECT_EQ(refusal_of(with<uint32_t>(good, 24, 0xffffffff)), FrameRefusal::kFramesDiffer);
  EXPECT_EQ(refusal_of(with<uint32_t>(good, 28, 1)), FrameRefusal::kReservedZero);
  EXPECT_EQ(refusal_of(with<uint16_t>(good, 40 + 64, 0)), FrameRefusal::kUnknownType);
  EXPECT_EQ(refusal_of(with<uint16_t>(good, 40 + 64, 2)), FrameRefusal::kUnknownType);
  EXPECT_EQ(refusal_of(with<uint16_t>(good, 40 + 66, 0x3fff)), FrameRefusal::kFrameCount);
  EXPECT_EQ(refusal_of(with<uint16_t>(good, 40 + 66, 0x3ffe)), FrameRefusal::kBytesDiffer);
  EXPECT_EQ(refusal_of(with<uint32_t>(good, 40 + 68, kMessageBytesMax + 1)),
            FrameRefusal::kTooLong);
  EXPECT_EQ(refusal_of(with<uint64_t>(good, 40 + 72, 5001)), FrameRefusal::kTooLong);
  EXPECT_EQ(refusal_of(with<uint64_t>(good, 40 + 72, 5000)), FrameRefusal::kBytesDiffer);
  EXPECT_EQ(refusal_of(with<uint64_t>(good, 40 + 72, 63)), FrameRefusal::kBody);
  EXPECT_EQ(refusal_of(with<uint8_t>(good, 40 + 80, 0xc1)), FrameRefusal::kBody);
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(refusal_of(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))),
              FrameRefusal::kNone);
}

TEST(BatchCodec, HoldsTenantsAgainstTheConnection) {
  MessageBatch batch = note_batch(0, 1, 1);
  batch.messages[0].envelope.tenant = TenantSlot(2);
  EXPECT_EQ(refusal_of(encoded(batch)), FrameRefusal::kNone);
  EXPECT_EQ(refusal_of(encoded(batch), {}, {TenantSlot(1), TenantSlot(2)}), FrameRefusal::kNone);
  EXPECT_EQ(refusal_of(encoded(batch), {}, {TenantSlot(1)}), FrameRefusal::kTenant);
  EXPECT_EQ(refusal_of(encoded(note_batch(0, 1, 1)), {}, {TenantSlot(1)}), FrameRefusal::kNone);
}

TEST(BatchCodec, SharesAFrameWithALargeBlobAndCopiesASmallOne) {
  const auto decode = [](size_t blob_bytes, size_t frame_bytes) {
    const auto bytes = std::make_shared<const Bytes>(encoded(note_batch(0, 1, 1, blob_bytes)));
    BatchShape shape;
    EXPECT_EQ(decode_batch_shape(*bytes, shape), FrameRefusal::kNone);
    const auto types = note_types();
    const auto decoded =
        decode_batch(shape, *bytes, bytes, frame_bytes, {}, {types.get(), {}, 5000});
    EXPECT_EQ(decoded.refusal, FrameRefusal::kNone);
    return bytes.use_count() > 1;
  };
  EXPECT_TRUE(decode(512, 16 * 512));
  EXPECT_FALSE(decode(512, 17 * 512));
}

TEST(PeerFrame, RoundTripsEveryFieldAndNamesEveryRefusal) {
  PeerFrameHeader header;
  header.kind = PeerFrameKind::kBatches;
  header.incarnation = 0x01020304;
  header.peer_incarnation = 5;
  header.process = ProcessId(6);
  header.sequence = uint64_t{7} << 40;
  header.acknowledged = uint64_t{8} << 41;
  header.payload_bytes = 9;
  header.check = uint64_t{10} << 60;
  Bytes bytes(kPeerFrameHeaderBytes + 3);
  encode_peer_frame_header(header, std::span(bytes).first<kPeerFrameHeaderBytes>());
  PeerFrameHeader found;
  ASSERT_EQ(decode_peer_frame_header(bytes, Lane::kFrames, 9, found), FrameRefusal::kNone);
  EXPECT_EQ(found, header);
  EXPECT_EQ(bytes[0], std::byte{'P'});
  EXPECT_EQ(bytes[1], std::byte{'L'});
  EXPECT_EQ(bytes[4], std::byte{4});
  const auto refusal = [&](Bytes changed, Lane lane = Lane::kFrames, uint64_t most = 9) {
    return decode_peer_frame_header(changed, lane, most, found);
  };
  EXPECT_EQ(refusal(Bytes(kPeerFrameHeaderBytes - 1)), FrameRefusal::kSize);
  EXPECT_EQ(refusal(with<uint8_t>(bytes, 0, 'Q')), FrameRefusal::kMagic);
  for (const uint8_t version : {kPeerProtocolVersion - 1, kPeerProtocolVersion + 1})
    EXPECT_EQ(refusal(with<uint8_t>(bytes, 2, version)), FrameRefusal::kVersion);
  EXPECT_EQ(refusal(with<uint8_t>(bytes, 3, 0)), FrameRefusal::kKind);
  EXPECT_EQ(refusal(with<uint8_t>(bytes, 3, 12)), FrameRefusal::kKind);
  // kReads has no sequence number
  EXPECT_EQ(refusal(with<uint8_t>(bytes, 3, 10)), FrameRefusal::kKind);
  // a reference belongs on the bulk lane
  EXPECT_EQ(refusal(with<uint8_t>(bytes, 3, 11)), FrameRefusal::kKind);
  EXPECT_EQ(refusal(bytes, Lane::kBulk), FrameRefusal::kKind);  // batches
  // no sequence number
  EXPECT_EQ(refusal(with<uint64_t>(bytes, 16, 0)), FrameRefusal::kKind);
  EXPECT_EQ(refusal(bytes, Lane::kFrames, 8), FrameRefusal::kTooLong);
  EXPECT_EQ(refusal(with<uint32_t>(bytes, 4, 0)), FrameRefusal::kIncarnation);
  EXPECT_EQ(version_of_peer_frame(with<uint8_t>(bytes, 2, 7)), 7);
  EXPECT_EQ(version_of_peer_frame(with<uint8_t>(bytes, 1, 7)), 0);
}

TEST(PeerFrame, RoundTripsAReferenceAndHoldsItToItsSize) {
  const BlobReference reference = {uint64_t{1} << 40, uint64_t{2} << 41, uint64_t{3} << 42, 4, 5};
  std::array<std::byte, kReferenceBytes> payload;
  encode_reference(reference, payload);
  EXPECT_EQ(decode_reference(payload), reference);
  EXPECT_EQ(payload[24], std::byte{4});
  EXPECT_EQ(payload[28], std::byte{5});
  PeerFrameHeader header, found;
  header.incarnation = 1;
  std::array<std::byte, kPeerFrameHeaderBytes> bytes;
  const auto refusal = [&](PeerFrameKind kind, uint64_t payload_bytes) {
    header.kind = kind;
    header.sequence = is_numbered(kind) ? 1 : 0;
    header.payload_bytes = payload_bytes;
    encode_peer_frame_header(header, bytes);
    const Lane lane = kind == PeerFrameKind::kReads ? Lane::kFrames : Lane::kBulk;
    return decode_peer_frame_header(bytes, lane, 1 << 20, found);
  };
  for (const auto& [kind, size] : {std::pair(PeerFrameKind::kReference, kReferenceBytes),
                                   std::pair(PeerFrameKind::kReads, kReadsBytes)}) {
    EXPECT_EQ(refusal(kind, size), FrameRefusal::kNone);
    EXPECT_EQ(refusal(kind, size - 1), FrameRefusal::kBytesDiffer);
    EXPECT_EQ(refusal(kind, size + 1), FrameRefusal::kBytesDiffer);
  }
}

}  // namespace
}  // namespace primerl
