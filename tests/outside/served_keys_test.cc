// Keys of a listener of a served run: of its file, and of tenants that come and go.
#include "runtime/outside/served_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

using ::testing::Optional;

constexpr std::string_view kFileKey = "tml-of-the-file-alice", kAnyKey = "tml-of-the-operator";

struct ServedKeysTest : ::testing::Test {
  ServedKeys& keys() {
    if (!made) {
      const auto file = scratch.path() / "keys";
      std::ofstream(file) << kFileKey << " alice\n" << kAnyKey << "\n";
      made.emplace(KeysFile::open(file.string(), {"alice"}, "tml-").value(), "tml-", scratch.path(),
                   nullptr);
    }
    return *made;
  }
  std::string token_of(const TokenHolder& holder, std::string_view prefix = kClientKeyPrefix) {
    return rotate_control_token(
               scratch.path(), holder, [this](const TokenHolder& each) { return each != gone; },
               new_control_token(prefix))
        .value();
  }
  std::optional<std::string> holder(std::string_view key, double seconds = 0) {
    return keys().holder_of(key, Time() + Duration::seconds(seconds));
  }

  ScratchFolder scratch;
  TokenHolder gone{"dave", 9};
  std::optional<ServedKeys> made;
};

TEST_F(ServedKeysTest, EveryRequestNeedsAKeyAlsoWithoutAFile) {
  ServedKeys without(KeysFile::open("", {}).value(), "tml-", scratch.path(), nullptr);
  EXPECT_FALSE(without.holder_of("", Time()));
  EXPECT_FALSE(without.holder_of("tml-0123456789abcdef", Time()));
}

TEST_F(ServedKeysTest, AKeyOfTheFileIsForTheFirstUseOfItsNameOrForAll) {
  EXPECT_THAT(holder(kFileKey), Optional(std::string("alice")));
  EXPECT_THAT(holder(kAnyKey), Optional(std::string()));
  EXPECT_FALSE(holder("tml-another-key-0123"));
}

TEST_F(ServedKeysTest, ATokenOfATenantIsAKeyAtOnce) {
  EXPECT_FALSE(holder("tml-another-key-0123"));
  EXPECT_THAT(holder(token_of({"bob", 0})), Optional(std::string("bob")));
  EXPECT_THAT(holder(token_of({"bob", 3})), Optional(std::string("bob~3")));
}

TEST_F(ServedKeysTest, ATokenOfTheOperatorOrOfALoopIsNoKey) {
  EXPECT_FALSE(holder(token_of(TokenHolder(), kControlTokenPrefix)));
  EXPECT_FALSE(holder(token_of(TokenHolder())));
  EXPECT_FALSE(holder(token_of({"loop", 0}, kControlTokenPrefix)));
}

TEST_F(ServedKeysTest, AReplacedTokenAndThatOfATenantThatHasLeftEndWithinASecond) {
  const std::string bob = token_of({"bob", 0}), cy = token_of({"cy", 0});
  EXPECT_TRUE(holder(bob));
  gone = {"cy", 0};
  const std::string next = token_of({"bob", 0});
  EXPECT_TRUE(holder(cy, 0.9)) << "the file was looked at before";
  EXPECT_FALSE(holder(cy, 1.0));
  EXPECT_FALSE(holder(bob, 1.0));
  EXPECT_TRUE(holder(next, 1.0));
}

}  // namespace
}  // namespace primerl::testing
