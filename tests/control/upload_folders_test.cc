// The folders of what comes to a served run over HTTP: one test for each way around their rules.
#include "runtime/control/upload_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "graph/base/files.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kUploadedTenant = "[tenant.alice]\n";

struct UploadFoldersTest : ::testing::Test {
  std::optional<ControlFault> store(const std::string& tenant, const std::string& name,
                                    std::string_view bytes = "{}\n") const {
    return store_data(scratch.path(), tenant, name, bytes);
  }
  int32_t status_of(const std::string& tenant, const std::string& name,
                    std::string_view bytes = "{}\n") const {
    const auto fault = store(tenant, name, bytes);
    return fault ? fault->status : 200;
  }
  std::vector<std::string> waiting(const std::string& tenant) const {
    return waiting_data(scratch.path(), tenant);
  }
  /// A file of this size that uses no space.
  void make_sparse(const fs::path& path, size_t num_bytes) const {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "";
    fs::resize_file(path, num_bytes);
  }
  ScratchFolder scratch;
};

TEST_F(UploadFoldersTest, AnUploadHasAFolderOfItsOwnThatOnlyTheOwnerReads) {
  const fs::path one = write_upload(scratch.path(), kUploadedTenant).value();
  const fs::path other = write_upload(scratch.path(), kUploadedTenant).value();
  EXPECT_NE(one.parent_path(), other.parent_path());
  EXPECT_EQ(read_text_file(one).value(), kUploadedTenant);
  for (const fs::path& path : {one.parent_path(), one}) {
    struct stat facts {};
    ASSERT_EQ(::stat(path.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 077, 0U) << path;
  }
  remove_upload(one);
  EXPECT_FALSE(fs::exists(one.parent_path()));
  EXPECT_TRUE(fs::exists(other));
  remove_old_uploads(scratch.path());
  EXPECT_FALSE(fs::exists(scratch.path() / "uploads"));
}

TEST_F(UploadFoldersTest, ALinkInPlaceOfTheFolderIsNotFollowed) {
  const fs::path elsewhere = scratch.path() / "elsewhere";
  fs::create_directory(elsewhere);
  fs::create_directory_symlink(elsewhere, scratch.path() / "uploads");
  EXPECT_EQ(write_upload(scratch.path(), kUploadedTenant).error().code(), Code::kInvalid);
  remove_old_uploads(scratch.path());
  EXPECT_TRUE(fs::exists(elsewhere)) << "the link alone is removed";
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(UploadFoldersTest, ADataFileWaitsForItsTenantUntilItIsAdded) {
  EXPECT_FALSE(store("alice", "rows.jsonl", "1\n"));
  EXPECT_FALSE(store("alice", "held_out.csv"));
  EXPECT_FALSE(store("bob", "rows.jsonl", "2\n"));
  EXPECT_FALSE(store("alice", "rows.jsonl", "3\n")) << "a second one replaces it";
  EXPECT_THAT(waiting("alice"), ElementsAre("held_out.csv", "rows.jsonl"));
  const fs::path file = claim_data(scratch.path(), "alice", kUploadedTenant).value();
  EXPECT_THAT(waiting("alice"), IsEmpty());
  EXPECT_THAT(waiting("bob"), ElementsAre("rows.jsonl"));
  EXPECT_EQ(read_text_file(file).value(), kUploadedTenant);
  EXPECT_EQ(read_text_file(file.parent_path() / "rows.jsonl").value(), "3\n");
  struct stat facts {};
  ASSERT_EQ(::stat((file.parent_path() / "rows.jsonl").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 077, 0U);
  remove_upload(file);
  EXPECT_TRUE(fs::exists(file.parent_path() / "rows.jsonl")) << "only the tenant's file goes";
  remove_old_uploads(scratch.path());
  EXPECT_THAT(waiting("bob"), IsEmpty());
  EXPECT_TRUE(fs::exists(file.parent_path() / "rows.jsonl")) << "a record needs it";
}

TEST_F(UploadFoldersTest, FilesOfATenantThatWasRefusedWaitAgain) {
  EXPECT_FALSE(store("alice", "rows.jsonl", "1\n"));
  const fs::path file = claim_data(scratch.path(), "alice", kUploadedTenant).value();
  return_data(scratch.path(), file, "alice");
  EXPECT_THAT(waiting("alice"), ElementsAre("rows.jsonl"));
  EXPECT_FALSE(fs::exists(file.parent_path()));
  const fs::path second = claim_data(scratch.path(), "alice", kUploadedTenant).value();
  EXPECT_FALSE(store("alice", "newer.jsonl"));
  return_data(scratch.path(), second, "alice");
  EXPECT_THAT(waiting("alice"), ElementsAre("newer.jsonl")) << "newer files stay";
  EXPECT_FALSE(fs::exists(second.parent_path()));
}

TEST_F(UploadFoldersTest, ANameIsOneWordWithTheSuffixOfADataFile) {
  for (const char* name : {"rows.jsonl", "a.csv", "A-b_c.1.txt", "0.json"})
    EXPECT_EQ(status_of("alice", name), 200) << name;
  const std::string longest = std::string(95, 'a') + ".json";
  EXPECT_EQ(status_of("alice", longest), 200);
  for (const std::string& name : {std::string(),
                                  std::string("."),
                                  std::string(".."),
                                  std::string("../rows.jsonl"),
                                  std::string("/rows.jsonl"),
                                  std::string("a/b.jsonl"),
                                  std::string("a\\b.jsonl"),
                                  std::string("..jsonl"),
                                  std::string(".new"),
                                  std::string(".hidden.jsonl"),
                                  std::string("-rf.jsonl"),
                                  std::string("rows"),
                                  std::string("reward.py"),
                                  std::string("adapter.safetensors"),
                                  std::string("chat_template.jinja"),
                                  std::string("a b.jsonl"),
                                  std::string("a%2fb.jsonl"),
                                  std::string("a\nb.jsonl"),
                                  std::string("rows\0.jsonl", 11),
                                  std::string("rows.jsonl\0", 11),
                                  "a" + longest})
    EXPECT_EQ(status_of("alice", name), 400) << name;
  for (const std::string& tenant : {std::string(".."), std::string("a/b"), std::string("Alice"),
                                    std::string(), std::string("a\0b", 3)})
    EXPECT_EQ(status_of(tenant, "rows.jsonl"), 400) << tenant;
}

TEST_F(UploadFoldersTest, ALinkIsNeitherFollowedNorRead) {
  const fs::path elsewhere = scratch.path() / "elsewhere";
  fs::create_directory(elsewhere);
  std::ofstream(elsewhere / "secret.jsonl") << "secret";
  const fs::path files = scratch.path() / "uploads" / "files";
  fs::create_directories(files);
  fs::create_directory_symlink(elsewhere, files / "alice");
  EXPECT_EQ(status_of("alice", "rows.jsonl"), 500);
  EXPECT_THAT(waiting("alice"), IsEmpty());
  EXPECT_FALSE(fs::exists(elsewhere / "rows.jsonl"));
  ASSERT_FALSE(store("bob", "rows.jsonl"));
  fs::create_symlink(elsewhere / "secret.jsonl", files / "bob" / "link.jsonl");
  EXPECT_THAT(waiting("bob"), ElementsAre("rows.jsonl"));
  EXPECT_EQ(status_of("bob", "link.jsonl", "x"), 200) << "the link is replaced";
  EXPECT_EQ(read_text_file(elsewhere / "secret.jsonl").value(), "secret");
  fs::create_directory_symlink(elsewhere, scratch.path() / "tenant_data");
  EXPECT_FALSE(claim_data(scratch.path(), "bob", kUploadedTenant).ok());
  EXPECT_THAT(waiting("bob"), ElementsAre("link.jsonl", "rows.jsonl"));
}

TEST_F(UploadFoldersTest, BytesAndFilesAreLimited) {
  EXPECT_EQ(status_of("alice", "a.jsonl", std::string(kDataFileBytesMax, 'x')), 200);
  EXPECT_EQ(status_of("alice", "b.jsonl", std::string(kDataFileBytesMax + 1, 'x')), 413);
  const fs::path files = scratch.path() / "uploads" / "files";
  make_sparse(files / "alice" / "b.jsonl", kDataTenantBytesMax - kDataFileBytesMax - 10);
  EXPECT_EQ(status_of("alice", "c.jsonl", std::string(10, 'x')), 200);
  EXPECT_EQ(status_of("alice", "d.jsonl", "x"), 413) << "of one tenant";
  EXPECT_EQ(status_of("alice", "c.jsonl", std::string(10, 'y')), 200) << "it is replaced";
  for (size_t i = 0; i < kDataFilesMax; ++i)
    EXPECT_EQ(status_of("bob", fmt::format("{}.jsonl", i)), 200);
  EXPECT_EQ(status_of("bob", "more.jsonl"), 409);
  EXPECT_EQ(status_of("bob", "0.jsonl"), 200) << "it is replaced";
  make_sparse(tenant_data_folder(scratch.path()) / "0123456789abcdef" / "a.jsonl",
              kDataBytesMax - kDataTenantBytesMax - 1000);
  const auto fault = store("cy", "a.jsonl", std::string(1000, 'x'));
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->status, 413);
  EXPECT_THAT(fault->error, HasSubstr("the files of all tenants")) << "those that were added, too";
}

TEST_F(UploadFoldersTest, FilesWaitForALimitedNumberOfTenants) {
  for (size_t i = 0; i < kDataTenantsMax; ++i)
    EXPECT_EQ(status_of(fmt::format("t{}", i), "a.jsonl"), 200);
  EXPECT_EQ(status_of("one_more", "a.jsonl"), 409);
  EXPECT_EQ(status_of("t0", "b.jsonl"), 200);
  EXPECT_TRUE(discard_data(scratch.path(), "t1"));
  EXPECT_FALSE(discard_data(scratch.path(), "t1"));
  EXPECT_FALSE(discard_data(scratch.path(), "../t2"));
  EXPECT_EQ(status_of("one_more", "a.jsonl"), 200);
}

TEST_F(UploadFoldersTest, ATableNamesItsFolder) {
  const fs::path folder = tenant_data_folder(scratch.path()) / "0123456789abcdef";
  fs::create_directories(folder);
  const auto of = [&](const std::string& file) {
    return data_folder_of_table(scratch.path(), fmt::format("file = \"{}\"\n", file));
  };
  EXPECT_EQ(of((folder / "rows.jsonl").string()), folder);
  EXPECT_EQ(data_folder_of_table(
                scratch.path(),
                fmt::format("description = \"in /tenant_data/, /tenant_data/0000000000000000\"\n"
                            "file = \"{}\"\n",
                            (folder / "rows.jsonl").string())),
            folder)
      << "a text before the file is no folder";
  EXPECT_EQ(of("/data/rows.jsonl"), fs::path());
  EXPECT_EQ(of("/other/run/tenant_data/0000000000000000/rows.jsonl"), fs::path());
  EXPECT_EQ(of((tenant_data_folder(scratch.path()) / "rows.jsonl").string()), fs::path());
  EXPECT_EQ(of((tenant_data_folder(scratch.path()) / "../checkpoints/x.jsonl").string()),
            fs::path());
}

}  // namespace
}  // namespace primerl::testing
