#include "runtime/wire/msgpack_codec.h"

#include <gmock/gmock.h>

#include <msgpack.hpp>

#include "actors/messages/catalog.h"
#include "actors/messages/generation.h"
#include "runtime/wire/payload_check.h"
#include "tests/wire/kinds.h"
#include "tests/wire/random_message.h"

namespace primerl {
namespace {

using testing::HasSubstr;

std::vector<const MessageType*> all_types() {
  auto types = message_catalog();
  types.push_back(&message_type<EveryKind>());
  types.push_back(&message_type<BlobKind>());
  return types;
}

std::vector<std::byte> bytes_of(std::initializer_list<int> numbers) {
  std::vector<std::byte> bytes;
  for (const int number : numbers) bytes.push_back(static_cast<std::byte>(number));
  return bytes;
}

/// Deep nesting, written by hand, because no message type can be that deep.
struct Deep {
  static size_t read(MsgpackReader& reader, size_t depth) {
    size_t reached = 0;
    for (; reached < depth && reader.ok(); ++reached) reader.begin_list();
    return reached;
  }
};

TEST(MsgpackCodec, RoundTripsEveryMessageOfTheCatalog) {
  for (const auto* type : all_types()) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      SCOPED_TRACE(fmt::format("{} seed {}", type->name, seed));
      const auto sent = random_message(*type, seed);
      const auto encoded = encode_message(sent);
      ASSERT_TRUE(encoded.ok()) << encoded.error().text();
      const auto got = decode_message(*type, encoded->body, encoded->blobs);
      ASSERT_TRUE(got.ok()) << got.error().text();
      ASSERT_EQ(transcript(*got), transcript(sent));
      ASSERT_EQ(payload_check(*got), payload_check(sent));
      EXPECT_LE(encoded->body.size(), detail::bound_body_bytes(type->write, sent.message.get()));
    }
  }
}

TEST(MsgpackCodec, WritesWhatAnotherMsgpackReads) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto encoded = encode_message(random_message(message_type<EveryKind>(), seed)).value();
    size_t offset = 0;
    const auto handle = msgpack::unpack(reinterpret_cast<const char*>(encoded.body.data()),
                                        encoded.body.size(), offset);
    EXPECT_EQ(offset, encoded.body.size());
    ASSERT_EQ(handle.get().type, msgpack::type::ARRAY);
    EXPECT_EQ(handle.get().via.array.size,
              parse_schema(message_type<EveryKind>().schema).children.size());
  }
}

TEST(MsgpackCodec, SharesABlobInsteadOfCopyingIt) {
  const auto sent = Payload::of(BlobKind{Blob(std::vector<std::byte>(1000)), {}, 3});
  const auto encoded = encode_message(sent).value();
  EXPECT_LT(encoded.body.size(), 10u);
  const auto got = decode_message(*sent.type, encoded.body, encoded.blobs).value();
  EXPECT_EQ(got.as<BlobKind>().first.bytes().data(), sent.as<BlobKind>().first.bytes().data());
}

/// A message with an array and a text of these sizes in bytes.
Payload with_lengths(size_t array_bytes, size_t text_bytes) {
  EveryKind message;
  message.mask.assign(array_bytes, 7);
  message.text.assign(text_bytes, 'x');
  return Payload::of(std::move(message));
}

TEST(MsgpackCodec, ALongArrayAndALongTextLieBesideTheBodyWithoutACopy) {
  const auto within = with_lengths(kArrayBytesInBodyMax, kTextBytesInBodyMax);
  EXPECT_EQ(within.type->blob_bytes(within.message.get()), 0U);
  EXPECT_TRUE(encode_message(within).value().blobs.empty());
  const auto sent = with_lengths(kArrayBytesInBodyMax + 1, kTextBytesInBodyMax + 1);
  const size_t beside = kArrayBytesInBodyMax + kTextBytesInBodyMax + 2;
  EXPECT_EQ(sent.type->blob_bytes(sent.message.get()), beside);
  const auto encoded = encode_message(sent).value();
  ASSERT_EQ(encoded.blobs.size(), 2U);
  EXPECT_LT(encoded.body.size(), 200U);
  EXPECT_LE(encoded.body.size(), detail::bound_body_bytes(sent.type->write, sent.message.get()));
  const auto& message = sent.as<EveryKind>();
  EXPECT_EQ(static_cast<const void*>(encoded.blobs[0].bytes().data()), message.text.data());
  EXPECT_EQ(static_cast<const void*>(encoded.blobs[1].bytes().data()), message.mask.data());
  const auto got = decode_message(*sent.type, encoded.body, encoded.blobs).value();
  EXPECT_EQ(transcript(got), transcript(sent));
  EXPECT_EQ(payload_check(got), payload_check(sent));
}

TEST(MsgpackCodec, AContextOf131072TokensFitsIntoAMessage) {
  EveryKind message;
  message.tokens.assign(131'072, 1 << 20);
  message.logprobs.assign(131'072, -0.5F);
  message.text.assign(size_t{1} << 20, 'x');
  const auto sent = Payload::of(std::move(message));
  const auto encoded = encode_message(sent);
  ASSERT_TRUE(encoded.ok()) << encoded.error().text();
  const auto got = decode_message(*sent.type, encoded->body, encoded->blobs).value();
  EXPECT_EQ(got.as<EveryKind>().tokens, sent.as<EveryKind>().tokens);
  EXPECT_EQ(got.as<EveryKind>().text, sent.as<EveryKind>().text);
}

TEST(MsgpackCodec, OneWhoSharesNoMessageHasAllInTheBody) {
  const auto sent = with_lengths(100'000, 100'000);
  MsgpackWriter writer;
  sent.type->write(writer, sent.message.get());
  EXPECT_TRUE(writer.blobs().empty());
  MsgpackReader reader(writer.body());
  const auto got = sent.type->read(reader);
  ASSERT_TRUE(reader.finish().ok());
  EXPECT_EQ(transcript({sent.type, got}), transcript(sent));
}

TEST(MsgpackCodec, AnArrayBesideTheBodyMustBeWholeAndThere) {
  const auto sent = with_lengths(kArrayBytesInBodyMax + 1, 0);
  const auto encoded = encode_message(sent).value();
  const auto missing = decode_message(*sent.type, encoded.body, {});
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().text(), HasSubstr("has no frame"));
  const std::vector<Blob> shorter = {Blob(std::vector<std::byte>(10))};
  EXPECT_FALSE(decode_message(*sent.type, encoded.body, shorter).ok());
  EveryKind odd;
  odd.tokens.assign(kArrayBytesInBodyMax, 1);
  const auto whole = Payload::of(std::move(odd));
  auto parts = encode_message(whole).value();
  ASSERT_EQ(parts.blobs.size(), 1U);
  // The last byte of the array is missing, and the body has the shorter size.
  const auto bytes = parts.blobs[0].bytes().first(parts.blobs[0].size() - 1);
  parts.blobs[0] = Blob(nullptr, bytes);
  EXPECT_FALSE(decode_message(*whole.type, parts.body, parts.blobs).ok());
}

TEST(MsgpackCodec, RefusesEveryTruncation) {
  for (const auto* type : all_types()) {
    const auto encoded = encode_message(random_message(*type, 7)).value();
    for (size_t size = 0; size < encoded.body.size(); ++size) {
      const auto got = decode_message(*type, std::span(encoded.body).first(size), encoded.blobs);
      ASSERT_FALSE(got.ok()) << type->name << " cut at " << size;
      ASSERT_EQ(got.error().code(), Code::kCorrupt);
    }
  }
}

TEST(MsgpackCodec, SurvivesEverySeededMutation) {
  for (const auto* type : all_types()) {
    for (uint64_t seed = 0; seed < 400; ++seed) {
      auto encoded = encode_message(random_message(*type, seed)).value();
      RandomStream random(seed);
      for (uint64_t i = 0; i <= random.below(4); ++i)
        encoded.body[random.below(encoded.body.size())] = static_cast<std::byte>(random.below(256));
      const auto got = decode_message(*type, encoded.body, encoded.blobs);
      if (!got.ok()) continue;
      // Whatever the message is now, it must be possible to encode it again.
      const auto again = encode_message(*got);
      ASSERT_TRUE(again.ok());
      ASSERT_EQ(transcript(decode_message(*type, again->body, again->blobs).value()),
                transcript(*got));
    }
  }
}

TEST(MsgpackCodec, RefusesWhatIsLeftOver) {
  auto encoded = encode_message(Payload::of(Cancel{{1, 2}})).value();
  encoded.body.push_back(std::byte{0});
  const auto got = decode_message(message_type<Cancel>(), encoded.body);
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.error().message(), HasSubstr("reading a 'Cancel'"));
  EXPECT_THAT(got.error().message(), HasSubstr("1 bytes are left over"));
}

TEST(MsgpackCodec, RefusesABlobWithoutItsFrame) {
  const auto sent = Payload::of(BlobKind{Blob(std::vector<std::byte>(5)), {}, 0});
  auto encoded = encode_message(sent).value();
  EXPECT_FALSE(decode_message(*sent.type, encoded.body, {}).ok());
  const std::vector<Blob> shorter = {Blob(std::vector<std::byte>(4))};
  EXPECT_THAT(decode_message(*sent.type, encoded.body, shorter).error().message(),
              HasSubstr("announced"));
  encoded.blobs.push_back(Blob(std::vector<std::byte>(1)));
  EXPECT_THAT(decode_message(*sent.type, encoded.body, encoded.blobs).error().message(),
              HasSubstr("1 frames are left over"));
}

TEST(MsgpackCodec, ReadsNestingToTheLimitAndNoDeeper) {
  std::vector<std::byte> body(kNestingMax + 2, std::byte{0x91});
  MsgpackReader at_the_limit(body);
  EXPECT_EQ(Deep::read(at_the_limit, kNestingMax), kNestingMax);
  EXPECT_TRUE(at_the_limit.ok());
  MsgpackReader past_it(body);
  Deep::read(past_it, kNestingMax + 1);
  ASSERT_FALSE(past_it.ok());
  EXPECT_THAT(past_it.fault().message(), HasSubstr("nested deeper than 32"));
}

TEST(MsgpackCodec, HoldsAListAgainstTheBytesLeft) {
  const auto exact = bytes_of({0x93, 1, 2, 3});
  MsgpackReader fits(exact);
  EXPECT_EQ(fits.begin_list(), 3u);
  EXPECT_TRUE(fits.ok());
  const auto lying = bytes_of({0x94, 1, 2, 3});
  MsgpackReader reader(lying);
  EXPECT_EQ(reader.begin_list(), 0u);
  EXPECT_FALSE(reader.ok());
  const auto huge = bytes_of({0xdd, 0xff, 0xff, 0xff, 0xff});
  EXPECT_FALSE(decode_message(message_type<Cancel>(), huge).ok());
}

TEST(MsgpackCodec, HoldsTextAndBytesAgainstTheBytesLeft) {
  const auto text = bytes_of({0xdb, 0xff, 0xff, 0xff, 0xff, 'a'});
  MsgpackReader text_reader(text);
  EXPECT_EQ(text_reader.text(), "");
  EXPECT_FALSE(text_reader.ok());
  const auto run = bytes_of({0xc6, 0xff, 0xff, 0xff, 0xff, 'a'});
  MsgpackReader run_reader(run);
  EXPECT_TRUE(run_reader.bytes().empty());
  EXPECT_FALSE(run_reader.ok());
}

TEST(MsgpackCodec, KeepsTheFirstFault) {
  const auto body = bytes_of({0xc0, 0xc0});
  MsgpackReader reader(body);
  reader.integer();
  const auto first = reader.fault().message();
  reader.begin_list();
  EXPECT_EQ(reader.fault().message(), first);
  EXPECT_THAT(first, HasSubstr("at byte 1"));
  EXPECT_FALSE(reader.finish().ok());
}

TEST(MsgpackCodec, EncodesAMessageOfTheLimitAndNoLarger) {
  TextsKind message;
  // One byte for the struct, three for the list, three for each text; longer texts are outside the
  // body.
  constexpr size_t kCount = kMessageBytesMax / kTextBytesInBodyMax;
  message.texts.assign(kCount, std::string(kTextBytesInBodyMax - 3, 'x'));
  message.texts.back().resize(kTextBytesInBodyMax - 3 - 4);
  const auto exact = encode_message(Payload::of(message));
  ASSERT_TRUE(exact.ok());
  EXPECT_EQ(exact->body.size(), kMessageBytesMax);
  EXPECT_TRUE(decode_message(message_type<TextsKind>(), exact->body).ok());
  message.texts.back() += 'x';
  const auto larger = encode_message(Payload::of(message));
  ASSERT_FALSE(larger.ok());
  EXPECT_EQ(larger.error().code(), Code::kExhausted);
  EXPECT_THAT(larger.error().message(), HasSubstr("'TextsKind'"));
  auto body = exact->body;
  body.push_back(std::byte{0});
  EXPECT_EQ(decode_message(message_type<TextsKind>(), body).error().code(), Code::kExhausted);
}

TEST(MsgpackCodec, ReadsIntegersOfEveryWidthAndNoneTooWide) {
  const auto negative = bytes_of({0xd0, 0x80, 0xd1, 0x80, 0, 0xd2, 0x80, 0, 0, 0, 0xff});
  MsgpackReader reader(negative);
  EXPECT_EQ(reader.integer(), -128);
  EXPECT_EQ(reader.integer(), -32768);
  EXPECT_EQ(reader.integer(), INT32_MIN);
  EXPECT_EQ(reader.integer(), -1);
  EXPECT_TRUE(reader.finish().ok());
  const auto wide = bytes_of({0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0});
  MsgpackReader signed_reader(wide);
  signed_reader.integer();
  EXPECT_FALSE(signed_reader.ok());
  MsgpackReader unsigned_reader(negative);
  unsigned_reader.unsigned_integer();
  EXPECT_FALSE(unsigned_reader.ok());
}

}  // namespace
}  // namespace primerl
