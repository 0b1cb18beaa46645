/// fuzz/agent_fuzz.cc over its corpus, every truncation and seeded mutations of it.
#include "fuzz/agent_fuzz.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "graph/base/random.h"

namespace primerl {
namespace {

using Bytes = std::vector<std::byte>;
const std::filesystem::path kCorpus = PRIMERL_SOURCE_DIR "/fuzz/corpus/agent";

/// One frame of every message, each the first of its connection.
std::vector<std::pair<std::string, Bytes>> wholesome() {
  std::vector<std::pair<std::string, Bytes>> all;
  AgentGreeting greeting = own_greeting(7, "1.2.3");
  greeting.agent_types = 5;
  greeting.challenge = 9;
  all.emplace_back("greeting", encode_greeting(greeting));
  const auto add = [&](const std::string& name, const Payload& message) {
    AgentFrames frames;
    all.emplace_back(name, *frames.encode(message));
  };
  PrepareRun order;
  order.run_id = "0123456789abcdef";
  order.graph = "split";
  order.run_folder = "/shared/run";
  add("prepare_run", Payload::of(order));
  add("run_prepared", Payload::of(RunPrepared{{3, "no", {"note"}}, 12, 1}));
  add("launch_worker", Payload::of(LaunchWorker{1, "training", {"host"}, {"A=b"}, "/x/logs/y"}));
  add("worker_launched", Payload::of(WorkerLaunched{1, {}, 77}));
  add("worker_exited", Payload::of(WorkerExited{1, -1, 9, "its last words\n"}));
  add("kill_worker", Payload::of(KillWorker{1}));
  add("tunnel_bytes", Payload::of(TunnelBytes{1, {1, 2, 3, 4}}));
  add("tunnel_credit", Payload::of(TunnelCredit{1, 1 << 20}));
  add("tunnel_ended", Payload::of(TunnelEnded{1}));
  add("agent_beat", Payload::of(AgentBeat{4}));
  add("agent_leaving", Payload::of(AgentLeaving{"told to stop"}));
  add("leave_run", Payload::of(LeaveRun{"its end"}));
  add("run_dropped", Payload::of(RunDropped{"its end"}));
  return all;
}

std::vector<Bytes> corpus() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> all;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(content));
    all.emplace_back(bytes.begin(), bytes.end());
  }
  return all;
}

TEST(AgentFuzz, TheCorpusHasOneFrameOfEveryMessage) {
  const auto frames = wholesome();
  if (std::getenv("PRIMERL_UPDATE_GOLDEN") != nullptr)
    for (const auto& [name, bytes] : frames)
      std::ofstream(kCorpus / name, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
  EXPECT_EQ(frames.size(), agent_message_catalog().size() + 1);
  size_t num_taken = 0;
  for (const Bytes& input : corpus()) num_taken += fuzz_agent_frame(input);
  // If a message was changed, its frame changed too: write the corpus again.
  EXPECT_EQ(num_taken, agent_message_catalog().size());
}

TEST(AgentFuzz, SurvivesItsCorpusAndEveryTruncation) {
  for (const Bytes& input : corpus())
    for (size_t size = 0; size <= input.size(); ++size) fuzz_agent(std::span(input).first(size));
}

TEST(AgentFuzz, SurvivesSeededMutations) {
  const auto inputs = corpus();
  ASSERT_FALSE(inputs.empty());
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomStream random(seed);
    Bytes input = inputs[random.below(inputs.size())];
    for (uint64_t i = 0; i <= random.below(6) && !input.empty(); ++i) {
      const size_t at = random.below(input.size());
      switch (random.below(3)) {
        case 0:
          input[at] ^= static_cast<std::byte>(1 << random.below(8));
          break;
        case 1:
          input[at] = static_cast<std::byte>(random.below(256));
          break;
        default:
          input.erase(input.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    fuzz_agent(input);
    if (input.size() > kFrameHeaderBytes)
      (void)fuzz_agent_bodies(std::span(input).subspan(kFrameHeaderBytes));
  }
}

}  // namespace
}  // namespace primerl
