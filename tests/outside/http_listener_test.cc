// The HTTP listener with real sockets: its refusals, each bound at its limit and one past it, slow
// clients, clients that go away, and the requests that an actor accepts.
#include <gmock/gmock.h>

#include "runtime/outside/http_keys.h"
#include "tests/outside/http_story.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST_F(HttpStory, BytesThatAreNotHttpAreRefused) {
  for (const std::string_view noise :
       {"\r\n\r\n\r\n", "POST\r\n\r\n", "POST /x\r\n\r\n", "POST /x HTTP/9.9\r\n\r\n",
        "POST x HTTP/1.1\r\nHost: localhost\r\n\r\n", "\x16\x03\x01\x02\x00\x01\xfc\x03\x03\r\n",
        "POST /x HTTP/1.1\r\nno colon\r\n\r\n", "POST /x HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        "POST /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: \xff\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: a\r\nX-Session-ID: b\r\n\r\n"})
    EXPECT_THAT(refused(noise),
                AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("\"type\":\"invalid_request_error\"")))
        << noise;
  EXPECT_THAT(refused("POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: more\r\n\r\n"),
              StartsWith("HTTP/1.1 417"));
}

TEST_F(HttpStory, OneRequestCannotHideInAnother) {
  for (const std::string_view smuggled :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\n"
        "Content-Length: 6\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "Content-Length: -1\r\n",
        "Content-Length: 18446744073709551616\r\n", "Content-Length: 5, 6\r\n"})
    EXPECT_THAT(refused(fmt::format("POST /x HTTP/1.1\r\n{}{}\r\n0\r\n\r\n", kLocal, smuggled)),
                StartsWith("HTTP/1.1 4"))
        << smuggled;
}

TEST_F(HttpStory, OnlyNamesOfThisMachineAreAnswered) {
  for (const std::string_view host :
       {"evil.example", "localhost.evil.example", "127.0.0.2", "", "localhost@evil.example"})
    EXPECT_THAT(refused(fmt::format("POST /x HTTP/1.1\r\nHost: {}\r\n\r\n", host)),
                StartsWith("HTTP/1.1 421"))
        << host;
  EXPECT_THAT(refused("POST /x HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(refused("POST /x HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"),
              StartsWith("HTTP/1.1 400"));
}

TEST_F(HttpStory, HeadersAreAcceptedUpToTheLimitAndNotAByteMore) {
  options.header_bytes_max = 300;
  const auto request = [](size_t size) {
    const std::string head = "GET /x HTTP/1.1\r\nHost: localhost\r\nFiller: ";
    return head + std::string(size - head.size() - 4, 'x') + "\r\n\r\n";
  };
  ASSERT_EQ(request(300).size(), 300u);
  auto inside = client();
  inside.say(request(300));
  EXPECT_EQ(accepted(1).path, "/x");
  EXPECT_THAT(refused(request(301)), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(refused(request(100'000)), StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpStory, ABodyIsAcceptedUpToTheLimitAndNotAByteMore) {
  options.body_bytes_max = 100;
  auto inside = client();
  inside.say(post(std::string(100, 'x')));
  EXPECT_EQ(accepted(1).body, std::string(100, 'x'));
  EXPECT_THAT(refused(post(std::string(101, 'x'))), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(refused(fmt::format("POST /x HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n"
                                  "65\r\n{}\r\n0\r\n\r\n",
                                  kLocal, std::string(101, 'x'))),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(refused(fmt::format("POST /x HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n1;{}",
                                  kLocal, std::string(100'000, 'e'))),
              StartsWith("HTTP/1.1 4"));
}

TEST_F(HttpStory, OneRequestBeyondTheLimitIsRefusedBeforeItsBodyIsSent) {
  options.requests_max = 2;
  auto first = client(), second = client();
  first.say(post("1"));
  EXPECT_EQ(accepted(1).body, "1");
  second.say(post("2"));
  EXPECT_EQ(accepted(2).body, "2");
  EXPECT_THAT(refused(fmt::format("POST /x HTTP/1.1\r\n{}Content-Length: 9\r\n\r\n", kLocal)),
              AllOf(StartsWith("HTTP/1.1 429"), HasSubstr("Retry-After: 1\r\n"),
                    HasSubstr("\"type\":\"rate_limit_error\"")));
  reply(3, 1);
  EXPECT_TRUE(sent(3));
  auto third = client();
  third.say(post("3"));
  EXPECT_EQ(accepted(4).body, "3") << "a reply has made space";
}

TEST_F(HttpStory, BodiesTogetherHaveALimitToo) {
  options.body_bytes_max = 60;
  options.bytes_max = 100;
  auto first = client();
  first.say(fmt::format("POST /x HTTP/1.1\r\n{}Content-Length: 60\r\n\r\nhalf", kLocal));
  auto second = client();
  second.say(fmt::format("POST /x HTTP/1.1\r\n{}Content-Length: 40\r\n\r\n{}", kLocal,
                         std::string(40, 'x')));
  EXPECT_EQ(accepted(1).body.size(), 40u);
  EXPECT_THAT(refused(post("x")), StartsWith("HTTP/1.1 429"));
  EXPECT_THAT(refused(fmt::format("POST /x HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n"
                                  "1\r\nx\r\n0\r\n\r\n",
                                  kLocal)),
              StartsWith("HTTP/1.1 429"));
}

TEST_F(HttpStory, AHalfRequestEndsAtItsDeadlineAndAnIdleConnectionToo) {
  options.receive_timeout = Duration::milliseconds(20);
  options.idle_timeout = Duration::milliseconds(20);
  EXPECT_THAT(refused("POST /x HTT"), StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(refused(fmt::format("POST /x HTTP/1.1\r\n{}Content-Length: 9\r\n\r\nhalf", kLocal)),
              StartsWith("HTTP/1.1 408"));
  EXPECT_EQ(client().hear_all(), "");
}

TEST_F(HttpStory, AClientThatReadsNothingLosesItsReplyAtTheDeadline) {
  options.send_timeout = Duration::milliseconds(50);
  auto slow = client();
  slow.say(post("1"));
  (void)accepted(1);
  reply(2, 1, std::string(size_t{64} << 20, 'x'));
  EXPECT_FALSE(sent(2));
}

TEST_F(HttpStory, OneConnectionBeyondTheLimitClosesTheOneThatHasWaitedLongest) {
  options.connections_max = 2;
  auto first = client(), second = client();
  first.say(post("1"));
  EXPECT_EQ(accepted(1).body, "1");
  auto third = client();
  third.say(post("3"));
  EXPECT_EQ(accepted(2).body, "3");
  EXPECT_EQ(second.hear_all(), "") << "it sent nothing";
  EXPECT_EQ(client().hear_all(), "") << "all others wait for the actor";
  reply(3, 1, "here");
  EXPECT_THAT(first.hear_until("here"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpStory, AClientThatGoesAwayIsReportedOnce) {
  listener();
  ask(100, closed_call());
  {
    auto first = client();
    first.say(post("1"));
    (void)accepted(1);
  }
  EXPECT_THAT(*read_closed(answer_to(100).body), ElementsAre(1));
  reply(2, 1);
  EXPECT_FALSE(sent(2)) << "there is no such request any more";
  ask(101, closed_call());
  {
    auto second = client(), third = client();
    second.say(post("2"));
    third.say(post("3"));
    (void)accepted(3);
    (void)accepted(4);
  }
  auto closed = *read_closed(answer_to(101).body);
  if (closed.size() == 1) {
    ask(102, closed_call());
    closed.push_back(read_closed(answer_to(102).body)->at(0));
  }
  EXPECT_THAT(closed, UnorderedElementsAre(3, 4));
}

TEST_F(HttpStory, ARequestIsDroppedIfItsClientHasGoneBeforeItIsAccepted) {
  listener();
  client().say(post("gone"));
  // The close of the first comes before the second connection's bytes, or with them.
  for (uint64_t id = 1;; ++id) {
    auto next = client();
    next.say(post("here"));
    if (accepted(id).body == "here") break;
    ASSERT_LT(id, 3u) << "only the first request can have been accepted in time";
  }
}

TEST_F(HttpStory, ARequestCarriesItsNamesAndNoOtherHeader) {
  auto one = client();
  one.say(post("{\"a\": 1}",
               "X-Session-ID: s 1\r\nX-Request-ID: r1\r\nAuthorization: Bearer topsecret\r\n"
               "Cookie: topsecret\r\n",
               "/v1/chat/completions?key=topsecret"));
  accept(7);
  const auto request = request_of(7);
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/v1/chat/completions");
  EXPECT_EQ(request.session, "s 1");
  EXPECT_EQ(request.request_id, "r1");
  EXPECT_EQ(request.body, "{\"a\": 1}");
  EXPECT_THAT(answer_to(7).body, Not(HasSubstr("topsecret")));
  EXPECT_EQ(request.engine, -1);
  EXPECT_GT(request.received, 1'700'000'000) << "seconds since 1970";
}

TEST_F(HttpStory, ARankIsANumberUpToTheLimit) {
  const auto ranked = [](std::string_view rank) {
    return post("1", fmt::format("X-data-parallel-rank: {}\r\n", rank));
  };
  auto one = client();
  one.say(ranked("65535"));
  EXPECT_EQ(accepted(1).engine, 65535);
  for (const std::string_view wrong : {"65536", "-1", "1x", "a", "99999999999999999999"})
    EXPECT_THAT(refused(ranked(wrong)),
                AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("a number from 0 to 65535")))
        << wrong;
}

TEST_F(HttpStory, AKeyMayComeInAHeaderOfItsOwn) {
  options.keys_file = write("keys", "tml-0123456789abcdef blue\n");
  options.key_prefix = "tml-";
  auto own = client(), both = client();
  own.say(post("1", "X-API-Key: tml-0123456789abcdef\r\n"));
  EXPECT_EQ(accepted(1).tenant, "blue");
  both.say(post("2", "Authorization: Bearer tml-0123456789abcdef\r\nX-API-Key: other\r\n"));
  accept(2);
  EXPECT_EQ(request_of(2).tenant, "blue") << "Authorization comes first";
  EXPECT_THAT(answer_to(2).body, Not(HasSubstr("other")));
  for (const std::string_view wrong :
       {"X-API-Key: tml-0123456789abcdee\r\n", "X-API-Key: \r\n",
        "Authorization: Basic x\r\nX-API-Key: tml-0123456789abcdef\r\n"})
    EXPECT_THAT(refused(post("1", wrong)), StartsWith("HTTP/1.1 401")) << wrong;
  EXPECT_THAT(refused(post("1", "X-API-Key: a\r\nX-API-Key: b\r\n")),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("X-API-Key comes 2 times")));
}

TEST_F(HttpStory, AKeyWithoutThePrefixIsAnErrorAtTheStart) {
  options.keys_file = write("keys", "tml-0123456789abcdef\n0123456789abcdef\n");
  options.key_prefix = "tml-";
  const auto made = make_http_listener(options, nullptr, tenants);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().text(), AllOf(HasSubstr("keys:2: the key does not begin with 'tml-'"),
                                         Not(HasSubstr("0123456789"))));
}

TEST_F(HttpStory, ARequestAndItsReplyHaveAContentType) {
  auto one = client();
  one.say(post("1", "Content-Type: Application/X-Protobuf; v=1\r\n"));
  EXPECT_EQ(accepted(1).content_type, "application/x-protobuf");
  ClientReply made;
  made.request = 1;
  made.body = "bytes";
  made.content_type = "application/x-protobuf";
  ask(2, reply_call(made));
  EXPECT_TRUE(sent(2));
  EXPECT_THAT(one.hear_until("bytes"), HasSubstr("\r\nContent-Type: application/x-protobuf\r\n"));
  one.say(post("2", "Content-Type: application/json; charset=utf-8\r\n"));
  accept(3);
  EXPECT_EQ(request_of(3).content_type, "");
  EXPECT_THAT(answer_to(3).body, Not(HasSubstr("json"))) << "records stay as they were";
  reply(4, 3);
  EXPECT_THAT(one.hear_until("{}"), HasSubstr("\r\nContent-Type: application/json\r\n"));
  EXPECT_THAT(refused(post("1", fmt::format("Content-Type: {}\r\n", std::string(129, 'a')))),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("Content-Type has up to 128")));
  auto longest = client();
  longest.say(post("3", fmt::format("Content-Type: {}\r\n", std::string(128, 'a'))));
  EXPECT_EQ(accepted(5).content_type.size(), 128U);
  ClientReply wrong;
  wrong.content_type = "a\r\nb: c";
  EXPECT_FALSE(read_http_call(reply_call(wrong)).ok());
}

TEST_F(HttpStory, AKeyIsNeededWhereThereAreKeys) {
  options.keys_file = write("keys", "# keys\n0123456789abcdef\nfedcba9876543210 blue\n");
  EXPECT_THAT(refused(post("1")),
              AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("WWW-Authenticate: Bearer"),
                    HasSubstr("\"type\":\"authentication_error\"")));
  for (const std::string_view wrong :
       {"Bearer ", "Bearer 0123456789abcdee", "Basic 0123456789abcdef", "0123456789abcdef"})
    EXPECT_THAT(refused(post("1", fmt::format("Authorization: {}\r\n", wrong))),
                AllOf(StartsWith("HTTP/1.1 401"), Not(HasSubstr("0123456789"))))
        << wrong;
  auto any = client(), blue = client();
  any.say(post("1", "Authorization: bearer 0123456789abcdef\r\n"));
  EXPECT_EQ(accepted(1).tenant, "");
  blue.say(post("1", "Authorization: Bearer fedcba9876543210\r\n"));
  EXPECT_EQ(accepted(2).tenant, "blue");
}

TEST_F(HttpStory, KeysAreReadAgainWhenTheirFileHasChanged) {
  options.keys_file = write("keys", "0123456789abcdef\n");
  listener();
  write("keys", "too short\n");
  EXPECT_TRUE(has_logged("the keys that were read before stay: "));
  EXPECT_TRUE(has_logged("keys:1: the key has 3 bytes"));
  auto first = client();
  first.say(post("1", "Authorization: Bearer 0123456789abcdef\r\n"));
  EXPECT_EQ(accepted(1).body, "1");
  write("keys", "fedcba9876543210 blue\n0000000000000000\n");
  EXPECT_TRUE(has_logged("read 2 keys of "));
  auto second = client();
  second.say(post("2", "Authorization: Bearer fedcba9876543210\r\n"));
  EXPECT_EQ(accepted(2).tenant, "blue");
  EXPECT_THAT(refused(post("3", "Authorization: Bearer 0123456789abcdef\r\n")),
              StartsWith("HTTP/1.1 401"))
      << "it was withdrawn";
  std::filesystem::remove(options.keys_file);
  EXPECT_TRUE(has_logged("'keys_file': "));
  auto third = client();
  third.say(post("4", "Authorization: Bearer fedcba9876543210\r\n"));
  EXPECT_EQ(accepted(3).body, "4");
}

TEST_F(HttpStory, AConnectionIsUsedAgainAndRequestsSentTogetherKeepTheirOrder) {
  auto one = client();
  one.say(post("1", "X-Request-ID: first\r\n") + post("2") + "HEAD /x HTTP/1.1\r\n" +
          std::string(kLocal) + "\r\n");
  EXPECT_EQ(accepted(1).body, "1");
  ClientReply first;
  first.request = 1;
  first.request_id = "first";
  first.body = "one";
  ask(10, reply_call(first));
  EXPECT_THAT(one.hear_until("one"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 3\r\n"),
                    HasSubstr("X-Request-ID: first\r\n"), HasSubstr("Connection: keep-alive")));
  EXPECT_EQ(accepted(2).body, "2");
  reply(11, 2, "two", 404);
  EXPECT_THAT(one.hear_until("two"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_EQ(accepted(3).method, "HEAD");
  reply(12, 3, "three");
  EXPECT_TRUE(sent(12));
  EXPECT_THAT(one.hear_until("\r\n\r\n"),
              AllOf(HasSubstr("Content-Length: 5\r\n"), Not(HasSubstr("three"))));
}

TEST_F(HttpStory, AChunkedBodyAndAnAnnouncedOneArriveWhole) {
  auto chunked = client();
  chunked.say(
      fmt::format("POST /x HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", kLocal));
  chunked.say("2;e=1\r\nde\r\n").say("0\r\nTrailer: t\r\n\r\n");
  EXPECT_EQ(accepted(1).body, "abcde");
  auto announced = client();
  announced.say(fmt::format(
      "POST /x HTTP/1.1\r\n{}Content-Length: 4\r\nExpect: 100-continue\r\n\r\n", kLocal));
  EXPECT_THAT(announced.hear_until("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue"));
  announced.say("body");
  EXPECT_EQ(accepted(2).body, "body");
}

TEST_F(HttpStory, StopRefusesWhatWaitsAndEndsTheListener) {
  auto waits = client(), idle = client();
  waits.say(post("1"));
  (void)accepted(1);
  outside->stop();
  EXPECT_THAT(waits.hear_all(), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After: 1"),
                                      HasSubstr("Connection: close")));
  EXPECT_EQ(idle.hear_all(), "");
  EXPECT_TRUE(outside->ask({2, 0, 0, 0, true, false, accept_call()}).ok());
  EXPECT_FALSE(outside->has_work());
}

TEST_F(HttpStory, ACallThatIsNotForAListenerIsRefused) {
  for (const std::string_view body :
       {"", "[]", "{}", R"({"call":"step"})", R"({"call":"reply","request":1,"status":99})",
        R"({"call":"reply","status":200})"})
    EXPECT_FALSE(listener().ask({1, 0, 0, 0, true, false, std::string(body)}).ok()) << body;
}

TEST_F(HttpStory, AnAddressThatCannotBeUsedIsNamed) {
  const auto fault_of = [this](std::string listen, std::string keys_file = "") {
    HttpListenerOptions wrong;
    wrong.listen = std::move(listen);
    wrong.keys_file = std::move(keys_file);
    const auto made = make_http_listener(wrong, nullptr, tenants);
    return made.ok() ? std::string() : made.error().text();
  };
  listener();
  EXPECT_THAT(
      fault_of(fmt::format("127.0.0.1:{}", port)),
      HasSubstr(fmt::format("cannot listen on 127.0.0.1:{}: Address already in use", port)));
  for (const char* listen : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "example.com:80",
                             "::1:80", "127.0.0.1:80x"})
    EXPECT_THAT(fault_of(listen), HasSubstr("write an address and a port")) << listen;
  EXPECT_THAT(fault_of("0.0.0.0:0"), HasSubstr("without 'keys_file'"));
  EXPECT_THAT(fault_of("0.0.0.0:0", "/no/such/file"), HasSubstr("'keys_file'"));
  EXPECT_THAT(fault_of("0.0.0.0:0", write("empty", "# nothing\n")), HasSubstr("has no key"));
  EXPECT_THAT(fault_of("0.0.0.0:0", write("short", "\n123456789012345\n")),
              AllOf(HasSubstr("short:2: the key has 15 bytes"), Not(HasSubstr("12345"))));
  EXPECT_THAT(
      fault_of("0.0.0.0:0", write("other", "1234567890123456 main\n6543210987654321 mian\n")),
      AllOf(HasSubstr("other:2: the graph has no tenant 'mian'"),
            HasSubstr("its tenants are: main, blue"), Not(HasSubstr("65432"))));
  EXPECT_EQ(fault_of("0.0.0.0:0", write("main", "1234567890123456 main\n")), "");
  const std::string key = "1234567890123456\n#";
  const std::string full = key + std::string(kHttpKeysFileBytesMax - key.size(), 'x');
  EXPECT_EQ(fault_of("0.0.0.0:0", write("full", full)), "");
  EXPECT_THAT(fault_of("0.0.0.0:0", write("full", full + "x")),
              HasSubstr("has 4194305 bytes, at most 4194304 are read"));
  EXPECT_EQ(fault_of("[::1]:0"), "");
  EXPECT_EQ(fault_of("0.0.0.0:0", write("keys", "1234567890123456\n")), "");
}

}  // namespace
}  // namespace primerl
