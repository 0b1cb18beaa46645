/// Imitates on the CPU the rounding of bf16 on a device: the same model with weights changed as
/// much as rounding changes them. The tolerances of bf16 tests follow from it.
///
/// A device rounds a layer's four matrices, and twelve results of its rows: norms, GEMMs, queries
/// and keys after RoPE, attention, the activation, sums. All these errors have the same size and
/// are independent. So together they are sqrt((4 + 12) / 4) = 2 times the error of the matrices
/// alone, which is measured in the mean square with kRoundings random changes of the weights.
/// Experts and adapters add to both in about the same ratio. A factor of 1.5 is added, since a
/// result may depend on few values, which scatter.
#pragma once

#include <cmath>
#include <filesystem>
#include <span>
#include <vector>

#include "graph/base/random.h"
#include "kernels/models/adapter.h"
#include "kernels/models/folder.h"
#include "kernels/weights/safetensors.h"
#include "tests/device/learner_checks.h"

namespace primerl::device_test {

inline constexpr uint64_t kRoundings = 4;

/// The tolerance, from the sum of the squared errors of kRoundings changes of the weights.
inline double tolerance_of_roundings(double squares) {
  return 1.5 * 2 * std::sqrt(squares / kRoundings);
}

/// Tensors changed as much as bf16 rounds: by up to 0.0029 relative, which is 0.0017 in the mean
/// square. The scaling of an adapter and the router biases are fp32 on a device too.
inline std::vector<WeightTensor> moved(std::vector<WeightTensor> tensors, RandomStream& random) {
  for (WeightTensor& tensor : tensors) {
    if (tensor.name == kAdapterScaling || tensor.name.ends_with("e_score_correction_bias"))
      continue;
    auto numbers = testing::floats_of(tensor);
    for (float& number : numbers)
      number *= static_cast<float>(1 + 0.0029 * (2 * random.uniform() - 1));
    const auto bytes = std::as_bytes(std::span(numbers));
    tensor.bytes = Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  return tensors;
}

/// A folder with the model of another, with weights changed this way.
inline std::filesystem::path moved_folder(const std::filesystem::path& folder,
                                          RandomStream& random) {
  const auto other = testing::scratch_folder("moved");
  const Status written = write_model_folder(other, read_model_folder(folder).value(),
                                            moved(read_model_tensors(folder).value(), random));
  CHECK(written.ok(), written.error().text());
  return other;
}

}  // namespace primerl::device_test
