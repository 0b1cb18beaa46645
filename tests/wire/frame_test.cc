#include "runtime/wire/frame.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "fuzz/frame_fuzz.h"
#include "graph/base/random.h"
#include "tests/base/fuzz_corpus.h"

namespace primerl {
namespace {

using Bytes = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader random_header(uint64_t seed) {
  RandomStream random(seed);
  const auto number = [&random] { return static_cast<uint32_t>(random.next()); };
  FrameHeader header;
  header.flags = static_cast<uint8_t>(random.below(kFrameFlags + 1));
  header.num_frames = static_cast<uint16_t>(2 + random.below(kFrameCountMax - 1));
  header.type = number();
  header.tenant = TenantSlot(number());
  header.edge = EdgeId(number());
  header.source = InstanceId(number());
  header.destination = InstanceId(number());
  header.incarnation = number();
  header.sequence = random.next();
  header.lamport = random.next();
  header.cause = {InstanceId(number()), random.next()};
  header.time_left_ms = number();
  header.payload_bytes = random.below(1 << 20);
  header.check = random.next();
  return header;
}

Bytes encoded(const FrameHeader& header) {
  Bytes bytes;
  encode_frame_header(header, bytes);
  return bytes;
}

FrameRefusal refusal_of(const Bytes& bytes) {
  FrameHeader header;
  return decode_frame_header(bytes, 1 << 20, header);
}

TEST(Frame, RoundTripsEveryField) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    FrameHeader got;
    ASSERT_EQ(decode_frame_header(encoded(random_header(seed)), 1 << 20, got), FrameRefusal::kNone);
    ASSERT_EQ(got, random_header(seed));
  }
}

TEST(Frame, LiesInMemoryAsTheFormatSays) {
  FrameHeader header;
  header.flags = kFrameRetry;
  header.num_frames = 0x0302;
  header.type = 0x04030201;
  header.sequence = 0x0807060504030201;
  header.cause.step = 0x1817161514131211;
  header.check = 0x2827262524232221;
  const auto bytes = encoded(header);
  const auto at = [&bytes](size_t i) { return static_cast<int>(bytes[i]); };
  EXPECT_EQ(at(0), 'P');
  EXPECT_EQ(at(1), 'R');
  EXPECT_EQ(at(2), 1);
  EXPECT_EQ(at(3), 2);
  EXPECT_EQ(at(4), 2);
  EXPECT_EQ(at(5), 3);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(at(8 + static_cast<size_t>(i)), i + 1);
  EXPECT_EQ(at(12), 0xff);  // no tenant
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(at(32 + static_cast<size_t>(i)), i + 1);
    EXPECT_EQ(at(56 + static_cast<size_t>(i)), i + 0x11);
    EXPECT_EQ(at(72 + static_cast<size_t>(i)), i + 0x21);
  }
}

TEST(Frame, RefusesEveryOtherSize) {
  std::vector<std::byte> bytes(200);
  const auto good = encoded({});
  std::copy(good.begin(), good.end(), bytes.begin());
  FrameHeader header;
  for (size_t size = 0; size <= bytes.size(); ++size)
    EXPECT_EQ(decode_frame_header(std::span(bytes).first(size), 1 << 20, header),
              size == kFrameHeaderBytes ? FrameRefusal::kNone : FrameRefusal::kSize);
}

TEST(Frame, NamesEveryRefusal) {
  auto bytes = encoded({});
  bytes[1] = std::byte{'Q'};
  EXPECT_EQ(refusal_of(bytes), FrameRefusal::kMagic);
  bytes = encoded({});
  bytes[2] = std::byte{2};
  EXPECT_EQ(refusal_of(bytes), FrameRefusal::kVersion);
  bytes = encoded({});
  bytes[3] = std::byte{8};
  EXPECT_EQ(refusal_of(bytes), FrameRefusal::kReservedFlag);
  for (const size_t at : {6u, 7u}) {
    bytes = encoded({});
    bytes[at] = std::byte{1};
    EXPECT_EQ(refusal_of(bytes), FrameRefusal::kReservedZero);
  }
}

TEST(Frame, HoldsTheFrameCountToItsLimits) {
  EXPECT_EQ(refusal_of(encoded({.num_frames = 1})), FrameRefusal::kFrameCount);
  EXPECT_EQ(refusal_of(encoded({.num_frames = kFrameCountMin})), FrameRefusal::kNone);
  EXPECT_EQ(refusal_of(encoded({.num_frames = kFrameCountMax})), FrameRefusal::kNone);
  EXPECT_EQ(refusal_of(encoded({.num_frames = kFrameCountMax + 1})), FrameRefusal::kFrameCount);
}

TEST(Frame, HoldsThePayloadToTheLimit) {
  EXPECT_EQ(refusal_of(encoded({.payload_bytes = 1 << 20})), FrameRefusal::kNone);
  EXPECT_EQ(refusal_of(encoded({.payload_bytes = (1 << 20) + 1})), FrameRefusal::kTooLong);
  EXPECT_EQ(refusal_of(encoded({.payload_bytes = UINT64_MAX})), FrameRefusal::kTooLong);
}

TEST(Frame, LeavesTheHeaderAloneWhenItRefuses) {
  FrameHeader header{.incarnation = 7};
  auto bytes = encoded({.incarnation = 9});
  bytes[0] = std::byte{0};
  decode_frame_header(bytes, 1 << 20, header);
  EXPECT_EQ(header, FrameHeader{.incarnation = 7});
}

TEST(Frame, GivesEveryRefusalANameOfItsOwn) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kNumFrameRefusals; ++i)
    names.insert(to_string(static_cast<FrameRefusal>(i)));
  EXPECT_EQ(names.size(), kNumFrameRefusals);
}

TEST(Frame, SurvivesItsCorpus) {
  const auto inputs = fuzz_corpus("frame");
  EXPECT_GE(inputs.size(), 8u);
  for (const auto& [name, input] : inputs) fuzz_frame(std::as_bytes(std::span(input)));
}

TEST(Frame, SurvivesSeededNoise) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    RandomStream random(seed);
    std::vector<std::byte> bytes(random.below(300));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    if (bytes.size() >= kFrameHeaderBytes && seed % 2 == 0) {
      const auto header = encoded(random_header(seed));
      std::copy(header.begin(), header.end(), bytes.begin());
    }
    fuzz_frame(bytes);
  }
}

}  // namespace
}  // namespace primerl
