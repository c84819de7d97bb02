// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/tokenizer.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/formats/model_file.h"
#include "python/bindings.h"
#include "python/text.h"

namespace ops_transformer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using llm::TokenId;
using llm::Tokenizer;

std::vector<TokenId> encode(const Tokenizer& self, const Text& text, bool add_special, bool parse_special) {
  const std::string bytes = text.bytes();
  const nb::gil_scoped_release released;
  return self.encode(bytes, {.add_special = add_special, .parse_special = parse_special});
}

std::string decode_bytes(const Tokenizer& self, const std::vector<TokenId>& ids, bool skip_special) {
  const nb::gil_scoped_release released;
  return self.decode(ids, {.skip_special = skip_special});
}

}  // namespace

void bind_tokenizer(nb::module_& module) {
  nb::class_<Tokenizer>(module, "Tokenizer", "The byte-level BPE tokenizer of a model file.")
      .def_static(
          "load", [](const std::string& path) { return Tokenizer::load(path); }, "path"_a,
          "Reads a GGUF file, a folder of safetensors, or a tokenizer.json with the tokenizer_config.json beside it; "
          "raises "
          "InvalidFile where it has no tokenizer of a known kind.")
      .def("encode", &encode, "text"_a, "add_special"_a = false, "parse_special"_a = false,
           R"(Token ids of a text. Any bytes will do: what is not UTF-8 is encoded byte by byte.

add_special: BOS in front and EOS behind, where the model asks for them. Without parse_special no
special token is ever made from text.)")
      .def(
          "decode",
          [](const Tokenizer& self, const std::vector<TokenId>& ids, bool skip_special) {
            return to_str(decode_bytes(self, ids, skip_special));
          },
          "ids"_a, "skip_special"_a = true, "The tokens' text, with U+FFFD for bytes that are not UTF-8.")
      .def(
          "decode_bytes",
          [](const Tokenizer& self, const std::vector<TokenId>& ids, bool skip_special) {
            const std::string bytes = decode_bytes(self, ids, skip_special);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "ids"_a, "skip_special"_a = true, "The tokens' bytes one after another.")
      .def(
          "token_bytes",
          [](const Tokenizer& self, TokenId id) {
            const std::string_view bytes = self.token_bytes(id);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "id"_a, "The bytes that a token stands for; its name for special tokens.")
      .def("is_special", &Tokenizer::is_special, "id"_a)
      .def("is_end_of_generation", &Tokenizer::is_end_of_generation, "id"_a, "Tokens that end a turn or a text.")
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def_prop_ro("bos", &Tokenizer::bos)
      .def_prop_ro("eos", &Tokenizer::eos)
      .def_prop_ro("pre_tokenizer", &Tokenizer::pre_tokenizer)
      .def_prop_ro("chat_template",
                   [](const Tokenizer& self) {
                     const std::optional<std::string>& text = self.chat_template();
                     return text ? std::optional(to_str(*text)) : std::nullopt;
                   })
      .def_prop_ro("warnings", &Tokenizer::warnings, "What the file leaves open and was assumed.");
}

}  // namespace ops_transformer::python
