// A listener with a door: it asks its owner who a key is for, and passes queries on.
#include <gmock/gmock.h>

#include "runtime/outside/http_connections.h"
#include "tests/outside/http_story.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
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

TEST_F(HttpDoorStory, AReplyInPartsIsSentAsChunks) {
  RawClient alice(port);
  alice.say(post("{}", kKey));
  (void)accepted(1);
  ClientReply part;
  part.request = 1;
  part.content_type = "text/event-stream";
  part.body = "data: 1\n\n";
  part.has_more = true;
  ask(2, reply_call(part));
  EXPECT_THAT(alice.hear_until("data: 1\n\n\r\n"),
              AllOf(HasSubstr("Transfer-Encoding: chunked\r\n"),
                    HasSubstr("Content-Type: text/event-stream\r\n"), HasSubstr("\r\n9\r\n")));
  part.body = "data: 22\n\n";
  part.has_more = false;
  ask(3, reply_call(part));
  EXPECT_EQ(alice.hear_until("0\r\n\r\n"), "a\r\ndata: 22\n\n\r\n0\r\n\r\n");
  alice.say(post("{}", kKey));
  EXPECT_EQ(accepted(4).tenant, "alice") << "the connection serves the next request";
}

TEST_F(HttpDoorStory, AClientThatDoesNotReadItsStreamIsClosed) {
  RawClient alice(port);
  alice.say(post("{}", kKey));
  (void)accepted(1);
  ask(2, closed_call());
  ClientReply part;
  part.request = 1;
  part.body = std::string(HttpConnections::kStreamBytesMax + 1, 'x');
  part.has_more = true;
  ask(3, reply_call(part));
  const auto closed = read_closed(answer_to(2).body);
  ASSERT_TRUE(closed.ok());
  EXPECT_THAT(*closed, ElementsAre(1U));
}

TEST_F(HttpDoorStory, ALastPartThatIsTooLargeHasAnAnswerToo) {
  RawClient alice(port);
  alice.say(post("{}", kKey));
  (void)accepted(1);
  ClientReply part;
  part.request = 1;
  part.body = "x";
  part.has_more = true;
  ask(2, reply_call(part));
  EXPECT_TRUE(sent(2));
  (void)alice.hear_until("\r\nx\r\n");
  part.body = std::string(HttpConnections::kStreamBytesMax + 1, 'x');
  part.has_more = false;
  ask(3, reply_call(part));
  EXPECT_FALSE(sent(3));
}

TEST_F(HttpDoorStory, AnOldClientGetsPartsWithoutChunksUntilTheConnectionEnds) {
  RawClient alice(port);
  alice.say(fmt::format("GET /x HTTP/1.0\r\n{}Connection: keep-alive\r\n\r\n", kKey));
  (void)accepted(1);
  ClientReply part;
  part.request = 1;
  part.body = "data: 1\n\n";
  part.has_more = true;
  ask(2, reply_call(part));
  EXPECT_THAT(alice.hear_until("data: 1\n\n"),
              AllOf(Not(HasSubstr("chunked")), Not(HasSubstr("Content-Length")),
                    HasSubstr("Connection: close\r\n\r\ndata: 1\n\n")));
  part.body = "data: 2\n\n";
  part.has_more = false;
  ask(3, reply_call(part));
  EXPECT_EQ(alice.hear_all(), "data: 2\n\n");
  EXPECT_TRUE(sent(3));
}

TEST_F(HttpDoorStory, AReplyToHeadHasNoPart) {
  RawClient alice(port);
  alice.say(fmt::format("HEAD /x HTTP/1.1\r\n{}{}\r\n", kLocal, kKey));
  (void)accepted(1);
  ClientReply part;
  part.request = 1;
  part.body = "data: 1\n\n";
  part.has_more = true;
  ask(2, reply_call(part));
  part.has_more = false;
  ask(3, reply_call(part));
  EXPECT_TRUE(sent(3));
  alice.say(post("{}", kKey));
  EXPECT_EQ(accepted(4).tenant, "alice");
  reply(5, 4, "next");
  EXPECT_THAT(alice.hear_until("next"), Not(HasSubstr("data")));
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
