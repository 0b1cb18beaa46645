// Clients of a tenant with a limit of tokens a second, at the gateway and at the tinker actor.
#include "tests/actors/tinker_story.h"

namespace primerl::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

struct LimitedTinker : TinkerStory {
  LimitedTinker() { tenants.front().tokens_per_second = 1; }
  std::string sampler() { return new_sampler(new_model(new_session()), 1, 0, 1 << 14); }
};

TEST_F(LimitedTinker, SendsTheNextSampleWhenTheTokensOfTheLastArePaid) {
  const std::string from = sampler();
  sample(from, 0);
  complete(requests().at(0), "xy");  // two tokens of the prompt and two sampled ones
  sample(from, 1);
  EXPECT_THAT(requests(), IsEmpty());
  advance(Duration::seconds(4) - TokenBudget::kBurst - Duration::milliseconds(1));
  EXPECT_THAT(requests(), IsEmpty());
  advance(Duration::milliseconds(1));
  EXPECT_THAT(requests(), SizeIs(1));
}

TEST_F(LimitedTinker, TokensOfACancelledSampleAreCharged) {
  const std::string from = sampler();
  const std::string first = future(sample(from, 0));
  const auto sent = requests();
  said("cancel_future", fmt::format(R"({{"request_id":"{}"}})", first));
  complete(sent.at(0), "wxyz", FinishReason::kCancelled);
  sample(from, 1);
  EXPECT_THAT(requests(), IsEmpty());
  advance(Duration::seconds(4) - TokenBudget::kBurst);
  EXPECT_THAT(requests(), SizeIs(1));
}

TEST_F(GatewayStory, TokensOfARequestWhoseClientHasGoneAreCharged) {
  tenants.front().tokens_per_second = 1;
  const uint64_t first = generate();
  const auto sent = requests();
  leave({first});
  complete(sent.at(0), "wxyz", FinishReason::kCancelled);
  generate();
  EXPECT_THAT(requests(), IsEmpty());
  ASSERT_TRUE(gateway().advance(Duration::seconds(4) - TokenBudget::kBurst).ok());
  work();
  EXPECT_THAT(requests(), SizeIs(1));
}

}  // namespace
}  // namespace primerl::testing
