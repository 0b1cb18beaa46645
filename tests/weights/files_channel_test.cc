// Specific to files: folders that any program can load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "kernels/weights/safetensors.h"
#include "kernels/weights/version_folder.h"
#include "tests/conformance/channel_weights.h"
#include "tests/store/scratch_folder.h"
#include "tests/weights/channels.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

class FilesChannelTest : public testing::Test {
 protected:
  ChannelSetup setup() const { return channel_setup(folder_.path().string()); }
  std::shared_ptr<WeightChannel> open() const { return open_channel("files", setup()); }
  fs::path version_folder(int64_t version) const {
    return folder_.path() / "weights" / "weights" / fmt::format("version_{}", version);
  }
  std::string refusal(WeightChannel& channel, int64_t version) const {
    const auto fetched = channel.fetch({}, PolicyVersion(version));
    return fetched.ok() ? "" : fetched.error().text();
  }

  const ScratchFolder folder_;
};

TEST_F(FilesChannelTest, WritesAModelFolderThatOthersLoad) {
  const ScratchFolder model;
  write_text(model.path() / "config.json", "{}");
  write_text(model.path() / "tokenizer.json", "{\"a\": 1}");
  write_text(model.path() / "model.safetensors", "old weights");
  write_text(model.path() / "model.safetensors.index.json", "{}");
  ChannelSetup own = setup();
  own.model_folder = model.path();
  ASSERT_TRUE(open_channel("files", own)->publish(channel_weights(7)).ok());
  const auto tensors = read_model_tensors(version_folder(7));
  ASSERT_TRUE(tensors.ok()) << tensors.error().text();
  EXPECT_TRUE(is_whole(WeightSnapshot{{}, PolicyVersion(7), *tensors}, 7));
  EXPECT_TRUE(fs::exists(version_folder(7) / "config.json"));
  EXPECT_TRUE(fs::exists(version_folder(7) / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(version_folder(7) / "version.json"));
  EXPECT_FALSE(fs::exists(version_folder(7) / "model.safetensors.index.json"));
}

TEST_F(FilesChannelTest, ADroppedKeyLeavesNoFolder) {
  const auto channel = open(), receiver = open();
  const WeightsKey gone{TenantSlot(1), AdapterId(2)};
  const auto folder = folder_.path() / "weights" / "weights" / "version_3-tenant_1-adapter_2";
  ASSERT_TRUE(channel->publish(channel_weights(7)).ok());
  ASSERT_TRUE(channel->publish(channel_weights_of(gone, 3)).ok());
  ASSERT_TRUE(fs::exists(folder));
  receiver->drop(gone);
  EXPECT_TRUE(fs::exists(folder)) << "it is the publisher's";
  channel->drop(gone);
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_TRUE(fs::exists(version_folder(7)));
  const auto index = read_text_file(folder.parent_path() / "index.json");
  EXPECT_THAT(*index, testing::Not(testing::HasSubstr("tenant_1")));
}

/// An adapter of two linears, as published by a learner.
std::shared_ptr<const WeightSnapshot> small_adapter(WeightsKey key, float scaling) {
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->key = key;
  snapshot->version = PolicyVersion(7);
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float value) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    const std::vector<float> numbers(static_cast<size_t>(count), value);
    const auto* bytes = reinterpret_cast<const std::byte*>(numbers.data());
    snapshot->tensors.push_back(
        {name, DataType::kF32, std::move(shape),
         Blob(std::vector<std::byte>(bytes, bytes + numbers.size() * sizeof(float)))});
  };
  const std::string layer = "base_model.model.model.layers.0.self_attn.";
  add(layer + "q_proj.lora_A.weight", {3, 8}, 0.5F);
  add(layer + "q_proj.lora_B.weight", {4, 3}, 0.25F);
  add(layer + "v_proj.lora_A.weight", {3, 8}, -1.0F);
  add(layer + "v_proj.lora_B.weight", {2, 3}, 2.0F);
  add("scaling", {1}, scaling);
  return snapshot;
}

TEST_F(FilesChannelTest, WritesAnAdapterAsAPeftFolder) {
  const ScratchFolder model;
  write_text(model.path() / "config.json", "{}");
  ChannelSetup own = setup();
  own.model_folder = model.path();
  const WeightsKey key{TenantSlot(1)};
  // A scaling without a short decimal form: it is restored with the same bits.
  const auto published = small_adapter(key, 4.0F / 1.7320508F);
  ASSERT_TRUE(open_channel("files", own)->publish(published).ok());
  const fs::path folder = version_folder(7).parent_path() / "version_7-tenant_1";
  const auto text = read_text_file(folder / "adapter_config.json", 1 << 20).value();
  const auto config = parse_json(text, "config").value();
  EXPECT_EQ(config.get_string("peft_type").value(), "LORA");
  EXPECT_EQ(config.get_int("r").value(), 3);
  EXPECT_EQ(config.get_string("base_model_name_or_path").value(), model.path().string());
  EXPECT_EQ(*config.find("target_modules"),
            Json::list(std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(read_safetensors(folder / "adapter_model.safetensors").value().size(), 4U);
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
  EXPECT_FALSE(fs::exists(folder / "config.json")) << "that is the base model's";
  const auto fetched = open_channel("files", own)->fetch(key, PolicyVersion(7));
  ASSERT_TRUE(fetched.ok()) << fetched.error().text();
  ASSERT_EQ((*fetched)->tensors.size(), published->tensors.size());
  for (size_t i = 0; i < published->tensors.size(); ++i) {
    EXPECT_EQ((*fetched)->tensors[i].name, published->tensors[i].name);
    EXPECT_TRUE((*fetched)->tensors[i].bytes == published->tensors[i].bytes)
        << published->tensors[i].name;
  }
}

TEST_F(FilesChannelTest, RefusesAnAdapterFolderThatWasChanged) {
  const auto channel = open(), receiver = open();
  ASSERT_TRUE(channel->publish(small_adapter({}, 2)).ok());
  const fs::path file = version_folder(7) / "adapter_config.json";
  const auto text = read_text_file(file, 1 << 20).value();
  write_text(file, parse_json(text, "config").value().set("lora_alpha", 7.0).dump());
  EXPECT_THAT(refusal(*receiver, 7), testing::HasSubstr("'scaling'"));
  fs::remove(file);
  EXPECT_FALSE(refusal(*receiver, 7).empty());
}

TEST_F(FilesChannelTest, RefusesAScalingThatIsNoNumberBeforeAnythingIsVisible) {
  const auto channel = open();
  const Status refused = channel->publish(small_adapter({}, std::nanf("")));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("alpha"));
  EXPECT_TRUE(channel->newest({}).is_none());
}

TEST_F(FilesChannelTest, RemovesVersionsThatAreNotKept) {
  const auto channel = open();
  for (int64_t version = 0; version < 5; ++version)
    ASSERT_TRUE(channel->publish(channel_weights(version)).ok());
  EXPECT_FALSE(fs::exists(version_folder(2)));
  EXPECT_TRUE(fs::exists(version_folder(3)));
  EXPECT_TRUE(fs::exists(version_folder(4)));
}

TEST_F(FilesChannelTest, NamesTheFoldersOfOtherKeys) {
  const auto channel = open();
  for (const WeightsKey key : {WeightsKey{TenantSlot(0)}, WeightsKey{TenantSlot(1)},
                               WeightsKey{TenantSlot(1), AdapterId(2)}})
    ASSERT_TRUE(channel->publish(channel_weights_of(key, 7)).ok());
  for (const char* name : {"version_7", "version_7-tenant_1", "version_7-tenant_1-adapter_2"})
    EXPECT_TRUE(fs::exists(version_folder(7).parent_path() / name / "version.json")) << name;
}

TEST_F(FilesChannelTest, RefusesATornFile) {
  const auto channel = open(), receiver = open();
  ASSERT_TRUE(channel->publish(channel_weights(1)).ok());
  const fs::path file = version_folder(1) / "model.safetensors";
  const auto size = fs::file_size(file);
  for (const uintmax_t left : {size - 1, size / 2, uintmax_t{9}, uintmax_t{0}}) {
    fs::resize_file(file, left);
    EXPECT_FALSE(refusal(*receiver, 1).empty()) << left << " of " << size;
  }
}

TEST_F(FilesChannelTest, RefusesBytesThatDoNotHashToWhatTheMarkerSays) {
  const auto channel = open(), receiver = open();
  ASSERT_TRUE(channel->publish(channel_weights(1)).ok());
  const fs::path file = version_folder(1) / "model.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-3, std::ios::end);
  stream.put('!');
  stream.close();
  EXPECT_THAT(refusal(*receiver, 1), testing::HasSubstr("are not those that were published"));
}

TEST_F(FilesChannelTest, RefusesAFolderWithoutItsMarkerOrWithAnothers) {
  const auto channel = open(), receiver = open();
  ASSERT_TRUE(channel->publish(channel_weights(1)).ok());
  ASSERT_TRUE(channel->publish(channel_weights(2)).ok());
  fs::copy_file(version_folder(1) / "version.json", version_folder(2) / "version.json",
                fs::copy_options::overwrite_existing);
  EXPECT_FALSE(refusal(*receiver, 2).empty());
  fs::remove(version_folder(2) / "version.json");
  EXPECT_THAT(refusal(*receiver, 2), testing::HasSubstr("not there or not whole"));
  EXPECT_TRUE(refusal(*receiver, 1).empty());
}

TEST_F(FilesChannelTest, RefusesAnIndexThatLeadsElsewhere) {
  const auto channel = open();
  ASSERT_TRUE(channel->publish(channel_weights(1)).ok());
  for (const std::string folder : {"../weights/version_1", "", ".writing_version_1"}) {
    write_text(version_folder(1).parent_path() / "index.json",
               fmt::format(R"({{"versions": [{{"tenant": 0, "adapter": 0, "version": 1, )"
                           R"("folder": "{}"}}]}})",
                           folder));
    EXPECT_THAT(refusal(*channel, 1), testing::HasSubstr("cannot be in folder"));
    EXPECT_TRUE(channel->newest({}).is_none());
  }
}

TEST_F(FilesChannelTest, RefusesAnIndexWithoutKeysOrWithImpossibleOnes) {
  const auto channel = open();
  ASSERT_TRUE(channel->publish(channel_weights(1)).ok());
  for (const std::string key :
       {"", R"("tenant": -1, "adapter": 0,)", R"("tenant": 0, "adapter": 4294967295,)"}) {
    write_text(version_folder(1).parent_path() / "index.json",
               fmt::format(R"({{"versions": [{{{} "version": 1, "folder": "version_1"}}]}})", key));
    EXPECT_THAT(refusal(*channel, 1), testing::HasSubstr("index.json")) << key;
    EXPECT_TRUE(channel->newest({}).is_none());
  }
}

TEST_F(FilesChannelTest, RemovesWhatACrashLeftAndSaysSo) {
  { ASSERT_TRUE(open()->publish(channel_weights(1)).ok()); }
  fs::create_directories(version_folder(1).parent_path() / ".writing_version_2");
  write_text(version_folder(1).parent_path() / ".writing_version_2" / "model.safetensors", "half");
  fs::create_directories(version_folder(9));
  std::vector<std::string> said;
  ChannelSetup own = setup();
  own.log = [&](std::string_view line) { said.emplace_back(line); };
  ASSERT_TRUE(open_channel("files", own)->publish(channel_weights(2)).ok());
  ASSERT_EQ(said.size(), 1U);
  EXPECT_THAT(said[0], testing::HasSubstr("removed 2 unfinished weight folders"));
  EXPECT_FALSE(fs::exists(version_folder(9)));
  EXPECT_TRUE(fs::exists(version_folder(2)));
}

TEST_F(FilesChannelTest, SaysWhenItCannotWrite) {
  write_text(folder_.path() / "weights", "in the way");
  const Status published = open()->publish(channel_weights(1));
  ASSERT_FALSE(published.ok());
  EXPECT_THAT(published.error().text(), testing::HasSubstr("cannot make folder"));
}

TEST_F(FilesChannelTest, KeepsAtLeastOneVersion) {
  ChannelSetup own = setup();
  own.versions_max = 0;
  EXPECT_EQ(make_files_channel(own).error().code(), Code::kInvalid);
  own.versions_max = 1;
  own.resource = "a/b";
  EXPECT_EQ(make_files_channel(own).error().code(), Code::kInvalid);
}

}  // namespace
}  // namespace primerl
