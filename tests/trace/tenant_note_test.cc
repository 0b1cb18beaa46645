#include "runtime/trace/tenant_note.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/trace/command_note.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

TenantChange a_join() {
  return {TenantChange::Kind::kJoin, TenantSlot(3), 2, "alice", "[tenant.alice]\nmax_steps = 10\n"};
}

TEST(TenantNote, KeepsEveryKindOfEvent) {
  for (const auto kind :
       {TenantChange::Kind::kJoin, TenantChange::Kind::kStart, TenantChange::Kind::kPause,
        TenantChange::Kind::kResume, TenantChange::Kind::kLeave, TenantChange::Kind::kSet}) {
    TenantChange change = a_join();
    change.kind = kind;
    const auto bytes = write_tenant_note(change);
    ASSERT_TRUE(bytes.ok()) << bytes.error().text();
    const auto read = read_tenant_note(*bytes);
    ASSERT_TRUE(read.ok()) << read.error().text();
    EXPECT_EQ(*read, change);
  }
}

TEST(TenantNote, NamesItsDamage) {
  const auto bytes = write_tenant_note(a_join());
  ASSERT_TRUE(bytes.ok());
  for (size_t size = 0; size < bytes->size(); ++size) {
    const auto read = read_tenant_note(std::span(*bytes).first(size));
    ASSERT_FALSE(read.ok()) << size;
    EXPECT_EQ(read.error().code(), Code::kCorrupt) << size;
  }
  TenantChange unknown = a_join();
  unknown.kind = static_cast<TenantChange::Kind>(6);
  const auto read = read_tenant_note(write_tenant_note(unknown).value());
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().text(), HasSubstr("has the kind 6"));
}

TEST(TenantNote, OfAnotherProgramIsRefusedWithItsFields) {
  const auto other = read_tenant_note(write_note("TenantChange", "kind:enum8;slot:id32;", {}));
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code(), Code::kInvalid);
  EXPECT_THAT(other.error().text(), HasSubstr("read it with the program that recorded it"));
  const auto command = read_tenant_note(write_note("EngineHold", "owner:text;", {}));
  ASSERT_FALSE(command.ok());
  EXPECT_THAT(command.error().text(), HasSubstr("a note of 'EngineHold'"));
}

TEST(TenantNote, TakesTablesUpToItsLimit) {
  TenantChange change = a_join();
  change.table.clear();
  // A text of this length has 5 bytes of msgpack before it, an empty one 1.
  const size_t rest = write_tenant_note(change)->size() + 4;
  change.table.assign(kTenantNoteBytesMax - rest, 'x');
  ASSERT_TRUE(write_tenant_note(change).ok());
  EXPECT_EQ(write_tenant_note(change)->size(), kTenantNoteBytesMax);
  change.table += 'x';
  const auto refused = write_tenant_note(change);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_THAT(refused.error().text(), HasSubstr("the table of tenant 'alice'"));
}

TEST(TenantNote, ItsCheckFollowsEveryField) {
  const TenantChange first = a_join();
  EXPECT_EQ(tenant_check(first).value, tenant_check(a_join()).value);
  for (const auto& change : std::initializer_list<std::function<void(TenantChange&)>>{
           [](TenantChange& c) { c.kind = TenantChange::Kind::kStart; },
           [](TenantChange& c) { c.slot = TenantSlot(4); }, [](TenantChange& c) { c.tenancy = 3; },
           [](TenantChange& c) { c.name = "bob"; }, [](TenantChange& c) { c.table += "x"; }}) {
    TenantChange other = first;
    change(other);
    EXPECT_NE(tenant_check(first).value, tenant_check(other).value);
  }
}

}  // namespace
}  // namespace primerl
