#include "runtime/transport/keys.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

TEST(Keys, AreReadBackFromAFileThatOnlyItsOwnerCanRead) {
  ScratchFolder folder;
  const auto file = folder.path() / "worker.key";
  const KeyPair keys = make_key_pair();
  ASSERT_TRUE(write_key_file(file, keys).ok());
  struct stat about {};
  ASSERT_EQ(::stat(file.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
  const auto read = read_key_file(file);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->public_key, keys.public_key);
  EXPECT_EQ(read->secret_key.reveal(), keys.secret_key.reveal());
  EXPECT_NE(make_key_pair().public_key, keys.public_key);
}

TEST(Keys, RefuseAWiderModeALinkAndWhatIsNoKeyFile) {
  ScratchFolder folder;
  const auto file = folder.path() / "worker.key";
  ASSERT_TRUE(write_key_file(file, make_key_pair()).ok());
  for (const mode_t mode : {0640, 0604, 0620, 0601, 0666}) {
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    const auto read = read_key_file(file);
    ASSERT_FALSE(read.ok()) << mode;
    EXPECT_EQ(read.error().code(), Code::kInvalid);
    EXPECT_THAT(read.error().text(), HasSubstr(fmt::format("mode {:04o}", mode)));
    EXPECT_THAT(read.error().text(), HasSubstr("chmod 0600"));
  }
  for (const mode_t mode : {0600, 0400}) {
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    EXPECT_TRUE(read_key_file(file).ok()) << mode;
  }
  std::filesystem::create_symlink(file, folder.path() / "link.key");
  EXPECT_FALSE(read_key_file(folder.path() / "link.key").ok());
  EXPECT_EQ(read_key_file(folder.path()).error().code(), Code::kInvalid);
  const auto other = folder.path() / "other";
  write_text(other, "public = \"short\"\n");
  ASSERT_EQ(::chmod(other.c_str(), 0600), 0);
  EXPECT_THAT(read_key_file(other).error().text(), HasSubstr("has no 'public = "));
  EXPECT_EQ(read_key_file(folder.path() / "absent").error().code(), Code::kNotFound);
}

TEST(Keys, AreNeverOverwrittenAndNeverInAnErrorsText) {
  ScratchFolder folder;
  const auto file = folder.path() / "worker.key";
  const KeyPair keys = make_key_pair();
  ASSERT_TRUE(write_key_file(file, keys).ok());
  const auto again = write_key_file(file, make_key_pair());
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), Code::kExists);
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  const auto read = read_key_file(file);
  EXPECT_THAT(read.error().text(), ::testing::Not(HasSubstr(keys.secret_key.reveal())));
}

TEST(Keys, CanBeWrittenAsAnArgument) {
  // Otherwise one key in 85 would begin with it.
  for (int i = 0; i < 1000; ++i) ASSERT_NE(make_key_pair().public_key.front(), '-');
}

TEST(Keys, KnowAKeyByItsForty) {
  const std::string key = make_key_pair().public_key;
  EXPECT_TRUE(is_public_key(key));
  EXPECT_FALSE(is_public_key(key.substr(1)));
  EXPECT_FALSE(is_public_key(key + "x"));
  EXPECT_FALSE(is_public_key(std::string(40, '"')));
  EXPECT_FALSE(is_public_key(""));
}

TEST(Keys, ListWhoMayConnectForWhichTenants) {
  ScratchFolder folder;
  const auto file = folder.path() / "allowed";
  const AllowedName training{make_key_pair().public_key, "training", {}};
  const AllowedName inference{make_key_pair().public_key, "inference", {"main", "other"}};
  ASSERT_TRUE(append_to_allow_list(file, training).ok());
  ASSERT_TRUE(append_to_allow_list(file, inference).ok());
  EXPECT_EQ(append_to_allow_list(file, training).error().code(), Code::kExists);
  for (const char* name : {"", "a b", "a,b", "*", "a\n"}) {
    EXPECT_FALSE(append_to_allow_list(file, {training.public_key, name, {}}).ok()) << name;
    EXPECT_FALSE(append_to_allow_list(file, {training.public_key, "x", {name}}).ok()) << name;
  }
  const auto entries = read_allow_list(file);
  ASSERT_TRUE(entries.ok()) << entries.error().text();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].process, "training");
  EXPECT_TRUE((*entries)[0].tenants.empty());
  EXPECT_EQ((*entries)[1].public_key, inference.public_key);
  EXPECT_THAT((*entries)[1].tenants, ::testing::ElementsAre("main", "other"));
}

TEST(Keys, RefuseAListThatOthersCanWriteAndNameTheLineOfAFault) {
  ScratchFolder folder;
  const auto file = folder.path() / "allowed";
  const std::string key = make_key_pair().public_key;
  const auto text_of = [&](const std::string& content) {
    write_text(file, content);
    ::chmod(file.c_str(), 0600);
    const auto entries = read_allow_list(file);
    return entries.ok() ? std::string("ok") : entries.error().text();
  };
  EXPECT_EQ(text_of("# a comment\n\n" + key + " training *\n"), "ok");
  EXPECT_THAT(text_of("# a comment\nnokey training *\n"), HasSubstr("allowed:2: expected a key"));
  EXPECT_THAT(text_of(key + " training\n"), HasSubstr("allowed:1:"));
  EXPECT_THAT(text_of(key + " training ,\n"), HasSubstr("names no tenant"));
  EXPECT_EQ(text_of(key + " training *\n" + key + " driver *\n"), "ok");
  EXPECT_THAT(text_of(key + " training *\n" + key + " training main\n"),
              HasSubstr("allowed:2: '" + key + "' is let in as 'training' twice"));
  ASSERT_EQ(::chmod(file.c_str(), 0620), 0);
  EXPECT_THAT(read_allow_list(file).error().text(), HasSubstr("can let keys in"));
}

TEST(Keys, RefuseAListOfAnotherUserThanTheReaderOrRoot) {
  EXPECT_TRUE(check_allow_list({1000, 0600}, 1000, "list").ok());
  EXPECT_TRUE(check_allow_list({0, 0644}, 1000, "list").ok());
  const auto foreign = check_allow_list({1001, 0600}, 1000, "list");
  ASSERT_FALSE(foreign.ok());
  EXPECT_THAT(foreign.error().text(), HasSubstr("belongs to user 1001, who could let keys in"));
  EXPECT_FALSE(check_allow_list({1000, 0600}, 0, "list").ok()) << "root trusts root alone";
  EXPECT_FALSE(check_allow_list({1000, 0620}, 1000, "list").ok());
  EXPECT_FALSE(check_allow_list({1000, 0602}, 1000, "list").ok());
}

TEST(Keys, DoNotBlockOnAPipeInsteadOfAFile) {
  ScratchFolder folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(read_allow_list(pipe).error().code(), Code::kInvalid);
  EXPECT_EQ(read_key_file(pipe).error().code(), Code::kInvalid);
}

TEST(Keys, AreLetInThroughNoNameThatWasThereBefore) {
  ScratchFolder folder;
  const auto file = folder.path() / "allowed", other = folder.path() / "other";
  write_text(other, "precious");
  // The name that a predictable temporary file of this process would have.
  const auto beside = file.string() + fmt::format(".{}", ::getpid());
  std::filesystem::create_symlink(other, beside);
  ASSERT_TRUE(append_to_allow_list(file, {make_key_pair().public_key, "training", {}}).ok());
  std::ifstream stream(other);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(beside));
  struct stat about {};
  ASSERT_EQ(::lstat(file.c_str(), &about), 0);
  EXPECT_TRUE(S_ISREG(about.st_mode));
  EXPECT_EQ(about.st_mode & 0777, 0600U);
}

TEST(Keys, KeepEveryoneWhoWasLetInAtTheSameTime) {
  ScratchFolder folder;
  const auto file = folder.path() / "allowed";
  constexpr int kCount = 16;
  std::vector<std::thread> writers;
  for (int i = 0; i < kCount; ++i)
    writers.emplace_back([&file, i] {
      const auto name = fmt::format("process{}", i);
      EXPECT_TRUE(append_to_allow_list(file, {make_key_pair().public_key, name, {}}).ok());
    });
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(read_allow_list(file)->size(), static_cast<size_t>(kCount));
  const auto all = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(all), end(all)), 1) << "nothing else is left in the folder";
}

}  // namespace
}  // namespace primerl
