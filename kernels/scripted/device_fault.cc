#include "kernels/scripted/device_fault.h"

#include <filesystem>

#include "graph/base/files.h"

namespace primerl {
namespace {

constexpr std::string_view kNoSpace = "no space";

}  // namespace

Status take_disk_fault(const std::string& file, std::string_view doing) {
  if (file.empty()) return ok();
  const auto asked = read_text_file(file);
  std::error_code fault;
  if (!asked.ok() || *asked != kNoSpace || !std::filesystem::remove(file, fault)) return ok();
  return error(Code::kIo, "{}: No space left on device (file '{}' was there)", doing, file);
}

Status take_device_fault(const std::string& file, std::string_view doing) {
  if (file.empty()) return ok();
  const auto asked = read_text_file(file);
  std::error_code fault;
  // If several readers race, the one that removes the file gets the fault.
  if (!asked.ok() || *asked == kNoSpace || !std::filesystem::remove(file, fault)) return ok();
  if (*asked == "full")
    return error(Code::kExhausted, "{}: a scripted device has no memory left (file '{}' was there)",
                 doing, file);
  if (*asked != "lost")
    return error(Code::kInvalid, "'{}' says '{}', which is not a device fault", file, *asked)
        .note("valid faults are \"lost\", \"full\" and \"no space\"");
  return error(Code::kDeviceLost,
               "{}: the device is lost to this process: scriptedDeviceLost (file '{}' was there)",
               doing, file)
      .note("a scripted fault: remove 'device_fault_file' from the graph");
}

}  // namespace primerl
