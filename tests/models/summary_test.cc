#include "kernels/models/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// The text for a model with `num_parameters`, which stores 100 values per token.
std::string text_of(int64_t num_parameters) {
  ModelSummary summary;
  summary.num_parameters = summary.num_active = num_parameters;
  summary.kv_elements_per_token = 100;
  return to_text(ModelConfig(), summary);
}

TEST(ModelSummary, CountsParametersInBillionsAndBytesInGigabytes) {
  const std::string text = text_of(1'076'000'000);
  EXPECT_THAT(text, HasSubstr("1.08 B, 1.08 B of them for one token\n"));
  EXPECT_THAT(text, HasSubstr("weights         2.15 GB in bf16, 4.30 GB in fp32\n"));
  EXPECT_THAT(text, HasSubstr("KV of a token   200 B in bf16, 400 B in fp32\n"));
}

TEST(ModelSummary, ChangesItsUnitAtAThousand) {
  EXPECT_THAT(text_of(499), HasSubstr("weights         998 B in bf16"));
  EXPECT_THAT(text_of(500), HasSubstr("weights         1.00 kB in bf16"));
}

}  // namespace
}  // namespace primerl
