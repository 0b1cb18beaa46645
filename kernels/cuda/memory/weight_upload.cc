#include "kernels/cuda/memory/weight_upload.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "graph/base/real_clock.h"
#include "kernels/cuda/device/device.h"

namespace primerl {
namespace {

constexpr int64_t kPartBytes = int64_t{16} << 20;
constexpr int64_t kPieceAlignment = 16;                      // of a tensor within a part
constexpr auto kUploadPoll = std::chrono::microseconds(20);  // a part takes 300 us or more

at::ScalarType type_of(DataType type) {
  if (type == DataType::kBF16) return at::kBFloat16;
  return type == DataType::kF16 ? at::kHalf : at::kFloat;  // match_tensors() accepts no other type
}

}  // namespace

WeightUpload::WeightUpload(at::ScalarType type, c10::Device device)
    : type_(type), stream_(device.index(), CudaStream::Urgency::kLow) {
  for (Part& part : parts_) {
    part.host = at::empty({kPartBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    part.device = at::empty({kPartBytes}, at::TensorOptions(device).dtype(at::kByte));
  }
}

double WeightUpload::bytes_needed() { return 2.0 * kPartBytes; }

Status WeightUpload::run(const TensorMatch& match, const at::Tensor& flat,
                         const std::stop_token& stop) {
  const CudaStream::Use use(stream_);
  used_ = 0;
  for (Part& part : parts_) RETURN_IF_ERROR(await(part.is_read));
  Status copied;
  for (const Piece& piece : pieces_of(match))
    if (copied.ok()) copied = copy(piece, flat, stop);
  stream_.record(parts_[now_].is_read);
  for (Part& part : parts_) RETURN_IF_ERROR(await(part.is_read));
  return copied;
}

/// A learner's snapshot has the engine's order, so an adapter of hundreds of tensors is a few
/// pieces.
std::vector<WeightUpload::Piece> WeightUpload::pieces_of(const TensorMatch& match) {
  std::vector<Piece> all;
  for (const auto& [tensor, slice] : match.sources)
    all.push_back(
        {tensor->bytes.bytes().data(), type_of(tensor->type), slice->offset, slice->count});
  std::ranges::sort(all, {}, &Piece::to);
  std::vector<Piece> pieces;
  for (const Piece& each : all) {
    const auto size = static_cast<int64_t>(at::elementSize(each.type));
    const bool is_next = !pieces.empty() && pieces.back().type == each.type &&
                         pieces.back().to + pieces.back().count == each.to &&
                         pieces.back().from + pieces.back().count * size == each.from;
    if (is_next)
      pieces.back().count += each.count;
    else
      pieces.push_back(each);
  }
  return pieces;
}

Status WeightUpload::copy(const Piece& piece, const at::Tensor& flat, const std::stop_token& stop) {
  const at::ScalarType from = piece.type;
  const auto size = static_cast<int64_t>(at::elementSize(from));
  const std::byte* bytes = piece.from;
  if (from == type_ && is_pinned(bytes))
    return stream_.copy(flat.narrow(0, piece.to, piece.count).mutable_data_ptr(), bytes,
                        static_cast<size_t>(piece.count * size));
  for (int64_t begin = 0; begin < piece.count;) {
    if (used_ + size > kPartBytes) {
      stream_.record(parts_[now_].is_read);
      now_ = 1 - now_;
      used_ = 0;
      RETURN_IF_ERROR(await(parts_[now_].is_read));
      if (stop.stop_requested())
        return error(Code::kUnavailable, "newer weights arrived before these were on the device");
    }
    const int64_t count = std::min((kPartBytes - used_) / size, piece.count - begin);
    const Part& part = parts_[now_];
    auto* pinned = part.host.mutable_data_ptr<uint8_t>() + used_;
    std::memcpy(pinned, bytes + begin * size, static_cast<size_t>(count * size));
    const at::Tensor to = flat.narrow(0, piece.to + begin, count);
    const bool is_same = from == type_;
    const at::Tensor staged = part.device.narrow(0, used_, count * size);
    RETURN_IF_ERROR(stream_.copy(is_same ? to.mutable_data_ptr() : staged.mutable_data_ptr(),
                                 pinned, static_cast<size_t>(count * size)));
    if (!is_same) to.copy_(staged.view(from));
    begin += count;
    used_ += (count * size + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  }
  return ok();
}

Status WeightUpload::take(const DeviceBuffer& buffer, const at::Tensor& flat) {
  RETURN_IF_ERROR(buffer.reach_from(stream_.device().index()));
  const CudaStream::Use use(stream_);
  RETURN_IF_ERROR(
      stream_.copy(flat.mutable_data_ptr(), buffer.data(), static_cast<size_t>(flat.nbytes())));
  c10::Event is_copied{c10::DeviceType::CUDA};
  stream_.record(is_copied);
  return await(is_copied);
}

/// Sleeps between polls: an engine's steps need the processor more.
Status WeightUpload::await(const c10::Event& is_done) {
  const auto deadline = deadline_after(kCudaWaitMax);
  while (!is_done.query()) {
    if (std::chrono::steady_clock::now() >= deadline)
      return error(Code::kDeadline, "the device has been busy with a part of new weights for {} s",
                   kCudaWaitMax.to_seconds());
    std::this_thread::sleep_for(kUploadPoll);
  }
  return ok();
}

}  // namespace primerl
