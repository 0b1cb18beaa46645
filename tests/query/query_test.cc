// Queries of a trace: the answers match the story.
#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/query/causes.h"
#include "runtime/query/chrome_trace.h"
#include "runtime/query/stat.h"
#include "runtime/query/step_filter.h"
#include "runtime/query/step_story.h"
#include "runtime/query/step_text.h"
#include "runtime/trace/schema.h"
#include "runtime/wire/msgpack_codec.h"
#include "tests/trace/segment_files.h"
#include "tests/trace/story.h"

namespace primerl {
namespace {

using namespace story;  // NOLINT: the story's own vocabulary
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Queries : public ::testing::Test {
 protected:
  Queries() {
    Story({.num_rounds = 40, .seed = 5}).write(folder_.path());
    trace_ = open_trace(folder_.path());
  }
  FoundSteps find(const StepQuery& query, uint64_t limit = 1000) {
    const auto filter = StepFilter::make(*trace_, query);
    EXPECT_TRUE(filter.ok()) << filter.error().text();
    return find_steps(*trace_, *filter, limit);
  }
  std::string complaint(const StepQuery& query) {
    const auto filter = StepFilter::make(*trace_, query);
    EXPECT_FALSE(filter.ok());
    return filter.ok() ? "" : filter.error().text();
  }
  TraceStep step(std::string_view name) {
    const auto found = find_step(*trace_, name);
    EXPECT_TRUE(found.ok()) << found.error().text();
    return *found;
  }

  TestFolder folder_;
  std::shared_ptr<const Trace> trace_;
};

TEST_F(Queries, FiltersNarrowByNodeEdgeTypeStepAndTime) {
  EXPECT_EQ(find({}).steps.size(), trace_->num_steps());
  EXPECT_EQ(find({.nodes = {"env"}}).steps.size(), 40u);
  EXPECT_EQ(find({.nodes = {"rollout"}}).steps.size(), 50u);
  EXPECT_EQ(find({.nodes = {"env", "rollout.main"}}).steps.size(), 90u);
  EXPECT_EQ(find({.edges = {"rollout.group->trainer.group"}}).steps.size(), 40u);
  EXPECT_EQ(find({.edges = {"rollout.policy"}}).steps.size(), 10u);
  EXPECT_EQ(find({.types = {"Live"}}).steps.size(), 10u);
  EXPECT_EQ(find({.tenants = {"main"}}).steps.size(), 90u);
  EXPECT_EQ(find({.nodes = {"trainer"}, .steps = "10..20"}).steps.size(), 11u);
  EXPECT_EQ(find({.nodes = {"trainer"}, .steps = "50"}).steps.size(), 1u);
  EXPECT_EQ(find({.nodes = {"trainer"}, .steps = "51.."}).steps.size(), 0u);
  const double middle = seconds_of(trace_->catalog(), step("env:20").began);
  EXPECT_EQ(find({.nodes = {"env"}, .from_seconds = middle}).steps.size(), 21u);
  EXPECT_EQ(find({.nodes = {"env"}, .to_seconds = middle}).steps.size(), 20u);
}

/// With two tenants: a tenant's steps are its messages, in any actor, and all other steps of its
/// own actors.
TEST(TenantSteps, AreItsMessagesAndTheStepsOfItsActors) {
  TestFolder folder;
  Story story({.num_rounds = 40});
  story.catalog.tenants = {"main", "other"};
  story.catalog.instances[kTrainer].tenant = 1;
  story.write(folder.path());
  const auto trace = open_trace(folder.path());
  const auto count = [&trace](std::vector<std::string> tenants) {
    const auto filter = StepFilter::make(*trace, {.tenants = std::move(tenants)});
    EXPECT_TRUE(filter.ok()) << filter.error().text();
    return find_steps(*trace, *filter, 1000).steps.size();
  };
  EXPECT_EQ(count({"main"}), 90U) << "all messages belong to it";
  EXPECT_EQ(count({"other"}), 10U) << "work calls of a group whose only actor is its trainer";
  EXPECT_EQ(count({"main", "other"}), 100U) << "work calls of the shared env belong to no tenant";
  ChromeOptions options;
  options.filter = StepFilter::make(*trace, {.tenants = {"other"}}).value();
  std::string text;
  ASSERT_TRUE(write_chrome_trace(*trace, options, [&text](std::string_view part) {
                text += part;
                return true;
              }).ok());
  size_t num_slices = 0;
  for (size_t at = text.find("\"ph\":\"X\""); at != std::string::npos;
       at = text.find("\"ph\":\"X\"", at + 1))
    ++num_slices;
  EXPECT_EQ(num_slices, 10U);
}

TEST_F(Queries, FieldsAreFoundAtAnyDepth) {
  EXPECT_EQ(find({.fields = {"ordinal=7"}}).steps.size(), 2u);  // the task and its group
  EXPECT_EQ(find({.fields = {"members.trajectory=15"}}).steps.size(), 1u);
  EXPECT_EQ(find({.fields = {"trajectory=15"}}).steps.size(), 1u);
  EXPECT_EQ(find({.session = 15}).steps.size(), 1u);
  EXPECT_EQ(find({.fields = {"reward>=0"}}).steps.size(), 40u);
  EXPECT_EQ(find({.fields = {"reward>1"}}).steps.size(), 0u);
  EXPECT_EQ(find({.types = {"Live"}, .fields = {"version<=3"}}).steps.size(), 3u);
}

TEST_F(Queries, TheLimitIsKeptAndTheRestCounted) {
  const auto exact = find({.nodes = {"env"}}, 40);
  EXPECT_EQ(exact.steps.size(), 40u);
  EXPECT_EQ(exact.num_more, 0u);
  const auto cut = find({.nodes = {"env"}}, 39);
  EXPECT_EQ(cut.steps.size(), 39u);
  EXPECT_EQ(cut.num_more, 1u);
  EXPECT_THAT(to_text(*trace_, cut, false), HasSubstr("1 more: raise --limit"));
}

TEST_F(Queries, UnknownNamesAreToldTheNearest) {
  EXPECT_THAT(complaint({.nodes = {"trianer"}}), HasSubstr("did you mean 'trainer'?"));
  EXPECT_THAT(complaint({.types = {"Groups"}}), HasSubstr("did you mean 'Group'?"));
  EXPECT_THAT(complaint({.edges = {"a.b"}}), HasSubstr("env.task -> rollout.task"));
  EXPECT_THAT(complaint({.fields = {"rewrad"}}), HasSubstr("compares no field"));
  EXPECT_THAT(complaint({.fields = {"wages=1"}}), HasSubstr("no message type"));
  EXPECT_THAT(complaint({.tenants = {"mian"}}),
              HasSubstr("no tenant 'mian' in this trace\n   its tenants: main"));
  EXPECT_THAT(complaint({.steps = "20..10"}), HasSubstr("is no range of steps"));
  EXPECT_THAT(complaint({.steps = "x"}), HasSubstr("is no range of steps"));
}

TEST_F(Queries, AFilterThatCanFindNothingIsRefused) {
  for (const std::string test : {"reward<", "reward<=", "reward>", "reward>="})
    EXPECT_THAT(complaint({.fields = {test}}), HasSubstr("'" + test + "' compares no field"));
  EXPECT_EQ(find({.fields = {"reward="}}).steps.size(), 0u) << "a text may be empty";
  EXPECT_THAT(complaint({.from_seconds = 5, .to_seconds = 1}), HasSubstr("is no time"));
  EXPECT_EQ(find({.from_seconds = 1e10, .to_seconds = 1e10}).steps.size(), 0u);
  EXPECT_EQ(find({.from_seconds = 0, .to_seconds = 1e10}).steps.size(), trace_->num_steps());
}

TEST_F(Queries, AStepOutOfRangeIsToldTheRange) {
  const auto beyond = find_step(*trace_, "env:41");
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(beyond.error().text(), HasSubstr("its steps go from 1 to 40"));
  EXPECT_TRUE(find_step(*trace_, "env:40").ok());
  EXPECT_FALSE(find_step(*trace_, "env").ok());
}

TEST_F(Queries, StatCountsEveryEdge) {
  const TraceStat stat = stat_trace(*trace_);
  ASSERT_EQ(stat.edges.size(), 3u);
  EXPECT_EQ(stat.edges[kGroupLink].num_messages, 40u);
  EXPECT_EQ(stat.edges[kGroupLink].num_stored, 40u);
  EXPECT_EQ(stat.edges[kGroupLink].num_absent, 0u);
  EXPECT_TRUE(stat.edges[kGroupLink].has_queue);
  EXPECT_GT(stat.edges[kGroupLink].handler_p99_us, 4u);
  EXPECT_LE(stat.edges[kGroupLink].handler_p99_us, 30u);
  EXPECT_TRUE(stat.edges[kGroupLink].has_lag);
  EXPECT_EQ(stat.edges[kGroupLink].lag_max, 0);
  EXPECT_FALSE(stat.edges[kTaskLink].has_lag);
  EXPECT_EQ(stat.groups[kTrainer].messages.num_steps, 40u);
  EXPECT_EQ(stat.groups[kTrainer].turns.num_steps, 10u);
  EXPECT_TRUE(stat.replays_from_start);
  EXPECT_EQ(stat.versions.back().version, 10);
  EXPECT_THAT(to_text(*trace_, stat), Not(HasSubstr("INCOMPLETE")));
}

/// The sum over all tenants, counted step by step, equals the totals of the indices.
TEST_F(Queries, StatOfAFilterCountsItsStepsAlone) {
  const TraceStat all = stat_trace(*trace_);
  const TraceStat same = stat_trace(*trace_, StepFilter::make(*trace_, {}).value());
  ASSERT_EQ(same.edges.size(), all.edges.size());
  for (const EdgeStat& edge : same.edges) {
    const auto& whole = *std::ranges::find(all.edges, edge.edge, &EdgeStat::edge);
    EXPECT_EQ(edge.num_messages, whole.num_messages);
    EXPECT_EQ(edge.num_bytes, whole.num_bytes);
    EXPECT_EQ(edge.handler_p99_us, whole.handler_p99_us);
    EXPECT_EQ(edge.has_queue, whole.has_queue);
    EXPECT_EQ(edge.has_lag, whole.has_lag);
  }
  EXPECT_EQ(same.groups[kTrainer].turns.num_steps, all.groups[kTrainer].turns.num_steps);
  const TraceStat few = stat_trace(*trace_, StepFilter::make(*trace_, {.steps = "1..10"}).value());
  EXPECT_EQ(few.groups[kTrainer].last_step, 10U);
  EXPECT_LT(few.edges[0].num_messages, all.edges[0].num_messages);
  EXPECT_EQ(to_json(*trace_, few).dump().find("num_absent"), std::string::npos);
}

TEST(Stat, OverwrittenAndAbsentMessagesAreToldApart) {
  TestFolder folder;
  Story story({.num_rounds = 40});
  story.remove(story.delivery(kRollout, 10));  // policy 2: its sequence number never arrives
  story.remove(story.delivery(kTrainer, 12));  // group 10: its sequence number never arrives either
  story.write(folder.path());
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  const TraceStat stat = stat_trace(*trace);
  EXPECT_EQ(stat.edges[kLiveConnection].num_overwritten, 1u);
  EXPECT_EQ(stat.edges[kLiveConnection].num_absent, 0u);
  EXPECT_EQ(stat.edges[kGroupLink].num_overwritten, 0u);
  EXPECT_EQ(stat.edges[kGroupLink].num_absent, 1u);
  const std::string text = to_text(*trace, stat);
  EXPECT_THAT(text, HasSubstr("INCOMPLETE"));
  EXPECT_THAT(text, HasSubstr("1 NOT IN THE RECORD"));
  EXPECT_FALSE(stat.replays_from_start);
}

std::vector<std::string> names_of(const Trace& trace, const Chain& chain) {
  std::vector<std::string> names;
  for (const auto& entry : chain.entries) names.push_back(step_name(trace, entry.step));
  return names;
}

TEST_F(Queries, WhyWalksAMessageBackToItsSource) {
  // The second group: rollout's second step, from the task of the environment's second work call.
  EXPECT_THAT(names_of(*trace_, why(*trace_, step("trainer:2"), 100)),
              ElementsAre("trainer:2", "rollout.main:2", "env:2"));
}

TEST_F(Queries, WhyOfABatchNamesAllItsGroups) {
  // In steps 1 to 4 the trainer accepts groups and in step 5 it publishes; step 10 is the next work
  // call.
  const Chain chain = why(*trace_, step("trainer:10"), 100);
  const auto names = names_of(*trace_, chain);
  for (const char* group : {"trainer:6", "trainer:7", "trainer:8", "trainer:9"})
    EXPECT_THAT(names, ::testing::Contains(group));
  EXPECT_THAT(names, Not(::testing::Contains("trainer:4")));
  for (const char* source : {"env:5", "env:6", "env:7", "env:8"})
    EXPECT_THAT(names, ::testing::Contains(source));
}

TEST_F(Queries, ChainsStopAtTheirLimitAndSaySo) {
  const Chain whole = why(*trace_, step("trainer:2"), 3);
  EXPECT_EQ(whole.entries.size(), 3u);
  EXPECT_FALSE(whole.is_cut);
  const Chain cut = why(*trace_, step("trainer:2"), 2);
  EXPECT_EQ(cut.entries.size(), 2u);
  EXPECT_TRUE(cut.is_cut);
  EXPECT_THAT(to_text(*trace_, cut), HasSubstr("cut at 2 steps"));
}

TEST_F(Queries, AfterWalksForward) {
  EXPECT_THAT(names_of(*trace_, after(*trace_, step("env:2"), 100)),
              ElementsAre("env:2", "rollout.main:2", "trainer:2"));
  EXPECT_THAT(names_of(*trace_, after(*trace_, step("trainer:5"), 100)),
              ElementsAre("trainer:5", "rollout.main:5"));
  EXPECT_TRUE(after(*trace_, step("env:2"), 2).is_cut);
}

TEST_F(Queries, CatShowsInputAndEmissions) {
  const Json json = step_story_json(*trace_, step("rollout.main:2"));
  EXPECT_EQ(json.find("content")->find("payload")->find("ordinal")->as_int(), 2);
  ASSERT_EQ(json.find("emissions")->as_array().size(), 1u);
  const Json& emission = json.find("emissions")->as_array()[0];
  EXPECT_EQ(emission.find("delivered")->as_string(), "trainer:2");
  EXPECT_EQ(emission.find("content")->find("payload")->find("members")->as_array().size(), 2u);
  EXPECT_THAT(step_story_text(*trace_, step("rollout.main:2")), HasSubstr("handled at trainer:2"));
}

TEST_F(Queries, ChromeExportIsJsonWithSlicesArrowsAndCounters) {
  std::string text;
  ASSERT_TRUE(write_chrome_trace(*trace_, {}, [&](std::string_view part) {
                text += part;
                return true;
              }).ok());
  const auto json = parse_json(text, "export");
  ASSERT_TRUE(json.ok()) << json.error().text();
  std::map<std::string, int> count;
  int64_t waiting_end = -1;
  for (const auto& event : json->find("traceEvents")->as_array()) {
    ++count[event.find("ph")->as_string()];
    if (event.find("name")->as_string() == "waiting trainer")
      waiting_end = event.find("args")->find("messages")->as_int();
  }
  EXPECT_EQ(count["X"], 140);
  EXPECT_EQ(count["s"], 90);
  EXPECT_EQ(count["f"], 90);
  EXPECT_GT(count["C"], 90);
  EXPECT_EQ(waiting_end, 0);
  EXPECT_FALSE(write_chrome_trace(*trace_, {}, [](std::string_view) { return false; }).ok());
}

TEST(Schema, BodiesAreReadWithoutTheirStruct) {
  Group group{7, PolicyVersion(3), {{15, 0.25, {1, -2, 3}}}, Blob(std::vector<std::byte>(5))};
  const Payload payload = Payload::of(group);
  const auto encoded = encode_message(payload);
  const auto schema = read_schema(message_type<Group>().schema);
  ASSERT_TRUE(schema.ok()) << schema.error().text();
  const auto json = body_json(*schema, encoded->body, encoded->blobs);
  ASSERT_TRUE(json.ok()) << json.error().text();
  EXPECT_EQ(json->dump(), R"({"ordinal":7,"version":3,"members":[{"trajectory":15,"reward":0.25,)"
                          R"("tokens":[1,-2,3]}],"routing":{"blob_bytes":5}})");
  const auto outline = body_outline(*schema, encoded->body, encoded->blobs);
  ASSERT_TRUE(outline.ok()) << outline.error().text();
  EXPECT_EQ(outline->dump(), R"({"ordinal":7,"version":3,"members":[{"trajectory":15,)"
                             R"("reward":0.25,"tokens":3}],"routing":{"blob_bytes":5}})");
  EXPECT_THAT(*body_versions(*schema, encoded->body, encoded->blobs), ElementsAre(3));
}

TEST(Schema, EveryCutAndEveryChangedByteIsSurvived) {
  const Payload payload =
      Payload::of(Group{7, PolicyVersion(3), {{15, 0.25, {1, -2, 3}}, {16, 1, {}}}, {}});
  const auto encoded = encode_message(payload);
  const auto schema = read_schema(message_type<Group>().schema);
  for (size_t size = 0; size < encoded->body.size(); ++size)
    EXPECT_FALSE(body_json(*schema, std::span(encoded->body).first(size), encoded->blobs).ok());
  for (size_t at = 0; at < encoded->body.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      auto body = encoded->body;
      body[at] ^= static_cast<std::byte>(1 << bit);
      (void)body_json(*schema, body, encoded->blobs);
    }
}

TEST(Schema, HostileSchemasAreRefused) {
  for (const char* text : {"a", "a:", "a:i32", ":i32;", "a:i33;", "a:list<i32;", "a:{b:i32;",
                           "a:i32;}", "a:list<list<>>;", "a:i32;;"})
    EXPECT_FALSE(read_schema(text).ok()) << text;
  const auto nested = [](size_t depth) {
    std::string text = "a:";
    for (size_t i = 0; i < depth; ++i) text += "list<";
    text += "u64";
    for (size_t i = 0; i < depth; ++i) text += ">";
    return text + ";";
  };
  EXPECT_TRUE(read_schema(nested(kNestingMax - 2)).ok());
  EXPECT_FALSE(read_schema(nested(kNestingMax - 1)).ok());
}

}  // namespace
}  // namespace primerl
