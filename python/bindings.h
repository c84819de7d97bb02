// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

// What module.cc gathers: each adds its classes and functions.
namespace ops_transformer::python {

void bind_attention(nanobind::module_& module);
void bind_attention_paged(nanobind::module_& module);
void bind_attention_update(nanobind::module_& module);
void bind_block(nanobind::module_& module);
void bind_chat_template(nanobind::module_& module);
void bind_context(nanobind::module_& module);
void bind_ffn(nanobind::module_& module);
void bind_gemm(nanobind::module_& module);
void bind_kv_cache(nanobind::module_& module);
void bind_kv_pool(nanobind::module_& module);
void bind_model(nanobind::module_& module);
void bind_norm(nanobind::module_& module);
void bind_posembedding(nanobind::module_& module);
void bind_profiler(nanobind::module_& module);
void bind_sin_cos_cache(nanobind::module_& module);
void bind_tokenizer(nanobind::module_& module);

}  // namespace ops_transformer::python
