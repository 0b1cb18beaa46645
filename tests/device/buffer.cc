#include "tests/device/buffer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "graph/base/random.h"
#include "tests/device/memory.h"

namespace primerl::cuda_test {
namespace {

uint16_t bf16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float float_of(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::vector<std::byte> written_as(cuda::Type type, const Floats& values) {
  std::vector<uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), bf16_of);
  const bool is_whole = type == cuda::Type::kFloat32;
  const void* from = is_whole ? static_cast<const void*>(values.data()) : halves.data();
  std::vector<std::byte> bytes(values.size() * (is_whole ? sizeof(float) : sizeof(uint16_t)));
  if (!bytes.empty()) std::memcpy(bytes.data(), from, bytes.size());
  return bytes;
}

void expect_ok(cuda::Outcome outcome) {
  if (!outcome.is_ok()) throw std::runtime_error(fmt::format("the op: {}", outcome.fault));
}

using Bytes = std::vector<std::vector<std::byte>>;

Bytes answer_of(const std::function<void()>& run, const std::vector<const Buffer*>& outputs) {
  for (const Buffer* output : outputs) output->reset();
  run();
  Bytes all;
  for (const Buffer* output : outputs) all.push_back(output->bytes());
  return all;
}

}  // namespace

Floats random_floats(int64_t count, uint64_t key, double scale) {
  RandomStream random(key);
  Floats values(static_cast<size_t>(count));
  for (auto& value : values) value = static_cast<float>(scale * (2 * random.uniform() - 1));
  return values;
}

Floats rounded(cuda::Type type, Floats values) {
  if (type == cuda::Type::kBfloat16)
    for (float& value : values) value = float_of(bf16_of(value));
  return values;
}

const char* name_of(cuda::Type type) { return type == cuda::Type::kFloat32 ? "fp32" : "bf16"; }

Buffer::Buffer(const std::byte* from, size_t size)
    : initial_(from, from + size), memory_(take_memory(std::max<size_t>(size, 16))) {
  reset();
}

Buffer::Buffer(cuda::Type type, const Floats& values) : Buffer(written_as(type, values)) {}

Buffer::~Buffer() { free_memory(memory_); }

void Buffer::reset() const { write_memory(memory_, initial_); }

std::vector<std::byte> Buffer::bytes() const { return read_memory(memory_, initial_.size()); }

Floats Buffer::floats(cuda::Type type) const {
  const auto all = bytes();
  if (type == cuda::Type::kFloat32) {
    Floats values(all.size() / sizeof(float));
    if (!all.empty()) std::memcpy(values.data(), all.data(), all.size());
    return values;
  }
  std::vector<uint16_t> halves(all.size() / sizeof(uint16_t));
  if (!all.empty()) std::memcpy(halves.data(), all.data(), all.size());
  Floats values(halves.size());
  std::transform(halves.begin(), halves.end(), values.begin(), float_of);
  return values;
}

Ints Buffer::ints() const {
  const auto all = bytes();
  Ints values(all.size() / sizeof(int32_t));
  if (!all.empty()) std::memcpy(values.data(), all.data(), all.size());
  return values;
}

void expect_one_answer(const std::function<cuda::Outcome(cuda::Stream)>& launch,
                       const std::vector<const Buffer*>& outputs) {
  const auto checked = [&](cuda::Stream stream) { expect_ok(launch(stream)); };
  const Bytes first = answer_of([&] { run(checked); }, outputs);
  EXPECT_TRUE(answer_of([&] { run(checked); }, outputs) == first)
      << "a second launch gave other bits";
  if (!cuda::has_own_kernels()) return;  // other builds cannot capture graphs
  const auto compare = [&](const std::function<void()>& replay) {
    EXPECT_TRUE(answer_of(replay, outputs) == first) << "a replayed graph gave other bits";
    EXPECT_TRUE(answer_of(replay, outputs) == first) << "a graph replayed twice gave other bits";
  };
  with_graph(checked, compare);
}

Tolerance tolerance_of(cuda::Type type, double absolute) {
  return {absolute, type == cuda::Type::kFloat32 ? 1e-5 : 1.0 / 256};
}

void expect_near(const Floats& got, const Floats& want, Tolerance tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  int64_t num_far = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (got[i] == want[i]) continue;  // also for infinities
    const double far = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    const double near = tolerance.absolute + tolerance.relative * std::abs(want[i]);
    if (far <= near) continue;
    if (++num_far <= 3)
      ADD_FAILURE() << what << "[" << i << "] is " << got[i] << ", not " << want[i] << " (" << far
                    << " apart, " << near << " allowed)";
  }
  EXPECT_EQ(num_far, 0) << what << ": of " << got.size();
}

}  // namespace primerl::cuda_test
