// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/regex_translation.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "llm/tokenizer/unicode_classes.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

namespace classes = unicode_classes;

// Unicode's White_Space, since PCRE2's own \s adds U+180E; without \r and \n at first.
#define LINE_SPACE \
  "\\x{9}\\x{b}\\x{c}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE LINE_SPACE "\\r\\n"
#define NOT_NEWLINE_SPACE LINE_SPACE "\\r"

struct Class {
  std::string_view name, pcre, beyond;  // what PCRE2 calls it; what it lacks
};
constexpr std::array<Class, 18> kProperties = {{{"L", "\\p{L}", classes::kL},
                                                {"Lu", "\\p{Lu}", classes::kLu},
                                                {"Ll", "\\p{Ll}", classes::kLl},
                                                {"Lt", "\\p{Lt}", classes::kLt},
                                                {"Lm", "\\p{Lm}", classes::kLm},
                                                {"Lo", "\\p{Lo}", classes::kLo},
                                                {"M", "\\p{M}", classes::kM},
                                                {"N", "\\p{N}", classes::kN},
                                                {"Nd", "\\p{Nd}", classes::kNd},
                                                {"P", "\\p{P}", classes::kP},
                                                {"S", "\\p{S}", classes::kS},
                                                {"Han", "\\p{Han}", ""},
                                                {"Hiragana", "\\p{Hiragana}", ""},
                                                {"Katakana", "\\p{Katakana}", ""},
                                                {"Hangul", "\\p{Hangul}", ""},
                                                {"Latin", "\\p{Latin}", ""},
                                                {"Digits", "\\p{N}", classes::kDigits},
                                                {"Ascii_Punctuation", "!-\\/:-@\\[-`{-~", ""}}};

/// Snippets that backtrack over long runs, and what matches the same without.
struct Form {
  std::string_view snippet, linear;
};
// White space up to its last newline.
constexpr std::string_view kToLastNewline = "(?:[" LINE_SPACE "]*+[\\r\\n]++)++";
// A run of white space that goes on to the end, else up to its last newline.
constexpr std::string_view kSpaceToEnd =
    "(?<![" SPACE "])(?:[" SPACE "]++\\z|(?:[" NOT_NEWLINE_SPACE "]*+\\n(?=[" NOT_NEWLINE_SPACE
    "]*+\\n))*+[" NOT_NEWLINE_SPACE "]*+(?=\\n)(?<=[" SPACE "]))";
constexpr std::array<Form, 3> kAlternatives = {
    {{"\\s*[\\r\\n]+", kToLastNewline}, {"\\s*[\\r\\n]", kToLastNewline}, {"\\s+$", kSpaceToEnd}}};
constexpr std::string_view kCased =
    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+";  // upper, then lower case
constexpr std::string_view kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    if (utf8_valid_len(pattern_) != pattern_.size()) refuse("it is not UTF-8");
    bool alternative_begins = true;
    while (at_ < pattern_.size()) {
      if (alternative_begins && linear_alternative()) continue;
      if (linear_case()) continue;
      alternative_begins = pattern_[at_] == '|' && depth_ == 0;
      step();
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    throw InvalidFile(fmt::format("the pattern '{}' can't be used: {}", shown(pattern_), why));
  }
  std::string_view rest() const { return pattern_.substr(at_); }

  /// A whole alternative of the pattern that has a linear form.
  bool linear_alternative() {
    for (const auto& [snippet, linear] : kAlternatives) {
      if (!rest().starts_with(snippet)) continue;
      const std::string_view after = rest().substr(snippet.size());
      if (!after.empty() && after[0] != '|') continue;
      out_ += linear;
      at_ += snippet.size();
      return true;
    }
    return false;
  }

  /// Upper-case letters, then lower-case ones, of which letters without case are both: the run of the first kind either
  /// goes on with a letter that is lower case alone, or is cut after its last letter without case.
  bool linear_case() {
    if (depth_ > 0 || !rest().starts_with(kCased)) return false;
    std::string_view after = rest().substr(kCased.size());
    if (after.starts_with(kContractions)) after.remove_prefix(kContractions.size());
    if (!after.empty() && after[0] != '|') return false;
    const std::string both = in_class("Lm") + in_class("Lo") + in_class("M");
    const std::string upper = in_class("Lu") + in_class("Lt"), lower = in_class("Ll");
    out_ += fmt::format("(?:[{0}{1}]*+[{2}][{2}{1}]*+|(?:[{0}]*+[{1}]++)++)", upper, both, lower);
    at_ += kCased.size();
    return true;
  }

  std::string in_class(std::string_view name) const {
    if (name == "Rust_Word") {
      return in_class("L") + in_class("M") + in_class("Nd") +
             "\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
             "\\x{1f170}-\\x{1f189}";
    }
    for (const Class& known : kProperties) {
      if (known.name == name) return std::string(known.pcre) + std::string(known.beyond);
    }
    refuse(fmt::format("the class '{}' is not a known one", shown(name)));
  }

  void step() {
    const char c = pattern_[at_];
    switch (c) {
      case '\\':
        return escape(false);
      case '[':
        return character_class();
      case '(':
        return group();
      case ')':
        if (depth_ == 0) refuse("a ')' closes nothing");
        --depth_;
        break;
      case '{':
        return repeat();
      default:
        break;
    }
    out_ += c;
    ++at_;
  }

  void group() {
    static constexpr std::array<std::string_view, 8> kGroups = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    std::string_view opening = "(";
    for (const std::string_view known : kGroups) {
      if (rest().starts_with(known)) opening = known;
    }
    if (opening == "(" && (rest().starts_with("(?") || rest().starts_with("(*"))) {
      refuse(fmt::format("it has the group '{}'", shown(rest().substr(0, 4))));
    }
    if (++depth_ > 50) refuse("its groups are nested more than 50 deep");
    out_ += opening;
    at_ += opening.size();
  }

  void repeat() {
    // {n}, {n,}, {n,m} and Oniguruma's {,m}; another brace is a brace.
    std::size_t i = 1;
    const std::string_view text = rest();
    const auto digits = [&] {
      const std::size_t begin = i;
      while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
      return text.substr(begin, i - begin);
    };
    const std::string_view low = digits();
    std::optional<std::string_view> high;
    if (i < text.size() && text[i] == ',') {
      ++i;
      high = digits();
    }
    if (i >= text.size() || text[i] != '}' || (low.empty() && (!high || high->empty()))) {
      out_ += "\\{";
      ++at_;
      return;
    }
    if (low.size() > 4 || (high && high->size() > 4)) refuse("it repeats something more than 9999 times");
    ++i;
    // Behind a brace '+' is one more repetition there, and possessive here.
    if (i < text.size() && text[i] == '+') refuse("it has a '+' behind a repetition in braces");
    out_ += fmt::format("{{{}", low.empty() ? "0" : low);
    if (high) out_ += fmt::format(",{}", *high);
    out_ += '}';
    at_ += i;
  }

  /// One escape, at `at_`. Inside a class its content alone.
  void escape(bool inside) {
    if (at_ + 1 >= pattern_.size()) refuse("it ends in a backslash");
    const char c = pattern_[at_ + 1];
    at_ += 2;
    const auto put = [&](bool negative, const std::string& content, std::string_view negative_inside) {
      if (inside && negative) {
        out_ += negative_inside;
      } else {
        out_ += inside ? content : fmt::format("[{}{}]", negative ? "^" : "", content);
      }
    };
    switch (c) {
      case 's':
        return put(false, SPACE, "");
      case 'S':
        return put(true, SPACE, "\\S\\x{180e}");
      case 'd':
        return put(false, in_class("Nd"), "");
      case 'D':
        return put(true, in_class("Nd"), "\\P{Nd}");
      case 'w':
        return put(false, word(), "");
      case 'W':
        if (inside) refuse("it has \\W in a class");
        return put(true, word(), "");
      case 'p':
      case 'P': {
        const std::string_view text = rest();
        const std::size_t end = text.starts_with('{') ? text.find('}') : std::string_view::npos;
        if (end == std::string_view::npos) refuse("a \\p has no name in braces");
        std::string_view name = text.substr(1, end - 1);
        bool negative = c == 'P';
        if (name.starts_with('^')) {
          negative = !negative;
          name.remove_prefix(1);
        }
        at_ += end + 1;
        if (name == "Ascii_Punctuation" || name == "Digits" || name == "Rust_Word") {
          if (negative) refuse(fmt::format("it has \\P{{{}}}", name));
        }
        return put(negative, in_class(name), fmt::format("\\P{{{}}}", name));
      }
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'e':
        out_ += {'\\', c};
        return;
      case 'x':
      case 'u':
        return code(c);
      case 'A':
      case 'z':
        if (!inside) {
          out_ += {'\\', c};
          return;
        }
        [[fallthrough]];
      default:
        break;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || byte < 0x20 || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')) {
      refuse(fmt::format("it has the escape '\\{}'", shown(std::string_view(&c, 1))));
    }
    out_ += {'\\', c};
  }

  /// \xHH, \x{H…} or \uHHHH; the letter is read.
  void code(char kind) {
    std::string_view text = rest();
    std::string_view digits;
    if (kind == 'x' && text.starts_with('{')) {
      const std::size_t end = text.find('}');
      digits = text.substr(1, end == std::string_view::npos ? 0 : end - 1);
      at_ += digits.size() + 2;
    } else {
      digits = text.substr(0, kind == 'x' ? 2 : 4);
      if (digits.size() != (kind == 'x' ? 2u : 4u)) digits = {};
      at_ += digits.size();
    }
    std::uint32_t value = 0;
    for (const char d : digits) {
      const int digit = d >= '0' && d <= '9'                     ? d - '0'
                        : (d | 0x20) >= 'a' && (d | 0x20) <= 'f' ? (d | 0x20) - 'a' + 10
                                                                 : 99;
      value = digit > 15 || value > 0x10ffff ? 0xffffffffu : value * 16 + static_cast<std::uint32_t>(digit);
    }
    if (digits.empty() || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      refuse("it has a code that is no character");
    if (kind == 'x' && digits.size() == 2 && !text.starts_with('{') && value >= 0x80)
      refuse("it has a \\x of one byte past 7f");
    out_ += fmt::format("\\x{{{:x}}}", value);
  }

  void character_class() {
    out_ += '[';
    ++at_;
    if (rest().starts_with('^')) {
      out_ += '^';
      ++at_;
    }
    if (rest().starts_with(']')) refuse("it has an empty class");
    while (!rest().starts_with(']')) {
      if (rest().empty()) refuse("a class has no end");
      if (rest().starts_with('[') || rest().starts_with("&&")) refuse("it has a class within a class");
      if (rest().starts_with('\\')) {
        escape(true);
        continue;
      }
      out_ += pattern_[at_++];
    }
    out_ += ']';
    ++at_;
  }

  std::string word() const {
    return in_class("L") + in_class("M") + in_class("Nd") + "\\p{Nl}\\p{Pc}" + std::string(classes::kWord);
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_regex(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace ops_transformer::llm
