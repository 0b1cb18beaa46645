#include "runtime/wire/wire_message.h"

#include <gmock/gmock.h>

#include "actors/messages/catalog.h"
#include "tests/wire/kinds.h"
#include "tests/wire/random_message.h"

namespace primerl {
namespace {

WireTypes blob_types() { return WireTypes({&message_type<BlobKind>(), &message_type<TextKind>()}); }

WireMessage a_message(const WireTypes& types) {
  BlobKind message;
  message.first = Blob(std::vector<std::byte>(10, std::byte{1}));
  message.rest = {Blob(std::vector<std::byte>(3, std::byte{2}))};
  return encode_wire(Payload::of(message), {}, types).value();
}

FrameRefusal refusal_of(const WireMessage& wire, const WireTypes& types) {
  return decode_wire(wire.header, wire.body, wire.blobs, types).refusal;
}

TEST(WireMessage, RoundTripsEveryTypeOfTheCatalog) {
  const WireTypes types(message_catalog());
  for (const auto* type : message_catalog()) {
    const auto sent = random_message(*type, 3);
    const auto wire = encode_wire(sent, {.sequence = 5}, types).value();
    const auto got = decode_wire(wire.header, wire.body, wire.blobs, types);
    ASSERT_EQ(got.refusal, FrameRefusal::kNone) << type->name;
    EXPECT_EQ(transcript(got.payload), transcript(sent));
    EXPECT_EQ(wire.header.sequence, 5u);
  }
}

TEST(WireMessage, CountsFramesAndBytesOfBlobs) {
  const auto types = blob_types();
  const auto wire = a_message(types);
  EXPECT_EQ(wire.header.num_frames, 4);
  EXPECT_EQ(wire.header.payload_bytes, wire.body.size() + 13);
  EXPECT_EQ(refusal_of(wire, types), FrameRefusal::kNone);
}

TEST(WireMessage, RefusesOtherFramesThanAnnounced) {
  const auto types = blob_types();
  auto wire = a_message(types);
  wire.blobs.pop_back();
  EXPECT_EQ(refusal_of(wire, types), FrameRefusal::kFramesDiffer);
  wire = a_message(types);
  wire.blobs.push_back(Blob());
  EXPECT_EQ(refusal_of(wire, types), FrameRefusal::kFramesDiffer);
  wire = a_message(types);
  ++wire.header.payload_bytes;
  EXPECT_EQ(refusal_of(wire, types), FrameRefusal::kBytesDiffer);
}

TEST(WireMessage, RefusesUnknownTypes) {
  const auto types = blob_types();
  auto wire = a_message(types);
  for (const uint32_t type : {0u, 3u, UINT32_MAX}) {
    wire.header.type = type;
    EXPECT_EQ(refusal_of(wire, types), FrameRefusal::kUnknownType);
  }
  wire.header.type = 2;  // a known type, but not the right one
  EXPECT_EQ(refusal_of(wire, types), FrameRefusal::kBody);
}

TEST(WireMessage, RefusesAChangedBlob) {
  const auto types = blob_types();
  auto wire = a_message(types);
  wire.blobs.back() = Blob(std::vector<std::byte>(3, std::byte{9}));
  EXPECT_EQ(refusal_of(wire, types), FrameRefusal::kCheck);
}

TEST(WireMessage, CarriesBlobsToTheLimitAndNoMore) {
  const auto types = blob_types();
  BlobKind message;
  message.rest.resize(kFrameCountMax - kFrameCountMin - 1);
  const auto exact = encode_wire(Payload::of(message), {}, types);
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(refusal_of(*exact, types), FrameRefusal::kNone);
  message.rest.emplace_back();
  EXPECT_EQ(encode_wire(Payload::of(message), {}, types).error().code(), Code::kExhausted);
}

TEST(WireTypes, NumbersByNameWhateverTheOrder) {
  const WireTypes one({&message_type<TextKind>(), &message_type<BlobKind>()});
  const WireTypes two({&message_type<BlobKind>(), &message_type<TextKind>()});
  EXPECT_EQ(one.hash(), two.hash());
  EXPECT_EQ(one.id_of(message_type<BlobKind>()), 1u);
  EXPECT_EQ(one.id_of(message_type<TextKind>()), 2u);
  EXPECT_EQ(one.find(2), &message_type<TextKind>());
  EXPECT_NE(one.hash(), WireTypes({&message_type<TextKind>()}).hash());
}

}  // namespace
}  // namespace primerl
