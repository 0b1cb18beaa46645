// One name is one thing, in all that is linked together: two types of one name in one program are
// undefined behaviour that no compiler reports. The sources are read for types, which leave no
// trace in an object when they have no virtual function; the objects for functions and data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/tidy/objects.h"
#include "tests/tidy/types.h"

namespace primerl::tidy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// The pair of tests/tidy/odr_pair is there to be found.
constexpr std::string_view kPair = "tests/tidy/odr_pair/";
// Shared libraries of their own: tests/plugins/plugins_test.cc loads two with classes of one name.
constexpr std::string_view kPlugins = "tests/plugins/fixtures/";

std::vector<std::string> names_in(std::string_view text) {
  std::vector<std::string> names;
  for (const auto& type : types_of(source_from_text("x.h", text))) names.push_back(type.name);
  return names;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, '|');) words.push_back(word);
  return words;
}

TEST(Definitions, OfTypesAreFoundWhateverTheyLookLike) {
  EXPECT_THAT(names_in("namespace a::b {\nstruct X {};\nclass Y final : public X {};\n}"),
              ElementsAre("a::b::X", "a::b::Y"));
  EXPECT_THAT(names_in("namespace a { inline namespace v { enum class E : int { kOne }; } }"),
              ElementsAre("a::v::E"));
  EXPECT_THAT(names_in("template <class T, class = int> struct X { union U { int i; }; };"),
              ElementsAre("X", "X::U"));
  EXPECT_THAT(names_in("template <> struct X<int> {};\ntemplate <class T> struct X<T*> {};"),
              ElementsAre("X<int>", "X<T*>"));
  EXPECT_THAT(names_in("struct [[nodiscard]] alignas(64) X {\n private:\n  struct Y {} y_;\n};"),
              ElementsAre("X", "X::Y"));
  EXPECT_THAT(names_in("struct Outer { struct Inner; };\nstruct Outer::Inner {};"),
              ElementsAre("Outer", "Outer::Inner"));
  EXPECT_THAT(names_in("extern \"C\" { struct X {}; }"), ElementsAre("X"));
}

TEST(Definitions, OfTypesAreNotSeenWhereThereAreNone) {
  EXPECT_THAT(names_in("namespace { struct X { struct Y {}; }; }"), IsEmpty());
  EXPECT_THAT(names_in("namespace a { namespace { struct X {}; } struct Z; }"), IsEmpty());
  EXPECT_THAT(names_in("void f() { struct X {}; struct stat facts {}; }"), IsEmpty());
  EXPECT_THAT(names_in("struct stat facts {};\nconst struct X table[] = {{1}, {2}};"), IsEmpty());
  EXPECT_THAT(names_in("// struct X {};\nconst char* text = \"struct Y {\";"), IsEmpty());
  EXPECT_THAT(names_in("struct X* f(struct Y* y) { return nullptr; }"), IsEmpty());
  EXPECT_THAT(names_in("#define MAKE \\\n  struct X {};\nclass Z;"), IsEmpty());
}

TEST(Definitions, OfOneTypeInTwoFilesAreFound) {
  const auto files = {
      source_from_text("a.h", "namespace n { struct Link { int a; }; struct One {}; }"),
      source_from_text("b.h", "namespace n { class Link { long b; }; }\nstruct One {};"),
      source_from_text("c.cc", "namespace n { namespace { struct Link {}; } }")};
  const auto twice = types_defined_twice(files);
  ASSERT_THAT(twice, SizeIs(1));
  EXPECT_THAT(twice.at("n::Link"), ElementsAre("a.h:1", "b.h:1"));
}

TEST(Definitions, OfTypesAreOneForEachNameInTheTree) {
  std::vector<SourceFile> files, pair;
  size_t num_types = 0;
  for (const auto& file : cpp_files()) {
    if (file.path.starts_with(kPlugins)) continue;
    (file.path.starts_with(kPair) ? pair : files).push_back(file);
    num_types += types_of(file).size();
  }
  EXPECT_GT(num_types, 700U) << "the tree was not read";
  EXPECT_THAT(types_defined_twice(pair), SizeIs(1)) << "the pair must be found";
  for (const auto& [name, places] : types_defined_twice(files)) {
    std::string all;
    for (const auto& place : places) all += "\n  " + place;
    ADD_FAILURE() << name << " is defined more than once: rename one, or put what is for one file "
                  << "into an unnamed namespace" << all;
  }
}

TEST(Definitions, OfFunctionsAndTablesInTwoObjectsAreFound) {
  const auto faults = odd_definitions(words_of(PRIMERL_ODR_PAIR));
  EXPECT_THAT(faults, UnorderedElementsAre(HasSubstr("odd_pair"), HasSubstr("_ZTV"))) << "the pair";
}

TEST(Definitions, InAllObjectsAreOneForEachName) {
  std::vector<std::string> rooms, all;
  for (const auto& object : objects_below(PRIMERL_BINARY_DIR)) {
    if (object.find("odr_pair") != std::string::npos) continue;
    all.push_back(object);
  }
  // Tests are many programs, which may each have a function of a name; the rooms are linked
  // together.
  for (const char* room : {"graph", "kernels", "actors", "runtime"})
    for (auto& object : objects_below(std::string(PRIMERL_BINARY_DIR) + "/" + room))
      rooms.push_back(std::move(object));
  EXPECT_GT(rooms.size(), 40U) << "the objects of the rooms were not found";
  for (const auto& fault : odd_definitions(rooms)) ADD_FAILURE() << fault;
  for (const auto& fault : odd_definitions(all))
    if (fault.find(" bytes in ") != std::string::npos)
      ADD_FAILURE() << fault << " (or one of them is older than its sources: build everything)";
}

}  // namespace
}  // namespace primerl::tidy
