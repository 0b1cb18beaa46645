// `primerl-graph keys`, and what `run` reports about keys before anything starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "runtime/transport/keys.h"
#include "tests/cli/program.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

class KeysCommand : public testing::Test {
 protected:
  std::string in(const std::string& name) const { return (scratch_.path() / name).string(); }
  static mode_t mode_of(const std::string& file) {
    struct stat about {};
    return ::stat(file.c_str(), &about) == 0 ? about.st_mode & 07777 : 0;
  }
  ProgramEnd keys(std::vector<std::string> words) const {
    words.insert(words.begin(), "keys");
    return run_graph_program(std::move(words));
  }
  /// Makes a new pair in `name` and returns its public key.
  std::string made(const std::string& name) const {
    const auto end = keys({"new", "--out", in(name)});
    EXPECT_EQ(end.code, 0) << end.err;
    return end.out.substr(0, end.out.size() - 1);
  }
  ProgramEnd run(const std::string& graph, std::vector<std::string> more) const {
    more.insert(more.begin(),
                {"run", source_path("tests/cli/graphs/" + graph), "--out", in("run")});
    return run_graph_program(std::move(more));
  }
  /// Both files; the list allows every process of the split graph.
  std::vector<std::string> complete() const {
    const std::string key = made("key");
    for (const char* process : {"driver", "inference", "training"})
      EXPECT_EQ(keys({"allow", key, "--process", process, "--list", in("allow")}).code, 0);
    return {"--keys", in("key"), "--allow", in("allow")};
  }

  const ScratchFolder scratch_;
};

TEST_F(KeysCommand, MakesAPairThatOnlyItsOwnerReadsAndPrintsThePublicHalf) {
  const std::string key = made("key");
  EXPECT_TRUE(is_public_key(key)) << key;
  EXPECT_EQ(mode_of(in("key")), 0600u);
  const auto read = read_key_file(in("key"));
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->public_key, key);
}

TEST_F(KeysCommand, NeverOverwritesOrShowsASecret) {
  made("key");
  const std::string secret = read_key_file(in("key"))->secret_key.reveal();
  const auto again = keys({"new", "--out", in("key")});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, AllOf(HasSubstr("never overwritten"), Not(HasSubstr(secret))));
  EXPECT_EQ(again.out, "");
  EXPECT_EQ(read_key_file(in("key"))->secret_key.reveal(), secret);
}

TEST_F(KeysCommand, ListsAllowedKeys) {
  const std::string one = made("one"), other = made("other");
  const auto list = in("allow");
  EXPECT_EQ(keys({"allow", one, "--process", "training", "--list", list}).code, 0);
  EXPECT_EQ(keys({"allow", one, "--process", "driver", "--list", list}).code, 0);
  EXPECT_EQ(keys({"allow", other, "--process", "inference#1", "--tenant", "main", "--tenant", "b",
                  "--list", list})
                .code,
            0);
  EXPECT_EQ(mode_of(list), 0600u);
  const auto shown = keys({"ls", "--list", list});
  EXPECT_EQ(shown.code, 0);
  EXPECT_EQ(shown.out, one + "  training     all tenants\n" + one + "  driver       all tenants\n" +
                           other + "  inference#1  main, b\n");
  const auto json = parse_json(keys({"ls", "--json", "--list", list}).out, "keys");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->as_array().size(), 3u);
}

TEST_F(KeysCommand, NamesKeysThatCannotBeAllowed) {
  const std::string key = made("key");
  const auto list = in("allow");
  // The last character is removed, not the first: the rest could then begin like a flag.
  const std::string cut = key.substr(0, key.size() - 1);
  const auto broken = keys({"allow", cut, "--process", "training", "--list", list});
  EXPECT_EQ(broken.code, 3);
  EXPECT_THAT(broken.err, HasSubstr("'" + cut + "' is no public key"));
  EXPECT_THAT(keys({"allow", key, "--list", list}).err, HasSubstr("--process is missing"));
  EXPECT_THAT(keys({"allow", key, "--process", "a b", "--list", list}).err,
              HasSubstr("'a b' is no name of a process"));
  EXPECT_THAT(keys({"allow", key, "--process", "a", "--tenant", "x,y", "--list", list}).err,
              HasSubstr("'x,y' is no name of a tenant"));
  EXPECT_FALSE(fs::exists(list));
  EXPECT_EQ(keys({"allow", key, "--process", "training", "--list", list}).code, 0);
  const auto twice = keys({"allow", key, "--process", "training", "--list", list});
  EXPECT_EQ(twice.code, 1);
  EXPECT_THAT(twice.err, HasSubstr("already allows this key, as 'training'"));
  EXPECT_EQ(read_allow_list(list)->size(), 1u);
}

TEST_F(KeysCommand, ARunBeyondLoopbackNeedsKeysAndList) {
  for (const char* address : {"192.0.2.1", "[2001:db8::1]", "0.0.0.0", "*"}) {
    const auto end = run("split_tcp.toml", {"--listen", address});
    EXPECT_EQ(end.code, 2) << address;
    EXPECT_THAT(end.err, testing::AnyOf(HasSubstr("is beyond this machine and needs keys"),
                                        HasSubstr("is every address of this machine")));
  }
  made("key");
  const auto unlisted = run("split_tcp.toml", {"--listen", "192.0.2.1", "--keys", in("key")});
  EXPECT_EQ(unlisted.code, 2);
  EXPECT_THAT(unlisted.err, HasSubstr("--allow is missing"));
  const auto unlocked = run("split_tcp.toml", {"--allow", in("allow")});
  EXPECT_THAT(unlocked.err, HasSubstr("--keys is missing"));
  const auto unused = run("split.toml", {"--listen", "127.0.0.1"});
  EXPECT_EQ(unused.code, 2);
  EXPECT_THAT(unused.err, HasSubstr("no edge of the graph travels by tcp"));
  EXPECT_FALSE(fs::exists(in("run"))) << "a refused run leaves no folder";
}

TEST_F(KeysCommand, ARunNamesProcessesWithoutAKeyAndUnknownNames) {
  const std::string key = made("key");
  EXPECT_EQ(keys({"allow", key, "--process", "driver", "--list", in("allow")}).code, 0);
  const auto end = run("split.toml", {"--keys", in("key"), "--allow", in("allow")});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err,
              AllOf(HasSubstr("does not list process 'inference#0' with the public key of"),
                    HasSubstr("keys allow '" + key + "' --process inference")));
  for (const char* process : {"inference", "training"})
    EXPECT_EQ(
        keys({"allow", key, "--process", process, "--tenant", "nobody", "--list", in("allow")})
            .code,
        0);
  EXPECT_THAT(run("split.toml", {"--keys", in("key"), "--allow", in("allow")}).err,
              HasSubstr("is allowed for no tenant of this graph: nobody"));
}

TEST_F(KeysCommand, ARunRefusesAKeyFileThatOthersCanRead) {
  auto words = complete();
  ASSERT_EQ(::chmod(in("key").c_str(), 0640), 0);
  const auto end = run("split.toml", words);
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("has mode 0640"));
}

}  // namespace
}  // namespace primerl
