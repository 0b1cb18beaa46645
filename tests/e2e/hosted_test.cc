// Many tenants on one model whose checkpoints are staggered: their record stays bounded, and a
// killed worker soon continues. PRIMERL_HOSTED="64 600" asks for 64 tenants during 600 s.
// The short test takes about 5 s alone, and 15 to 25 s beside two busy processes on two cores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
constexpr uintmax_t kSegmentBytes = uintmax_t{2} << 20;
/// Segments after the newest two saved states stay, whatever bytes_max is: about 4 MB/s.
constexpr uintmax_t kUnsavedBytesMax = uintmax_t{32} << 20;

struct HostedSize {
  int num_tenants = 4;
  int seconds = 0;  // 0: until the oldest segment of the record has been removed
  uintmax_t record_bytes_max = 4 * kSegmentBytes;
};

HostedSize hosted_size() {
  HostedSize size;
  if (const char* wanted = std::getenv("PRIMERL_HOSTED"); wanted != nullptr)
    std::istringstream(wanted) >> size.num_tenants >> size.seconds;
  if (size.seconds > 0) size.record_bytes_max = uintmax_t{64} << 20;
  return size;
}

/// examples/two_tenants without a model, with other tenants. Every fourth saves only at its end.
std::string hosted_graph(const HostedSize& size) {
  std::string tables;
  for (int i = 0; i < size.num_tenants; ++i)
    tables += fmt::format(
        "[tenant.t{}]\nenvironment = {{ name = \"reverse_text\" }}\ngroup_size = 2\n"
        "batch_size = 4\nmax_off_policy_steps = 2\nmax_steps = 1000000\ncheckpoint_every = {}\n"
        "[tenant.t{}.adapter]\nrank = 4\n\n",
        i, i % 4 == 3 ? 1'000'000 : 5 + 7 * i, i);
  tables += fmt::format("[trace]\ncut_every = \"1s\"\nbytes_max = {}\nsegment_bytes = {}\n\n",
                        size.record_bytes_max, kSegmentBytes);
  const std::string text = read_text_file(source_path("examples/two_tenants/graph.toml")).value();
  return text.substr(0, text.find("[tenant.")) + tables + text.substr(text.find("[model."));
}

uintmax_t bytes_of_record(const fs::path& run) {
  uintmax_t bytes = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "trace", none)) {
    std::error_code gone;  // a segment may be removed meanwhile
    const uintmax_t size = fs::file_size(entry.path(), gone);
    if (!gone && entry.path().extension() != ".cut") bytes += size;
  }
  return bytes;
}

/// The record has begun, and its first segment is gone.
bool is_oldest_removed(const fs::path& run) {
  if (fs::exists(run / "trace" / "main.1.1.ptr") || fs::exists(run / "trace" / "main.1.1.ptrz"))
    return false;
  return bytes_of_record(run) > 0;
}

TEST(Hosted, TheRecordOfStaggeredTenantsStaysBoundedAndAKilledWorkerContinues) {
  const HostedSize size = hosted_size();
  const ScratchFolder scratch;
  const fs::path graph = scratch.path() / "graph.toml", run = scratch.path() / "run";
  const fs::path metrics = run / "metrics.jsonl";
  write_text(graph, hosted_graph(size));
  std::vector<std::string> words = {"primerl-graph", "run",        graph.string(),
                                    "--out",         run.string(), "--no-rehearsal"};
  for (const char* set :
       {"resource.engine.backend=\"scripted\"", "resource.learner.backend=\"scripted\""})
    words.insert(words.end(), {"--set", set});
  words.insert(words.end(), {"--set", "model.policy.path=\"" +
                                          source_path("examples/arithmetic_tool/model") + "\""});
  Program program(words);
  ASSERT_TRUE(waits_for("first step", program, [&] { return num_lines(metrics) > 0; }));
  const Time least = steady_now() + Duration::seconds(size.seconds);
  uintmax_t bytes = 0;
  ASSERT_TRUE(waits_for(
      "removal of the record's oldest segment", program,
      [&] {
        bytes = bytes_of_record(run);
        if (bytes > size.record_bytes_max + kUnsavedBytesMax) return true;
        return steady_now() >= least && is_oldest_removed(run);
      },
      kLookEvery, Duration::seconds(size.seconds) + kPatience));
  ASSERT_LE(bytes, size.record_bytes_max + kUnsavedBytesMax)
      << "the saved states of the tenants do not let the record go";
  const Time killed = steady_now();
  const size_t wanted = num_lines(metrics) + static_cast<size_t>(size.num_tenants) + 1;
  const pid_t worker = worker_of(program);
  ASSERT_GT(worker, 0);
  ::kill(worker, SIGKILL);
  ASSERT_TRUE(waits_for("new step of every tenant after the kill", program,
                        [&] { return num_lines(metrics) >= wanted; }));
  if (size.seconds > 0) {
    EXPECT_LE((steady_now() - killed).to_seconds(), 5)
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
