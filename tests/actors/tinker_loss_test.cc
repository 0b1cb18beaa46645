// The body of forward_backward: what SDK 0.25 and 0.38 send, tensors of every form, bad bytes; and
// the protobuf answers.
#include "actors/tinker/loss_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "actors/tinker/answers.h"
#include "actors/tinker/names.h"
#include "actors/tinker/protobuf.h"
#include "actors/tinker/sampled_runs.h"
#include "actors/tinker/tensor.h"
#include "graph/base/json.h"
#include "kernels/train/learner.h"
#include "tests/actors/tinker_bodies.h"

namespace primerl::tinker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<LossRequest> captured_losses(std::string_view sdk) {
  std::vector<LossRequest> read;
  for (const CapturedBody& each : captured_bodies()) {
    if (!each.sdk.starts_with(sdk) || each.route != "forward_backward") continue;
    auto request = read_loss_request(each.body);
    EXPECT_TRUE(request.ok()) << request.error().text();
    if (request.ok()) read.push_back(std::move(*request));
  }
  return read;
}

template <class T>
std::string packed_numbers(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string shape_field(const std::vector<int64_t>& shape) {
  ProtoWriter writer;
  for (const int64_t size : shape) writer.number(4, static_cast<uint64_t>(size));
  return std::move(writer).finish();
}

std::string dense_tensor(const std::string& values, int type, const std::vector<int64_t>& shape) {
  ProtoWriter writer;
  writer.bytes(1, values);
  writer.number(3, static_cast<uint64_t>(type));
  return std::move(writer).finish() + shape_field(shape);
}

std::string sparse_tensor(const std::string& values, int type, const std::vector<int64_t>& rows,
                          const std::vector<int64_t>& columns, const std::vector<int64_t>& shape) {
  ProtoWriter sparse;
  sparse.bytes(1, values);
  sparse.bytes(2, packed_numbers(rows));
  sparse.bytes(3, packed_numbers(columns));
  ProtoWriter writer;
  writer.bytes(2, std::move(sparse).finish());
  writer.number(3, static_cast<uint64_t>(type));
  return std::move(writer).finish() + shape_field(shape);
}

std::string datum_of(const std::vector<int32_t>& tokens,
                     const std::vector<std::pair<std::string, std::string>>& inputs) {
  ProtoWriter text;
  text.bytes(1, packed_numbers(tokens));
  ProtoWriter chunk;
  chunk.bytes(1, std::move(text).finish());
  ProtoWriter datum;
  datum.bytes(1, std::move(chunk).finish());
  for (const auto& [name, tensor] : inputs) {
    ProtoWriter entry;
    entry.bytes(1, name);
    entry.bytes(2, tensor);
    datum.bytes(2, std::move(entry).finish());
  }
  return std::move(datum).finish();
}

std::string loss_body(const std::vector<std::string>& data, uint64_t seq = 1,
                      std::string_view loss = "cross_entropy") {
  ProtoWriter body;
  body.bytes(1, "m");
  body.number(2, seq);
  for (const std::string& each : data) body.bytes(3, each);
  body.bytes(4, loss);
  return std::move(body).finish();
}

std::string plain_targets() { return dense_tensor(packed_numbers<int64_t>({5, 6}), 2, {2}); }

std::string fault_of(const std::string& body) {
  const auto read = read_loss_request(body);
  return read.ok() ? "accepted" : read.error().text();
}

std::string fault_of(const std::vector<std::pair<std::string, std::string>>& inputs) {
  return fault_of(loss_body({datum_of({1, 2}, inputs)}));
}

class TinkerLossSdk : public ::testing::TestWithParam<const char*> {};

TEST_P(TinkerLossSdk, BodiesBecomeBatchesThatALearnerAccepts) {
  const auto requests = captured_losses(GetParam());
  ASSERT_EQ(requests.size(), 3u);
  for (const LossRequest& each : requests) {
    const Status status = check_loss_batch(each.batch, {128, 16});
    EXPECT_TRUE(status.ok()) << status.error().text();
    EXPECT_EQ(each.model, "session-1:train:0");
  }
  EXPECT_EQ(requests[0].seq, 1);
  EXPECT_EQ(requests[0].batch.loss.kind, "cross_entropy");
  EXPECT_FALSE(requests[0].batch.forward_only);
  const LossDatum& plain = requests[0].batch.data.at(0);
  EXPECT_THAT(plain.tokens, ElementsAre(1, 2, 3));
  EXPECT_THAT(plain.targets, ElementsAre(2, 3, 4));
  EXPECT_THAT(plain.positions, IsEmpty());
  EXPECT_THAT(plain.weights, ElementsAre(0, 1, -0.5F));
  EXPECT_EQ(requests[1].batch.loss.kind, "ppo");
  EXPECT_DOUBLE_EQ(requests[1].batch.loss.clip_low, 1 - 0.7);
  EXPECT_THAT(requests[1].batch.data.at(0).advantages, ElementsAre(0, 0.5F, 0.5F));
  EXPECT_TRUE(requests[2].batch.forward_only);
  const LossDatum& two = requests[2].batch.data.at(0);
  EXPECT_THAT(two.positions, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(two.targets, ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(requests[2].shapes.at(0), (TargetShape{2, 2, {}}));
}

INSTANTIATE_TEST_SUITE_P(Versions, TinkerLossSdk, ::testing::Values("0.25", "0.38"));

TEST(TinkerLoss, SparseTargetsAreTheCellsThatAnyTensorLists) {
  const auto read = read_loss_request(
      loss_body({datum_of({1, 2}, {{"target_tokens", sparse_tensor(packed_numbers<int64_t>({7, 8}),
                                                                   2, {0, 1, 2}, {1, 4}, {2, 6})},
                                   {"weights", sparse_tensor(packed_numbers<float>({0.5F, -1}), 1,
                                                             {0, 2, 2}, {0, 1}, {2, 6})}})}));
  ASSERT_TRUE(read.ok()) << read.error().text();
  const LossDatum& datum = read->batch.data.at(0);
  EXPECT_THAT(datum.targets, ElementsAre(0, 7, 8));
  EXPECT_THAT(datum.positions, ElementsAre(0, 0, 1));
  EXPECT_THAT(datum.weights, ElementsAre(0.5F, -1, 0));
  EXPECT_EQ(read->shapes.at(0), (TargetShape{2, 6, {0, 1, 10}}));
  EXPECT_TRUE(check_loss_batch(read->batch, {8, 16}).ok());
}

TEST(TinkerLoss, OtherNumbersBecomeFloats) {
  const auto read = read_loss_request(loss_body({datum_of(
      {1, 2}, {{"target_tokens", dense_tensor(packed_numbers<int32_t>({5, 6}), 3, {})},
               {"weights", dense_tensor(packed_numbers<uint16_t>({0x3f80, 0xc000}), 4, {2})}})}));
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_THAT(read->batch.data.at(0).targets, ElementsAre(5, 6));
  EXPECT_THAT(read->batch.data.at(0).weights, ElementsAre(1, -2));
}

TEST(TinkerLoss, NumbersThatAreNotFiniteAreRefusedByTheBatch) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const auto read = read_loss_request(loss_body(
        {datum_of({1, 2}, {{"target_tokens", plain_targets()},
                           {"weights", dense_tensor(packed_numbers<float>({1, bad}), 1, {2})}})}));
    ASSERT_TRUE(read.ok()) << read.error().text();
    const Status status = check_loss_batch(read->batch, {8, 16});
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().text(), HasSubstr("datum 0: weights[1]"));
  }
}

TEST(TinkerLoss, BadTensorsAreNamed) {
  using Inputs = std::vector<std::pair<std::string, std::string>>;
  const std::string two = packed_numbers<int64_t>({5, 6});
  const std::pair<Inputs, const char*> bad[] = {
      {{}, "no 'target_tokens'"},
      {{{"mask", plain_targets()}, {"target_tokens", plain_targets()}}, "unknown loss input"},
      {{{"target_tokens", dense_tensor(two, 0, {2})}}, "dtype is 0"},
      {{{"target_tokens", dense_tensor(two, 5, {2})}}, "dtype is 5"},
      {{{"target_tokens", dense_tensor(two, 2, {3})}}, "has 16 bytes, not 3"},
      {{{"target_tokens", dense_tensor(two.substr(1), 2, {2})}}, "has 15 bytes"},
      {{{"target_tokens", dense_tensor(two, 2, {1, 1, 2})}}, "3 dimensions"},
      {{{"target_tokens", dense_tensor(two, 2, {-2})}}, "shape is -2"},
      {{{"target_tokens", dense_tensor(two, 2, {1, 2})}}, "2 tokens, but"},
      {{{"target_tokens", dense_tensor(two, 2, {2, 0})}}, "no columns"},
      {{{"target_tokens", dense_tensor(two, 2, {1 << 24, 2})}}, "at most 16777216"},
      {{{"target_tokens", dense_tensor(packed_numbers<float>({1, 2}), 1, {2})}}, "int64 or int32"},
      {{{"target_tokens", dense_tensor(packed_numbers<int64_t>({5, -1}), 2, {2})}},
       "value 1 is -1"},
      {{{"target_tokens", dense_tensor(packed_numbers<int64_t>({5, 1LL << 31}), 2, {2})}},
       "value 1 is 2147483648"},
      {{{"target_tokens", plain_targets()},
        {"weights", dense_tensor(packed_numbers<float>({1}), 1, {1})}},
       "'weights' has the shape [1, 0]"},
      {{{"target_tokens", sparse_tensor(two, 2, {0, 1, 2}, {0, 9}, {2, 9})}}, "col_indices[1]"},
      {{{"target_tokens", sparse_tensor(two, 2, {0, 2, 2}, {3, 3}, {2, 9})}}, "col_indices[1]"},
      {{{"target_tokens", sparse_tensor(two, 2, {0, 3, 2}, {0, 1}, {2, 9})}}, "after row 0"},
      {{{"target_tokens", sparse_tensor(two, 2, {1, 1, 2}, {0, 1}, {2, 9})}}, "from 0 to 2"},
      {{{"target_tokens", sparse_tensor(two, 2, {0, 2}, {0, 1}, {2, 9})}}, "crow_indices"},
      {{{"target_tokens", sparse_tensor("", 2, {0, 0, 0}, {}, {2, 9})}}, "list no target"}};
  for (const auto& [inputs, text] : bad) {
    EXPECT_THAT(fault_of(inputs), HasSubstr(text));
    EXPECT_THAT(fault_of(inputs), HasSubstr("datum 0"));
  }
}

TEST(TinkerLoss, BadRequestsAreNamed) {
  const std::string datum = datum_of({1, 2}, {{"target_tokens", plain_targets()}});
  EXPECT_EQ(fault_of(loss_body({datum})), "accepted");
  EXPECT_THAT(fault_of(loss_body({datum}, 0)), HasSubstr("'seq_id' is 0"));
  EXPECT_EQ(fault_of(loss_body({datum}, static_cast<uint64_t>(kSeqMax))), "accepted");
  EXPECT_FALSE(read_loss_request(loss_body({datum}, static_cast<uint64_t>(kSeqMax) + 1)).ok());
  EXPECT_THAT(fault_of(loss_body({datum}, 1, "gspo")), HasSubstr("unknown loss 'gspo'"));
  EXPECT_THAT(fault_of(""), HasSubstr("'model_id'"));
  ProtoWriter image;
  image.bytes(2, "png");
  ProtoWriter seen;
  seen.bytes(1, std::move(image).finish());
  EXPECT_THAT(fault_of(loss_body({std::move(seen).finish()})),
              HasSubstr("datum 0: the input has an "
                        "image"));
  const std::vector<std::string> most(kDataMax, datum);
  EXPECT_EQ(fault_of(loss_body(most)), "accepted");
  std::vector<std::string> beyond = most;
  beyond.push_back(datum);
  EXPECT_THAT(fault_of(loss_body(beyond)), HasSubstr("more than 4096 data"));
}

TEST(TinkerLoss, NoCutAndNoFlippedBitOfABodyIsMoreThanAnError) {
  for (const CapturedBody& each : captured_bodies()) {
    if (each.route != "forward_backward") continue;
    for (size_t size = 0; size < each.body.size(); ++size) {
      (void)read_loss_request(each.body.substr(0, size)).ok();
      for (int bit = 0; bit < 8; ++bit) {
        std::string other(each.body);
        other[size] = static_cast<char>(other[size] ^ (1 << bit));
        const auto read = read_loss_request(other);
        if (!read.ok()) continue;
        EXPECT_EQ(read->shapes.size(), read->batch.data.size());
      }
    }
  }
}

TEST(TinkerProtobuf, NumbersEndWithin64Bits) {
  ProtoWriter writer;
  writer.number(1, UINT64_MAX);
  const std::string most = std::move(writer).finish();
  EXPECT_EQ(ProtoReader(most).next()->value, UINT64_MAX);
  std::string beyond = most;
  beyond.back() = 2;
  EXPECT_FALSE(ProtoReader(beyond).next().ok());
  EXPECT_FALSE(ProtoReader(std::string_view(most).substr(0, 5)).next().ok());
  EXPECT_FALSE(ProtoReader(std::string_view("\x0a\x02\x61", 3)).next().ok());
  EXPECT_FALSE(ProtoReader(std::string_view("\x0b", 1)).next().ok());  // a group
  EXPECT_FALSE(ProtoReader(std::string_view("\x00\x00", 2)).next().ok());
}

/// The fields of a message with one number.
std::vector<std::string> fields_of(std::string_view message, int32_t number) {
  std::vector<std::string> found;
  for (ProtoReader reader(message); !reader.is_done();) {
    const ProtoField field = reader.next().value();
    if (field.number == number) found.emplace_back(field.bytes);
  }
  return found;
}

TEST(TinkerAnswer, LogProbabilitiesHaveTheShapeOfTheTargets) {
  LossResult result;
  result.logprobs = {{-1, -2}, {-3}, {-4, -5}};
  result.totals.loss = 1.5;
  const std::string answer = loss_answer(result, {{2, 0, {}}, {1, 0, {}}, {2, 3, {1, 5}}});
  const auto records = fields_of(answer, 2);
  ASSERT_EQ(records.size(), 2u);  // data with equal columns share one
  const auto tensor_of = [](const std::string& record) {
    return fields_of(fields_of(record, 2).at(0), 2).at(0);
  };
  EXPECT_EQ(fields_of(tensor_of(records[0]), 1).at(0), packed_numbers<float>({-1, -2, -3}));
  EXPECT_EQ(fields_of(tensor_of(records[0]), 2).at(0), packed_numbers<int64_t>({0, 8, 12}));
  EXPECT_EQ(fields_of(tensor_of(records[1]), 1).at(0), packed_numbers<float>({0, -4, 0, 0, 0, -5}));
  const auto metrics = fields_of(answer, 3);
  EXPECT_EQ(metrics.size(), 11u);
  for (const std::string& each : metrics) {
    const std::string name = fields_of(each, 1).at(0);
    EXPECT_EQ(std::ranges::count(name, ':'), 1) << name;
    EXPECT_TRUE(name.ends_with(":sum") || name.ends_with(":max")) << name;
  }
  EXPECT_EQ(fields_of(records[0], 2).size(), 1u) << "no age is known";
}

TEST(TinkerAnswer, AgesAreAnOutputOfEachDatum) {
  LossResult result;
  result.logprobs = {{-1, -2}, {-3}};
  const std::string answer = loss_answer(result, {{2, 0, {}}, {1, 0, {}}}, {3, -1});
  const auto outputs = fields_of(fields_of(answer, 2).at(0), 2);
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(fields_of(outputs[1], 1).at(0), "updates_behind");
  const std::string tensor = fields_of(outputs[1], 2).at(0);
  EXPECT_EQ(fields_of(tensor, 1).at(0), packed_numbers<int64_t>({3, -1}));
  EXPECT_EQ(fields_of(tensor, 2).at(0), packed_numbers<int64_t>({0, 8, 16}));
}

TEST(SampledRunsOfAClient, AreFoundInADatumWithItsPrompt) {
  SampledRuns runs;
  LossDatum datum;
  datum.targets = {2, 3, 4, 5, 6};
  datum.weights = {0, 0, 1, 1, 1};
  EXPECT_FALSE(runs.oldest_update(datum));
  runs.add(std::vector<int32_t>{4, 5, 6}, 7);
  EXPECT_EQ(runs.oldest_update(datum), 7);
  datum.weights = {0, 1, 1, 1, 1};
  EXPECT_FALSE(runs.oldest_update(datum)) << "another run";
  datum.weights.clear();
  datum.logprobs = {0, 0, -1, -2, -3};
  datum.advantages = {0, 0, 0, 0, 0};
  EXPECT_EQ(runs.oldest_update(datum), 7) << "an advantage of 0";
  datum.positions = {0, 0, 1, 1, 2};
  EXPECT_FALSE(runs.oldest_update(datum)) << "several targets of a token";
}

TEST(SampledRunsOfAClient, TheOldestOfADatumCountsAndTheNewestOfEqualTokens) {
  SampledRuns runs;
  runs.add(std::vector<int32_t>{4, 5}, 3);
  runs.add(std::vector<int32_t>{7}, 5);
  LossDatum datum;
  datum.targets = {1, 4, 5, 6, 7};
  datum.weights = {0, 1, 1, 0, 1};
  EXPECT_EQ(runs.oldest_update(datum), 3);
  runs.add(std::vector<int32_t>{4, 5}, 6);
  EXPECT_EQ(runs.oldest_update(datum), 5);
}

TEST(SampledRunsOfAClient, ALongRunIsKnownByItsFirstTokensAndMemoryIsBounded) {
  SampledRuns runs;
  std::vector<int32_t> tokens(SampledRuns::kHashedTokens + 4, 9);
  runs.add(tokens, 2);
  LossDatum datum;
  datum.targets.assign(tokens.begin(), tokens.end() - 2);  // the client shortened it
  EXPECT_EQ(runs.oldest_update(datum), 2);
  for (int32_t i = 0; i < static_cast<int32_t>(SampledRuns::kRunsMax) + 10; ++i)
    runs.add(std::vector<int32_t>{i}, 3);
  EXPECT_EQ(runs.size(), SampledRuns::kRunsMax);
  EXPECT_FALSE(runs.oldest_update(datum)) << "the oldest is forgotten";
}

TEST(TinkerAnswer, SamplesAreAsTheClientReadsThem) {
  SampleResult result;
  result.sequences = {{true, {5, 6}, {-0.5F, -1}, {2, 1, {5, 6}, {-0.5F, -1}}}};
  result.prompt_logprobs = {std::nanf(""), -2};
  const std::string answer = sample_answer(result);
  const std::string sequence = fields_of(answer, 1).at(0);
  EXPECT_EQ(ProtoReader(sequence).next()->value, 1u);  // LENGTH
  EXPECT_EQ(fields_of(sequence, 2).at(0), packed_numbers<int32_t>({5, 6}));
  EXPECT_EQ(fields_of(sequence, 3).at(0), packed_numbers<float>({-0.5F, -1}));
  EXPECT_EQ(fields_of(sequence, 4).size(), 1u);
  EXPECT_EQ(fields_of(answer, 2).at(0).size(), 8u);
  EXPECT_THAT(fields_of(answer, 3), IsEmpty());
}

TEST(TinkerAnswer, StatusesAreThoseThatTheClientActsOn) {
  const std::pair<Code, int32_t> statuses[] = {
      {Code::kInvalid, 400},   {Code::kNotFound, 404},    {Code::kDeadline, 408},
      {Code::kCancelled, 410}, {Code::kExists, 422},      {Code::kExhausted, 429},
      {Code::kInternal, 500},  {Code::kUnavailable, 503}, {Code::kDeviceLost, 500}};
  for (const auto& [code, status] : statuses) EXPECT_EQ(http_status(Error(code, "x")), status);
  EXPECT_EQ(failed_answer(Error(Code::kInvalid, "x")), R"({"error":"x","category":"user"})");
  EXPECT_EQ(failed_answer(Error(Code::kInternal, "x")), R"({"error":"x","category":"server"})");
  EXPECT_EQ(refusal(Error(Code::kExhausted, "x")), R"({"detail":"x","category":"server"})");
}

TEST(TinkerAnswer, JsonIsWhatTheSdkAccepts) {
  // tests/actors/capture_tinker.py gives the same forms to the SDK.
  EXPECT_EQ(future_answer(3), R"({"request_id":"r3"})");
  EXPECT_EQ(sample_future_answer(3, 2),
            R"({"request_id":"r3","sample_sequence_ids":["r3:0","r3:1"]})");
  EXPECT_EQ(try_again_answer(3, QueueState::kPausedCapacity),
            R"({"type":"try_again","request_id":"r3","queue_state":"paused_capacity"})");
  EXPECT_EQ(client_config_answer(), R"({"pjwt_auth_enabled":false,"use_pyqwest_transport":false,)"
                                    R"("sample_join_sampling_session":true})");
  EXPECT_EQ(info_answer({"s:train:0", "tiny", "qwen3", "/models/tiny", 8}),
            R"({"model_id":"s:train:0","is_lora":true,"lora_rank":8,"model_name":"tiny",)"
            R"("model_data":{"arch":"qwen3","model_name":"tiny","tokenizer_id":"/models/tiny"}})");
  EXPECT_EQ(capabilities_answer({{"tiny", 128}}, {{"alice~2", "s:train:0", 8, 4, 32}}),
            R"({"supported_models":[{"model_name":"tiny","max_context_length":128,)"
            R"("trainable":true,"sampleable":true}],"tenants":[{"tenant":"alice~2",)"
            R"("open_models_max":1,"open_model":"s:train:0","lora_rank":8,"snapshots_max":4,)"
            R"("samples_max":32}]})");
  EXPECT_EQ(saved_answer({"s:train:0", false, "a"}), R"({"path":"tinker://s:train:0/weights/a"})");
  EXPECT_EQ(loaded_answer({"s:train:0", false, "a"}, "s:train:1"),
            R"({"path":"tinker://s:train:0/weights/a","model_id":"s:train:1"})");
  EXPECT_EQ(optim_answer({{"grad_norm", 1.5}}), R"({"metrics":{"grad_norm":1.5}})");
  EXPECT_EQ(sampler_info_answer("s:sample:0", "tiny", ""),
            R"({"sampler_id":"s:sample:0","base_model":"tiny"})");
}

}  // namespace
}  // namespace primerl::tinker
