// Many tenants on one model whose checkpoints are staggered: their record stays bounded, and a
// killed worker soon continues. PRIMERL_HOSTED="64 600" asks for 64 tenants during 600 s; it ends
// after 15 minutes at the latest. PRIMERL_HOSTED="64 30" is a look at the same in one minute.
// The short test takes 6 to 10 s alone, and 12 to 25 s beside two busy processes on two cores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <sstream>

#include "runtime/trace/segment_files.h"
#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
constexpr uintmax_t kSegmentBytes = uintmax_t{2} << 20;
constexpr uintmax_t kRecordBytesMax = 4 * kSegmentBytes;
/// The segments after the newest two saved states stay, whatever bytes_max is. A long run may have
/// as many of them as it fills in this time.
constexpr double kUnsavedSecondsMax = 10;

struct HostedSize {
  int num_tenants = 4;
  int seconds = 0;  // at least; 0: until segments of the record were removed twice
};

HostedSize hosted_size() {
  HostedSize size;
  if (const char* wanted = std::getenv("PRIMERL_HOSTED"); wanted != nullptr)
    std::istringstream(wanted) >> size.num_tenants >> size.seconds;
  return size;
}

/// examples/two_tenants without a model, with other tenants. Every fourth saves only at its end.
std::string hosted_graph(int num_tenants) {
  std::string tables;
  for (int i = 0; i < num_tenants; ++i)
    tables += fmt::format(
        "[tenant.t{}]\nenvironment = {{ name = \"reverse_text\" }}\ngroup_size = 2\n"
        "batch_size = 4\nmax_off_policy_steps = 2\nmax_steps = 1000000\ncheckpoint_every = {}\n"
        "[tenant.t{}.adapter]\nrank = 4\n\n",
        i, i % 4 == 3 ? 1'000'000 : 5 + 7 * i, i);
  tables += fmt::format("[trace]\ncut_every = \"200ms\"\nbytes_max = {}\nsegment_bytes = {}\n\n",
                        kRecordBytesMax, kSegmentBytes);
  const std::string text = read_text_file(source_path("examples/two_tenants/graph.toml")).value();
  return text.substr(0, text.find("[tenant.")) + tables + text.substr(text.find("[model."));
}

/// The segments of the first incarnation.
struct Record {
  uint64_t oldest = 0, newest = 0;  // 0: there is none
  uintmax_t bytes = 0;
};

Record record_of(const fs::path& run) {
  Record record;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "trace", none)) {
    const auto segment = parse_segment_path(entry.path());
    if (!segment || segment->incarnation != 1) continue;
    std::error_code gone;  // it may be removed meanwhile
    const uintmax_t size = fs::file_size(entry.path(), gone);
    if (gone) continue;
    record.bytes += size;
    record.newest = std::max(record.newest, segment->number);
    record.oldest = record.oldest == 0 ? segment->number : std::min(record.oldest, segment->number);
  }
  return record;
}

TEST(Hosted, TheRecordOfStaggeredTenantsStaysBoundedAndAKilledWorkerContinues) {
  const HostedSize size = hosted_size();
  const ScratchFolder scratch;
  const fs::path graph = scratch.path() / "graph.toml", run = scratch.path() / "run";
  const fs::path metrics = run / "metrics.jsonl";
  write_text(graph, hosted_graph(size.num_tenants));
  std::vector<std::string> words = {"primerl-graph", "run",        graph.string(),
                                    "--out",         run.string(), "--no-rehearsal"};
  for (const char* set :
       {"resource.engine.backend=\"scripted\"", "resource.learner.backend=\"scripted\""})
    words.insert(words.end(), {"--set", set});
  words.insert(words.end(), {"--set", "model.policy.path=\"" +
                                          source_path("examples/arithmetic_tool/model") + "\""});
  Program program(words);
  ASSERT_TRUE(waits_for("first step", program, [&] { return num_lines(metrics) > 0; }));
  const Time began = steady_now();
  Record record;
  ASSERT_TRUE(waits_for("removal of the record's oldest segment", program, [&] {
    record = record_of(run);
    return record.oldest > 1;
  })) << "the saved states of the tenants do not let the record go";
  // And so on: all segments of that moment go, and none but the newest are left of a long run.
  const uint64_t then = record.newest;
  bool is_bounded = true;
  const auto has_gone_on = [&] {
    record = record_of(run);
    const double seconds = (steady_now() - began).to_seconds();
    const double per_second = static_cast<double>(record.newest * kSegmentBytes) / seconds;
    is_bounded = seconds < kUnsavedSecondsMax ||
                 static_cast<double>(record.bytes) <=
                     static_cast<double>(kRecordBytesMax) + kUnsavedSecondsMax * per_second;
    return !is_bounded || (seconds >= size.seconds && record.oldest > then);
  };
  ASSERT_TRUE(waits_for("removal of all these segments", program, has_gone_on, kLookEvery,
                        Duration::seconds(size.seconds) + kPatience))
      << "segments " << record.oldest << " to " << record.newest;
  ASSERT_TRUE(is_bounded) << record.bytes << " bytes in segments " << record.oldest << " to "
                          << record.newest;
  const Time killed = steady_now();
  const pid_t worker = worker_of(program);
  ASSERT_GT(worker, 0);
  ::kill(worker, SIGKILL);
  // Lines that the killed worker had sent may still come before that.
  ASSERT_TRUE(waits_for("resumed run", program, [&] {
    return program.said().find("the run is live") != std::string::npos;
  }));
  const double live_after = (steady_now() - killed).to_seconds();
  ASSERT_TRUE(has_lines(program, run, num_lines(metrics) + static_cast<size_t>(size.num_tenants)));
  if (size.seconds > 0) {
    EXPECT_LE(live_after, 5) << "seconds until the killed worker has followed its record";
    EXPECT_LE((steady_now() - killed).to_seconds(), 20)
        << "until every tenant, on average, made a new step";
  }
  ::kill(program.pid(), SIGINT);
  const auto end = program.wait(steady_now() + kPatience);
  ASSERT_TRUE(end) << "the run did not drain: " << program.said();
  EXPECT_EQ(end->code, 130) << end->err;
  EXPECT_EQ(end->err.find("resuming from the checkpoint only"), std::string::npos) << end->err;
  const auto verified = run_graph_program({"trace", "verify", run.string()});
  EXPECT_EQ(verified.code, 0) << verified.out;
}

}  // namespace
}  // namespace primerl
