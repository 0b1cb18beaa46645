#include "kernels/common/step_dump.h"

#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "graph/base/files.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr std::string_view kFileName = "step.safetensors";

}  // namespace

void StepDump::add(std::string name, WeightTensor tensor) {
  num_bytes_ += tensor.bytes.size();
  is_full_ = is_full_ || num_bytes_ > kStepDumpBytesMax;
  if (is_full_) return;
  tensor.name = fmt::format("{:06}.{}", tensors_.size(), name);
  tensors_.push_back(std::move(tensor));
}

void StepDump::add(const std::string& name, const at::Tensor& rows) {
  WeightTensor tensor;
  tensor.type = rows.scalar_type() == at::kInt ? DataType::kI32 : DataType::kF32;
  tensor.shape = rows.sizes().vec();
  const auto* data = static_cast<const std::byte*>(rows.const_data_ptr());
  tensor.bytes = Blob(std::vector<std::byte>(data, data + rows.nbytes()));
  add(name, std::move(tensor));
}

void StepDump::add(const std::string& prefix, const std::vector<WeightTensor>& tensors) {
  for (const auto& tensor : tensors) add(prefix + "." + tensor.name, tensor);
}

Status StepDump::remove(const std::filesystem::path& folder) {
  return system_files().remove_all(folder / kFileName);
}

Status StepDump::write(const std::filesystem::path& folder) {
  const auto tensors = std::move(tensors_);
  tensors_.clear();
  num_bytes_ = 0;
  if (std::exchange(is_full_, false))
    return error(Code::kExhausted, "the values of this step need more than {} bytes",
                 kStepDumpBytesMax)
        .note("use a batch with fewer tokens");
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) return error(Code::kIo, "cannot make '{}': {}", folder.string(), fault.message());
  return write_safetensors(folder / kFileName, tensors);
}

}  // namespace primerl
