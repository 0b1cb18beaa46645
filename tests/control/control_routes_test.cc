// The routes of the control API: what each request is, and the document that describes them.
#include "runtime/control/control_routes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;

int32_t status_of(std::string_view method, std::string_view path, std::string_view query = "") {
  const RoutedRequest routed = route_request(method, path, query);
  return routed.fault ? routed.fault->status : 200;
}

TEST(ControlRoutes, FindsTheVerbAndTheName) {
  const auto routed = route_request("POST", "/v1/tenants/alice/pause", "");
  ASSERT_FALSE(routed.fault);
  EXPECT_EQ(routed.route->verb, ControlVerb::kPause);
  EXPECT_EQ(routed.name, "alice");
}

TEST(ControlRoutes, AnUnknownPathIsNotFoundAndNamesTheRoutes) {
  const auto routed = route_request("GET", "/v2/tenants", "");
  ASSERT_TRUE(routed.fault);
  EXPECT_EQ(routed.fault->status, 404);
  EXPECT_THAT(routed.fault->valid, HasSubstr("GET /v1/tenants/{name}/events"));
  for (const char* path : {"/", "", "/v1/tenants/", "/v1/tenants/alice/", "//v1/tenants",
                           "/v1/tenants/alice/pause/now", "/v1/tenants/alice/stop"})
    EXPECT_EQ(status_of("GET", path), 404) << path;
}

TEST(ControlRoutes, AnotherMethodIsRefusedWithThoseThatThereAre) {
  const auto routed = route_request("PUT", "/v1/tenants/alice", "");
  ASSERT_TRUE(routed.fault);
  EXPECT_EQ(routed.fault->status, 405);
  EXPECT_EQ(routed.fault->valid, "GET, PATCH, DELETE");
}

TEST(ControlRoutes, ANameWithPathCharactersIsNoTenant) {
  for (const char* name : {"..", "a%2fb", "Alice", "a.b", "1a", "%00", "a~1"})
    EXPECT_EQ(status_of("GET", fmt::format("/v1/tenants/{}", name)), 404) << name;
  EXPECT_EQ(status_of("GET", "/v1/tenants/" + std::string(64, 'a')), 200);
  EXPECT_EQ(status_of("GET", "/v1/tenants/" + std::string(65, 'a')), 404);
}

TEST(ControlRoutes, ReadsAQueryStrictly) {
  EXPECT_TRUE(route_request("DELETE", "/v1/tenants/alice", "purge=1").has("purge"));
  EXPECT_EQ(route_request("GET", "/v1/tenants/alice/events", "after=7").query.at("after"), 7U);
  for (const char* query : {"purge", "purge=0", "purge=yes", "purge=1&purge=1", "purge=1&keep=1",
                            "purge=1&keep_checkpoints=1", "force=1", "=1", "&", "purge=1 "})
    EXPECT_EQ(status_of("DELETE", "/v1/tenants/alice", query), 400) << query;
  for (const char* query : {"after=-1", "after=", "after=99999999999999999999", "after=1x"})
    EXPECT_EQ(status_of("GET", "/v1/tenants/alice/events", query), 400) << query;
  EXPECT_EQ(status_of("GET", "/v1/tenants", "after=1"), 400) << "a key of another route";
}

TEST(ControlRoutes, AFileComesAsTextOrAsJson) {
  EXPECT_EQ(read_upload("application/toml", "[tenant.a]").text, "[tenant.a]");
  EXPECT_EQ(read_upload("", R"({"file": "[tenant.a]\n"})").text, "[tenant.a]\n");
  EXPECT_EQ(read_upload("", "[tenant.a]").text, "[tenant.a]") << "curl --data-binary says nothing";
  for (const char* body : {"{", "{}", R"({"file": 3})", R"({"file": "a", "path": "/etc"})"})
    EXPECT_EQ(read_upload("", body).fault.value_or(ControlFault{200}).status, 400) << body;
}

TEST(ControlRoutes, RefusalsOfTheRunHaveStatuses) {
  const auto status = [](const char* answer) {
    return fault_of_answer(parse_json(answer, "answer").value()).value_or(ControlFault{200}).status;
  };
  EXPECT_EQ(status(R"({"tenant": {}})"), 200);
  EXPECT_EQ(status(R"({"error": "x", "is_bad": true, "code": "not_found"})"), 404);
  EXPECT_EQ(status(R"({"error": "x", "is_bad": true, "code": "invalid"})"), 409);
  EXPECT_EQ(status(R"({"error": "x", "code": "exhausted"})"), 409);
  EXPECT_EQ(status(R"({"error": "x", "code": "io"})"), 500);
  EXPECT_EQ(status(R"({"error": "the run is starting"})"), 503);
  EXPECT_EQ(status(R"({"error": "x", "is_bad": true, "findings": "error[G020]: y"})"), 400);
  EXPECT_EQ(status(R"({"error": "x", "is_bad": true, "findings": "error[G065]: full"})"), 409);
}

TEST(ControlRoutes, EveryErrorHasFourMembers) {
  const Json body = listener_fault(401, "no").json();
  for (const char* key : {"error", "where", "valid", "help"})
    EXPECT_TRUE(body.get_string(key).ok()) << key;
  EXPECT_EQ(body.get_string("where").value(), "header Authorization");
}

TEST(ControlRoutes, TheDocumentHasEveryRouteAndNothingElse) {
  const Json document = openapi_document();
  EXPECT_EQ(document.get_string("openapi").value(), "3.0.3");
  size_t num_operations = 0;
  for (const auto& [path, item] : document.find("paths")->as_object())
    num_operations += item.as_object().size();
  EXPECT_EQ(num_operations, control_routes().size());
  std::map<std::string, int> operations;
  for (const ControlRoute& route : control_routes()) {
    const Json* const item = document.find("paths")->find(route.path);
    ASSERT_NE(item, nullptr) << route.path;
    std::string method = route.method;
    for (char& c : method) c = static_cast<char>(c - 'A' + 'a');
    const Json* const operation = item->find(method);
    ASSERT_NE(operation, nullptr) << route.method << " " << route.path;
    EXPECT_EQ(operation->get_string("summary").value(), route.doc);
    EXPECT_EQ(++operations[operation->get_string("operationId").value()], 1);
    const bool has_name = route.path.find("{name}") != std::string::npos;
    const bool has_file = route.path.find("{file}") != std::string::npos;
    EXPECT_EQ(operation->find("parameters")->as_array().size(),
              route.query.size() + (has_name ? 1 : 0) + (has_file ? 1 : 0));
    EXPECT_EQ(operation->find("requestBody") != nullptr, route.has_body);
  }
}

}  // namespace
}  // namespace primerl::testing
