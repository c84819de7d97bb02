// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/error.h"
#include "python/bindings.h"

// Bad arguments are ValueError and exhausted memory is MemoryError by nanobind's own rules.
NB_MODULE(_core, module) {
  namespace nb = nanobind;
  using namespace ops_transformer;
  nb::set_leak_warnings(false);  // a program may end with a model in a global variable or in a traceback
  nb::exception<ResourceExhausted>(module, "ResourceExhausted", PyExc_RuntimeError).attr("__doc__") =
      "A bounded resource (pages of a KV pool, context length) has run out; what reported it is still usable.";
  nb::exception<InvalidFile>(module, "InvalidFile", PyExc_ValueError).attr("__doc__") =
      "A file is not what it claims to be.";
  nb::exception<SystemFailure>(module, "SystemFailure", PyExc_OSError).attr("__doc__") =
      "The system refused something: a file that can't be opened, memory that can't be mapped.";
  python::bind_profiler(module);
  python::bind_context(module);
  python::bind_attention(module);
  python::bind_attention_paged(module);
  python::bind_attention_update(module);
  python::bind_gemm(module);
  python::bind_norm(module);
  python::bind_block(module);
  python::bind_kv_cache(module);
  python::bind_ffn(module);
  python::bind_posembedding(module);
  python::bind_sin_cos_cache(module);
  python::bind_tokenizer(module);
  python::bind_kv_pool(module);
  python::bind_chat_template(module);
  python::bind_model(module);
}
