#include "graph/base/xml_text.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

TEST(XmlText, MarksOfTheLanguageBecomeEntities) {
  EXPECT_EQ(xml_text("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
}

TEST(XmlText, CharactersThatXmlForbidsAreWrittenOut) {
  EXPECT_EQ(xml_text("a\x1b[1m\n"), "a\\u001B[1m\\u000A");
  EXPECT_EQ(xml_text("\xff"), "\\xFF");
  EXPECT_EQ(xml_text("σ"), "σ");
}

}  // namespace
}  // namespace primerl
