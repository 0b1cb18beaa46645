// Many tenants on one model whose checkpoints are staggered: their record stays bounded, and a
// killed worker soon continues. PRIMERL_HOSTED="64 600" asks for 64 tenants during 600 s.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using HostedClock = std::chrono::steady_clock;

constexpr uintmax_t kRecordBytesMax = uintmax_t{64} << 20;
constexpr uintmax_t kSegmentBytes = uintmax_t{2} << 20;
/// Segments after the newest two saved states stay, whatever bytes_max is: about 4 MB/s.
constexpr uintmax_t kUnsavedBytesMax = kRecordBytesMax / 2;

struct HostedSize {
  int num_tenants = 4;
  int seconds = 0;  // 0: until the oldest segment of the record has been removed
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
  tables += fmt::format("[trace]\ncut_every = \"1s\"\nbytes_max = {}\nsegment_bytes = {}\n\n",
                        kRecordBytesMax, kSegmentBytes);
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

bool has_oldest_segment(const fs::path& run) {
  return fs::exists(run / "trace" / "main.1.1.ptr") || fs::exists(run / "trace" / "main.1.1.ptrz");
}

double seconds_since(HostedClock::time_point begin) {
  return std::chrono::duration<double>(HostedClock::now() - begin).count();
}

TEST(Hosted, TheRecordOfStaggeredTenantsStaysBoundedAndAKilledWorkerContinues) {
  const HostedSize size = hosted_size();
  const ScratchFolder scratch;
  const fs::path graph = scratch.path() / "graph.toml", run = scratch.path() / "run";
  write_text(graph, hosted_graph(size.num_tenants));
  std::vector<std::string> words = {"primerl-graph", "run",        graph.string(),
                                    "--out",         run.string(), "--no-rehearsal"};
  for (const char* set :
       {"resource.engine.backend=\"scripted\"", "resource.learner.backend=\"scripted\""})
    words.insert(words.end(), {"--set", set});
  words.insert(words.end(), {"--set", "model.policy.path=\"" +
                                          source_path("examples/arithmetic_tool/model") + "\""});
  Program program(words);
  while (num_lines(run / "metrics.jsonl") == 0 || !has_oldest_segment(run))
    ASSERT_TRUE(program.is_running());
  const auto began = HostedClock::now();
  while (has_oldest_segment(run) || seconds_since(began) < size.seconds) {
    ASSERT_TRUE(program.is_running());
    ASSERT_LE(bytes_of_record(run), kRecordBytesMax + kUnsavedBytesMax)
        << "the saved states of the tenants do not let the record go";
  }
  const auto killed = HostedClock::now();
  const size_t num_before = num_lines(run / "metrics.jsonl");
  ::kill(worker_of(program), SIGKILL);
  while (num_lines(run / "metrics.jsonl") <= num_before + static_cast<size_t>(size.num_tenants))
    ASSERT_TRUE(program.is_running());
  if (size.seconds > 0) {
    EXPECT_LE(seconds_since(killed), 5) << "until every tenant, on average, made a new step";
  }
  ::kill(program.pid(), SIGINT);
  const auto end = program.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  EXPECT_EQ(end.err.find("resuming from the checkpoint only"), std::string::npos) << end.err;
  const auto verified = run_graph_program({"trace", "verify", run.string()});
  EXPECT_EQ(verified.code, 0) << verified.out;
}

}  // namespace
}  // namespace primerl
