#include "runtime/control/control_routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "graph/spec.h"
#include "graph/tenant_values.h"

namespace primerl {
namespace {

constexpr std::string_view kNamePart = "{name}", kFilePart = "{file}";

std::vector<std::string_view> parts_of(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    parts.push_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return parts;
}

/// Whether the path has the form of a route; `name` and `file` are what stands for {name} and
/// {file}.
bool matches(std::string_view form, std::string_view path, std::string& name, std::string& file) {
  if (form.ends_with('/') != path.ends_with('/')) return false;
  const auto expected = parts_of(form), given = parts_of(path);
  if (expected.size() != given.size()) return false;
  for (size_t i = 0; i < expected.size(); ++i)
    if (expected[i] == kNamePart)
      name = given[i];
    else if (expected[i] == kFilePart)
      file = given[i];
    else if (expected[i] != given[i])
      return false;
  return true;
}

ControlFault unknown_path(std::string_view path) {
  std::vector<std::string> valid;
  for (const ControlRoute& route : control_routes())
    valid.push_back(route.method + " " + route.path);
  return {404, fmt::format("there is no path '{}'", path), "path",
          fmt::format("{}", fmt::join(valid, ", ")), "GET /openapi.json describes them"};
}

/// Reads "purge=1&after=7".
std::optional<ControlFault> read_query(std::string_view text, const ControlRoute& route,
                                       std::map<std::string, uint64_t>& query) {
  std::vector<std::string> names;
  for (const QueryKey& key : route.query) names.push_back(key.name);
  const std::string valid = names.empty() ? "no query" : fmt::format("{}", fmt::join(names, ", "));
  while (!text.empty()) {
    const size_t end = std::min(text.find('&'), text.size());
    const std::string_view item = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equals = std::min(item.find('='), item.size());
    const std::string name(item.substr(0, equals));
    const std::string_view value = item.substr(std::min(equals + 1, item.size()));
    const QueryKey* known = nullptr;
    for (const QueryKey& key : route.query)
      if (key.name == name) known = &key;
    if (known == nullptr)
      return ControlFault{400, fmt::format("there is no query '{}' here", name), "query", valid,
                          "remove it"};
    uint64_t number = 0;
    const auto [stop, fault] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool is_number = fault == std::errc() && stop == value.data() + value.size();
    if (!is_number || (known->is_flag && number != 1))
      return ControlFault{400, fmt::format("'{}' is '{}'", name, value), "query",
                          known->is_flag ? name + "=1" : name + "=NUMBER", known->doc};
    if (!query.emplace(name, number).second)
      return ControlFault{400, fmt::format("'{}' comes twice", name), "query", valid,
                          "write it once"};
  }
  return std::nullopt;
}

std::string_view operation_of(ControlVerb verb) {
  switch (verb) {
    case ControlVerb::kAdd:
      return "addTenant";
    case ControlVerb::kList:
      return "listTenants";
    case ControlVerb::kShow:
      return "showTenant";
    case ControlVerb::kPause:
      return "pauseTenant";
    case ControlVerb::kResume:
      return "resumeTenant";
    case ControlVerb::kSet:
      return "setTenant";
    case ControlVerb::kRemove:
      return "removeTenant";
    case ControlVerb::kEvents:
      return "tenantEvents";
    case ControlVerb::kStore:
      return "uploadFile";
    case ControlVerb::kDiscard:
      return "discardFiles";
    case ControlVerb::kOpenApi:
      break;
  }
  return "openApi";
}

Json parameter(std::string_view name, std::string_view in, std::string_view doc, bool is_number) {
  return Json::object()
      .set("name", name)
      .set("in", in)
      .set("required", in == "path")
      .set("description", doc)
      .set("schema", Json::object().set("type", is_number ? "integer" : "string"));
}

Json json_content(Json schema) {
  return Json::object().set("application/json", Json::object().set("schema", std::move(schema)));
}

/// A tenant's file, or the bytes of a data file.
Json body_content(ControlVerb verb) {
  Json text = Json::object().set("type", "string");
  if (verb == ControlVerb::kStore)
    return Json::object().set("application/octet-stream",
                              Json::object().set("schema", text.set("format", "binary")));
  if (verb == ControlVerb::kSet) {
    Json numbers = Json::object();
    for (const std::string& key : TenantValues::keys())
      numbers.set(key, Json::object().set("type", "number"));
    return json_content(Json::object().set("type", "object").set("properties", std::move(numbers)));
  }
  Json file = Json::object()
                  .set("type", "object")
                  .set("required", Json::list(std::vector<std::string>{"file"}))
                  .set("properties", Json::object().set("file", text));
  Json content = json_content(std::move(file));
  content.set("application/toml", Json::object().set("schema", text));
  return content;
}

Json operation(const ControlRoute& route) {
  Json parameters = Json::array();
  if (route.path.find(kNamePart) != std::string::npos)
    parameters.push_back(parameter("name", "path", "the tenant", false));
  if (route.path.find(kFilePart) != std::string::npos)
    parameters.push_back(parameter("file", "path", "the name of the file", false));
  for (const QueryKey& key : route.query)
    parameters.push_back(parameter(key.name, "query", key.doc, true));
  Json made = Json::object();
  made.set("operationId", operation_of(route.verb))
      .set("summary", route.doc)
      .set("description", route.is_for_tenants ? "for the operator, and for the tenant itself"
                                               : "for the operator")
      .set("parameters", std::move(parameters));
  if (route.has_body)
    made.set("requestBody",
             Json::object().set("required", true).set("content", body_content(route.verb)));
  const Json fault = Json::object().set("$ref", "#/components/schemas/Error");
  Json responses = Json::object();
  responses.set("200", Json::object()
                           .set("description", "done")
                           .set("content", json_content(Json::object().set("type", "object"))));
  responses.set(
      "default",
      Json::object().set("description", "nothing has changed").set("content", json_content(fault)));
  made.set("responses", std::move(responses));
  return made;
}

std::string small_letters(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace

const std::vector<ControlRoute>& control_routes() {
  using V = ControlVerb;
  static const std::vector<ControlRoute> routes = {
      {V::kAdd, "POST", "/v1/tenants", "lets the tenant of a file join; the answer has its token",
       false, true},
      {V::kList, "GET", "/v1/tenants", "the tenants; for a tenant, itself alone", true},
      {V::kShow, "GET", "/v1/tenants/{name}", "one tenant, and its table with all values", true},
      {V::kPause, "POST", "/v1/tenants/{name}/pause",
       "stops the tenant's source; rollouts in flight end", true},
      {V::kResume, "POST", "/v1/tenants/{name}/resume", "lets a paused tenant continue", true},
      {V::kSet, "PATCH", "/v1/tenants/{name}",
       "sets values while the tenant trains: a JSON object of numbers; 'share' only for the "
       "operator",
       true, true},
      {V::kRemove,
       "DELETE",
       "/v1/tenants/{name}",
       "ends the tenant and frees its slot; its files stay",
       false,
       false,
       {{"purge", "removes its checkpoints, rollouts and evaluations"},
        {"keep_checkpoints", "removes its rollouts and evaluations"},
        {"keep", "all its files stay, as without a query"}}},
      {V::kEvents,
       "GET",
       "/v1/tenants/{name}/events",
       "what changes: state, step, reward, as a stream of Server-Sent Events. With 'after' one "
       "JSON reply with all newer events, after at most 25 s",
       true,
       false,
       {{"after", "the number of the last event that is known", false},
        {"stream", "a stream from 'after' on"}}},
      {V::kStore, "PUT", "/v1/uploads/{name}/{file}",
       "stores a data file for a tenant that will be added; its file names it without a folder",
       false, true},
      {V::kDiscard, "DELETE", "/v1/uploads/{name}",
       "removes the data files of a tenant that was not added"},
      {V::kOpenApi, "GET", "/openapi.json", "this document", true}};
  return routes;
}

RoutedRequest route_request(std::string_view method, std::string_view path,
                            std::string_view query) {
  RoutedRequest routed;
  std::vector<std::string> methods;
  for (const ControlRoute& route : control_routes()) {
    std::string name, file;
    if (!matches(route.path, path, name, file)) continue;
    methods.push_back(route.method);
    if (route.method != method) continue;
    routed.route = &route;
    routed.name = std::move(name);
    routed.file = std::move(file);
  }
  if (methods.empty()) {
    routed.fault = unknown_path(path);
  } else if (routed.route == nullptr) {
    routed.fault = ControlFault{405, fmt::format("{} is not for this path", method), "method",
                                fmt::format("{}", fmt::join(methods, ", ")),
                                "GET /openapi.json describes them"};
  } else if (routed.route->path.find(kNamePart) != std::string::npos &&
             !is_lower_snake(routed.name)) {
    routed.fault = ControlFault{404, "the path has no name of a tenant", "path",
                                "a-z, 0-9 and _, beginning with a letter, at most 64 bytes",
                                "GET /v1/tenants lists them"};
  } else {
    routed.fault = read_query(query, *routed.route, routed.query);
  }
  const int num_fates = static_cast<int>(routed.has("purge")) +
                        static_cast<int>(routed.has("keep")) +
                        static_cast<int>(routed.has("keep_checkpoints"));
  if (!routed.fault && num_fates > 1)
    routed.fault = ControlFault{400, "purge, keep_checkpoints and keep exclude each other", "query",
                                "one of them", "write one"};
  return routed;
}

UploadBody read_upload(std::string_view content_type, const std::string& body) {
  const bool is_json = content_type.empty() && body.starts_with('{');
  if (!is_json) return {body, std::nullopt};
  constexpr std::string_view kValid = "{\"file\": \"...\"}, or the text itself";
  const auto fault = [&](std::string what) {
    return UploadBody{"", ControlFault{400, std::move(what), "body", std::string(kValid),
                                       "send the tenant's file as text"}};
  };
  const auto json = parse_json(body, "body");
  if (!json.ok()) return fault(json.error().message());
  for (const auto& [key, value] : json->as_object())
    if (key != "file") return fault(fmt::format("the body has no member '{}'", key));
  const auto text = json->get_string("file");
  if (!text.ok()) return fault(text.error().message());
  return {*text, std::nullopt};
}

ValuesBody read_values(const std::string& body) {
  auto json = parse_json(body, "body");
  const auto fault = [&](std::string what, std::string help) {
    return ValuesBody{Json(), ControlFault{400, std::move(what), "body",
                                           fmt::format("a JSON object of numbers with {}",
                                                       fmt::join(TenantValues::keys(), ", ")),
                                           std::move(help)}};
  };
  if (!json.ok()) return fault(json.error().message(), "send {\"max_off_policy_steps\": 1}");
  const auto values = TenantValues::of(*json);
  if (!values.ok())
    return fault(values.error().message(), fmt::format("{}", values.error().text()));
  return {*std::move(json), std::nullopt};
}

std::optional<ControlFault> fault_of_answer(const Json& answer) {
  const auto why = answer.get_string("error");
  if (!why.ok()) return std::nullopt;
  ControlFault fault;
  // The first line says what; the notes say what was valid and what to do.
  fault.error = why->substr(0, why->find('\n'));
  if (fault.error.size() < why->size()) fault.help = why->substr(fault.error.size() + 1);
  if (const auto findings = answer.get_string("findings"); findings.ok()) {
    const bool is_full = findings->find("error[G065]") != std::string::npos;
    fault.status = is_full ? 409 : 400;
    fault.where = "tenant.toml";
    fault.valid = is_full ? "a free slot" : "a file without these findings";
    fault.help = *findings;
    return fault;
  }
  const auto code = answer.get_string("code");
  const std::string kind = code.ok() ? *code : "";
  const bool is_bad = answer.find("is_bad") != nullptr;
  fault.where = "run";
  if (kind == to_string(Code::kNotFound)) {
    fault.status = 404;
    fault.where = "path";
  } else if (kind == to_string(Code::kIo)) {
    fault.status = 500;
  } else if (is_bad || kind == to_string(Code::kExhausted)) {
    fault.status = 409;
  } else {
    fault.status = 503;
    fault.valid = "a run that trains";
  }
  return fault;
}

ControlFault listener_fault(int32_t status, std::string_view message) {
  ControlFault fault{status, std::string(message), "request"};
  if (status == 401) {
    fault.where = "header Authorization";
    fault.error = "the token is missing or unknown";
    fault.valid = "Authorization: Bearer TOKEN";
    fault.help = "the operator makes a new one: primerl-graph tenant token NAME --rotate";
  }
  return fault;
}

Json openapi_document() {
  Json paths = Json::object();
  for (const ControlRoute& route : control_routes()) {
    const Json* const there = paths.find(route.path);
    Json item = there == nullptr ? Json::object() : *there;
    item.set(small_letters(route.method), operation(route));
    paths.set(route.path, std::move(item));
  }
  Json texts = Json::object();
  for (const char* name : {"error", "where", "valid", "help"})
    texts.set(name, Json::object().set("type", "string"));
  Json fault = Json::object().set("type", "object").set("properties", std::move(texts));
  Json bearer = Json::object().set("type", "http").set("scheme", "bearer");
  Json security = Json::array();
  security.push_back(Json::object().set("token", Json::array()));
  return Json::object()
      .set("openapi", "3.0.3")
      .set("info", Json::object().set("title", "primerl-graph control API").set("version", "1"))
      .set("security", std::move(security))
      .set("paths", std::move(paths))
      .set("components", Json::object()
                             .set("securitySchemes", Json::object().set("token", bearer))
                             .set("schemas", Json::object().set("Error", std::move(fault))));
}

}  // namespace primerl
