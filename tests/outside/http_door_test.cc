// A listener with a door: it asks its owner who a key is for, and passes queries on.
#include <gmock/gmock.h>

#include "tests/outside/http_story.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::string_view kKey = "Authorization: Bearer key-of-alice\r\n";

struct HttpDoorStory : HttpStory {
  HttpDoorStory() {
    HttpDoor door;
    door.holder_of = [](std::string_view key) -> std::optional<std::string> {
      if (key == "key-of-alice") return "alice";
      return std::nullopt;
    };
    door.error_body = [](int32_t status, std::string_view message) {
      return fmt::format("own form: {} {}", status, message);
    };
    auto made = make_http_listener(options, std::move(door));
    EXPECT_TRUE(made.ok()) << made.error().text();
    port = (*made)->port();
    use(std::move(*made));
  }
};

TEST_F(HttpDoorStory, AnUnknownKeyIsRefusedInTheFormOfTheDoor) {
  EXPECT_THAT(refused(post("{}")), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(refused(post("{}", "Authorization: Bearer other\r\n")), HasSubstr("own form: 401"));
}

TEST_F(HttpDoorStory, ARequestHasTheHolderOfItsKeyAndItsQuery) {
  RawClient alice(port);
  alice.say(post("{}", kKey, "/x?after=7&b"));
  const ClientRequest request = accepted(1);
  EXPECT_EQ(request.tenant, "alice");
  EXPECT_EQ(request.path, "/x");
  EXPECT_EQ(request.query, "after=7&b");
}

TEST_F(HttpDoorStory, AReplySaysWhenToAskAgain) {
  RawClient alice(port);
  alice.say(post("{}", kKey));
  (void)accepted(1);
  ClientReply reply;
  reply.request = 1;
  reply.status = 429;
  reply.retry_after = 17;
  ask(2, reply_call(reply));
  EXPECT_THAT(alice.hear_until("\r\n\r\n"), HasSubstr("Retry-After: 17\r\n"));
}

/// A listener of an actor: what it gives to the record does not change.
TEST_F(HttpStory, WithoutADoorAQueryIsLeftOut) {
  listener();
  RawClient anyone(port);
  anyone.say(post("{}", "", "/x?after=7"));
  const ClientRequest request = accepted(1);
  EXPECT_EQ(request.path, "/x");
  EXPECT_EQ(request.query, "");
  EXPECT_THAT(write_client_request(request), Not(HasSubstr("query")));
}

}  // namespace
}  // namespace primerl
