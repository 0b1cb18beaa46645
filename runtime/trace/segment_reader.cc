#include "runtime/trace/segment_reader.h"

#include <algorithm>
#include <cstring>

#include "graph/base/crc32c.h"
#include "runtime/trace/frame_check.h"
#include "runtime/trace/packed_segment.h"
#include "runtime/trace/segment_bytes.h"

namespace primerl {
namespace {

constexpr uint64_t align_up(uint64_t offset) {
  return (offset + kFrameAlignment - 1) & ~uint64_t{kFrameAlignment - 1};
}

Result<SegmentHeader> read_header(std::span<const std::byte> raw) {
  SegmentHeader header{};
  if (raw.size() < sizeof(header))
    return error(Code::kCorrupt, "{} bytes are too few for a trace segment", raw.size());
  std::memcpy(&header, raw.data(), sizeof(header));
  if (std::memcmp(header.magic, kSegmentMagic, sizeof(kSegmentMagic)) != 0)
    return error(Code::kCorrupt, "not a trace segment: it does not begin with 'PRMLTRC'");
  if (header.format_version != kTraceFormatVersion)
    return error(Code::kInvalid, "trace format version {}; this program reads {}",
                 header.format_version, kTraceFormatVersion);
  const auto checked = raw.first(offsetof(SegmentHeader, crc));
  if (header.header_bytes != sizeof(header) || header.crc != crc32c(checked) || header.number == 0)
    return error(Code::kCorrupt, "the segment's header is damaged");
  return header;
}

class Reader final : public SegmentReader {
 public:
  static Result<std::unique_ptr<SegmentReader>> create(std::unique_ptr<SegmentBytes> bytes) {
    bytes->ensure(0, sizeof(SegmentHeader));
    ASSIGN_OR_RETURN(const auto header, read_header(bytes->raw()));
    return std::unique_ptr<SegmentReader>(std::make_unique<Reader>(std::move(bytes), header));
  }
  Reader(std::unique_ptr<SegmentBytes> bytes, const SegmentHeader& header)
      : bytes_(std::move(bytes)), header_(header), scan_left_(16 * num_bytes() + (16U << 20)) {}

  const SegmentHeader& header() const override { return header_; }
  uint64_t num_bytes() const override { return bytes_->raw().size(); }
  const std::vector<Damage>& damage() const override { return damage_; }

  std::optional<Frame> next(uint64_t offset) override {
    const uint64_t begin = std::max<uint64_t>(align_up(offset), sizeof(SegmentHeader));
    uint64_t at = begin;
    auto frame = frame_at(at);
    while (!frame && at + sizeof(TraceFrameHeader) <= num_bytes()) {
      at = next_candidate(at);
      frame = frame_at(at);
    }
    if (frame && at > begin) note_damage(begin, at, false);
    if (!frame && !is_unused(begin)) note_damage(begin, num_bytes(), true);
    return frame;
  }

  Result<Frame> at(uint64_t offset) override {
    if (offset % kFrameAlignment == 0 && offset >= sizeof(SegmentHeader)) {
      uint64_t num_checked = 0;
      if (auto frame = check(offset, num_checked)) return *frame;
    }
    return error(Code::kCorrupt, "no frame begins at offset {}", offset);
  }

 private:
  // The frame at `offset`. A failed check reduces the scan's budget.
  std::optional<Frame> frame_at(uint64_t offset) {
    uint64_t num_checked = 0;
    auto frame = check(offset, num_checked);
    if (!frame) scan_left_ -= std::min(scan_left_, num_checked);
    return frame;
  }

  std::optional<Frame> check(uint64_t offset, uint64_t& num_checked) {
    const uint64_t size = num_bytes();
    if (offset > size || size - offset < sizeof(TraceFrameHeader)) return std::nullopt;
    bytes_->ensure(offset, offset + sizeof(TraceFrameHeader));
    TraceFrameHeader head{};
    std::memcpy(&head, bytes_->raw().data() + offset, sizeof(head));
    if (head.length < sizeof(head) || head.length > kFrameBytesMax || head.length > size - offset)
      return std::nullopt;
    if (head.length < fixed_bytes(head.kind)) return std::nullopt;
    const uint64_t padded_end = std::min(size, align_up(offset + head.length));
    if (!bytes_->ensure(offset, padded_end)) return std::nullopt;
    const auto bytes = bytes_->raw().subspan(offset, head.length);
    if (!is_well_formed(bytes, offset) || !is_zero(offset + head.length, padded_end))
      return std::nullopt;
    num_checked = head.length;
    if (crc32c(bytes.subspan(kFrameCrcBegin), crc_start(header_.seed, offset)) != head.crc)
      return std::nullopt;
    return Frame{.offset = offset, .bytes = bytes};
  }

  // The next position after `at` where a frame may begin: the next word that is not zero.
  uint64_t next_candidate(uint64_t at) {
    // Without a budget, bytes that are forged to look like many frames would cost quadratic time.
    if (scan_left_ == 0) {
      was_given_up_ = true;
      return num_bytes();
    }
    const uint64_t words_end = num_bytes() & ~uint64_t{kFrameAlignment - 1};
    at += kFrameAlignment;
    while (at < words_end) {
      bytes_->ensure(at, at + kFrameAlignment);
      if (const uint64_t skip = bytes_->damaged_until(at); skip > 0) {
        at = align_up(skip);
        continue;
      }
      const uint64_t stop =
          std::min<uint64_t>(words_end, (at / kPackedBlockBytes + 1) * kPackedBlockBytes);
      for (; at < stop; at += kFrameAlignment) {
        uint64_t word = 0;
        std::memcpy(&word, bytes_->raw().data() + at, sizeof(word));
        if (word != 0) return at;
      }
    }
    return num_bytes();
  }

  bool is_zero(uint64_t begin, uint64_t end) const {
    const auto part = bytes_->raw().subspan(begin, end - begin);
    return std::all_of(part.begin(), part.end(), [](std::byte b) { return b == std::byte{0}; });
  }

  // Whether the space was never reserved: zeros up to the end.
  bool is_unused(uint64_t begin) const {
    for (uint64_t at = begin; at < num_bytes(); at += kPackedBlockBytes)
      if (bytes_->damaged_until(at) > 0) return false;
    return begin >= num_bytes() ||
           (bytes_->damaged_until(num_bytes() - 1) == 0 && is_zero(begin, num_bytes()));
  }

  void note_damage(uint64_t begin, uint64_t end, bool is_tail) {
    for (const auto& known : damage_)
      if (known.offset == begin) return;  // already visited
    const bool is_hole = end - begin >= sizeof(uint32_t) &&
                         is_zero(begin, begin + sizeof(uint32_t)) &&
                         bytes_->damaged_until(begin) == 0 && !was_given_up_;
    damage_.push_back(
        {.offset = begin, .num_bytes = end - begin, .is_hole = is_hole, .is_tail = is_tail});
  }

  const std::unique_ptr<SegmentBytes> bytes_;
  const SegmentHeader header_;
  std::vector<Damage> damage_;
  uint64_t scan_left_;  // budget: bytes of candidates that are not frames
  bool was_given_up_ = false;
};

Result<std::unique_ptr<SegmentReader>> read(Result<std::unique_ptr<SegmentBytes>> bytes,
                                            const std::string& what) {
  if (!bytes.ok()) return std::move(bytes).error().while_doing(fmt::format("'{}'", what));
  auto reader = Reader::create(std::move(bytes).value());
  if (!reader.ok()) return std::move(reader).error().while_doing(fmt::format("'{}'", what));
  return reader;
}

}  // namespace

Result<std::unique_ptr<SegmentReader>> SegmentReader::open(const std::filesystem::path& file) {
  return read(SegmentBytes::open(file), file.string());
}

Result<std::unique_ptr<SegmentReader>> SegmentReader::parse(std::span<const std::byte> bytes,
                                                            std::string what) {
  return read(SegmentBytes::borrow(bytes), what);
}

Result<std::string> catalog_text(const Frame& frame) {
  const auto body = frame.after<TraceFrameHeader>();
  if ((frame.header().flags & kPackedCatalog) != 0) return unpack_text(body, kCatalogBytesMax);
  return std::string(reinterpret_cast<const char*>(body.data()), body.size());
}

}  // namespace primerl
