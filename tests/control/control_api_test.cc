// The control API over a socket: tokens, errors of the listener, rotation. TenantControl is the
// test.
#include "runtime/control/control_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>

#include "graph/base/real_clock.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/control/tenant_control.h"
#include "tests/base/patience.h"
#include "tests/base/raw_client.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

struct ControlApiStory : ::testing::Test {
  void SetUp() override { open(); }
  void open() {
    auto made = ControlApi::open({}, scratch.path(),
                                 [this](const std::string& line) { warnings.push_back(line); });
    ASSERT_TRUE(made.ok()) << made.error().text();
    api = std::move(made).value();
    api->use(catalog);
  }
  uint16_t port() const {
    const std::string& url = api->url();
    uint16_t found = 0;
    const char* begin = url.data() + url.rfind(':') + 1;
    (void)std::from_chars(begin, url.data() + url.size(), found);
    return found;
  }
  static std::string request(const std::string& line, const std::string& token,
                             const std::string& body = "", const std::string& host = "localhost") {
    return fmt::format(
        "{} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n"
        "Content-Length: {}\r\n\r\n{}",
        line, host, token, body.size(), body);
  }
  /// The reply to a request that is answered without the run.
  std::string refused(const std::string& line, const std::string& token,
                      const std::string& host = "localhost") {
    return RawClient(port()).say(request(line, token, "", host)).hear_all();
  }
  /// Polls until the API asks the run something.
  CommandInbox::Ask wait_for_ask() {
    const Time until = steady_now() + kPatience;
    while (steady_now() < until)
      if (auto asks = api->poll(steady_now()); !asks.empty()) return asks.front();
    ADD_FAILURE() << "nothing was asked";
    return {};
  }
  /// The reply, while the API is polled until the client has it.
  std::string heard(RawClient& client, const CommandInbox::Ask& ask, const Json& answer) {
    EXPECT_TRUE(api->answer(ask.id, answer, steady_now()));
    return client.hear_all();
  }

  ScratchFolder scratch;
  const Catalog catalog = full_catalog();
  std::vector<std::string> warnings;
  std::unique_ptr<ControlApi> api;
};

TEST_F(ControlApiStory, WithoutATokenNothingIsAnswered) {
  for (const std::string& token : {std::string(), std::string("wrong"), std::string(67, 'a')}) {
    const std::string reply = refused("GET /v1/tenants", token);
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 401"));
    EXPECT_THAT(reply, HasSubstr("WWW-Authenticate: Bearer"));
    EXPECT_THAT(reply, HasSubstr(R"("where":"header Authorization")"));
  }
  EXPECT_THAT(api->poll(steady_now()), IsEmpty());
}

TEST_F(ControlApiStory, TheOperatorsTokenIsShownOnceAndIsInNoFile) {
  const std::string token = api->take_new_token();
  EXPECT_EQ(token.size(), 67U);
  EXPECT_EQ(api->take_new_token(), "");
  RawClient client(port());
  client.say(request("DELETE /v1/tenants/alice?purge=1", token));
  const auto ask = wait_for_ask();
  const Json alice = Json::object().set("name", "alice").set("state", "draining");
  EXPECT_THAT(heard(client, ask, Json::object().set("tenant", alice)), StartsWith("HTTP/1.1 200"));
  for (const auto& entry : fs::recursive_directory_iterator(scratch.path()))
    if (entry.is_regular_file()) {
      EXPECT_THAT(read_text_file(entry.path()).value(), Not(HasSubstr(token.substr(3))))
          << entry.path();
    }
  EXPECT_THAT(read_text_file(scratch.path() / "logs/audit.jsonl").value(),
              HasSubstr("alice is draining"));
}

TEST_F(ControlApiStory, ALaterStartKeepsTheToken) {
  const std::string token = api->take_new_token();
  api.reset();
  open();
  EXPECT_EQ(api->take_new_token(), "");
  RawClient client(port());
  client.say(request("GET /v1/tenants", token));
  const auto ask = wait_for_ask();
  EXPECT_EQ(ask.content.get_string("tenant_verb").value(), "ls");
  EXPECT_THAT(heard(client, ask, Json::object().set("free", 2)), HasSubstr(R"({"free":2})"));
}

TEST_F(ControlApiStory, ARotatedTokenEndsTheOldOne) {
  const std::string old = api->take_new_token();
  const auto next =
      rotate_control_token(scratch.path(), {}, [](const TokenHolder&) { return true; });
  ASSERT_TRUE(next.ok());
  (void)api->poll(steady_now() + ControlApi::kTokensEvery);
  EXPECT_THAT(refused("GET /v1/tenants", old), StartsWith("HTTP/1.1 401"));
  RawClient client(port());
  client.say(request("GET /v1/tenants/alice", *next));
  EXPECT_EQ(wait_for_ask().content.get_string("name").value(), "alice");
}

TEST_F(ControlApiStory, ADamagedTokenFileLeavesTheTokensAndIsReportedOnce) {
  const std::string token = api->take_new_token();
  ASSERT_TRUE(replace_file(system_files(), control_tokens_file(scratch.path()), "{}").ok());
  const Time later = steady_now() + ControlApi::kTokensEvery;
  (void)api->poll(later);
  (void)api->poll(later + ControlApi::kTokensEvery);
  EXPECT_EQ(warnings.size(), 1U);
  RawClient client(port());
  client.say(request("GET /v1/tenants/alice", token));
  EXPECT_EQ(wait_for_ask().content.get_string("name").value(), "alice");
}

TEST_F(ControlApiStory, APageOfAnotherNameDoesNotReachIt) {
  EXPECT_THAT(refused("GET /v1/tenants", api->take_new_token(), "evil.example"),
              StartsWith("HTTP/1.1 421"));
}

TEST_F(ControlApiStory, ABodyThatIsTooLongIsRefusedUnread) {
  const std::string token = api->take_new_token();
  const std::string reply =
      RawClient(port())
          .say(fmt::format("POST /v1/tenants HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                           "{}\r\nContent-Length: {}\r\n\r\n",
                           token, ControlApi::kBodyBytesMax + 1))
          .hear_all();
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(reply, HasSubstr(R"("help":)"));
}

TEST(ControlApiOptions, AnAddressBeyondThisMachineNeedsAProxy) {
  EXPECT_TRUE(validate(ControlApiOptions{}).ok());
  EXPECT_TRUE(validate(ControlApiOptions{"[::1]:0"}).ok());
  const Status refused = validate(ControlApiOptions{"0.0.0.0:8000"});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("--behind-proxy"));
  EXPECT_TRUE(validate(ControlApiOptions{"0.0.0.0:8000", true}).ok());
  EXPECT_FALSE(validate(ControlApiOptions{"example.org"}).ok());
}

TEST(ControlApiOptions, AnAddressBeyondThisMachineIsAllowedWithTls) {
  EXPECT_TRUE(validate(ControlApiOptions{"0.0.0.0:8000", false, "cert", "key"}).ok());
  EXPECT_TRUE(validate(ControlApiOptions{"127.0.0.1:0", false, "cert", "key"}).ok());
  for (const auto& half : {ControlApiOptions{"0.0.0.0:8000", false, "cert", ""},
                           ControlApiOptions{"127.0.0.1:0", false, "", "key"}}) {
    const Status refused = validate(half);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().text(), HasSubstr("--tls-cert and --tls-key belong together"));
  }
}

TEST(ControlApiOptions, FilesOfTlsThatAreMissingAreAnErrorAtTheStart) {
  const ScratchFolder scratch;
  const auto made = ControlApi::open({"127.0.0.1:0", false, "/no/cert.pem", "/no/cert.key"},
                                     scratch.path(), [](const std::string&) {});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().text(), HasSubstr("cannot read /no/cert.pem"));
}

TEST(ControlApiHolders, ATenantIsHostedByNameAndNumber) {
  const ScratchFolder scratch;
  EXPECT_FALSE(hosted_holders(scratch.path())({"alice", 0}));
  ASSERT_TRUE(replace_file(system_files(), tenants_file(scratch.path()),
                           R"({"tenants": [{"name": "alice", "number": 1}]})")
                  .ok());
  EXPECT_TRUE(hosted_holders(scratch.path())({"alice", 1}));
  EXPECT_FALSE(hosted_holders(scratch.path())({"alice", 0}));
}

TEST_F(ControlApiStory, AClientsTenantGetsAKeyForItsClientsAndForThisApi) {
  const std::string token = api->take_new_token();
  const std::string file =
      read_text_file(std::string(PRIMERL_SOURCE_DIR) + "/examples/hosted/carol.toml").value();
  RawClient client(port());
  client.say(
      fmt::format("POST /v1/tenants HTTP/1.1\r\nHost: localhost\r\n"
                  "Authorization: Bearer {}\r\nContent-Type: application/toml\r\n"
                  "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
                  token, file.size(), file));
  const auto ask = wait_for_ask();
  Json carol = Json::object().set("name", "carol").set("number", 0);
  Json tenants = Json::array();
  tenants.push_back(Json(carol).set("table", "[tenant.carol]\nclient = true\n"));
  ASSERT_TRUE(replace_file(system_files(), scratch.path() / "tenants.json",
                           Json::object().set("tenants", std::move(tenants)).dump())
                  .ok());
  const std::string reply =
      heard(client, ask, Json::object().set("tenant", carol.set("state", "starting")));
  EXPECT_THAT(reply, HasSubstr(R"("token":"tml-)"));
  const std::string key = reply.substr(reply.find("tml-"), 68);
  RawClient own(port());
  own.say(request("GET /v1/tenants/carol", key));
  EXPECT_EQ(wait_for_ask().content.get_string("name").value(), "carol");
}

}  // namespace
}  // namespace primerl::testing
