/// The requests of the control API as data: one table of routes, from which requests are read and
/// `GET /openapi.json` is made (docs/design/hosted.md). Plain functions, any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "runtime/control/control_fault.h"

namespace primerl {

enum class ControlVerb {
  kAdd,
  kList,
  kShow,
  kPause,
  kResume,
  kSet,
  kRemove,
  kEvents,
  kStore,
  kDiscard,
  kOpenApi
};

/// A key of a query; its value is a number.
struct QueryKey {
  std::string name;
  std::string doc;
  bool is_flag = true;  // only 1 is valid
};

struct ControlRoute {
  ControlVerb verb = ControlVerb::kList;
  std::string method;
  std::string path;  // "/v1/tenants/{name}/pause"
  std::string doc;
  bool is_for_tenants = false;  // also a tenant's token, for itself
  bool has_body = false;
  std::vector<QueryKey> query = {};
};

const std::vector<ControlRoute>& control_routes();

/// A request that a route takes, or why none does.
struct RoutedRequest {
  const ControlRoute* route = nullptr;
  std::string name;  // of the tenant in the path
  std::string file;  // of the data file in the path
  std::map<std::string, uint64_t> query;
  std::optional<ControlFault> fault;
  bool has(const std::string& key) const { return query.contains(key); }
};
/// `query`: behind '?'. Names of tenants and numbers need no escape, so '%' is refused.
RoutedRequest route_request(std::string_view method, std::string_view path, std::string_view query);

/// The text of a tenant's file: the body, or "file" of a JSON object if `content_type` is "" (the
/// listener's word for JSON) and the body begins with '{'.
struct UploadBody {
  std::string text;
  std::optional<ControlFault> fault;
};
UploadBody read_upload(std::string_view content_type, const std::string& body);

/// The values of a PATCH: a JSON object of numbers.
struct ValuesBody {
  Json values;
  std::optional<ControlFault> fault;
};
ValuesBody read_values(const std::string& body);

/// The refusal in an answer of TenantControl; no value: it did what was asked.
std::optional<ControlFault> fault_of_answer(const Json& answer);

/// The error of a status that the listener itself sends.
ControlFault listener_fault(int32_t status, std::string_view message);

/// OpenAPI 3.0.3 of control_routes().
Json openapi_document();

}  // namespace primerl
