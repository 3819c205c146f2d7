#include "format/manifest/notes.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

#include "core/checksum.h"
#include "core/little_endian.h"

namespace cairn::manifest {
namespace {

const std::string kFront = "not really a pickle, but bytes.";
constexpr std::string_view kNotes = R"( {"metrics": {"loss": 0.125, "é": -3e2}, "who": ["you", {"metrics": null}]} )";
constexpr std::size_t kNotesFooter = 24;

Result<std::string> read_notes_of(const std::string& front) {
  const MemorySource file(std::as_bytes(std::span(front)));
  CAIRN_TRY_ASSIGN(const NotesPlace place, find_notes(file, front.size()));
  return read_notes(file, place);
}

// The section with true checksums, whatever the text is.
std::string section_of(std::string_view text) { return encode_notes(text); }

// Recomputes the checksum of the footer at the end of `front`.
void seal_notes(std::string& front) {
  const std::size_t footer = front.size() - kNotesFooter;
  store_little_endian(reinterpret_cast<std::byte*>(front.data() + footer),
                      crc32(std::as_bytes(std::span(front)).subspan(footer + 4)));
}

TEST(Notes, AreReadBackAsWritten) {
  EXPECT_EQ(read_notes_of(kFront + encode_notes(kNotes)).value(), kNotes);
  EXPECT_EQ(read_notes_of(kFront + encode_notes("{}")).value(), "{}");
  EXPECT_EQ(metrics_in(kNotes).value(), (Metrics{{"loss", 0.125}, {"é", -300.0}}));
  EXPECT_TRUE(metrics_in("").value().empty());
}

// docs/format.md has the bytes.
TEST(Notes, HaveTheBytesOfTheFormat) {
  const std::string section = encode_notes("{}");
  ASSERT_EQ(section.size(), 2 + kNotesFooter);
  EXPECT_EQ(section.substr(0, 2), "{}");
  const auto* footer = reinterpret_cast<const std::byte*>(section.data()) + 2;
  EXPECT_EQ(load_little_endian<std::uint32_t>(footer), crc32(std::as_bytes(std::span(section)).subspan(6)));
  EXPECT_EQ(load_little_endian<std::uint32_t>(footer + 4), crc32(std::as_bytes(std::span(section)).first(2)));
  EXPECT_EQ(load_little_endian<std::uint32_t>(footer + 8), 2u);
  EXPECT_EQ(load_little_endian<std::uint32_t>(footer + 12), 1u);
  EXPECT_EQ(section.substr(section.size() - 8), "CAIRNOTE");
}

TEST(Notes, TakeNoByteWithoutAText) {
  EXPECT_EQ(encode_notes(""), "");
  EXPECT_EQ(read_notes_of(kFront).value(), "");
  EXPECT_EQ(read_notes_of("").value(), "");
  EXPECT_EQ(read_notes_of("CAIRNOTE").value(), "");  // too short for a footer
}

TEST(Notes, MustBeAJsonObject) {
  const std::string deep = "{\"a\": " + std::string(100'000 / 2, '[');
  for (const std::string& text :
       {std::string("[]"), std::string("1"), std::string("{"), std::string("{} x"), std::string("{\"a\": NaN}"),
        std::string("{'a': 1}"), std::string("{\"a\": \"\xff\"}"), std::string("{\"a\": \"\\ud800\"}"), deep}) {
    const Result<void> checked = check_notes(text);
    ASSERT_FALSE(checked) << text.substr(0, 40);
    EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidArgument) << checked.error().what();
    EXPECT_EQ(read_notes_of(kFront + section_of(text)).error().code(), ErrorCode::kCorrupt) << text.substr(0, 40);
  }
  EXPECT_TRUE(check_notes("{\"metrics\": {}}"));
}

TEST(Notes, MetricsAreFiniteNumbers) {
  for (const char* const metrics : {"3", "[1]", "{\"loss\": \"0.1\"}", "{\"loss\": true}", "{\"loss\": null}",
                                    "{\"loss\": 1e999}", "{\"loss\": {}}"}) {
    const Result<void> checked = check_notes(std::string("{\"metrics\": ") + metrics + "}");
    ASSERT_FALSE(checked) << metrics;
    EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidArgument) << metrics;
  }
  EXPECT_EQ(check_notes("{\"metrics\": {\"loss\": \"0.1\"}}").error().key(), "metrics.loss");
  EXPECT_FALSE(check_notes("{\"metrics\": {}, \"metrics\": {}}"));
}

TEST(Notes, HaveAtMost64KiB) {
  const auto of_size = [](std::size_t size) { return "{\"a\": \"" + std::string(size - 9, 'x') + "\"}"; };
  EXPECT_EQ(of_size(kNotesBytesMax).size(), kNotesBytesMax);
  EXPECT_TRUE(check_notes(of_size(kNotesBytesMax)));
  EXPECT_EQ(check_notes(of_size(kNotesBytesMax + 1)).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(read_notes_of(kFront + section_of(of_size(kNotesBytesMax))));
  EXPECT_EQ(read_notes_of(kFront + section_of(of_size(kNotesBytesMax + 1))).error().code(), ErrorCode::kCorrupt);
}

TEST(Notes, AnySingleChangeIsNoticed) {
  const std::string good = kFront + encode_notes(kNotes);
  for (std::size_t i = kFront.size(); i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      const Result<std::string> read = read_notes_of(bad);
      if (i >= good.size() - 8) {
        EXPECT_EQ(read.value(), "") << "byte " << i;  // no magic: the record's checksum tells of the damage
      } else {
        ASSERT_FALSE(read) << "byte " << i << " bit " << bit;
        EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
      }
    }
  }
}

TEST(Notes, SectionBeyondTheFileIsRefused) {
  std::string front = kFront + encode_notes("{}");
  store_little_endian(reinterpret_cast<std::byte*>(front.data() + front.size() - 16), std::uint32_t{1000});
  seal_notes(front);
  EXPECT_EQ(read_notes_of(front).error().code(), ErrorCode::kCorrupt);
}

TEST(Notes, ALaterVersionIsPassedOver) {
  std::string front = kFront + encode_notes(kNotes);
  store_little_endian(reinterpret_cast<std::byte*>(front.data() + front.size() - 12), std::uint32_t{2});
  seal_notes(front);
  const MemorySource file(std::as_bytes(std::span(front)));
  EXPECT_EQ(find_notes(file, front.size())->section_bytes, kNotes.size() + kNotesFooter);
  EXPECT_EQ(read_notes_of(front).value(), "");
}

}  // namespace
}  // namespace cairn::manifest
