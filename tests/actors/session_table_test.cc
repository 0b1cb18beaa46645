// The most recently used sessions, also after saving to and reading from a cut.
#include "actors/router/session_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>

#include "runtime/wire/msgpack_codec.h"

namespace primerl {
namespace {

SessionName name_of(uint64_t session) { return {TenantSlot(session % 3), session}; }

/// Saves the table to the bytes of a cut and reads it again.
SessionTable saved_and_read(const SessionTable& table) {
  MsgpackWriter writer;
  wire::write(writer, table);
  const auto body = writer.take_body();
  MsgpackReader reader(body, {});
  SessionTable read;
  wire::read(reader, read);
  EXPECT_TRUE(reader.finish().ok());
  return read;
}

// Compares with a list, in any order of use; a table read from a cut continues like the original.
TEST(SessionTable, RemembersTheSessionsThatWereUsedLast) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    RandomStream draw(seed);
    const size_t sessions_max = 1 + draw.below(20);
    SessionTable table;
    std::list<std::pair<SessionName, uint64_t>> wanted;  // with the incarnation, oldest first
    for (uint64_t i = 0; i < 500; ++i) {
      const SessionName name = name_of(draw.below(40));
      table.put(name, {InstanceId(7), i}, sessions_max);
      wanted.remove_if([&](const auto& each) { return each.first == name; });
      wanted.emplace_back(name, i);
      if (wanted.size() > sessions_max) wanted.pop_front();
      if (draw.below(20) == 0) table = saved_and_read(table);
      ASSERT_EQ(table.size(), wanted.size()) << "seed " << seed;
      for (uint64_t session = 0; session < 40; ++session) {
        const auto known = std::find_if(wanted.begin(), wanted.end(), [&](const auto& each) {
          return each.first == name_of(session);
        });
        const auto* found = table.find(name_of(session));
        ASSERT_EQ(found != nullptr, known != wanted.end()) << "seed " << seed;
        if (found == nullptr) continue;
        ASSERT_EQ(found->incarnation, known->second) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace primerl
