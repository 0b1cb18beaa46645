#include "runtime/worker/kv_event_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "graph/base/files.h"
#include "graph/base/json.h"

namespace primerl {
namespace {

constexpr std::string_view kEnd = R"({"end":"kv_events_bytes_max"})";

/// The last line, if it is about as long as the one that ends a file; otherwise any other text.
std::string last_line(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  const auto size = static_cast<int64_t>(in.tellg());
  const auto wanted = std::min<int64_t>(size, static_cast<int64_t>(kEnd.size()) + 2);
  if (wanted <= 0) return "";
  std::string tail(static_cast<size_t>(wanted), ' ');
  in.seekg(size - wanted);
  in.read(tail.data(), wanted);
  if (!in || tail.back() != '\n') return "";
  tail.pop_back();
  const size_t before = tail.rfind('\n');
  return before == std::string::npos ? tail : tail.substr(before + 1);
}

/// The bytes of the hash, in order.
std::string hex(const BlockName& name) {
  std::string text;
  for (const uint64_t half : {name.low, name.high})
    for (int byte = 0; byte < 8; ++byte) text += fmt::format("{:02x}", (half >> (8 * byte)) & 0xff);
  return text;
}

}  // namespace

std::string KvEventFile::line_of(const KvEvents& taken, double time) const {
  Json events = Json::array();
  for (const KvEvent& event : taken.events) {
    Json one = Json::object().set("event", event.number).set("type", to_string(event.kind));
    if (event.kind != KvEventKind::kAllBlocksCleared)
      one.set("block_hashes", Json::list(std::vector<std::string>{hex(event.name)}));
    if (event.kind == KvEventKind::kBlockStored) {
      const size_t slot = event.key.tenant.index();
      const uint32_t adapter = event.key.adapter.value;
      one.set("parent_block_hash", event.parent ? Json(hex(*event.parent)) : Json())
          .set("token_ids", Json::list(event.tokens))
          .set("block_size", static_cast<int64_t>(event.tokens.size()))
          .set("tenant", slot < setup_.tenants.size() ? Json(setup_.tenants[slot]) : Json())
          .set("lora_id", adapter == 0 ? Json() : Json(adapter));
    }
    if (event.kind != KvEventKind::kAllBlocksCleared) one.set("medium", setup_.medium);
    events.push_back(std::move(one));
  }
  return Json::object().set("time", time).set("events", std::move(events)).dump();
}

Status KvEventFile::open() {
  std::error_code fault;
  std::filesystem::create_directories(setup_.file.parent_path(), fault);
  ASSIGN_OR_RETURN(lines_, LineFile::open(setup_.file));
  const auto size = std::filesystem::file_size(setup_.file, fault);
  if (fault) return io_error("measuring", setup_.file, fault.value());
  num_bytes_ = static_cast<int64_t>(size);
  // A line that did not fit may have been longer than the lines of this start.
  if (last_line(setup_.file) == kEnd)
    return error(Code::kExhausted, "'{}' has ended at its limit", setup_.file.string());
  return ok();
}

void KvEventFile::write(const KvEvents& taken, double time) {
  num_dropped_by_engine_ = taken.num_dropped;
  if (taken.events.empty()) return;
  if (!has_ended_ && lines_ == nullptr) has_ended_ = !open().ok();
  if (!has_ended_) {
    const std::string line = line_of(taken, time);
    // Reserves space for the line that says why the file ends.
    const auto bytes = static_cast<int64_t>(line.size()) + 1;
    const auto end_bytes = static_cast<int64_t>(kEnd.size()) + 1;
    if (num_bytes_ + bytes + end_bytes <= setup_.bytes_max && lines_->append(line).ok()) {
      num_bytes_ += bytes;
      num_written_ += taken.events.size();
      return;
    }
    // After an error of the disk this fails again, and the file ends without a reason.
    if (num_bytes_ + end_bytes <= setup_.bytes_max) static_cast<void>(lines_->append(kEnd));
    has_ended_ = true;
    lines_.reset();
  }
  num_dropped_ += taken.events.size();
}

}  // namespace primerl
