/// Optimizer: changes the weights of a flat buffer by their gradients, on any device. It owns the
/// moments and counts the steps.
///
/// Formulas and their sources are in docs/design/optimizers.md. All arithmetic is fp32; Muon's
/// iterations are bf16, and moments may be stored in bf16, rounded at random so that small changes
/// are kept on average. The random bits depend on step and element only. A step has the same bits
/// for any number of compute threads, and after its state was saved and read.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"
#include "kernels/train/learner.h"
#include "kernels/train/loss_batch.h"
#include "kernels/train/optimizer.h"
#include "kernels/train/optimizer_state.h"

namespace primerl {

/// The device of the weights, and what an optimizer computes there by an operation of its own.
class OptimizerDevice {
 public:
  virtual ~OptimizerDevice() = default;

  /// Most elements of one operation on a part without a shape, and of matrices that are computed
  /// together; at least one matrix is.
  virtual int64_t elements_max() const = 0;
  virtual int64_t matrix_elements_max() const = 0;
  /// `count` zeros on the device, or on the host in memory that it can copy from.
  virtual at::Tensor zeros(int64_t count, at::ScalarType type, bool on_host) const = 0;
  /// Calls body(i) for each i of [0, count), at the same time if the device can. An operation of
  /// libtorch in it has the same bits, whatever the number of threads. Returns the first error.
  virtual Status run(int64_t count, int64_t work,
                     const std::function<Status(int64_t)>& body) const = 0;
  /// Reserves memory for later operations, as far as the device can.
  virtual Status reserve(int64_t floats) const = 0;

  /// The L2 norm of the trained gradients, and the first tensor where they are not finite.
  virtual double gradient_norm() = 0;
  virtual std::string broken_gradient() const = 0;

  /// One AdamW step of elements [offset, offset + args.count).
  virtual Status adamw(const AdamwArgs& args, int64_t offset) const = 0;
  /// `x` with values that bf16 has, in the type that multiply_add() takes.
  virtual at::Tensor in_bf16(const at::Tensor& x) const = 0;
  /// beta c + alpha a b for each of [matrices, rows, columns], summed in fp32 and rounded as
  /// in_bf16() does. `is_symmetric`: b is transposed, [matrices, columns, terms], and the result
  /// is symmetric.
  virtual at::Tensor multiply_add(const at::Tensor& c, double beta, const at::Tensor& a,
                                  const at::Tensor& b, bool is_symmetric, double alpha) const = 0;
};

/// Flat buffers of one layout, on the device.
struct OptimizerBuffers {
  at::Tensor weights;    // fp32
  at::Tensor gradients;  // fp32
  at::Tensor rounded;    // the weights in bf16, which each step writes; undefined: there are none
};

class Optimizer {
 public:
  /// `options` are valid. `files`: as in plan_optimizer(). Both tables must stay valid while it
  /// exists.
  Optimizer(const OptimizerOptions& options, const TensorTable& table, const TensorTable& files,
            OptimizerBuffers buffers, std::unique_ptr<OptimizerDevice> device);

  int64_t num_steps() const { return num_steps_; }
  /// One step at report.learning_rate, after the clip; fills report.grad_norm. A gradient or loss
  /// that is NaN or infinite changes nothing: the report says that the step was skipped, and why.
  /// `adam`: the other numbers of this step, instead of those of the options; null: those.
  Status update(TrainReport& report, const AdamNumbers* adam = nullptr);

  /// Whether update() with this rate may leave the range of fp32. It compares the greatest
  /// magnitudes of weights, gradients and moments with bounds that no usual step comes near; within
  /// them every rule stays finite.
  bool may_overflow(double lr, const AdamNumbers* adam) const;
  /// Copies, on their device, of all that update() changes.
  struct Undo {
    at::Tensor weights;
    std::array<at::Tensor, 2> states;
    int64_t num_steps = 0;
  };
  Undo undo() const;
  void restore(const Undo& undo);

  /// Copies of the state's arrays on the host. The next call reuses memory that was released.
  std::vector<WeightTensor> copy_state();
  /// Content of state.json.
  Json header() const { return optimizer_state(options_.kind, num_steps_); }
  /// Reads and checks the files of a state (optimizer_state.h). set_state() of it cannot fail.
  Result<OptimizerState> read(const std::filesystem::path& folder) const;
  void set_state(const OptimizerState& state);

 private:
  /// Elements [begin, begin + count) of a part, or its matrices from `begin` on.
  struct Unit {
    size_t part = 0;
    int64_t begin = 0, count = 0;
  };
  /// A range of a state buffer as fp32 on the device, which store() writes back.
  struct Moments {
    at::Tensor stored, values;
    uint64_t seed = 0;
  };

  std::vector<Unit> units_of_plan() const;
  /// Floats of temporary tensors on the device.
  int64_t floats_of_unit(const Unit& unit) const;
  Status step(double lr, double gradient_scale);
  Status step_unit(const Unit& unit);
  Status step_adamw(const Unit& unit);
  void step_elements(const Unit& unit);
  void step_muon(const Unit& unit);
  void step_adafactor(const Unit& unit);
  void step_vector(const UpdatePart& part);
  Moments moments(size_t buffer, int64_t offset, int64_t count) const;
  static void store(const Moments& moments);
  at::Tensor gradient(int64_t offset, int64_t count) const;
  void decay(const UpdatePart& part, const at::Tensor& weights) const;
  void round_weights(int64_t offset, int64_t count) const;

  // Constant after construction.
  const OptimizerOptions options_;
  const OptimizerRules rules_;
  const OptimizerPlan plan_;
  const OptimizerBuffers buffers_;
  const std::unique_ptr<OptimizerDevice> device_;
  const std::vector<Unit> units_;
  const AdamNumbers own_numbers_;     // of the options; other kinds use some of them
  int64_t reserved_floats_ = 0;       // of the largest unit
  std::array<at::Tensor, 2> states_;  // of OptimizerPlan
  std::array<at::Tensor, 2> copies_;  // of states_ on the host, made by copy_state()
  int64_t num_steps_ = 0;
  // For the step in progress.
  AdamNumbers numbers_;
  float lr_ = 0;
  float scale_ = 1;  // of the gradients
};

/// bf16 of fp32 `values`, each rounded to one of its two neighbours so that the mean over seeds is
/// the value. A pure function of values and seed, with equal bits on any device.
at::Tensor round_at_random(const at::Tensor& values, uint64_t seed);

/// Five Newton-Schulz iterations: x [matrices, rows, columns] with its singular values moved close
/// to 1, as fp32. A matrix of zeros stays 0.
at::Tensor orthogonalize(const OptimizerDevice& device, const at::Tensor& x);

}  // namespace primerl
