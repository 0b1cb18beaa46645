// The requests to the control API: rights, rates, uploads, events. TenantControl is the test.
#include "runtime/control/control_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/files.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/control/upload_folders.h"
#include "runtime/control/upload_rules.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

const TokenHolder kOperator;
const TokenHolder kAlice{"alice", 1};
const std::string kFile =
    "[tenant.alice]\nenvironment = { name = \"reverse_text\" }\n[tenant.alice.adapter]\nrank = 8\n";

Json picture(const std::string& name, const std::string& state, int64_t number = 1) {
  return Json::object().set("name", name).set("state", state).set("number", number);
}

struct ControlRequestsStory : ::testing::Test {
  ControlRequestsStory()
      : requests(
            {.run_folder = scratch.path(),
             .reply = [this](uint64_t request,
                             const ControlRequests::Reply& reply) { replies[request] = reply; },
             .stream = [this](uint64_t request, const std::string& text,
                              bool is_last) { streams[request] += text + (is_last ? "END" : ""); },
             .new_token = [](const TokenHolder& holder) -> Result<std::string> {
               return "token of " + holder.name();
             },
             .audit = [this](const AuditEntry& entry) { audit.push_back(entry); },
             .wall_time = [] { return std::string("2026-11-27T10:15:02Z"); }}) {
    requests.use(catalog);
  }
  /// Sends a request; its number is the return value.
  uint64_t send(const TokenHolder& who, const std::string& method, const std::string& path,
                const std::string& query = "", const std::string& body = "") {
    ClientRequest request;
    request.method = method;
    request.path = path;
    request.query = query;
    request.body = body;
    requests.handle(++newest, request, who, now);
    return newest;
  }
  /// The only ask since the last call.
  CommandInbox::Ask asked() {
    const auto asks = requests.take_asks();
    EXPECT_THAT(asks, SizeIs(1));
    return asks.empty() ? CommandInbox::Ask() : asks.front();
  }
  void answer(const CommandInbox::Ask& ask, const Json& with) {
    EXPECT_TRUE(requests.answer(ask.id, with, now));
  }
  int32_t status(uint64_t request) {
    return replies.contains(request) ? replies[request].status : 0;
  }
  std::string text(uint64_t request) { return replies[request].body.dump(); }
  /// One look at the tenants while somebody waits for events.
  void look(const std::vector<Json>& tenants) {
    now = now + ControlRequests::kLookEvery;
    requests.tick(now);
    Json list = Json::array();
    for (const Json& tenant : tenants) list.push_back(tenant);
    for (const auto& ask : requests.take_asks()) answer(ask, Json::object().set("tenants", list));
  }

  ScratchFolder scratch;
  const Catalog catalog = full_catalog();
  Time now = Time() + Duration::seconds(1000);
  std::map<uint64_t, ControlRequests::Reply> replies;
  std::map<uint64_t, std::string> streams;
  std::vector<AuditEntry> audit;
  uint64_t newest = 0;
  ControlRequests requests;
};

TEST_F(ControlRequestsStory, ATenantThatJoinsHasTheSameAskAsACommandAndItsTokenInTheReply) {
  const uint64_t request = send(kOperator, "POST", "/v1/tenants", "", kFile);
  const auto ask = asked();
  EXPECT_EQ(ask.content.get_string("tenant_verb").value(), "add");
  const fs::path file = ask.content.get_string("file").value();
  EXPECT_EQ(read_text_file(file).value(), kFile);
  EXPECT_EQ(status(request), 0) << "the run has not answered yet";
  answer(ask, Json::object().set("tenant", picture("alice", "starting")));
  EXPECT_EQ(status(request), 200);
  EXPECT_EQ(replies[request].body.get_string("token").value(), "token of alice~1");
  EXPECT_FALSE(fs::exists(file.parent_path())) << "nothing reads the file any more";
  ASSERT_THAT(audit, SizeIs(1));
  EXPECT_EQ(audit[0].result, "alice is starting");
  EXPECT_EQ(audit[0].who, "operator");
}

TEST_F(ControlRequestsStory, ARefusedJoinLeavesNoFile) {
  const uint64_t request = send(kOperator, "POST", "/v1/tenants", "", kFile);
  const auto ask = asked();
  answer(ask, Json::object().set("error", "it cannot join").set("findings", "error[G096]: rank"));
  EXPECT_EQ(status(request), 400);
  EXPECT_EQ(replies[request].body.find("token"), nullptr);
  EXPECT_FALSE(fs::exists(ask.content.get_string("file").value()));
}

TEST_F(ControlRequestsStory, AFileAgainstTheRulesAsksTheRunNothing) {
  const uint64_t request = send(kOperator, "POST", "/v1/tenants", "",
                                "[tenant.alice]\nenvironment = { name = \"process\" }\n");
  EXPECT_EQ(status(request), 400);
  EXPECT_THAT(requests.take_asks(), IsEmpty());
  EXPECT_FALSE(fs::exists(scratch.path() / "uploads"));
  ASSERT_THAT(audit, SizeIs(1));
  EXPECT_EQ(audit[0].status, 400);
}

TEST_F(ControlRequestsStory, ValuesAreSetByPatch) {
  const std::string path = "/v1/tenants/alice";
  EXPECT_EQ(status(send(kAlice, "PATCH", path, "", R"({"share": 0.9})")), 403);
  EXPECT_EQ(status(send(kAlice, "PATCH", path, "", R"({"rank": 1})")), 400);
  EXPECT_EQ(status(send(kAlice, "PATCH", path, "", "max_steps = 3")), 400);
  EXPECT_EQ(status(send(kAlice, "PATCH", "/v1/tenants/bob", "", R"({"inflight": 1})")), 404);
  EXPECT_THAT(requests.take_asks(), IsEmpty());
  const uint64_t own = send(kAlice, "PATCH", path, "", R"({"max_off_policy_steps": 1})");
  const auto ask = asked();
  EXPECT_EQ(ask.content.get_string("tenant_verb").value(), "set");
  EXPECT_EQ(ask.content.get_int("number").value(), 1);
  EXPECT_EQ(ask.content.find("values")->dump(), R"({"max_off_policy_steps":1})");
  answer(ask, Json::object().set("tenant", picture("alice", "training")));
  EXPECT_EQ(status(own), 200);
  send(kOperator, "PATCH", path, "", R"({"share": 0.5})");
  EXPECT_EQ(asked().content.find("values")->dump(), R"({"share":0.5})");
}

TEST_F(ControlRequestsStory, OnlyTheOperatorAddsAndRemoves) {
  EXPECT_EQ(status(send(kAlice, "POST", "/v1/tenants", "", kFile)), 403);
  EXPECT_EQ(status(send(kAlice, "DELETE", "/v1/tenants/alice")), 403);
  EXPECT_THAT(requests.take_asks(), IsEmpty());
  EXPECT_EQ(audit[0].who, "tenant alice~1");
}

TEST_F(ControlRequestsStory, ATenantDoesNotLearnWhetherAnotherExists) {
  const uint64_t other = send(kAlice, "GET", "/v1/tenants/bob");
  EXPECT_EQ(status(other), 404);
  EXPECT_THAT(requests.take_asks(), IsEmpty());
  const uint64_t own = send(kAlice, "GET", "/v1/tenants/alice");
  answer(asked(), Json::object()
                      .set("error", "no tenant 'alice' in this run\n   its tenants: bob")
                      .set("code", "not_found")
                      .set("is_bad", true));
  EXPECT_EQ(status(own), 404);
  EXPECT_THAT(text(own), Not(HasSubstr("bob")));
}

TEST_F(ControlRequestsStory, ATenantsRequestIsAboutItsOwnUseOfTheName) {
  (void)send(kAlice, "POST", "/v1/tenants/alice/pause");
  EXPECT_EQ(asked().content.get_int("number").value(), 1);
  (void)send(kOperator, "POST", "/v1/tenants/alice/resume");
  EXPECT_EQ(asked().content.find("number"), nullptr);
}

TEST_F(ControlRequestsStory, ATenantsListHasItselfAlone) {
  Json all = Json::array();
  for (const Json& each :
       {picture("alice", "training"), picture("bob", "training"), picture("alice", "ended", 0)})
    all.push_back(each);
  const Json answered = Json::object().set("tenants", all).set("free", 3);
  const uint64_t own = send(kAlice, "GET", "/v1/tenants");
  answer(asked(), answered);
  EXPECT_THAT(replies[own].body.find("tenants")->as_array(), SizeIs(1));
  EXPECT_EQ(replies[own].body.find("free"), nullptr);
  const uint64_t operators = send(kOperator, "GET", "/v1/tenants");
  answer(asked(), answered);
  EXPECT_EQ(replies[operators].body, answered);
}

TEST_F(ControlRequestsStory, ARemovalSaysWhatHappensToTheFiles) {
  for (const auto& [query, files] :
       {std::pair("", "keep"), std::pair("keep=1", "keep"),
        std::pair("keep_checkpoints=1", "keep_checkpoints"), std::pair("purge=1", "purge")}) {
    (void)send(kOperator, "DELETE", "/v1/tenants/alice", query);
    EXPECT_EQ(asked().content.get_string("files").value(), files) << query;
  }
}

TEST_F(ControlRequestsStory, MoreRequestsThanTheRateWait) {
  for (int i = 0; i < static_cast<int>(RequestRate::kRequestsPerMinute); ++i)
    ASSERT_EQ(status(send(kAlice, "GET", "/openapi.json")), 200);
  const uint64_t late = send(kAlice, "GET", "/openapi.json");
  EXPECT_EQ(status(late), 429);
  EXPECT_EQ(replies[late].retry_after, 1);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(status(send(kAlice, "GET", "/openapi.json")), 429);
  EXPECT_THAT(audit, SizeIs(1)) << "a flood does not push older lines out";
  EXPECT_EQ(status(send(kOperator, "GET", "/openapi.json")), 200);
}

TEST_F(ControlRequestsStory, OnlyADataFileMayBeLarge) {
  const std::string large(kUploadBytesMax + 1, ' ');
  EXPECT_EQ(status(send(kAlice, "PATCH", "/v1/tenants/alice", "", large)), 413);
  EXPECT_EQ(status(send(kOperator, "POST", "/v1/tenants", "", "{" + large)), 413);
  EXPECT_EQ(status(send(kOperator, "PUT", "/v1/uploads/alice/rows.txt", "", large)), 200);
}

TEST_F(ControlRequestsStory, ALateClientGetsManyEventsInPartsThatTheListenerKeeps) {
  (void)send(kOperator, "GET", "/v1/tenants/alice/events");
  const std::string why(1000, 'x');
  for (size_t i = 0; i < ControlRequests::kEventsMax; ++i)
    look({picture("alice", "failed").set("why", why).set("step", static_cast<int64_t>(i))});
  const uint64_t stream = send(kAlice, "GET", "/v1/tenants/alice/events");
  const Json last = picture("alice", "failed").set("why", why).set("step", 255);
  size_t num_bytes = 0;
  for (int i = 0; i < 20; ++i) {
    look({last});
    EXPECT_LE(streams[stream].size() - num_bytes, ControlRequests::kPartBytesMax);
    num_bytes = streams[stream].size();
  }
  size_t num_events = 0;
  for (size_t at = 0; (at = streams[stream].find("id: ", at)) != std::string::npos; ++at)
    ++num_events;
  EXPECT_EQ(num_events, ControlRequests::kEventsMax);
  EXPECT_THAT(streams[stream], HasSubstr("id: 256\n"));
}

TEST_F(ControlRequestsStory, EventsComeWhenSomethingChangesAndEachOnce) {
  const uint64_t first = send(kAlice, "GET", "/v1/tenants/alice/events", "after=0");
  look({picture("alice", "training").set("step", 1)});
  EXPECT_EQ(status(first), 200);
  EXPECT_EQ(replies[first].body.get_int("next").value(), 1);
  const uint64_t second = send(kAlice, "GET", "/v1/tenants/alice/events", "after=1");
  look({picture("alice", "training").set("step", 1)});
  EXPECT_EQ(status(second), 0) << "nothing is new";
  look({picture("alice", "training").set("step", 2)});
  ASSERT_EQ(status(second), 200);
  const auto& events = replies[second].body.find("events")->as_array();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].get_int("step").value(), 2);
  EXPECT_EQ(events[0].get_int("n").value(), 2);
}

TEST_F(ControlRequestsStory, ARequestForEventsEndsAfterItsTime) {
  (void)send(kAlice, "GET", "/v1/tenants/alice/events", "after=0");
  look({picture("alice", "training")});
  const uint64_t waits = send(kAlice, "GET", "/v1/tenants/alice/events", "after=1");
  look({picture("alice", "training")});
  now = now + ControlRequests::kPollMax;
  requests.tick(now);
  ASSERT_EQ(status(waits), 200);
  EXPECT_THAT(replies[waits].body.find("events")->as_array(), IsEmpty());
}

TEST_F(ControlRequestsStory, EventsAreStreamedUntilTheTenantLeaves) {
  const uint64_t stream = send(kAlice, "GET", "/v1/tenants/alice/events");
  look({picture("alice", "starting")});
  EXPECT_EQ(streams[stream],
            "id: 1\ndata: {\"name\":\"alice\",\"state\":\"starting\",\"n\":1,"
            "\"time\":\"2026-11-27T10:15:02Z\"}\n\n");
  look({picture("alice", "starting")});
  streams[stream].clear();
  look({picture("alice", "training").set("step", 1)});
  look({picture("alice", "training").set("step", 2)});
  EXPECT_THAT(streams[stream], HasSubstr("id: 2\n"));
  EXPECT_THAT(streams[stream], HasSubstr("id: 3\n"));
  const uint64_t later = send(kAlice, "GET", "/v1/tenants/alice/events", "after=2&stream=1");
  look({picture("alice", "training").set("step", 2)});
  EXPECT_THAT(streams[later], StartsWith("id: 3\n"));
  look({picture("bob", "training")});
  for (const uint64_t each : {stream, later})
    EXPECT_THAT(streams[each], EndsWith(R"("state":"removed"})"
                                        "\n\nEND"));
  EXPECT_EQ(status(stream), 0) << "its reply had begun";
}

TEST_F(ControlRequestsStory, AStreamIsOfOneTenantAndNotOfTheNextOfItsName) {
  const uint64_t stream = send(kOperator, "GET", "/v1/tenants/alice/events");
  look({picture("alice", "training", 1)});
  look({picture("alice", "starting", 2)});
  EXPECT_THAT(streams[stream], EndsWith("END"));
  EXPECT_EQ(status(send(kAlice, "GET", "/v1/tenants/bob/events")), 404);
  const uint64_t unknown = send(kOperator, "GET", "/v1/tenants/carl/events");
  look({picture("alice", "starting", 2)});
  EXPECT_EQ(status(unknown), 404);
  EXPECT_EQ(streams[unknown], "");
}

TEST_F(ControlRequestsStory, AStreamHasHeartbeatsAndEndsAfterItsTime) {
  const uint64_t stream = send(kAlice, "GET", "/v1/tenants/alice/events");
  look({picture("alice", "training")});
  streams[stream].clear();
  const Time end = now + ControlRequests::kStreamMax;
  now = now + (ControlRequests::kHeartbeatEvery - Duration::nanoseconds(1));
  requests.tick(now);
  EXPECT_EQ(streams[stream], "");
  EXPECT_THAT(requests.take_asks(), SizeIs(1)) << "a client looks";
  now = now + Duration::nanoseconds(1);
  requests.tick(now);
  requests.tick(now);
  EXPECT_EQ(streams[stream], ": the tenant is as before\n\n") << "once";
  requests.tick(end);
  EXPECT_THAT(streams[stream], EndsWith("END"));
  const std::string ended = streams[stream];
  requests.tick(end + ControlRequests::kHeartbeatEvery);
  EXPECT_EQ(streams[stream], ended);
}

TEST_F(ControlRequestsStory, EventsOfTheNextTenantOfANameAreNotShown) {
  const uint64_t waits = send(kAlice, "GET", "/v1/tenants/alice/events", "after=0");
  look({picture("alice", "training", 2)});
  EXPECT_EQ(status(waits), 404);
}

TEST_F(ControlRequestsStory, AtMostTheWrittenNumberWaitsForEvents) {
  for (size_t i = 0; i < ControlRequests::kPollsOfHolderMax; ++i)
    EXPECT_EQ(status(send(kAlice, "GET", "/v1/tenants/alice/events", "after=0")), 0);
  const uint64_t first = newest;
  EXPECT_EQ(status(send(kAlice, "GET", "/v1/tenants/alice/events", "after=0")), 429);
  requests.closed(first);
  EXPECT_EQ(status(send(kAlice, "GET", "/v1/tenants/alice/events", "after=0")), 0)
      << "one client has gone";
  requests.closed(newest);
  EXPECT_EQ(status(send(kAlice, "GET", "/v1/tenants/alice/events")), 0);
  EXPECT_EQ(status(send(kAlice, "GET", "/v1/tenants/alice/events")), 429) << "streams count too";
}

TEST_F(ControlRequestsStory, ALaterStartCountsEventsAnew) {
  const uint64_t waits = send(kAlice, "GET", "/v1/tenants/alice/events", "after=57");
  look({picture("alice", "training")});
  ASSERT_EQ(status(waits), 200);
  EXPECT_EQ(replies[waits].body.get_int("next").value(), 1);
}

TEST_F(ControlRequestsStory, AnAnswerToACommandOfAFileIsNotTakenForOne) {
  EXPECT_FALSE(requests.answer("1", Json::object(), now));
  EXPECT_FALSE(requests.answer("http/1", Json::object(), now));
}

TEST_F(ControlRequestsStory, DataFilesAreStoredByTheOperatorAndMoveToTheTenantThatIsAdded) {
  const uint64_t stored =
      send(kOperator, "PUT", "/v1/uploads/alice/rows.jsonl", "", "{\"prompt\": \"a\"}\n");
  EXPECT_EQ(status(stored), 200);
  EXPECT_THAT(text(stored), HasSubstr(R"("files":["rows.jsonl"])"));
  EXPECT_EQ(status(send(kAlice, "PUT", "/v1/uploads/alice/rows.jsonl", "", "x")), 403);
  EXPECT_EQ(status(send(kOperator, "PUT", "/v1/uploads/alice/..", "", "x")), 400);
  EXPECT_EQ(status(send(kOperator, "PUT", "/v1/uploads/alice/a/b.jsonl", "", "x")), 404);
  EXPECT_EQ(status(send(kOperator, "PUT", "/v1/uploads/../rows.jsonl", "", "x")), 404);
  const std::string file =
      "[tenant.alice]\nenvironment = { name = \"dataset\", file = \"rows.jsonl\" }\n"
      "[tenant.alice.adapter]\nrank = 8\n";
  const uint64_t refused = send(kOperator, "POST", "/v1/tenants", "", file);
  const auto ask = asked();
  const fs::path path = ask.content.get_string("file").value();
  EXPECT_EQ(read_text_file(path).value(), file);
  EXPECT_TRUE(fs::exists(path.parent_path() / "rows.jsonl")) << "names are relative to the file";
  answer(ask, Json::object().set("error", "the graph is full").set("is_bad", true));
  EXPECT_EQ(status(refused), 409);
  EXPECT_FALSE(fs::exists(path.parent_path())) << "its files wait again";
  const uint64_t added = send(kOperator, "POST", "/v1/tenants", "", file);
  const auto again = asked();
  const fs::path folder = fs::path(again.content.get_string("file").value()).parent_path();
  answer(again, Json::object().set("tenant", picture("alice", "starting")));
  EXPECT_EQ(status(added), 200);
  EXPECT_TRUE(fs::exists(folder / "rows.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "tenant.toml"));
  EXPECT_EQ(status(send(kOperator, "POST", "/v1/tenants", "", file)), 400)
      << "the next alice has none of its files";
}

TEST_F(ControlRequestsStory, FilesThatATenantDoesNotNameWaitOn) {
  ASSERT_EQ(status(send(kOperator, "PUT", "/v1/uploads/alice/rows.txt", "", "x")), 200);
  send(kOperator, "POST", "/v1/tenants", "", "# not my_rows.txt\n" + kFile);
  answer(asked(), Json::object().set("tenant", picture("alice", "starting")));
  EXPECT_FALSE(fs::exists(tenant_data_folder(scratch.path())));
  EXPECT_TRUE(fs::exists(scratch.path() / "uploads/files/alice/rows.txt"));
}

TEST_F(ControlRequestsStory, WaitingFilesAreDiscarded) {
  EXPECT_EQ(status(send(kOperator, "DELETE", "/v1/uploads/alice")), 404);
  EXPECT_EQ(status(send(kOperator, "PUT", "/v1/uploads/alice/a.csv", "", "x")), 200);
  EXPECT_EQ(status(send(kAlice, "DELETE", "/v1/uploads/alice")), 403);
  EXPECT_EQ(status(send(kOperator, "DELETE", "/v1/uploads/alice")), 200);
  EXPECT_FALSE(fs::exists(scratch.path() / "uploads/files/alice"));
}

}  // namespace
}  // namespace primerl::testing
