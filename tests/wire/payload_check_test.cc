#include "runtime/wire/payload_check.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/wire/kinds.h"
#include "tests/wire/random_message.h"

namespace primerl {
namespace {

struct OtherText {
  static constexpr std::string_view kName = "OtherText";
  static constexpr uint32_t kVersion = 1;
  std::string text;
  template <class F>
  static void fields(F& f) {
    f("text", &OtherText::text);
  }
};

TEST(PayloadCheck, IsEqualForEqualMessages) {
  for (uint64_t seed = 0; seed < 100; ++seed)
    EXPECT_EQ(payload_check(random_message(message_type<EveryKind>(), seed)),
              payload_check(random_message(message_type<EveryKind>(), seed)));
}

TEST(PayloadCheck, StaysTheSameOnEveryMachineAndBuild) {
  EXPECT_EQ(payload_check(Payload::of(TextKind{"primerl"})), 0xec04d4d21edf9ec9u);
}

TEST(PayloadCheck, TellsTypesOfEqualContentApart) {
  EXPECT_NE(payload_check(Payload::of(TextKind{"a"})), payload_check(Payload::of(OtherText{"a"})));
}

TEST(PayloadCheck, TellsMovedBordersApart) {
  InnerKind left{0, {"ab", "c"}}, right{0, {"a", "bc"}};
  EXPECT_NE(payload_check(Payload::of(EveryKind{.inner = left})),
            payload_check(Payload::of(EveryKind{.inner = right})));
  EXPECT_NE(payload_check(Payload::of(EveryKind{.table = {{}, {1}}})),
            payload_check(Payload::of(EveryKind{.table = {{1}, {}}})));
}

TEST(PayloadCheck, ChangesWithEveryBitOfARunOfBytes) {
  for (const size_t size : {1u, 7u, 8u, 63u, 64u, 65u, 200u}) {
    std::vector<std::byte> bytes(size);
    RandomStream random(size);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    std::set<uint64_t> checks = {hash_bytes(bytes, 1)};
    for (size_t bit = 0; bit < size * 8; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      checks.insert(hash_bytes(bytes, 1));
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
    EXPECT_EQ(checks.size(), size * 8 + 1) << size << " bytes";
  }
}

TEST(PayloadCheck, TellsRunsOfZerosOfEveryLengthApart) {
  std::set<uint64_t> checks;
  for (size_t size = 0; size < 300; ++size)
    checks.insert(hash_bytes(std::vector<std::byte>(size), 0));
  EXPECT_EQ(checks.size(), 300u);
}

}  // namespace
}  // namespace primerl
