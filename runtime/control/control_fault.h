/// ControlFault: why the control API refuses a request, as a client reads it. A value.
#pragma once

#include <cstdint>
#include <string>

#include "graph/base/json.h"

namespace primerl {

struct ControlFault {
  int32_t status = 400;     // of HTTP
  std::string error{};      // what is wrong
  std::string where{};      // "tenant.toml:4:1", "path", "query", "header Authorization", ...
  std::string valid{};      // what would be valid
  std::string help{};       // what to do
  int32_t retry_after = 1;  // seconds, with status 429 and 503

  /// {"error", "where", "valid", "help"}: all four are always there.
  Json json() const {
    return Json::object()
        .set("error", error)
        .set("where", where)
        .set("valid", valid)
        .set("help", help);
  }
};

}  // namespace primerl
