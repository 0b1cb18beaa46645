#include "tests/tidy/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

namespace primerl::tidy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> faults_of(const std::string& path, const std::string& text) {
  return layer_faults(source_from_text(path, text));
}

TEST(Layers, NameTheFileTheLineAndWhatWouldBeLegal) {
  EXPECT_THAT(faults_of("actors/router/router.cc", "\n#include \"runtime/exec/executor.h\"\n"),
              ElementsAre("actors/router/router.cc:2: actors/ may include actors/, graph/, "
                          "kernels/engine/, kernels/train/, kernels/weights/, kernels/text/, "
                          "kernels/text/chat/, not \"runtime/exec/executor.h\""));
}

TEST(Layers, RefuseEveryArrowTheTableForbids) {
  const std::vector<std::pair<std::string, std::string>> illegal = {
      {"graph/base/ids.h", "#include \"graph/plan.h\""},
      {"graph/plan.cc", "#include \"kernels/engine/engine.h\""},
      {"graph/plan.cc", "#include \"actors/catalog.h\""},
      {"kernels/engine/engine.h", "#include \"graph/plan.h\""},
      {"kernels/engine/engine.h", "#include \"kernels/devices/make.h\""},
      {"kernels/ops/ops.h", "#include \"kernels/engine/engine.h\""},
      {"kernels/weights/channel.h", "#include \"kernels/models/tensors.h\""},
      {"kernels/models/tensors.h", "#include \"kernels/engine/options.h\""},
      {"kernels/models/tensors.h", "#include \"kernels/train/options.h\""},
      {"kernels/cpu/engine/engine.cc", "#include \"kernels/cuda/engine/engine.h\""},
      {"kernels/cuda/engine/engine.cc", "#include \"kernels/cpu/engine/engine.h\""},
      {"kernels/cuda/learner/learner.cc", "#include \"kernels/cuda/engine/decoder.h\""},
      {"kernels/cuda/memory/weights.h", "#include \"kernels/devices/make.h\""},
      {"kernels/cpu/engine/engine.cc", "#include \"actors/messages/generation.h\""},
      {"actors/env/env.h", "#include \"kernels/devices/make.h\""},
      {"actors/env/env.h", "#include \"kernels/scripted/options.h\""},
      {"runtime/exec/actor_group.cc", "#include \"actors/router/router.h\""},
      {"actors/env/env.cc", "#include \"graph/base/real_clock.h\""},
      {"runtime/exec/actor_group.cc", "#include \"kernels/engine/engine.h\""},
      {"runtime/exec/actor_group.cc", "#include \"runtime/store/checkpoint.h\""},
      {"runtime/exec/actor_group.cc", "#include \"runtime/transport/transport.h\""},
      {"runtime/trace/frames.h", "#include \"runtime/trace/read/trace.h\""},
      {"runtime/trace/read/trace.h", "#include \"runtime/trace/record/recorder.h\""},
      {"runtime/worker/worker_host.cc", "#include \"runtime/control/run_session.h\""},
  };
  for (const auto& [path, line] : illegal)
    EXPECT_EQ(faults_of(path, line).size(), 1u) << path << ": " << line;
}

TEST(Layers, RefuseThirdPartiesOutsideTheirFence) {
  const std::vector<std::pair<std::string, std::string>> illegal = {
      {"runtime/exec/actor_group.cc", "#include <caf/all.hpp>"},
      {"graph/base/result.cc", "#include <nlohmann/json.hpp>"},
      {"graph/config/graph_file.cc", "#include <toml++/toml.h>"},
      {"runtime/store/checkpoint.cc", "#include <msgpack.hpp>"},
      {"kernels/train/loss.cc", "#include <ATen/core/Tensor.h>"},
      {"actors/env/env.cc", "#include <thread>"},
      {"actors/env/env.cc", "#include <sys/socket.h>"},
      {"graph/plan.cc", "#include <mutex>"},
      {"graph/plan.cc", "#include <boost/asio.hpp>"},
  };
  for (const auto& [path, line] : illegal)
    EXPECT_EQ(faults_of(path, line).size(), 1u) << path << ": " << line;
}

TEST(Layers, AllowWhatTheTableAllows) {
  EXPECT_THAT(faults_of("runtime/exec/caf_executor.cc", "#include <caf/all.hpp>"), IsEmpty());
  EXPECT_THAT(faults_of("runtime/backends/backends.cc", "#include \"kernels/devices/make.h\""),
              IsEmpty());
  EXPECT_THAT(faults_of("actors/decode/decode.h", "#include \"kernels/engine/engine.h\""),
              IsEmpty());
  EXPECT_THAT(faults_of("graph/base/json.cc", "#include <nlohmann/json.hpp>"), IsEmpty());
}

TEST(Layers, HaveNoCircle) {
  std::set<std::string> done;
  size_t before = SIZE_MAX;
  // Some folders are named one by one; the other names include all folders inside.
  const auto names = [](const std::string& below, const std::string& folder) {
    const bool is_exact = below.starts_with("runtime/") || below == "kernels/text/";
    return is_exact ? folder == below : folder.starts_with(below);
  };
  const auto is_done = [&](const Layer& layer, const std::string& below) {
    return std::all_of(layers().begin(), layers().end(), [&](const Layer& other) {
      return other.folder == layer.folder || !names(below, other.folder) ||
             done.contains(other.folder);
    });
  };
  // A folder is done when all that it may include is done; a folder of a cycle never is.
  while (done.size() != std::exchange(before, done.size()))
    for (const auto& layer : layers())
      if (std::all_of(layer.may_include.begin(), layer.may_include.end(),
                      [&](const std::string& below) { return is_done(layer, below); }))
        done.insert(layer.folder);
  for (const auto& layer : layers())
    EXPECT_TRUE(done.contains(layer.folder)) << layer.folder << " is in a cycle";
}

TEST(Layers, HoldInTheWholeTree) {
  int64_t num_files = 0;
  for (const auto& file : cpp_files()) {
    for (const auto& fault : layer_faults(file)) ADD_FAILURE() << fault;
    ++num_files;
  }
  EXPECT_GT(num_files, 50) << "the tree was not found below " << PRIMERL_SOURCE_DIR;
}

TEST(Layers, EveryRoomIsInTheTable) {
  for (const auto& file : cpp_files()) {
    if (!starts_with_any(file.path, {"graph/", "kernels/", "actors/", "runtime/"})) continue;
    bool found = false;
    for (const auto& layer : layers()) found = found || file.path.starts_with(layer.folder);
    EXPECT_TRUE(found) << file.path
                       << " is in no folder that docs/design/architecture.md or kernels.md names";
  }
}

TEST(SourceTree, CommentsAndStringsAreNotCode) {
  const auto file = source_from_text("x.cc",
                                     "int a = 1'000; // rand()\n"
                                     "auto s = \"rand() \\\" rand()\"; f();\n"
                                     "auto r = R\"x(rand()\nrand())x\"; g();\n"
                                     "/* rand()\n rand() */ h();\n");
  const auto code = code_of(file);
  ASSERT_EQ(code.size(), 6u);
  for (const auto& line : code) EXPECT_THAT(line, ::testing::Not(HasSubstr("rand")));
  EXPECT_THAT(code[0], HasSubstr("1'000;"));
  EXPECT_THAT(code[1], HasSubstr("f();"));
  EXPECT_THAT(code[3], HasSubstr("g();"));
  EXPECT_THAT(code[5], HasSubstr("h();"));
}

}  // namespace
}  // namespace primerl::tidy
