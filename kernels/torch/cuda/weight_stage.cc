#include "kernels/torch/cuda/weight_stage.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "kernels/torch/boundary.h"

namespace primerl {

WeightStage::WeightStage(const TensorTable& table, const at::Tensor& like, WeightUpload& upload)
    : table_(table), upload_(upload), flat_(at::zeros_like(like)) {}

Status WeightStage::begin(const std::shared_ptr<const WeightSnapshot>& snapshot) {
  stop();
  ASSIGN_OR_RETURN(match_, match_tensors(table_, snapshot->tensors));
  snapshot_ = snapshot;
  is_done_.store(false, std::memory_order_release);
  thread_ = std::jthread([this](const std::stop_token& stop) {
    outcome_ = at_boundary("new weights", [&] { return upload_.run(match_, flat_, stop); });
    is_done_.store(true, std::memory_order_release);
  });
  return ok();
}

bool WeightStage::holds(const WeightSnapshot& snapshot) const {
  return snapshot_ != nullptr &&
         std::ranges::equal(snapshot.tensors, snapshot_->tensors,
                            [](const WeightTensor& a, const WeightTensor& b) {
                              return a.bytes.bytes().data() == b.bytes.bytes().data() &&
                                     a.bytes.size() == b.bytes.size() && a.name == b.name;
                            });
}

/// The thread ends by itself: each of its waits has a deadline.
Status WeightStage::wait() {
  if (thread_.joinable()) thread_.join();
  Status outcome = std::exchange(outcome_, ok());
  if (!outcome.ok()) snapshot_ = nullptr;
  return outcome;
}

void WeightStage::stop() {
  thread_.request_stop();
  static_cast<void>(wait());
  snapshot_ = nullptr;
}

}  // namespace primerl
