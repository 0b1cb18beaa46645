#include "runtime/outside/verifiers/msgpack_json.h"

#include <gmock/gmock.h>

#include <cmath>

namespace primerl {
namespace {

using ::testing::HasSubstr;

std::string bytes(std::initializer_list<int> list) {
  std::string text;
  for (const int each : list) text.push_back(static_cast<char>(each));
  return text;
}

std::string read(const std::string& packed, const MsgpackLimits& limits = {}) {
  const auto value = read_msgpack(packed, limits);
  return value.ok() ? value->dump() : value.error().text();
}

TEST(MsgpackJson, ReadsEveryKindOfValue) {
  EXPECT_EQ(read(bytes({0xc0})), "null");
  EXPECT_EQ(read(bytes({0xc3})), "true");
  EXPECT_EQ(read(bytes({0x7f})), "127");
  EXPECT_EQ(read(bytes({0xe0})), "-32");
  EXPECT_EQ(read(bytes({0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0})), "-9223372036854775808");
  EXPECT_EQ(read(bytes({0xcf, 0, 0, 1, 0, 0, 0, 0, 0})), "1099511627776");
  EXPECT_EQ(read(bytes({0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})),
            "18446744073709551615");
  EXPECT_EQ(read(bytes({0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0})), "0.5");
  EXPECT_EQ(read(bytes({0xca, 0x3f, 0, 0, 0})), "0.5");
  EXPECT_EQ(read(bytes({0xa2, 'h', 'i'})), "\"hi\"");
  EXPECT_EQ(read(bytes({0xc4, 2, 'h', 'i'})), "\"hi\"");
  EXPECT_EQ(read(bytes({0x92, 1, 0x80})), "[1,{}]");
  EXPECT_TRUE(std::isnan(read_msgpack(bytes({0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0}))->as_double()));
}

TEST(MsgpackJson, AKeyThatIsANumberBecomesItsDigits) {
  EXPECT_EQ(read(bytes({0x82, 0x03, 0x01, 0xff, 0x02})), R"({"3":1,"-1":2})");
}

TEST(MsgpackJson, OtherKeysAreRefused) {
  EXPECT_THAT(read(bytes({0x81, 0xc3, 1})), HasSubstr("a key of a map is a boolean"));
  EXPECT_THAT(read(bytes({0x81, 0x90, 1})), HasSubstr("a key of a map is a list or a map"));
  EXPECT_THAT(read(bytes({0x82, 0xa1, 'a', 1, 0xa1, 'a', 2})),
              HasSubstr("the key 'a' appears twice"));
}

TEST(MsgpackJson, WhatIsNotOneValueIsRefused) {
  EXPECT_THAT(read(""), HasSubstr("it ends at byte 0"));
  EXPECT_THAT(read(bytes({0x92, 1})), HasSubstr("it ends at byte 2"));
  EXPECT_THAT(read(bytes({1, 2})), HasSubstr("1 bytes follow the value"));
  EXPECT_THAT(read(bytes({0xc1})), HasSubstr("not msgpack at byte 0"));
  // Sizes of 4 GiB without the bytes: refused, and nothing is reserved.
  for (const int kind : {0xdb, 0xc6, 0xdd, 0xdf})
    EXPECT_FALSE(read_msgpack(bytes({kind, 0xff, 0xff, 0xff, 0xff, 1})).ok());
}

TEST(MsgpackJson, DepthIsBounded) {
  MsgpackLimits limits;
  limits.depth_max = 3;
  EXPECT_EQ(read(bytes({0x91, 0x91, 0x91, 1}), limits), "[[[1]]]");
  EXPECT_THAT(read(bytes({0x91, 0x91, 0x91, 0x91, 1}), limits), HasSubstr("deeper than 3"));
  EXPECT_THAT(read(std::string(1 << 20, '\x91')), HasSubstr("deeper than 64"));
}

TEST(MsgpackJson, ValuesAreBounded) {
  MsgpackLimits limits;
  limits.values_max = 3;
  EXPECT_EQ(read(bytes({0x92, 1, 2}), limits), "[1,2]");
  EXPECT_THAT(read(bytes({0x93, 1, 2, 3}), limits), HasSubstr("more than 3 values"));
}

TEST(MsgpackJson, WhatIsWrittenIsReadAgain) {
  const std::string text =
      R"({"a":[1,-1,null,true,2.5,1.0],"b":{"c":"ü","d":18446744073709551615},"e":[]})";
  const Json value = *parse_json(text, "");
  EXPECT_EQ(read_msgpack(write_msgpack(value))->dump(), value.dump());
  EXPECT_TRUE(read_msgpack(write_msgpack(Json(1.0)))->is_number());
  EXPECT_FALSE(read_msgpack(write_msgpack(Json(1.0)))->is_integer());
}

TEST(MsgpackJson, BytesThatAreNotUtf8AreWrittenAsBin) {
  EXPECT_EQ(write_msgpack(Json("hi")), bytes({0xa2, 'h', 'i'}));
  for (const std::string& wrong :
       {std::string("\xff"), std::string("\xc0\x80"), std::string("\xed\xa0\x80"),
        std::string("\xf4\x90\x80\x80"), std::string("a\xe2\x82")})
    EXPECT_EQ(write_msgpack(Json(wrong)).front(), '\xc4') << wrong.size();
  EXPECT_EQ(write_msgpack(Json("\xf4\x8f\xbf\xbf")).front(), '\xa4');
}

Json array(const std::string& dtype, const std::vector<int64_t>& shape, const std::string& data) {
  return write_wire_array({dtype, shape, data});
}

TEST(MsgpackJson, AnArrayIsComparedWithItsShapeAndDtype) {
  const auto read_again = [](const Json& value) { return read(write_msgpack(value)); };
  EXPECT_TRUE(read_msgpack(write_msgpack(array("uint8", {2, 3}, "abcdef"))).ok());
  EXPECT_THAT(read_again(array("uint8", {2, 3}, "abcde")),
              HasSubstr("an array of 6 items of uint8 has 5 bytes"));
  EXPECT_THAT(read_again(array("int32", {2}, "abcdefg")), HasSubstr("has 7 bytes"));
  EXPECT_THAT(read_again(array("uint8", {-1}, "")), HasSubstr("negative or too large"));
  EXPECT_THAT(read_again(array("uint8", {int64_t{1} << 40, int64_t{1} << 40}, "")),
              HasSubstr("negative or too large"));
  Json without = array("uint8", {1}, "a");
  without.set("data", 7);
  EXPECT_THAT(read_again(without), HasSubstr("no bytes 'data'"));
  const Json tensor = Json::object()
                          .set("__torch_tensor__", true)
                          .set("dtype", "float32")
                          .set("shape", Json::list(std::vector<int64_t>{2}))
                          .set("data", "1234567");
  EXPECT_THAT(read_again(tensor), HasSubstr("2 items of float32 has 7 bytes"));
}

TEST(MsgpackJson, AnArrayOfAnUnknownDtypeIsCarriedAndNotUsed) {
  const Json strange = array("complex128", {1}, "0123456789abcdef");
  ASSERT_TRUE(read_msgpack(write_msgpack(strange)).ok());
  EXPECT_THAT(read_wire_array(strange).error().message(), HasSubstr("unknown dtype 'complex128'"));
}

}  // namespace
}  // namespace primerl
