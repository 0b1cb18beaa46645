// The salt that names a run.
#include "actors/common/run_salt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/messages/rollout.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

TEST(RunSalt, ItIsReadAsItIsWritten) {
  RunSalt salt{"main:v3|x", "a.b", {kEvaluationOrdinals + 17, 2, 5}, 8, PolicyVersion(3)};
  salt.seal = seal_of(salt, 9);
  const auto read = read_run_salt(to_text(salt));
  ASSERT_TRUE(read.ok()) << read.error().text();
  ASSERT_TRUE(read->has_value());
  EXPECT_EQ((*read)->salt, salt.salt);
  EXPECT_EQ((*read)->tenant, salt.tenant);
  EXPECT_EQ((*read)->name, salt.name);
  EXPECT_EQ((*read)->num_members, 8);
  EXPECT_EQ((*read)->version, PolicyVersion(3));
  EXPECT_EQ((*read)->seal, seal_of(**read, 9));
}

TEST(RunSalt, TheSealIsOfTheWholeNameAndTheKey) {
  const RunSalt salt{"s", "main", {17, 2, 5}, 8, PolicyVersion(3)};
  const std::string seal = seal_of(salt, 9);
  EXPECT_EQ(seal.size(), 16U);
  EXPECT_EQ(seal_of({"other", "main", {17, 2, 5}, 8, PolicyVersion(3)}, 9), seal)
      << "the salt of the blocks is the client's own matter";
  EXPECT_NE(seal_of(salt, 10), seal);
  for (const RunSalt& other : {RunSalt{"s", "blue", {17, 2, 5}, 8, PolicyVersion(3)},
                               RunSalt{"s", "main", {18, 2, 5}, 8, PolicyVersion(3)},
                               RunSalt{"s", "main", {17, 3, 5}, 8, PolicyVersion(3)},
                               RunSalt{"s", "main", {17, 2, 4}, 8, PolicyVersion(3)},
                               RunSalt{"s", "main", {17, 2, 5}, 9, PolicyVersion(3)},
                               RunSalt{"s", "main", {17, 2, 5}, 8, PolicyVersion(4)}})
    EXPECT_NE(seal_of(other, 9), seal) << to_text(other);
}

TEST(RunSalt, EnginesOwnWeightsHaveNoVersion) {
  const auto read =
      read_run_salt(to_text({"s", "main", {0, 0, 0}, 1, PolicyVersion(), "0123456789abcdef"}));
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE((*read)->version.is_none());
}

TEST(RunSalt, AnOrdinaryClientsSaltNamesNothing) {
  for (const char* text : {"", "main:v3", "main.1.2.3.1@4"}) {
    const auto read = read_run_salt(text);
    ASSERT_TRUE(read.ok()) << text;
    EXPECT_FALSE(read->has_value()) << text;
  }
}

TEST(RunSalt, WhatIsNoNameIsRefused) {
  for (const char* text :
       {"s|", "s|main", "s|main.1.2.3.1", "s|main.1.2.1@4", "s|.1.2.3.1@4", "s|main.1.2.3.0@4",
        "s|main.1.2.-3.1@4", "s|main.1.2.3.1@-2", "s|main.1.2.3.1@", "s|main.1.2.3.1@4 ",
        "s|main.99999999999999999999.2.3.1@4", "s|main.1.2.4294967296.1@4"})
    for (const std::string& salt : {std::string(text), text + std::string("~0123456789abcdef")})
      EXPECT_THAT(read_run_salt(salt).ok() ? "" : read_run_salt(salt).error().text(),
                  HasSubstr("names no rollout"))
          << salt;
  for (const char* seal : {"", "~", "~0123456789abcde", "~0123456789abcdef0"})
    EXPECT_FALSE(read_run_salt(fmt::format("s|main.1.2.3.1@4{}", seal)).ok()) << seal;
  EXPECT_TRUE(read_run_salt("s|main.1.2.3.1@4~0123456789abcdef").ok());
}

}  // namespace
}  // namespace primerl
