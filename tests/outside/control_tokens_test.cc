// Tokens of the control API: kept as hashes, compared in constant time, for one use of a slot.
#include "runtime/outside/control_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "graph/base/file_digest.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const TokenHolder kOperatorToken;
const TokenHolder kAliceToken{"alice", 0};
const TokenHolder kNextAlice{"alice", 1};

bool everyone(const TokenHolder&) { return true; }

struct ControlTokensTest : ::testing::Test {
  std::string text() { return read_text_file(control_tokens_file(scratch.path())).value(); }
  std::string rotated(const TokenHolder& holder) {
    auto token = rotate_control_token(scratch.path(), holder, everyone);
    EXPECT_TRUE(token.ok()) << token.error().text();
    return token.ok() ? *token : "";
  }
  ControlTokens tokens() { return read_control_tokens(scratch.path()).value(); }
  ScratchFolder scratch;
};

TEST_F(ControlTokensTest, ANewTokenHas256RandomBitsAndNoOtherIsEqual) {
  const std::string one = new_control_token(), other = new_control_token();
  EXPECT_EQ(one.size(), 67U);
  EXPECT_NE(one, other);
}

TEST_F(ControlTokensTest, WithoutAFileNobodyHasAToken) {
  EXPECT_EQ(tokens().count(), 0U);
  EXPECT_FALSE(tokens().holder_of(new_control_token()));
}

TEST_F(ControlTokensTest, TheFileHasTheHashAloneAndOnlyTheOwnerReadsIt) {
  const std::string token = rotated(kOperatorToken);
  EXPECT_EQ(tokens().holder_of(token), kOperatorToken);
  EXPECT_THAT(text(), Not(HasSubstr(token.substr(3))));
  EXPECT_THAT(text(), HasSubstr(text_sha256(token)));
  struct stat facts {};
  ASSERT_EQ(::stat(control_tokens_file(scratch.path()).c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
}

TEST_F(ControlTokensTest, ATokenThatDiffersInOneCharacterIsUnknown) {
  std::string token = rotated(kAliceToken);
  token.back() = token.back() == '0' ? '1' : '0';
  EXPECT_FALSE(tokens().holder_of(token));
  EXPECT_FALSE(tokens().holder_of(""));
  EXPECT_FALSE(tokens().holder_of(token + "0"));
}

TEST_F(ControlTokensTest, TheHashIsNoToken) {
  const std::string token = rotated(kOperatorToken);
  EXPECT_FALSE(tokens().holder_of(text_sha256(token)));
  EXPECT_FALSE(tokens().holder_of("pg_" + text_sha256(token)));
}

TEST_F(ControlTokensTest, ARotatedTokenReplacesTheOldOneAndLeavesOthers) {
  const std::string operators = rotated(kOperatorToken), old = rotated(kAliceToken);
  const std::string next = rotated(kAliceToken);
  EXPECT_FALSE(tokens().holder_of(old));
  EXPECT_EQ(tokens().holder_of(next), kAliceToken);
  EXPECT_EQ(tokens().holder_of(operators), kOperatorToken);
}

TEST_F(ControlTokensTest, ANewTenantOfTheNameEndsTheTokenOfTheEarlierOne) {
  const std::string old = rotated(kAliceToken), next = rotated(kNextAlice);
  EXPECT_FALSE(tokens().holder_of(old));
  EXPECT_EQ(tokens().holder_of(next), kNextAlice);
}

TEST_F(ControlTokensTest, TokensOfTenantsThatHaveLeftAreForgotten) {
  const std::string old = rotated(kAliceToken), operators = rotated(kOperatorToken);
  const auto nobody = [](const TokenHolder&) { return false; };
  ASSERT_TRUE(rotate_control_token(scratch.path(), {"bob", 0}, nobody).ok());
  EXPECT_FALSE(tokens().holder_of(old));
  EXPECT_EQ(tokens().holder_of(operators), kOperatorToken) << "the operator's stays";
}

TEST_F(ControlTokensTest, AFileThatOthersMayReadIsRefused) {
  (void)rotated(kOperatorToken);
  fs::permissions(control_tokens_file(scratch.path()), fs::perms(0640));
  const auto read = read_control_tokens(scratch.path());
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().text(), HasSubstr("mode 640"));
}

TEST_F(ControlTokensTest, ALinkIsRefused) {
  (void)rotated(kOperatorToken);
  const fs::path elsewhere = scratch.path() / "elsewhere.json";
  fs::rename(control_tokens_file(scratch.path()), elsewhere);
  fs::create_symlink(elsewhere, control_tokens_file(scratch.path()));
  EXPECT_EQ(read_control_tokens(scratch.path()).error().code(), Code::kInvalid);
  EXPECT_FALSE(rotate_control_token(scratch.path(), kAliceToken, everyone).ok());
}

TEST_F(ControlTokensTest, ADamagedFileIsNamedAndNotReplaced) {
  ASSERT_TRUE(
      replace_file(system_files(), control_tokens_file(scratch.path()), "{\"tokens\": 1}").ok());
  EXPECT_EQ(read_control_tokens(scratch.path()).error().code(), Code::kCorrupt);
  EXPECT_FALSE(rotate_control_token(scratch.path(), kAliceToken, everyone).ok());
  EXPECT_EQ(text(), "{\"tokens\": 1}");
}

TEST_F(ControlTokensTest, AtMostTheWrittenNumberOfHoldersHaveOne) {
  ControlTokens all;
  for (size_t i = 0; i < ControlTokens::kTokensMax; ++i)
    ASSERT_TRUE(all.set({fmt::format("t{}", i), 0}, new_control_token()).ok());
  EXPECT_EQ(all.set({"one_more", 0}, new_control_token()).error().code(), Code::kExhausted);
  EXPECT_TRUE(all.set({"t0", 1}, new_control_token()).ok()) << "it replaces one";
  EXPECT_EQ(ControlTokens::read(all.json()).value().count(), ControlTokens::kTokensMax);
}

TEST_F(ControlTokensTest, ATenantWithTheNameOfTheOperatorIsATenant) {
  const TokenHolder holder = read_holder("operator");
  EXPECT_FALSE(holder.is_operator());
  EXPECT_EQ(holder.who(), "tenant operator");
  EXPECT_EQ(kOperatorToken.who(), "operator");
  EXPECT_EQ(read_holder("alice~1"), kNextAlice);
  EXPECT_EQ(kNextAlice.name(), "alice~1");
}

TEST_F(ControlTokensTest, AKeyOfClientsBeginsAsTheirSdkDemands) {
  const std::string key = new_control_token(kClientKeyPrefix);
  EXPECT_THAT(key, ::testing::StartsWith("tml-"));
  EXPECT_EQ(key.size(), 68U);
  EXPECT_TRUE(check_chosen_token(key, kClientKeyPrefix).ok());
}

TEST_F(ControlTokensTest, AChosenKeyIsCheckedAndKeptAsAHash) {
  const std::string chosen = "tml-chosen.by_a-person";
  const auto made = rotate_control_token(scratch.path(), kAliceToken, everyone, chosen);
  EXPECT_EQ(made.value(), chosen);
  EXPECT_EQ(tokens().holder_of(chosen), kAliceToken);
  EXPECT_THAT(text(), Not(HasSubstr("chosen")));
  EXPECT_EQ(rotate_control_token(scratch.path(), {"bob", 0}, everyone, chosen).error().code(),
            Code::kExists)
      << "the key of another tenant";
  for (const char* wrong : {"", "tml-short", "pg_0123456789abcdef", "tml-with a space in it"})
    EXPECT_FALSE(check_chosen_token(wrong, kClientKeyPrefix).ok()) << wrong;
  const std::string longest = "tml-" + std::string(252, 'x');
  EXPECT_TRUE(check_chosen_token(longest, kClientKeyPrefix).ok());
  EXPECT_FALSE(check_chosen_token(longest + "x", kClientKeyPrefix).ok());
}

TEST_F(ControlTokensTest, AFileThatIsReadKnowsANewTokenAtOnceAndALostOneAfterALook) {
  TokensFile file(scratch.path());
  const std::string first = rotated(kAliceToken);
  EXPECT_EQ(file.find(first), kAliceToken);
  const std::string second = rotated(kAliceToken);
  EXPECT_EQ(file.find(second), kAliceToken) << "it is not known, so the file is read";
  EXPECT_FALSE(file.find(first));
  const std::string third = rotated(kAliceToken);
  EXPECT_EQ(file.find(second), kAliceToken) << "nothing has looked since";
  ASSERT_TRUE(file.look().ok());
  EXPECT_FALSE(file.find(second));
  fs::permissions(control_tokens_file(scratch.path()), fs::perms(0640));
  fs::rename(control_tokens_file(scratch.path()), scratch.path() / "other");
  fs::copy(scratch.path() / "other", control_tokens_file(scratch.path()));
  EXPECT_FALSE(file.look().ok()) << "others may read it";
  EXPECT_EQ(file.find(third), kAliceToken) << "the tokens before stay";
}

TEST_F(ControlTokensTest, AFileWhoseRightsWereRepairedIsReadAgain) {
  const std::string token = rotated(kAliceToken);
  const fs::path path = control_tokens_file(scratch.path());
  fs::permissions(path, fs::perms(0640));
  TokensFile file(scratch.path());
  EXPECT_FALSE(file.look().ok());
  // The time of a change has the steps of the kernel's clock.
  const FileFacts before = file_facts(path);
  while (file_facts(path) == before) fs::permissions(path, fs::perms(0600));
  EXPECT_TRUE(file.look().ok());
  EXPECT_EQ(file.find(token), kAliceToken);
}

TEST_F(ControlTokensTest, AFaultOfTheSystemIsTriedAgain) {
  TokensFile file(scratch.path());
  const std::string ended = rotated(kAliceToken);
  ASSERT_TRUE(file.look().ok());
  const std::string token = rotated(kAliceToken);
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none{0, files.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status looked = file.look();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_FALSE(looked.ok()) << "no file can be opened";
  EXPECT_EQ(file.find(ended), kAliceToken) << "the tokens before stay";
  EXPECT_TRUE(file.look().ok());
  EXPECT_FALSE(file.find(ended));
  EXPECT_EQ(file.find(token), kAliceToken);
}

TEST_F(ControlTokensTest, TextsAreEqualOnlyInEveryByte) {
  EXPECT_TRUE(is_equal_text("", ""));
  EXPECT_TRUE(is_equal_text("abc", "abc"));
  EXPECT_FALSE(is_equal_text("abc", "abd"));
  EXPECT_FALSE(is_equal_text("abc", "ab"));
  EXPECT_FALSE(is_equal_text("\xff", "\x7f"));
}

}  // namespace
}  // namespace primerl::testing
