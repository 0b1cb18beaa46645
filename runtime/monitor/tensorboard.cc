#include "runtime/monitor/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <span>

#include "graph/base/crc32c.h"
#include "graph/base/files.h"
#include "graph/base/histogram.h"

namespace primerl {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

template <class T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Wire types of protobuf: 0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes.
void put_key(std::string& out, uint32_t field, uint32_t wire) {
  put_varint(out, (field << 3) | wire);
}

void put_text(std::string& out, uint32_t field, std::string_view text) {
  put_key(out, field, 2);
  put_varint(out, text.size());
  out += text;
}

std::string event_head(double wall_time, int64_t step) {
  std::string event;
  put_key(event, 1, 1);
  put_raw(event, wall_time);
  put_key(event, 2, 0);
  put_varint(event, static_cast<uint64_t>(step));
  return event;
}

void put_double(std::string& out, uint32_t field, double value) {
  put_key(out, field, 1);
  put_raw(out, value);
}

/// The lowest value that a bucket without one below it can have.
double edge_below(double bound) { return bound > 0 ? 0 : bound < 0 ? 2 * bound : -1; }

/// One histogram; a first bucket without values is its lower edge.
std::string histogram_proto(std::span<const MetricValues::value_type> buckets) {
  std::string limits, counts;
  double low = edge_below(bucket_of_metric(buckets.front().first)->bound);
  double min = low, count = 0, sum = 0, squares = 0;
  bool is_first = true;
  for (const auto& [name, number] : buckets) {
    double bound = bucket_of_metric(name)->bound;
    if (is_first && number == 0) {
      min = low = bound;
      is_first = false;
      continue;
    }
    is_first = false;
    if (std::isinf(bound)) bound = low > 0 ? 2 * low : low + 1;  // above the last bound
    const double middle = (low + bound) / 2;
    count += number;
    sum += number * middle;
    squares += number * middle * middle;
    put_raw(limits, bound);
    put_raw(counts, number);
    low = bound;
  }
  std::string proto;
  put_double(proto, 1, min);
  put_double(proto, 2, low);
  put_double(proto, 3, count);
  put_double(proto, 4, sum);
  put_double(proto, 5, squares);
  put_text(proto, 6, limits);
  put_text(proto, 7, counts);
  return proto;
}

}  // namespace

Result<std::unique_ptr<TensorBoardFile>> TensorBoardFile::create(
    const std::filesystem::path& folder, double wall_time) {
  const auto seconds = static_cast<int64_t>(wall_time);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const auto file =
        folder / fmt::format("events.out.tfevents.{:010}.primerl.{}", seconds, attempt);
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return io_error("opening", file, errno);
    std::unique_ptr<TensorBoardFile> board(new TensorBoardFile(file, fd));
    std::string event = event_head(wall_time, 0);
    put_text(event, 3, "brain.Event:2");
    RETURN_IF_ERROR(board->write_record(event));
    return board;
  }
  return error(Code::kExists, "too many event files of this second in '{}'", folder.string());
}

TensorBoardFile::~TensorBoardFile() { ::close(fd_); }

Status TensorBoardFile::write(double wall_time, int64_t step, std::string_view prefix,
                              const MetricValues& values) {
  std::string summary;
  const auto histogram_at = [&](size_t i) {
    const auto bucket = bucket_of_metric(values[i].first);
    return bucket ? bucket->histogram : std::string_view();
  };
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& [name, number] = values[i];
    std::string value;
    if (const std::string_view histogram = histogram_at(i); !histogram.empty()) {
      const size_t begin = i;
      while (i + 1 < values.size() && histogram_at(i + 1) == histogram) ++i;
      put_text(value, 1, fmt::format("{}{}", prefix, histogram));
      put_text(value, 5, histogram_proto(std::span(values).subspan(begin, i + 1 - begin)));
      put_text(summary, 1, value);
      continue;
    }
    put_text(value, 1, fmt::format("{}{}", prefix, name));
    put_key(value, 2, 5);
    put_raw(value, static_cast<float>(number));
    put_text(summary, 1, value);
  }
  std::string event = event_head(wall_time, step);
  put_text(event, 5, summary);
  return write_record(event);
}

Status TensorBoardFile::write_record(const std::string& event) {
  if (fault_) return *fault_;
  std::string record;
  put_raw(record, static_cast<uint64_t>(event.size()));
  put_raw(record, masked_crc32c(record));
  record += event;
  put_raw(record, masked_crc32c(event));
  ssize_t written;
  do {
    written = ::write(fd_, record.data(), record.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(record.size())) return ok();
  // A reader stops at an incomplete record, and nothing is appended after it.
  fault_ = io_error("appending to", file_, written < 0 ? errno : ENOSPC);
  return *fault_;
}

}  // namespace primerl
