#include "kernels/train/kept_batches.h"

#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "graph/base/files.h"
#include "kernels/train/batch_file.h"

namespace primerl {

Status KeptBatches::prepare() {
  RETURN_IF_ERROR(system_files().make_folder(folder_));
  if (::access(folder_.c_str(), W_OK | X_OK) != 0) return io_error("writing into", folder_, errno);
  return ok();
}

Status KeptBatches::keep(int64_t step, const TrainBatch& batch) {
  num_of_step_ = step == step_ ? num_of_step_ + 1 : 1;
  step_ = step;
  const std::string number = num_of_step_ > 1 ? fmt::format(".{}", num_of_step_) : "";
  std::error_code ignored;
  for (; files_.size() >= files_max_; files_.pop_front())
    std::filesystem::remove(files_.front(), ignored);
  RETURN_IF_ERROR(system_files().make_folder(folder_));
  files_.push_back(folder_ / fmt::format("step_{:06}{}.safetensors", step, number));
  return write_train_batch(files_.back(), batch);
}

}  // namespace primerl
