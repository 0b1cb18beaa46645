// The list of tenants whose files were removed.
#include "runtime/store/removed_tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RemovedTenantsTest, EachIsInTheListOnce) {
  const ScratchFolder scratch;
  EXPECT_THAT(removed_tenants(scratch.path()), IsEmpty());
  const RemovedTenant alice{"alice", true}, bob{"bob~2", false};
  for (const RemovedTenant& each : {alice, bob, alice})
    ASSERT_TRUE(add_removed(system_files(), scratch.path(), each).ok());
  EXPECT_THAT(removed_tenants(scratch.path()), ElementsAre(alice, bob));
}

TEST(RemovedTenantsTest, AListThatCannotBeReadIsNotReplaced) {
  const ScratchFolder scratch;
  const RemovedTenant alice{"alice", true};
  ASSERT_TRUE(add_removed(system_files(), scratch.path(), alice).ok());
  const fs::path file = scratch.path() / "removed_tenants.jsonl";
  const uintmax_t size = fs::file_size(file);
  fs::resize_file(file, uintmax_t{1} << 30);  // more than is read; it has no blocks
  EXPECT_FALSE(add_removed(system_files(), scratch.path(), {"bob", true}).ok());
  fs::resize_file(file, size);
  EXPECT_THAT(removed_tenants(scratch.path()), ElementsAre(alice));
}

}  // namespace
}  // namespace primerl::testing
