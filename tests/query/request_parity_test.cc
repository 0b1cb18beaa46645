// Recorded runs of real actors, with faults: the export contains each of their requests once.
#include <cstdlib>
#include <fstream>
#include <map>

#include <gmock/gmock.h>

#include "graph/base/random.h"
#include "runtime/query/step_text.h"
#include "runtime/trace/frames.h"
#include "tests/query/request_tracks.h"
#include "tests/replay/replay_run.h"

namespace primerl::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The requests in the record, found without the code under test. The rollout of the demo numbers
/// its requests from 0 in the order in which it sends them, to its one router.
struct Recorded {
  std::map<std::string, int64_t> requests;  // their numbers, by the step that first handled them
  std::map<int64_t, double> ended_us;       // by number, of those whose completion was stored
  int num_completions = 0, num_observations = 0;
};

Recorded recorded_in(const Trace& trace) {
  Recorded recorded;
  const auto& catalog = trace.catalog();
  for (uint32_t group = 0; group < catalog.groups.size(); ++group)
    for (uint64_t at = 1; at <= trace.last_step(GroupId(group)); ++at) {
      const auto step = trace.step(GroupId(group), at);
      if (!step || step->kind != StepKind::kMessage) continue;
      const std::string& edge = catalog.links[step->link.index()].edge;
      if (edge == "rollout.generate -> router.generate")
        recorded.requests[step_name(trace, *step)] = static_cast<int64_t>(step->sequence) - 1;
      if (edge.ends_with("-> rollout.completion")) {
        ++recorded.num_completions;
        const auto content = input_json(trace, *step);
        if (content.ok())
          recorded.ended_us[*content->get_int("request")] =
              static_cast<double>(step->began.to_nanoseconds() - catalog.zero_ns) / 1000;
      }
      recorded.num_observations += edge.ends_with("-> rollout.observation");
    }
  return recorded;
}

/// Calls that an environment answered. A draining environment begins none, and calls that hang end
/// without an answer.
int num_answered_calls(const RequestTracks& shown) {
  int count = 0;
  for (const auto& [track, spans] : shown.tracks)
    for (const RequestSpan& span : spans)
      count += track.first == "rollout" && span.name == "environment" &&
               span.facts.find("not in the record") == std::string::npos;
  return count;
}

int num_unanswered(const RequestTracks& shown) {
  int count = 0;
  for (const auto& [track, spans] : shown.tracks)
    count += track.first == "request" &&
             spans.front().facts.find("not in the record") != std::string::npos;
  return count;
}

TEST(RequestParity, EveryRequestOfARunIsShownOnce) {
  for (const Fault fault : kFaults)
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(fmt::format("{} seed {}", to_string(fault), seed));
      DemoCase demo;
      demo.seed = seed;
      demo.fault = fault;
      demo.max_off_policy_steps = static_cast<int64_t>(seed % 3);
      DemoResult run;
      const auto trace = Trace::open(record_demo(demo, run));
      ASSERT_TRUE(trace.ok()) << trace.error().text();
      const RequestTracks shown = tracks_of(**trace, {});
      EXPECT_THAT(shown.faults, IsEmpty());
      const Recorded recorded = recorded_in(**trace);
      EXPECT_EQ(shown.num_of("request", "request"), std::ssize(recorded.requests));
      for (const auto& [step, number] : recorded.requests) {
        const auto track = shown.tracks.find({"request", step});
        ASSERT_NE(track, shown.tracks.end()) << step;
        const RequestSpan& whole = track->second.front();
        EXPECT_THAT(whole.facts, HasSubstr(fmt::format(R"("request":{},)", number))) << step;
        const auto ended = recorded.ended_us.find(number);
        if (ended == recorded.ended_us.end()) continue;
        EXPECT_NEAR(whole.end_us, ended->second, 0.001) << step;
      }
      EXPECT_EQ(num_unanswered(shown),
                static_cast<int>(recorded.requests.size()) - recorded.num_completions);
      EXPECT_EQ(shown.num_of("rollout", "turn"), shown.num_of("request", "request"));
      EXPECT_LE(num_answered_calls(shown), recorded.num_observations);
      EXPECT_GE(shown.num_of("rollout", "environment"), recorded.num_observations - 3);
    }
}

TEST(RequestParity, MissingRecordsBreakNoSpan) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    DemoCase demo;
    demo.fault = Fault::kStragglers;
    demo.max_off_policy_steps = static_cast<int64_t>(seed % 3);
    RandomStream draw(seed);
    const Tamper leave_out = [&](std::span<std::byte> head, std::vector<std::byte>&) {
      const auto kind = reinterpret_cast<const TraceFrameHeader*>(head.data())->kind;
      const bool is_content = kind == static_cast<uint8_t>(TraceFrameKind::kPayload);
      const bool is_step = kind == static_cast<uint8_t>(TraceFrameKind::kDelivery);
      return !(is_content || is_step) || draw.below(10) > 0;
    };
    DemoResult run;
    const auto trace = Trace::open(record_demo(demo, run, leave_out));
    ASSERT_TRUE(trace.ok()) << trace.error().text();
    const RequestTracks shown = tracks_of(**trace, {});
    EXPECT_THAT(shown.faults, IsEmpty());
    EXPECT_GT(shown.num_of("request", "request"), 10);
  }
}

TEST(RequestParity, PythonReadsTheExport) {
  DemoCase demo;
  demo.fault = Fault::kRefusedPrompt;
  DemoResult run;
  const auto trace = Trace::open(record_demo(demo, run));
  ASSERT_TRUE(trace.ok()) << trace.error().text();
  const auto file = scratch_folder() / "export.json";
  std::ofstream out(file);
  ASSERT_TRUE(write_chrome_trace(**trace, {}, [&](std::string_view part) {
                out << part;
                return out.good();
              }).ok());
  out.close();
  const std::string command =
      fmt::format("{} -c \"import json; json.load(open('{}'))['traceEvents'][0]\"", PRIMERL_PYTHON,
                  file.string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace primerl::sim
