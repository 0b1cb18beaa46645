// The file of a tenant that comes over HTTP: one test for each way around the rules.
#include "runtime/control/upload_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/files.h"
#include "runtime/backends/resource_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kGood = R"([tenant.alice]
environment = { name = "reverse_text" }
max_steps = 100

[tenant.alice.adapter]
rank = 8
)";

struct UploadRulesTest : ::testing::Test {
  std::optional<ControlFault> check(std::string_view text) { return check_upload(text, catalog); }
  /// The fault of a tenant with these lines instead of its environment.
  ControlFault fault_of(const std::string& lines) {
    const auto fault = check("[tenant.alice]\n" + lines + "\n[tenant.alice.adapter]\nrank = 8\n");
    EXPECT_TRUE(fault) << lines;
    return fault.value_or(ControlFault());
  }
  const Catalog catalog = full_catalog();
};

TEST_F(UploadRulesTest, AcceptsValuesAndAnEnvironmentOfTheProgram) {
  EXPECT_FALSE(check(kGood));
  const std::string example =
      read_text_file(std::string(PRIMERL_SOURCE_DIR) + "/examples/hosted/alice.toml").value();
  EXPECT_FALSE(check(example)) << "the example may be sent as it is";
}

TEST_F(UploadRulesTest, ACommandIsRefusedWithTheWayForTheOperator) {
  const ControlFault fault =
      fault_of(R"(environment = { name = "process", command = ["sh", "-c", "id"] })");
  EXPECT_EQ(fault.status, 400);
  EXPECT_THAT(fault.error, HasSubstr("'process' runs a program"));
  EXPECT_THAT(fault.help, HasSubstr("primerl-graph tenant add"));
  EXPECT_EQ(fault.where, "tenant.toml:2:24");
}

TEST_F(UploadRulesTest, AServiceOfTheOperatorIsAcceptedAndNothingBesideIt) {
  EXPECT_FALSE(
      check("[tenant.alice]\nenvironment = { service = \"math\" }\n"
            "reward = [{ service = \"answer\", weight = 2 }, { name = \"exact\" }]\n"));
  for (const char* more : {"command = [\"sh\"]", "python = \"sh\"", "address = \"a:1\""})
    EXPECT_THAT(fault_of(fmt::format("environment = {{ service = \"math\", {} }}", more)).error,
                HasSubstr("not allowed"))
        << more;
  EXPECT_THAT(fault_of(R"(environment = { service = "math", file = "/etc/passwd" })").error,
              HasSubstr("there is no key 'file' here"));
  EXPECT_THAT(fault_of(R"(environment = { service = "math", name = "process" })").error,
              HasSubstr("there is no key 'name' here"));
  EXPECT_THAT(check(kGood + "[service.environment.math]\nname = \"copy\"\n")->error,
              HasSubstr("a tenant's file has no 'service'"));
}

TEST_F(UploadRulesTest, APythonFileIsRefused) {
  EXPECT_THAT(fault_of(R"(environment = { name = "python", file = "x.py" })").error,
              HasSubstr("runs a program"));
  EXPECT_THAT(fault_of("environment = { name = \"reverse_text\" }\n"
                       "reward = { name = \"python\", file = \"r.py\" }")
                  .error,
              HasSubstr("runs a program"));
}

TEST_F(UploadRulesTest, EveryKeyThatRunsOrReachesSomethingIsRefusedAtAnyDepth) {
  for (const char* key : {"command", "python", "plugins", "address", "include"}) {
    EXPECT_THAT(fault_of(fmt::format("{} = \"x\"", key)).error, HasSubstr("not allowed")) << key;
    EXPECT_THAT(fault_of(fmt::format("sampling = {{ {} = \"x\" }}", key)).error,
                HasSubstr("not allowed"))
        << key;
    EXPECT_THAT(
        fault_of(fmt::format("environment = {{ name = \"reverse_text\", {} = \"x\" }}", key)).error,
        HasSubstr("not allowed"))
        << key;
    EXPECT_THAT(check(fmt::format("{} = \"x\"\n{}", key, kGood))->error, HasSubstr("not allowed"))
        << key;
  }
}

TEST_F(UploadRulesTest, AnAbsolutePathIsRefused) {
  EXPECT_THAT(fault_of(R"(environment = { name = "dataset", file = "/etc/passwd" })").help,
              HasSubstr("tenant add"));
}

TEST_F(UploadRulesTest, APathThatLeavesItsFolderIsRefused) {
  const auto fault = check(
      "[tenant.alice]\nenvironment = { name = \"reverse_text\" }\n"
      "[tenant.alice.adapter]\nrank = 8\npath = \"../../bob/adapter\"\n");
  ASSERT_TRUE(fault);
  EXPECT_THAT(fault->error, HasSubstr("'path' names a file"));
  EXPECT_EQ(fault->where, "tenant.toml:5:1");
}

TEST_F(UploadRulesTest, AMisspeltKeyDoesNotPassAsAnotherOne) {
  // The check of a graph file reads what was meant, and would show lines of the file that it names.
  EXPECT_THAT(check("inclde = \"/etc/passwd\"\n" + kGood)->error, HasSubstr("no 'inclde'"));
  EXPECT_THAT(fault_of(R"(enviroment = { name = "python", file = "x.py" })").help,
              HasSubstr("'environment'"));
  EXPECT_THAT(fault_of(R"(environment = { name = "pyton", file = "x.py" })").error,
              HasSubstr("names nothing"));
  EXPECT_TRUE(
      check("[tenant.alice]\nenvironment = { name = \"reverse_text\" }\n"
            "[tenant.alice.adapter]\nrank = 8\npth = \"/etc\"\n"));
}

TEST_F(UploadRulesTest, AGraphInTheFileIsRefused) {
  EXPECT_THAT(check("[graph]\nplugins = [\"x.so\"]\n" + kGood)->error, HasSubstr("no 'graph'"));
  EXPECT_THAT(check("[node.env]\nactor = \"env\"\n" + kGood)->error, HasSubstr("no 'node'"));
  EXPECT_THAT(check("[model.main]\npath = \"/\"\n" + kGood)->error, HasSubstr("no 'model'"));
}

TEST_F(UploadRulesTest, ANulIsRefusedAsByteAndAsEscape) {
  std::string text = kGood;
  text.insert(3, 1, '\0');
  EXPECT_THAT(check(text)->error, HasSubstr("NUL"));
  EXPECT_THAT(fault_of(R"(best_by = "reward\u0000")").error, HasSubstr("NUL"));
  EXPECT_THAT(fault_of(R"(sampling = { stop = ["a\u0000b"] })").error, HasSubstr("NUL"));
}

TEST_F(UploadRulesTest, ATemplateOfTheModelMayBeChosenButNoFileOfOne) {
  EXPECT_FALSE(
      check("[tenant.alice]\nenvironment = { name = \"reverse_text\" }\nchat = { name = "
            "\"tool_use\" }\n"));
  EXPECT_THAT(fault_of(R"(chat = { template = "../template.jinja" })").error,
              HasSubstr("no key 'template'"));
  EXPECT_THAT(fault_of(R"(chat = { file = "template.jinja" })").error, HasSubstr("no key 'file'"));
}

TEST_F(UploadRulesTest, AMixedTenantIsCheckedInEachEnvironment) {
  const auto fault = check(
      "[[tenant.alice.environments]]\nenvironment = { name = \"reverse_text\" }\n"
      "[[tenant.alice.environments]]\nenvironment = { name = \"python\", file = \"x.py\" }\n");
  ASSERT_TRUE(fault);
  EXPECT_THAT(fault->error, HasSubstr("'python'"));
}

TEST_F(UploadRulesTest, ExactlyOneTenantIsAccepted) {
  EXPECT_THAT(check("")->error, HasSubstr("exactly one tenant"));
  EXPECT_THAT(check(kGood + "[tenant.bob]\n")->error, HasSubstr("exactly one tenant"));
  EXPECT_THAT(check("tenant = 3\n")->error, HasSubstr("exactly one tenant"));
}

TEST_F(UploadRulesTest, WhatIsNotTomlIsNamedWithItsPlace) {
  const auto fault = check("[tenant.alice\n");
  ASSERT_TRUE(fault);
  EXPECT_THAT(fault->where, StartsWith("tenant.toml:1:"));
}

TEST_F(UploadRulesTest, AFileHasAtMostTheWrittenNumberOfBytes) {
  std::string text = kGood + "#";
  text.resize(kUploadBytesMax, 'x');
  EXPECT_FALSE(check(text));
  EXPECT_EQ(check(text + "x")->status, 413);
}

TEST_F(UploadRulesTest, AFileThatWasUploadedIsNamedWithoutAFolder) {
  std::string asked;
  const auto uploaded = [&](const std::string& tenant) -> std::vector<std::string> {
    asked = tenant;
    return {"rows.jsonl", "held_out.csv"};
  };
  const auto fault_with = [&](const std::string& environment) {
    return check_upload("[tenant.alice]\nenvironment = " + environment + "\n", catalog, uploaded);
  };
  EXPECT_FALSE(fault_with(R"({ name = "dataset", file = "rows.jsonl" })"));
  EXPECT_EQ(asked, "alice") << "another tenant's files are not asked for";
  for (const char* file :
       {"/etc/passwd", "../rows.jsonl", "./rows.jsonl", "a/../rows.jsonl", "files/rows.jsonl",
        "rows.jsonl/", "ROWS.jsonl", "rows.jsonl ", "rows.jsonl\\u0000", "~/rows.jsonl",
        "../../uploads/files/bob/rows.jsonl", "file:rows.jsonl", "none.jsonl"}) {
    const auto fault = fault_with(fmt::format(R"({{ name = "dataset", file = "{}" }})", file));
    ASSERT_TRUE(fault) << file;
    EXPECT_THAT(fault->error, HasSubstr("no file of this name was uploaded")) << file;
    EXPECT_EQ(fault->valid, "rows.jsonl and held_out.csv") << file;
  }
  EXPECT_TRUE(
      check_upload("[tenant.alice]\nenvironment = { name = \"reverse_text\" }\n"
                   "[tenant.alice.adapter]\nrank = 8\npath = \"rows.jsonl\"\n",
                   catalog, uploaded))
      << "a folder is none of them";
  EXPECT_TRUE(fault_with(R"({ name = "python", file = "rows.jsonl" })"))
      << "a program does not become data by its name";
}

}  // namespace
}  // namespace primerl::testing
