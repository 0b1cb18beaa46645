#include "kernels/engine/kept_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "graph/base/random.h"
#include "kernels/engine/engine.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using Ids = std::vector<int32_t>;

constexpr int32_t kVocab = 152064;

Bytes bytes_of(const Ids& ids, int32_t vocab_size = kVocab) {
  Bytes bytes;
  append_kept(ids, vocab_size, bytes);
  return bytes;
}

Bytes raw(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

Ids listed(const KeptSet& set) {
  Ids ids;
  set.list(ids);
  return ids;
}

std::string refusal(const Bytes& bytes, const Ids& tokens, int32_t vocab_size = kVocab) {
  const Status checked = check_kept(bytes, tokens, vocab_size);
  return checked.ok() ? "" : checked.error().text();
}

/// `count` different ids below `vocab_size`.
Ids some_ids(RandomStream& random, int32_t count, int32_t vocab_size) {
  Ids ids;
  for (int32_t id = 0; id < vocab_size; ++id)
    if (static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size - id))) <
        count - static_cast<int32_t>(ids.size()))
      ids.push_back(id);
  return ids;
}

TEST(KeptSets, RefuseBytesThatEndWithinASet) {
  EXPECT_THAT(refusal({}, {7}), HasSubstr("0 kept sets for 1 sampled tokens"));
  RandomStream random(3);
  for (const Ids& ids : {Ids{7, 300, 40000}, some_ids(random, 900, 1000)})
    for (Bytes bytes = bytes_of(ids); bytes.size() > 1;) {
      bytes.pop_back();
      EXPECT_NE(refusal(bytes, {ids.front()}), "") << bytes.size();
    }
}

TEST(KeptSets, RefuseWhatTheEngineDoesNotWrite) {
  EXPECT_EQ(refusal(raw({1, 7}), {7}), "");
  EXPECT_THAT(refusal(raw({0x81, 0, 7}), {7}), HasSubstr("malformed")) << "a longer encoding of 1";
  EXPECT_THAT(refusal(raw({1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1}), {7}), HasSubstr("malformed"));
  EXPECT_THAT(refusal(raw({0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 7}), {7}), HasSubstr("malformed"))
      << "two thousand million ids in one byte";
  EXPECT_THAT(refusal(raw({0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 7}), {7}), HasSubstr("malformed"));
  EXPECT_THAT(refusal(raw({3, 0xFF, 0xFF, 0xFF, 0xFF, 0x07, 0}), {7}), HasSubstr("malformed"))
      << "an id beyond 31 bits";
  EXPECT_THAT(refusal(raw({4, 0x80, 0}), {7}), HasSubstr("malformed")) << "an empty last byte";
  EXPECT_EQ(refusal(raw({2, 0x80}), {7}), "");
}

TEST(KeptSets, RefuseIdsOutsideTheVocabulary) {
  EXPECT_EQ(refusal(bytes_of({3, kVocab - 1}), {3}), "");
  EXPECT_THAT(refusal(bytes_of({3, kVocab - 1}), {3}, kVocab - 1),
              HasSubstr("names token 152063, outside the vocabulary of 152063"));
  EXPECT_THAT(refusal(raw({2, 0x88}), {3}, 7), HasSubstr("names token 7"));
}

TEST(KeptSets, RefuseATokenThatIsNotInItsSet) {
  RandomStream random(5);
  const Ids many = some_ids(random, 600, 1000);
  Ids missing;
  for (int32_t id = 0; id < 1000; ++id)
    if (!std::binary_search(many.begin(), many.end(), id)) missing.push_back(id);
  for (const int32_t id : many) EXPECT_EQ(refusal(bytes_of(many), {id}), "");
  for (const int32_t id : missing)
    EXPECT_THAT(refusal(bytes_of(many), {id}), HasSubstr("not in the set it was drawn from"));
  for (const int32_t id : {0, 6, 8, 40001, -1})
    EXPECT_THAT(refusal(bytes_of({7, 300, 40000}), {id}), HasSubstr("not in the set")) << id;
}

TEST(KeptSets, RefuseMoreSetsThanTokens) {
  Bytes two = bytes_of({7});
  append_kept(Ids{8}, kVocab, two);
  EXPECT_EQ(refusal(two, {7, 8}), "");
  EXPECT_THAT(refusal(two, {7}), HasSubstr("more kept sets than its 1 sampled tokens"));
  EXPECT_THAT(refusal(two, {7, 8, 9}), HasSubstr("2 kept sets for 3 sampled tokens"));
}

TEST(KeptSets, AreTakenUpToTheirBoundAndNotOneByteMore) {
  // One bitmap of all bytes except the four of its head.
  const size_t size = kKeptBytesMax - 4;
  Bytes bytes;
  for (size_t head = size * 2; bytes.size() < 4; head >>= 7)
    bytes.push_back(static_cast<std::byte>((head & 0x7F) | (bytes.size() < 3 ? 0x80 : 0)));
  bytes.resize(kKeptBytesMax, std::byte{1});
  EXPECT_EQ(refusal(bytes, {8}, INT32_MAX), "");
  append_all_kept(1, bytes);
  EXPECT_THAT(refusal(bytes, {8, 8}, INT32_MAX), HasSubstr("at most 67108864 are accepted"));
}

TEST(KeptSets, NoBytesAtAllCrashTheReader) {
  RandomStream random(11);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(1 + random.below(24));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    KeptReader reader(bytes);
    while (!reader.is_at_end()) {
      const auto set = reader.next();
      if (!set.ok()) break;
      const Ids ids = listed(*set);
      if (set->keeps_all()) continue;
      ASSERT_FALSE(ids.empty());
      EXPECT_EQ(ids.back(), set->largest());
      EXPECT_TRUE(set->contains(ids.front()) && set->contains(ids.back()));
    }
  }
}

TEST(KeptSets, GiveBackEverySetTheyWereMadeOf) {
  RandomStream random(2);
  Bytes bytes;
  std::vector<Ids> all;
  Ids tokens;
  for (const int32_t vocab_size : {1, 7, 8, 9, 130, 3000})
    for (int i = 0; i < 40; ++i) {
      const auto count = 1 + static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size)));
      all.push_back(some_ids(random, count, vocab_size));
      tokens.push_back(all.back()[random.below(all.back().size())]);
      append_kept(all.back(), vocab_size, bytes);
      if (count == vocab_size) all.back().clear();
    }
  EXPECT_EQ(refusal(bytes, tokens), "");
  KeptReader reader(bytes);
  for (const Ids& ids : all) EXPECT_EQ(listed(reader.next().value()), ids);
  EXPECT_TRUE(reader.is_at_end());
}

TEST(KeptSets, TakeOneByteWhenAllIsKeptAndNeverMuchMoreThanABitmap) {
  Ids ids(kVocab);
  std::iota(ids.begin(), ids.end(), 0);
  EXPECT_EQ(bytes_of(ids), raw({0}));
  ids.pop_back();
  EXPECT_EQ(bytes_of(ids).size(), 3U + kVocab / 8);
  Ids few;
  for (int32_t i = 0; i < 50; ++i) few.push_back(i * 3000);
  EXPECT_EQ(bytes_of(few).size(), 1U + 1 + 49 * 2);
}

TEST(KeptSets, AreThereWhereverSomethingMayBeLeftOut) {
  EXPECT_FALSE(has_kept_sets(SamplingParams{}));
  EXPECT_TRUE(has_kept_sets({.top_k = 1}));
  EXPECT_TRUE(has_kept_sets({.top_p = 0.999}));
  EXPECT_TRUE(has_kept_sets({.min_p = 0.001}));
  EXPECT_FALSE(has_kept_sets({.temperature = 0, .top_k = 1}))
      << "greedy log-probabilities are of the whole vocabulary";
}

}  // namespace
}  // namespace primerl
