// Real templates render as transformers renders them. make_goldens.py wrote goldens.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/files.h"
#include "kernels/text/chat/template.h"
#include "tests/text/chat/goldens.h"

namespace primerl::chat {
namespace {

TEST(ChatGoldens, RendersRealTemplatesAsTransformersDoes) {
  const Goldens goldens = read_goldens();
  size_t num_equal = 0;
  size_t num_refused = 0;
  for (const auto& each : goldens.templates) {
    const auto parsed = ChatTemplate::parse(each.source, each.name, each.tokens);
    ASSERT_TRUE(parsed.ok()) << parsed.error().text();
    for (const auto& golden : each.cases) {
      const auto rendered = parsed->render(golden.input(goldens));
      if (!golden.text) {
        ++num_refused;
        EXPECT_FALSE(rendered.ok()) << each.name << ' ' << golden.title << ": transformers refuses";
        continue;
      }
      ASSERT_TRUE(rendered.ok()) << each.name << ' ' << golden.title << ": "
                                 << rendered.error().text();
      EXPECT_EQ(rendered->text, *golden.text) << each.name << ' ' << golden.title;
      num_equal += rendered->text == *golden.text;
    }
  }
  RecordProperty("templates", static_cast<int>(goldens.templates.size()));
  RecordProperty("equal", static_cast<int>(num_equal));
  RecordProperty("refused", static_cast<int>(num_refused));
  std::printf("%zu templates, %zu texts equal, %zu refusals\n", goldens.templates.size(), num_equal,
              num_refused);
}

}  // namespace
}  // namespace primerl::chat
