#include "kernels/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

WeightTensor tensor(std::string name, DataType type, std::vector<int64_t> shape) {
  size_t size = size_in_bytes(type);
  for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + name.size());
  return {std::move(name), type, std::move(shape), Blob(std::move(bytes))};
}

/// A file with this header and `data_bytes` zeros.
std::string file_of(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes + header + std::string(data_bytes, '\0');
}

std::string entry(const std::string& name, const std::string& rest) {
  return "\"" + name + "\":{\"dtype\":\"F32\"," + rest + "}";
}

/// The error text of a hostile file.
std::string fault(const std::string& bytes) {
  const auto parsed =
      parse_safetensors(nullptr, std::as_bytes(std::span(bytes)), "dir/x.safetensors");
  return parsed.ok() ? "" : parsed.error().text();
}

TEST(Safetensors, RefusesAFileThatIsTooShort) {
  for (size_t size = 0; size < 8; ++size)
    EXPECT_THAT(fault(std::string(size, '\0')), HasSubstr("dir/x.safetensors")) << size;
}

TEST(Safetensors, RefusesAHeaderThatEndsBeyondTheFile) {
  auto bytes = file_of("{}", 0);
  EXPECT_EQ(fault(bytes), "");
  bytes[0] = 3;
  EXPECT_THAT(fault(bytes), HasSubstr("ends beyond the file"));
}

TEST(Safetensors, RefusesAHeaderBeyondTheLimit) {
  std::string bytes(8, '\0');
  const uint64_t size = kSafetensorsHeaderBytesMax + 1;
  std::memcpy(bytes.data(), &size, sizeof(size));
  EXPECT_THAT(fault(bytes), HasSubstr("beyond the limit"));
}

TEST(Safetensors, RefusesWrongOffsets) {
  const std::string shape = "\"shape\":[2],\"data_offsets\":";
  EXPECT_EQ(fault(file_of("{" + entry("a", shape + "[0,8]") + "}", 8)), "");
  EXPECT_THAT(fault(file_of("{" + entry("a", shape + "[0,8]") + "}", 7)), HasSubstr("tensor 'a'"));
  EXPECT_THAT(fault(file_of("{" + entry("a", shape + "[8,0]") + "}", 8)), HasSubstr("before 8"));
  EXPECT_THAT(fault(file_of("{" + entry("a", shape + "[0,4]") + "}", 8)),
              HasSubstr("needs 8 bytes, its data has 4"));
  EXPECT_THAT(fault(file_of("{" + entry("a", shape + "[-1,7]") + "}", 8)), HasSubstr("tensor 'a'"));
  EXPECT_THAT(fault(file_of("{" + entry("a", shape + "[0.5,8]") + "}", 8)),
              HasSubstr("tensor 'a'"));
  EXPECT_THAT(fault(file_of("{" + entry("a", shape + "[0]") + "}", 8)), HasSubstr("tensor 'a'"));
}

TEST(Safetensors, RefusesAShapeThatOverflows) {
  const std::string huge = "\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]";
  EXPECT_THAT(fault(file_of("{" + entry("a", huge) + "}", 0)), HasSubstr("64 bits"));
  std::string shape = "\"shape\":[1";
  for (size_t i = 1; i < kTensorDimensionsMax; ++i) shape += ",1";
  const std::string end = "],\"data_offsets\":[0,4]";
  EXPECT_EQ(fault(file_of("{" + entry("a", shape + end) + "}", 4)), "");
  EXPECT_THAT(fault(file_of("{" + entry("a", shape + ",1" + end) + "}", 4)), HasSubstr("17"));
}

TEST(Safetensors, RefusesDataThatDoesNotTile) {
  const std::string one = "\"shape\":[1],\"data_offsets\":";
  const auto two = [&](const std::string& a, const std::string& b, size_t size) {
    return fault(file_of("{" + entry("a", one + a) + "," + entry("b", one + b) + "}", size));
  };
  EXPECT_EQ(two("[0,4]", "[4,8]", 8), "");
  EXPECT_EQ(two("[4,8]", "[0,4]", 8), "");
  EXPECT_THAT(two("[0,4]", "[5,9]", 9), HasSubstr("tensor 'b'"));
  EXPECT_THAT(two("[0,4]", "[0,4]", 4), HasSubstr("tensor 'b'"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 9), HasSubstr("1 bytes of data belong to no tensor"));
}

TEST(Safetensors, RefusesNamesTwiceBadTextAndUnknownTypes) {
  const std::string rest = "\"shape\":[0],\"data_offsets\":[0,0]";
  EXPECT_THAT(fault(file_of("{" + entry("a", rest) + "," + entry("a", rest) + "}", 0)),
              HasSubstr("twice"));
  EXPECT_NE(fault(file_of("{" + entry("\xff", rest) + "}", 0)), "");
  EXPECT_NE(fault(file_of(" {}", 0)), "");
  EXPECT_NE(fault(file_of("[]", 0)), "");
  EXPECT_NE(fault(file_of("{\"__metadata__\":{\"a\":1}}", 0)), "");
  EXPECT_THAT(fault(file_of("{\"a\":{\"dtype\":\"F3\"," + rest + "}}", 0)), HasSubstr("'F3'"));
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const auto file = new_scratch_folder() / "model.safetensors";
  const std::vector<WeightTensor> tensors = {
      tensor("a", DataType::kF32, {2, 3}), tensor("b", DataType::kU8, {5}),
      tensor("c", DataType::kBF16, {3}),   tensor("d", DataType::kF64, {}),
      tensor("e", DataType::kF32, {0, 4}), tensor("f\"\n\xC3\xA9", DataType::kI64, {1})};
  const Status written = write_safetensors(file, tensors);
  ASSERT_TRUE(written.ok()) << written.error().text();
  const auto read = read_safetensors(file);
  ASSERT_TRUE(read.ok()) << read.error().text();
  ASSERT_EQ(read->size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(read->at(i).name, tensors[i].name);
    EXPECT_EQ(read->at(i).type, tensors[i].type);
    EXPECT_EQ(read->at(i).shape, tensors[i].shape);
    EXPECT_TRUE(read->at(i).bytes == tensors[i].bytes);
  }
}

TEST(Safetensors, EqualTensorsGiveEqualBytesInAnyOrderAndDataIsAligned) {
  const auto where = new_scratch_folder();
  const auto a = tensor("a", DataType::kU8, {3}), b = tensor("b", DataType::kF32, {2});
  ASSERT_TRUE(write_safetensors(where / "1", {a, b}).ok());
  ASSERT_TRUE(write_safetensors(where / "2", {b, a}).ok());
  const auto text = [](const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(text(where / "1"), text(where / "2"));
  uint64_t header = 0;
  std::memcpy(&header, text(where / "1").data(), sizeof(header));
  EXPECT_EQ((8 + header) % 8, 0U);
  EXPECT_THAT(text(where / "1"), HasSubstr("\"__metadata__\":{\"format\":\"pt\"}"));
}

TEST(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  const auto file = new_scratch_folder() / "x";
  auto bad = tensor("a", DataType::kF32, {2});
  bad.shape = {3};
  EXPECT_FALSE(write_safetensors(file, {bad}).ok());
  const auto good = tensor("a", DataType::kF32, {2});
  EXPECT_FALSE(write_safetensors(file, {good, good}).ok());
  const Status nowhere = write_safetensors(new_scratch_folder() / "no" / "such" / "folder", {good});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_THAT(nowhere.error().text(), HasSubstr("such/folder"));
}

TEST(Safetensors, SaysWhatAFolderWithoutWeightsLacks) {
  const auto read = read_model_tensors(new_scratch_folder());
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code(), Code::kNotFound);
  EXPECT_THAT(read.error().text(), HasSubstr("model.safetensors"));
}

class Shards : public ::testing::Test {
 protected:
  void SetUp() override {
    where_ = new_scratch_folder();
    ASSERT_TRUE(write_safetensors(where_ / "s1", {tensor("b", DataType::kF32, {2})}).ok());
    ASSERT_TRUE(write_safetensors(where_ / "s2", {tensor("a", DataType::kF32, {1}),
                                                  tensor("c", DataType::kF32, {1})})
                    .ok());
  }
  std::string read(const std::string& map) {
    std::ofstream(where_ / "model.safetensors.index.json") << "{\"weight_map\":" << map << "}";
    const auto tensors = read_model_tensors(where_);
    if (!tensors.ok()) return tensors.error().text();
    std::string names;
    for (const auto& one : *tensors) names += one.name;
    return names;
  }
  std::filesystem::path where_;
};

TEST_F(Shards, AreReadThroughTheirIndex) {
  EXPECT_EQ(read(R"({"a":"s2","b":"s1","c":"s2"})"), "abc");
}

TEST_F(Shards, MayHaveTensorsThatTheIndexDoesNotList) {
  EXPECT_EQ(read(R"({"a":"s2","b":"s1"})"), "abc");
}

TEST_F(Shards, MustHaveWhatTheIndexLists) {
  EXPECT_THAT(read(R"({"a":"s2","b":"s1","c":"s2","d":"s1"})"), HasSubstr("'d'"));
  EXPECT_THAT(read(R"({"a":"s2","b":"s1","c":"s1"})"), HasSubstr("'c'"));
  EXPECT_THAT(read(R"({"a":"s3"})"), HasSubstr("s3"));
}

TEST_F(Shards, MayNotLeaveTheFolder) {
  for (const std::string name : {"../s1", "/etc/passwd", "", ".."})
    EXPECT_THAT(read("{\"b\":\"" + name + "\"}"), HasSubstr("plain file name")) << name;
  EXPECT_THAT(read(R"({"b":1})"), HasSubstr("'b'"));
  EXPECT_THAT(read("[]"), HasSubstr("weight_map"));
}

}  // namespace
}  // namespace primerl
