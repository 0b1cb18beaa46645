// Settings with which PyTorch's allocator would end the process are refused earlier.
#include "runtime/program/allocator_settings.h"

#include <gmock/gmock.h>

#include "tests/cli/program.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string fault_of(std::string_view text) {
  const Status valid = check_allocator_settings("PYTORCH_CUDA_ALLOC_CONF", text);
  return valid.ok() ? "" : valid.error().message();
}

TEST(AllocatorSettings, RefusedOnesNameTheVariableThePartAndTheValidKeys) {
  const Status valid =
      check_allocator_settings("PYTORCH_ALLOC_CONF", "expandable_segments:True, nonsense:1");
  ASSERT_FALSE(valid.ok());
  EXPECT_EQ(valid.error().message(),
            "environment variable PYTORCH_ALLOC_CONF: 'nonsense:1' has an unknown key");
  EXPECT_THAT(valid.error().text(), AllOf(HasSubstr("backend, expandable_segments"),
                                          HasSubstr("max_split_size_mb"), HasSubstr("unset it")));
  EXPECT_THAT(fault_of("nonsense"), HasSubstr("'nonsense' is not KEY:VALUE"));
  EXPECT_THAT(fault_of("max_split_size_mb:"), HasSubstr("is not KEY:VALUE"));
  EXPECT_THAT(fault_of("expandable_segments=True"), HasSubstr("is not KEY:VALUE"));
  EXPECT_THAT(fault_of("max_split_size_mb:32,,"), HasSubstr("'' is not KEY:VALUE"));
  EXPECT_THAT(fault_of("max_split_size_mb:32;expandable_segments:True"),
              HasSubstr("needs a whole number of at least 20"));
}

TEST(AllocatorSettings, HaveValuesWithinThePyTorchLimits) {
  for (const char* valid :
       {"", "max_split_size_mb:20", "max_split_size_mb:32,", "expandable_segments:True",
        " max_split_size_mb : 64 , backend:native ", "backend:cudaMallocAsync",
        "garbage_collection_threshold:0.8", "per_process_memory_fraction:1",
        "roundup_power2_divisions:4", "roundup_power2_divisions:[256:1,512:2,>:4]",
        "roundup_power2_divisions:[256:1],expandable_segments:False",
        "pinned_num_register_threads:128", "large_segment_size_mb:11"})
    EXPECT_EQ(fault_of(valid), "") << valid;
  for (const char* invalid :
       {"max_split_size_mb:19", "max_split_size_mb:x", "max_split_size_mb:-1",
        "max_non_split_rounding_mb:19", "expandable_segments:true", "backend:mine",
        "garbage_collection_threshold:1", "garbage_collection_threshold:0",
        "per_process_memory_fraction:1.1", "roundup_power2_divisions:3",
        "roundup_power2_divisions:[256:1", "roundup_power2_divisions:[255:1]",
        "roundup_power2_divisions:[>:1,256:1]", "pinned_num_register_threads:129",
        "pinned_num_register_threads:3", "large_segment_size_mb:10"})
    EXPECT_NE(fault_of(invalid), "") << invalid;
}

TEST(AllocatorSettings, OfAPlaceComeBeforeThoseOfThisProcess) {
  const std::vector<std::string> bad = {"PYTORCH_ALLOC_CONF=nonsense"}, good = {"OTHER=nonsense"};
  EXPECT_FALSE(check_allocator_settings(bad).ok());
  EXPECT_TRUE(check_allocator_settings(good).ok());
}

TEST(AllocatorSettings, AreCheckedBeforeAWorkerIsStarted) {
  const std::string bad = "PYTORCH_CUDA_ALLOC_CONF=nonsense";
  const auto generate = run_graph_program({"generate", "--model", "m", "--prompt", "a"},
                                          {bad, "PRIMERL_WORKER=/nowhere/primerl-worker"});
  EXPECT_EQ(generate.code, 2);
  EXPECT_THAT(generate.err, HasSubstr("PYTORCH_CUDA_ALLOC_CONF: 'nonsense' is not KEY:VALUE"));
  const auto run = run_graph_program(
      {"run", source_path("tests/cli/graphs/scripted.toml"), "--out", "/nowhere/run"}, {bad});
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, HasSubstr("process 'main': environment variable PYTORCH_CUDA_ALLOC_CONF"));
  const auto doctor = run_graph_program({"doctor"}, {bad});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out, HasSubstr("PYTORCH_CUDA_ALLOC_CONF: 'nonsense'"));
}

TEST(Device, OfACommandWithOneModelIsCheckedBeforeAnythingIsLoaded) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", "--prompt", "a"},
        {"score", "--ids-file", "ids.txt"},
        {"train-step", "--batch", "b.safetensors"}}) {
    std::vector<std::string> words = command;
    words.insert(words.end(), {"--model", "m", "--device", "gpu:1"});
    const auto end = run_graph_program(words);
    EXPECT_EQ(end.code, 3) << command[0];
    EXPECT_THAT(end.err, HasSubstr("--device 'gpu:1' is no device; did you mean 'cuda:1'?"))
        << command[0];
    EXPECT_THAT(end.out, IsEmpty()) << command[0];
  }
}

}  // namespace
}  // namespace primerl
