#include "kernels/train/batch_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>

#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

template <class T>
WeightTensor make_tensor(std::string name, DataType type, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {std::move(name),
          type,
          {static_cast<int64_t>(values.size())},
          Blob(std::vector<std::byte>(bytes.begin(), bytes.end()))};
}

/// The arrays of all samples, one after the other.
struct Columns {
  std::vector<int32_t> tokens;
  std::vector<int64_t> sample_tokens;
  std::vector<uint8_t> loss_mask;
  std::vector<float> logprobs, advantages, proximal, reference, weights, temperatures;
  std::vector<std::byte> kept;
  std::vector<int64_t> kept_bytes;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
  std::vector<int64_t> sample_top;  // top tokens of each sample
};

template <class T, class U>
void append(const std::vector<T>& from, std::vector<U>& to) {
  to.insert(to.end(), from.begin(), from.end());
}

Columns columns_of(const TrainBatch& batch) {
  Columns all;
  for (const auto& sample : batch.samples) {
    append(sample.tokens, all.tokens);
    all.sample_tokens.push_back(static_cast<int64_t>(sample.tokens.size()));
    append(sample.loss_mask, all.loss_mask);
    append(sample.logprobs, all.logprobs);
    append(sample.advantages, all.advantages);
    append(sample.proximal, all.proximal);
    append(sample.reference, all.reference);
    append(sample.weights, all.weights);
    all.temperatures.push_back(sample.temperature);
    const auto kept = sample.kept.bytes();
    all.kept.insert(all.kept.end(), kept.begin(), kept.end());
    all.kept_bytes.push_back(static_cast<int64_t>(kept.size()));
    append(sample.top_tokens, all.top_tokens);
    append(sample.top_logprobs, all.top_logprobs);
    all.sample_top.push_back(static_cast<int64_t>(sample.top_tokens.size()));
  }
  return all;
}

/// The tensors of a file; each may be read once.
class Reader {
 public:
  explicit Reader(std::vector<WeightTensor> tensors) {
    for (auto& tensor : tensors) {
      const std::string name = tensor.name;
      tensors_.emplace(name, std::move(tensor));
    }
  }

  /// A vector of `count` elements (any number if negative).
  template <class T>
  Status read(const std::string& name, DataType type, int64_t count, std::vector<T>& values) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return error(Code::kInvalid, "tensor '{}' is missing", name);
    const WeightTensor& tensor = found->second;
    if (tensor.type != type || tensor.shape.size() != 1 || (count >= 0 && tensor.shape[0] != count))
      return error(Code::kInvalid, "tensor '{}' is {} [{}]", name, to_string(tensor.type),
                   fmt::join(tensor.shape, ", "))
          .note(fmt::format("it has to be {} [{}]", to_string(type),
                            count < 0 ? "any length" : std::to_string(count)));
    values.resize(static_cast<size_t>(tensor.shape[0]));
    if (!values.empty())
      std::memcpy(values.data(), tensor.bytes.bytes().data(), tensor.bytes.size());
    tensors_.erase(found);
    return ok();
  }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  Status finish() const {
    if (tensors_.empty()) return ok();
    return error(Code::kInvalid, "tensor '{}' is not part of a batch", tensors_.begin()->first);
  }

 private:
  std::map<std::string, WeightTensor> tensors_;
};

/// Checks that the lengths of the parts add up to `total`.
Status check_lengths(std::string_view name, const std::vector<int64_t>& lengths, int64_t total) {
  int64_t left = total;
  for (const int64_t length : lengths) {
    if (length < 0 || length > left)
      return error(Code::kInvalid, "the lengths in '{}' do not add up to {}", name, total);
    left -= length;
  }
  if (left == 0) return ok();
  return error(Code::kInvalid, "the lengths in '{}' do not add up to {}", name, total);
}

template <class T>
std::vector<T> cut(const std::vector<T>& all, size_t begin, size_t count) {
  if (all.empty()) return {};
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

TrainBatch batch_of(const Columns& all, uint8_t loss) {
  TrainBatch batch;
  batch.loss = static_cast<LossKind>(loss);
  size_t token = 0, kept = 0, top = 0;
  for (size_t i = 0; i < all.sample_tokens.size(); ++i) {
    const auto count = static_cast<size_t>(all.sample_tokens[i]);
    TrainSample& sample = batch.samples.emplace_back();
    sample.tokens = cut(all.tokens, token, count);
    sample.loss_mask = cut(all.loss_mask, token, count);
    sample.logprobs = cut(all.logprobs, token, count);
    sample.advantages = cut(all.advantages, token, count);
    sample.proximal = cut(all.proximal, token, count);
    sample.reference = cut(all.reference, token, count);
    sample.weights = cut(all.weights, token, count);
    sample.temperature = all.temperatures[i];
    token += count;
    if (!all.sample_top.empty()) {
      const auto num_top = static_cast<size_t>(all.sample_top[i]);
      sample.top_tokens = cut(all.top_tokens, top, num_top);
      sample.top_logprobs = cut(all.top_logprobs, top, num_top);
      top += num_top;
    }
    if (all.kept_bytes.empty()) continue;
    const auto num_kept = static_cast<size_t>(all.kept_bytes[i]);
    sample.kept = Blob(cut(all.kept, kept, num_kept));
    kept += num_kept;
  }
  return batch;
}

Result<TrainBatch> parse_batch(Reader reader) {
  Columns all;
  std::vector<uint8_t> loss;
  RETURN_IF_ERROR(reader.read("loss", DataType::kU8, 1, loss));
  if (loss[0] > static_cast<uint8_t>(LossKind::kTopK))
    return error(Code::kInvalid, "'loss' is {}", loss[0])
        .note("0: rollouts, 1: cross-entropy, 2: a teacher's top tokens");
  RETURN_IF_ERROR(reader.read("tokens", DataType::kI32, -1, all.tokens));
  const auto num_tokens = static_cast<int64_t>(all.tokens.size());
  RETURN_IF_ERROR(reader.read("sample_tokens", DataType::kI64, -1, all.sample_tokens));
  const auto num_samples = static_cast<int64_t>(all.sample_tokens.size());
  RETURN_IF_ERROR(check_lengths("sample_tokens", all.sample_tokens, num_tokens));
  RETURN_IF_ERROR(reader.read("loss_mask", DataType::kU8, num_tokens, all.loss_mask));
  RETURN_IF_ERROR(reader.read("temperatures", DataType::kF32, num_samples, all.temperatures));
  for (auto [name, values] :
       {std::pair{"logprobs", &all.logprobs}, std::pair{"advantages", &all.advantages}})
    if (loss[0] == 0 || reader.has(name))
      RETURN_IF_ERROR(reader.read(name, DataType::kF32, num_tokens, *values));
  for (auto [name, values] :
       {std::pair{"proximal", &all.proximal}, std::pair{"reference", &all.reference},
        std::pair{"weights", &all.weights}})
    if (reader.has(name)) RETURN_IF_ERROR(reader.read(name, DataType::kF32, num_tokens, *values));
  if (reader.has("kept")) {
    RETURN_IF_ERROR(reader.read("kept", DataType::kU8, -1, all.kept));
    RETURN_IF_ERROR(reader.read("kept_bytes", DataType::kI64, num_samples, all.kept_bytes));
    RETURN_IF_ERROR(
        check_lengths("kept_bytes", all.kept_bytes, static_cast<int64_t>(all.kept.size())));
  }
  if (reader.has("top_tokens")) {
    RETURN_IF_ERROR(reader.read("top_tokens", DataType::kI32, -1, all.top_tokens));
    const auto num_top = static_cast<int64_t>(all.top_tokens.size());
    RETURN_IF_ERROR(reader.read("top_logprobs", DataType::kF32, num_top, all.top_logprobs));
    RETURN_IF_ERROR(reader.read("sample_top", DataType::kI64, num_samples, all.sample_top));
    RETURN_IF_ERROR(check_lengths("sample_top", all.sample_top, num_top));
  }
  RETURN_IF_ERROR(reader.finish());
  return batch_of(all, loss[0]);
}

}  // namespace

Status write_train_batch(const std::filesystem::path& file, const TrainBatch& batch) {
  const Columns all = columns_of(batch);
  std::vector<WeightTensor> tensors = {
      make_tensor("tokens", DataType::kI32, all.tokens),
      make_tensor("sample_tokens", DataType::kI64, all.sample_tokens),
      make_tensor("loss_mask", DataType::kU8, all.loss_mask),
      make_tensor("temperatures", DataType::kF32, all.temperatures),
      make_tensor("loss", DataType::kU8, std::vector{static_cast<uint8_t>(batch.loss)})};
  if (!all.logprobs.empty())
    tensors.push_back(make_tensor("logprobs", DataType::kF32, all.logprobs));
  if (!all.advantages.empty())
    tensors.push_back(make_tensor("advantages", DataType::kF32, all.advantages));
  if (!all.proximal.empty())
    tensors.push_back(make_tensor("proximal", DataType::kF32, all.proximal));
  if (!all.reference.empty())
    tensors.push_back(make_tensor("reference", DataType::kF32, all.reference));
  if (!all.weights.empty()) tensors.push_back(make_tensor("weights", DataType::kF32, all.weights));
  if (!all.kept.empty()) {
    tensors.push_back(make_tensor("kept", DataType::kU8, all.kept));
    tensors.push_back(make_tensor("kept_bytes", DataType::kI64, all.kept_bytes));
  }
  if (!all.top_tokens.empty()) {
    tensors.push_back(make_tensor("top_tokens", DataType::kI32, all.top_tokens));
    tensors.push_back(make_tensor("top_logprobs", DataType::kF32, all.top_logprobs));
    tensors.push_back(make_tensor("sample_top", DataType::kI64, all.sample_top));
  }
  return write_safetensors(file, tensors);
}

Result<TrainBatch> read_train_batch(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(auto tensors, read_safetensors(file));
  auto batch = parse_batch(Reader(std::move(tensors)));
  if (!batch.ok()) return Error(batch.error()).while_doing(file.string());
  return batch;
}

}  // namespace primerl
