/// An engine under conformance tests, and code that these tests share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/engine/options.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct EngineUnderTest {
  std::string name;
  int32_t vocab_size = 0;  // tokens are [0, vocab_size)
  std::function<std::unique_ptr<Engine>(const EngineOptions&, std::shared_ptr<const Tokenizer>)>
      make;
  /// Weights that it accepts, different from its first ones.
  std::function<std::shared_ptr<const WeightSnapshot>(PolicyVersion)> snapshot;
  size_t tenants_max = 1;  // number of tenants whose full weights it accepts
  bool has_logits = true;  // false: it makes tokens without logits
  /// Tolerance for the log-probability of a token computed in another batch size, or in another
  /// way; 0: equal bits.
  double logprob_tolerance = 0;
};

/// Every token is two or three letters of five, so that texts overlap and repeat.
class SyllableTokenizer final : public Tokenizer {
 public:
  SyllableTokenizer() {
    for (int32_t id = 0; id < 128; ++id) {
      std::string bytes{letter(id), letter(id / 5)};
      if (id % 3 == 0) bytes += letter(id / 25);
      bytes_.push_back(bytes);
    }
  }
  Result<std::vector<int32_t>> encode_text(std::string_view) const override {
    return error(Code::kUnavailable, "not here");
  }
  Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const override {
    return encode_text(text);
  }
  Result<std::string> decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += bytes_of(id);
    return text;
  }
  std::string_view bytes_of(int32_t id) const override { return bytes_[static_cast<size_t>(id)]; }
  int32_t vocab_size() const override { return static_cast<int32_t>(bytes_.size()); }
  const std::vector<int32_t>& eos_ids() const override { return none_; }
  int32_t pad_id() const override { return -1; }

 private:
  static char letter(int32_t number) { return static_cast<char>('a' + number % 5); }
  std::vector<std::string> bytes_;
  std::vector<int32_t> none_;
};

inline std::ostream& operator<<(std::ostream& out, const EngineUnderTest& engine) {
  return out << engine.name;
}

class EngineConformance : public ::testing::TestWithParam<EngineUnderTest> {
 protected:
  using Ends = std::map<uint64_t, FinishEvent>;
  static constexpr int kStepsMax = 20000;

  std::unique_ptr<Engine> make(EngineOptions options = {},
                               std::shared_ptr<const Tokenizer> tokenizer = nullptr) {
    if (options.max_sequence_tokens == 0) options.max_sequence_tokens = 64;
    return GetParam().make(options, std::move(tokenizer));
  }

  SequenceRequest request(uint64_t id, int32_t max_tokens = 8, int32_t num_prompt_tokens = 5) {
    SequenceRequest made;
    made.id = SequenceId(id);
    made.tenant = TenantSlot(0);
    for (int32_t i = 0; i < num_prompt_tokens; ++i)
      made.prompt_tokens.push_back(static_cast<int32_t>((id * 7 + i * 3) % GetParam().vocab_size));
    made.sampling.max_tokens = max_tokens;
    made.sampling.ignore_eos = true;
    made.seed = 1000 + id;
    return made;
  }

  Result<uint64_t> apply(Engine& engine, WeightsKey key, int64_t version) {
    return engine.apply(*with_key(*GetParam().snapshot(PolicyVersion(version)), key));
  }

  /// Takes over prefilled sequences, and collects ends; a second end of one id is a failure.
  void collect(Engine& engine, Ends& ends) {
    for (const auto& event : engine.take_prefilled()) ASSERT_TRUE(engine.take_over(event.id).ok());
    for (auto& event : engine.take_finished()) {
      const auto id = event.id.value;
      EXPECT_TRUE(ends.emplace(id, std::move(event)).second) << "sequence " << id << " ended twice";
    }
  }

  Ends finish_all(Engine& engine) {
    Ends ends;
    for (int i = 0; i < kStepsMax && engine.has_work(); ++i) {
      EXPECT_TRUE(engine.step().ok());
      collect(engine, ends);
    }
    EXPECT_FALSE(engine.has_work());
    return ends;
  }

  FinishEvent run_one(Engine& engine, SequenceRequest one) {
    const auto id = one.id.value;
    const Status submitted = engine.submit(std::move(one));
    EXPECT_TRUE(submitted.ok()) << (submitted.ok() ? "" : submitted.error().text());
    auto ends = finish_all(engine);
    EXPECT_EQ(ends.count(id), 1U);
    return ends[id];
  }

  void expect_idle(const Engine& engine) {
    const auto state = engine.state();
    EXPECT_EQ(state.num_waiting, 0);
    EXPECT_EQ(state.num_held, 0);
    EXPECT_EQ(state.num_running, 0);
    EXPECT_EQ(state.num_free_blocks, state.num_blocks);
    EXPECT_FALSE(engine.has_work());
  }

  static void expect_same(const std::vector<float>& got, const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], GetParam().logprob_tolerance) << "number " << i;
  }
  static void expect_same(const std::vector<TokenLogprob>& got,
                          const std::vector<TokenLogprob>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].token, want[i].token) << "number " << i;
      if (std::isfinite(want[i].logprob))
        EXPECT_NEAR(got[i].logprob, want[i].logprob, GetParam().logprob_tolerance)
            << "number " << i;
      else
        EXPECT_EQ(got[i].logprob, want[i].logprob) << "number " << i;
    }
  }

  static void expect_whole(const FinishEvent& end) {
    EXPECT_EQ(end.logprobs.size(), end.tokens.size());
    int32_t covered = 0;
    for (const auto& span : end.spans) {
      EXPECT_EQ(span.begin, covered);
      EXPECT_LT(span.begin, span.end);
      covered = span.end;
    }
    EXPECT_EQ(covered, static_cast<int32_t>(end.tokens.size()));
    for (const float logprob : end.logprobs) EXPECT_LE(logprob, 0.0F);
  }
};

}  // namespace primerl
