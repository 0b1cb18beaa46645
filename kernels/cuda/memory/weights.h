/// The weights of an engine on a CUDA device: all parameters in one flat buffer of one type, laid
/// out as the table says (models/tensors.h).
///
/// Addresses are fixed for life, so that captured graphs see new weights. A snapshot on the same
/// device is applied by one copy. For any other snapshot a second set of weights is used, if the
/// device has space for it; the first such snapshot allocates it. prepare() fills the second set
/// while steps continue, and apply() is then one copy as well. The copy is ordered on the stream:
/// the host does not wait for it. One thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/cuda/layers/gemm.h"
#include "kernels/cuda/memory/weight_stage.h"
#include "kernels/models/tensors.h"

namespace primerl {

class CudaWeights {
 public:
  /// `table` and `stream` must stay valid while it exists; `type` is kFloat or kBFloat16. All
  /// weights are 0.
  CudaWeights(const TensorTable& table, at::ScalarType type, const CudaStream& stream,
              bool has_space_for_second_set);

  const TensorTable& table() const { return table_; }
  at::ScalarType type() const { return type_; }
  /// A view of the parameter's shape; undefined: the model has no parameter of that name.
  at::Tensor tensor(std::string_view name) const;
  /// Null: the model has no parameter of that name.
  const void* data(std::string_view name) const;
  CudaLinear linear(std::string_view name) const;

  /// False also if the space was available earlier but no longer is.
  bool has_space_for_second_set() const { return has_space_; }
  /// Loads the tensors of a folder; all or nothing (tensors.h). They have been read when it
  /// returns.
  Status load(const std::vector<WeightTensor>& tensors);
  /// Begins or continues to fill the second set; true: nothing is left to wait for.
  bool prepare(const std::shared_ptr<const WeightSnapshot>& snapshot);
  /// Like load(), but copies from the device that has the snapshot, or from the second set if it
  /// was prepared from the same memory. Later launches on the stream see the new weights; the
  /// source of the copy is retained until it is done.
  Status apply(const WeightSnapshot& snapshot);

 private:
  /// The type of a snapshot whose flat buffer is on this device.
  std::optional<at::ScalarType> type_beside(const WeightSnapshot& snapshot) const;
  bool has_stage();
  /// Whether a copy from the second set, or from a buffer, is in progress.
  bool is_being_read() const;
  /// Launches the copy; `from` has the buffer's length.
  Status copy_within(const void* from, at::ScalarType type);
  /// Retains the source of the copy until it is done, on another thread: releasing it may free it.
  Status keep_until_copied(std::shared_ptr<const DeviceBuffer> buffer);

  const TensorTable& table_;
  const at::ScalarType type_;
  const CudaStream& stream_;
  at::Tensor flat_;  // [table.count()]
  WeightUpload upload_;
  bool has_space_;
  std::optional<WeightStage> stage_;             // the second set; declared after the members it
                                                 // uses
  c10::Event is_copied_{c10::DeviceType::CUDA};  // the last copy within the device
  std::jthread retaining_thread_;  // retains the source of that copy; declared after what it uses
};

}  // namespace primerl
