/// The weights of an engine on a CUDA device: all parameters in one flat buffer of one type, laid
/// out as the table says (models/tensors.h).
///
/// Addresses are fixed for life, so that captured graphs see new weights. A snapshot that lies on
/// the same device is taken by one copy. For any other, where there is room for a second set, it is
/// made when the first comes; prepare() fills it while steps go on, and apply() is then such a copy
/// as well. The copy is a part of the stream's order: the host does not wait for it. One thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/models/tensors.h"
#include "kernels/torch/cuda/fp8.h"
#include "kernels/torch/cuda/weight_stage.h"

namespace primerl {

/// One matrix as products on a device read it.
struct CardLinear {
  at::Tensor transposed;  // [terms, columns], a view; undefined: there is none
  at::Tensor bias;        // [columns], or undefined
  std::shared_ptr<const Fp8Weight> fp8 = {};  // null: products read `transposed`
};

class CardWeights {
 public:
  /// `table` and `stream` outlive it; `type` is kFloat or kBFloat16. All weights are 0.
  CardWeights(const TensorTable& table, at::ScalarType type, const CardStream& stream,
              bool has_room_for_second_set);

  const TensorTable& table() const { return table_; }
  at::ScalarType type() const { return type_; }
  /// [of the parameter's shape], a view; undefined: the model has none of that name.
  at::Tensor tensor(std::string_view name) const;
  /// Null: the model has none of that name.
  const void* data(std::string_view name) const;
  CardLinear linear(std::string_view name) const;

  /// False also when there was room and it is gone.
  bool has_room_for_second_set() const { return has_room_; }
  /// Takes what a folder has; all or nothing (tensors.h). Has read all of it when it returns.
  Status load(const std::vector<WeightTensor>& tensors);
  /// Begins to fill the second set, or goes on with it; whether there is nothing to wait for.
  bool prepare(const std::shared_ptr<const WeightSnapshot>& snapshot);
  /// As load(), from the device that has it, or from the second set if that has been prepared from
  /// the same memory. What is launched on the stream from now on sees the new weights; what the
  /// copy reads is kept until it is done.
  Status apply(const WeightSnapshot& snapshot);

 private:
  /// Of a snapshot whose flat buffer lies on this device: its type.
  std::optional<at::ScalarType> type_beside(const WeightSnapshot& snapshot) const;
  bool has_stage();
  /// Whether a copy out of the second set, or out of a buffer, is under way.
  bool is_being_read() const;
  /// Launches it; `from` is as long as the buffer.
  Status copy_within(const void* from, at::ScalarType type);
  /// Keeps what the copy reads until it is done, on another thread: to let go may be to free it.
  Status keep_until_copied(std::shared_ptr<const DeviceBuffer> buffer);

  const TensorTable& table_;
  const at::ScalarType type_;
  const CardStream& stream_;
  at::Tensor flat_;  // [table.count()]
  WeightUpload upload_;
  bool has_room_;
  std::optional<WeightStage> stage_;  // after what it uses; the second set
  c10::Event is_copied_{c10::DeviceType::CUDA};  // the last copy within the device
  std::jthread keeping_;                         // of what that reads; after what it uses
};

}  // namespace primerl
