// The HTTP server: its answers, its refusals, each bound at its limit and one past it; and the
// client.
#include "runtime/monitor/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include "tests/base/raw_client.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::unique_ptr<HttpReply> reply_to(std::string_view path) {
  if (path == "/throw") throw std::runtime_error("the handler fell over");
  if (path == "/long")
    return std::make_unique<HttpReply>(HttpReply{200, "text/plain", std::string(1 << 20, 'x')});
  if (path != "/known") return nullptr;
  return std::make_unique<HttpReply>(HttpReply{200, "text/plain", "here\n"});
}

std::unique_ptr<HttpServer> a_server(HttpLimits limits = {}) {
  auto server = HttpServer::listen(0, reply_to, limits);
  EXPECT_TRUE(server.ok()) << server.error().text();
  return std::move(server).value();
}

std::string answer_to(const HttpServer& server, std::string_view request) {
  return RawClient(server.port()).say(request).hear_all();
}

constexpr std::string_view kClose = "Connection: close\r\n\r\n";

TEST(HttpServer, AnswersByIPv6Too) {
  const auto server = a_server();
  RawClient client(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(server->port());
  address.sin6_addr = in6addr_loopback;
  ASSERT_EQ(client.connect(reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  client.say("GET /known HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.hear_all(), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, AnswersWhatItKnowsAndNothingElse) {
  const auto server = a_server();
  const auto known = http_get(server->port(), "/known");
  ASSERT_TRUE(known.ok()) << known.error().text();
  EXPECT_EQ(known->status, 200);
  EXPECT_EQ(known->body, "here\n");
  EXPECT_EQ(known->type, "text/plain");
  EXPECT_EQ(http_get(server->port(), "/known?with=words")->body, "here\n");
  EXPECT_EQ(http_get(server->port(), "/unknown")->status, 404);
  EXPECT_EQ(http_get(server->port(), "/throw")->status, 500);
  EXPECT_EQ(http_get(server->port(), "/long")->body.size(), size_t{1} << 20);
}

TEST(HttpServer, ListensOnLoopbackAlone) {
  const auto server = a_server();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server->port());
  // All of 127/8 is loopback; this is an address of it on which the server does not listen.
  ::inet_pton(AF_INET, "127.0.0.2", &address.sin_addr);
  const int other = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_NE(::connect(other, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(other);
}

TEST(HttpServer, APortThatIsTakenIsNamed) {
  const auto server = a_server();
  const auto second = HttpServer::listen(server->port(), reply_to);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::kExists);
  EXPECT_THAT(second.error().text(),
              HasSubstr(fmt::format("cannot listen on 127.0.0.1:{}", server->port())));
}

TEST(HttpServer, AnswersHeadWithoutABodyAndRefusesOtherMethods) {
  const auto server = a_server();
  const auto head =
      answer_to(*server, fmt::format("HEAD /known HTTP/1.1\r\nHost: localhost\r\n{}", kClose));
  EXPECT_THAT(head, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: 5")));
  EXPECT_EQ(head.substr(head.find("\r\n\r\n")), "\r\n\r\n");
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"}) {
    const auto refused = answer_to(
        *server, fmt::format("{} /known HTTP/1.1\r\nHost: localhost\r\n{}", method, kClose));
    EXPECT_THAT(refused, AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: GET, HEAD")))
        << method;
  }
}

TEST(HttpServer, RefusesWhatIsNoHttp) {
  const auto server = a_server();
  for (const std::string_view noise :
       {"\r\n\r\n\r\n", "GET\r\n\r\n", "GET /known\r\n\r\n", "GET /known HTTP/9.9\r\n\r\n",
        "GET known HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\xfc\x03\x03\r\n", "GET /known HTTP/1.1\r\nno colon\r\n\r\n",
        "GET /known HTTP/1.1\r\nContent-Length: many\r\n\r\n"})
    EXPECT_THAT(answer_to(*server, noise), StartsWith("HTTP/1.1 400")) << noise;
  EXPECT_EQ(http_get(server->port(), "/known")->status, 200);
}

TEST(HttpServer, TakesHeadersUpToTheLimitAndNotAByteMore) {
  HttpLimits limits;
  limits.header_bytes_max = 300;
  const auto server = a_server(limits);
  const auto request_of = [](size_t size) {
    const std::string head =
        "GET /known HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nFiller: ";
    return head + std::string(size - head.size() - 4, 'x') + "\r\n\r\n";
  };
  ASSERT_EQ(request_of(300).size(), 300u);
  EXPECT_THAT(answer_to(*server, request_of(300)), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer_to(*server, request_of(301)), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(answer_to(*server, request_of(100'000)), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(answer_to(*server, "GET /" + std::string(300, 'x')), StartsWith("HTTP/1.1 431"));
}

TEST(HttpServer, TakesNoBody) {
  const auto server = a_server();
  const auto with_body = [&server](std::string_view body) {
    return answer_to(*server, fmt::format("GET /known HTTP/1.1\r\nHost: localhost\r\n"
                                          "Content-Length: {}\r\n{}{}",
                                          body.size(), kClose, body));
  };
  EXPECT_THAT(with_body(""), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(with_body("x"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(
      answer_to(*server,
                "GET /known HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                "1\r\nx\r\n0\r\n\r\n"),
      StartsWith("HTTP/1.1 413"));
}

constexpr std::string_view kAsk = "GET /known HTTP/1.1\r\nHost: localhost\r\n\r\n";

TEST(HttpServer, KeepsAsManyConnectionsAsItsLimitAndClosesTheSlowestForOneMore) {
  HttpLimits limits;
  limits.connections_max = 3;
  limits.request_max = Duration::seconds(600);
  const auto server = a_server(limits);
  std::vector<std::unique_ptr<RawClient>> inside;
  for (uint32_t i = 0; i < limits.connections_max; ++i) {
    inside.push_back(std::make_unique<RawClient>(server->port()));
    EXPECT_THAT(inside.back()->say(kAsk).hear_until("here\n"), StartsWith("HTTP/1.1 200"));
  }
  // All of them are still open; the first is now the most recent one.
  EXPECT_THAT(inside[0]->say(kAsk).hear_until("here\n"), StartsWith("HTTP/1.1 200"));
  RawClient one_more(server->port());
  EXPECT_THAT(one_more.say(kAsk).hear_until("here\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(inside[1]->hear_all(), "") << "the slowest is closed";
  EXPECT_THAT(inside[2]->say(kAsk).hear_until("here\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(inside[0]->say(kAsk).hear_until("here\n"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, ServesAScrapeHoweverManyOthersAreSlow) {
  HttpLimits limits;
  limits.request_max = Duration::seconds(600);
  const auto server = a_server(limits);
  std::vector<std::unique_ptr<RawClient>> slow;
  const auto open_slow_ones = [&] {
    for (uint32_t i = 0; i < 2 * limits.connections_max; ++i) {
      slow.push_back(std::make_unique<RawClient>(server->port()));
      if (i % 3 == 1) slow.back()->say("GET /known HTT");
      // Requests more than the kernel can buffer, and reads nothing.
      if (i % 3 == 2) slow.back()->say("GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
  };
  for (int scrape = 0; scrape < 8; ++scrape) {
    open_slow_ones();
    const auto known = http_get(server->port(), "/known");
    ASSERT_TRUE(known.ok()) << known.error().text();
    EXPECT_EQ(known->status, 200);
  }
}

TEST(HttpServer, AnswersUnderTheNamesOfThisMachineAlone) {
  const auto server = a_server();
  const auto asked_as = [&server](const std::string& host) {
    return answer_to(*server, "GET /known HTTP/1.1\r\n" + host + std::string(kClose));
  };
  for (const char* host : {"localhost", "LocalHost:9464", "127.0.0.1", "127.0.0.1:1", "[::1]",
                           "[::1]:9464", "localhost:"})
    EXPECT_THAT(asked_as(fmt::format("Host: {}\r\n", host)), StartsWith("HTTP/1.1 200")) << host;
  for (const char* host :
       {"evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example",
        "127.0.0.2", "0.0.0.0", "[::2]", "[::1", "localhost:80x", "localhost@evil.example", ""})
    EXPECT_THAT(asked_as(fmt::format("Host: {}\r\n", host)),
                AllOf(StartsWith("HTTP/1.1 421"), Not(HasSubstr("here"))))
        << host;
  EXPECT_THAT(asked_as(""), StartsWith("HTTP/1.1 400")) << "HTTP/1.1 has a host";
  EXPECT_THAT(asked_as("Host: localhost\r\nHost: evil.example\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer_to(*server, "GET /known HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, ClosesAConnectionThatSendsNoWholeRequestInTime) {
  HttpLimits limits;
  limits.request_max = Duration::milliseconds(20);
  const auto server = a_server(limits);
  EXPECT_EQ(RawClient(server->port()).say("GET /known HTT").hear_all(), "");
  EXPECT_EQ(RawClient(server->port()).hear_all(), "");
}

TEST(HttpServer, EndsWithConnectionsOpen) {
  auto server = a_server();
  RawClient waits(server->port()), asks(server->port());
  asks.say("GET /known HTTP/1.1\r\nHost: localhost\r\n\r\n").hear_until("here\n");
  server.reset();
  EXPECT_EQ(waits.hear_all(), "");
  EXPECT_EQ(asks.hear_all(), "");
}

/// Occupies a port. The kernel accepts its connections, but no program answers.
class SilentPort {
 public:
  explicit SilentPort(bool listens) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listens ? ::listen(socket_, 4) : 0, 0);
    socklen_t size = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~SilentPort() { ::close(socket_); }
  uint16_t port() const { return port_; }

 private:
  const int socket_;
  uint16_t port_ = 0;
};

TEST(HttpGet, GivesUpAtItsDeadlineAndSaysWho) {
  const SilentPort silent(true);
  HttpGetLimits limits;
  limits.deadline = Duration::milliseconds(20);
  const auto reply = http_get(silent.port(), "/", limits);
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code(), Code::kDeadline);
  EXPECT_THAT(reply.error().text(),
              HasSubstr(fmt::format("127.0.0.1:{} has not answered within 20ms", silent.port())));
}

TEST(HttpGet, ReportsAPortWithoutAListener) {
  const SilentPort nobody(false);
  const auto reply = http_get(nobody.port(), "/");
  ASSERT_FALSE(reply.ok());
  EXPECT_EQ(reply.error().code(), Code::kUnavailable);
}

TEST(HttpGet, TakesABodyUpToItsLimit) {
  const auto server = a_server();
  HttpGetLimits limits;
  limits.body_bytes_max = 5;
  EXPECT_EQ(http_get(server->port(), "/known", limits)->body, "here\n");
  limits.body_bytes_max = 4;
  const auto longer = http_get(server->port(), "/known", limits);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().code(), Code::kExhausted);
}

}  // namespace
}  // namespace primerl
