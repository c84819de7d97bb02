# SPDX-License-Identifier: Apache-2.0
# Fuzzers (preset `fuzz`): each family's *_fuzz.cc is one libFuzzer program. Its lines `// feeds:` name the sources whose
# coverage it answers for (scripts/fuzz_coverage.sh counts it in the same run). Only those, and what they call besides,
# are compiled.
if(NOT OPS_TRANSFORMER_SANITIZE MATCHES "fuzzer")
  return()
endif()
set(coverage_flags -fprofile-instr-generate -fcoverage-mapping)
add_custom_target(fuzzers)
add_library(fuzz_support STATIC support/gguf_writer.cc ${CMAKE_SOURCE_DIR}/ops_transformer/base/dtype.cc)
target_include_directories(fuzz_support PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(fuzz_support PUBLIC fmt::fmt-header-only PkgConfig::PCRE2 PkgConfig::UTF8PROC)
set(subjects
    llm/formats/hf_tensors.cc
    llm/formats/hf_tokenizer.cc
    llm/formats/safetensors_folder.cc
    ops_transformer/base/context.cc
    ops_transformer/base/cpu_count.cc
    ops_transformer/base/isa.cc
    ops_transformer/base/memory.cc
    ops_transformer/base/tensor_view.cc
    ops_transformer/base/thread_pool.cc
    ops_transformer/base/validate.cc
    ops_transformer/gemm/dequantise.cc
    ops_transformer/gemm/float_weights.cc
    ops_transformer/gemm/integer_weights.cc
    ops_transformer/gemm/pack_strided.cc
    ops_transformer/gemm/packed_weights.cc
    ops_transformer/gemm/quantised_weights.cc
    ops_transformer/gemm/read_block.cc
    ops_transformer/gemm/weight_formats.cc
    ops_transformer/posembedding/rope_scaling.cc
    ops_transformer/profiler/profiler.cc)
set(fuzzers)
foreach(family ${families})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${family}/*_fuzz.cc)
  list(APPEND fuzzers ${sources})
  foreach(source ${sources})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} lines REGEX "^// feeds:")
    if(NOT lines)
      message(FATAL_ERROR "${source} has no '// feeds:' line")
    endif()
    list(TRANSFORM lines REPLACE "^// feeds: *" "")
    list(JOIN lines " " lines)
    separate_arguments(lines)
    list(APPEND subjects ${lines})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES subjects)
list(TRANSFORM subjects PREPEND ${CMAKE_SOURCE_DIR}/)
add_library(fuzz_subjects STATIC ${subjects})
target_compile_options(fuzz_subjects PUBLIC ${coverage_flags} -include ${CMAKE_SOURCE_DIR}/tests/support/without_kernels.h)
target_link_libraries(fuzz_subjects PUBLIC fuzz_support Threads::Threads)
foreach(source ${fuzzers})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer ${coverage_flags})
  target_link_libraries(${name} PRIVATE fuzz_subjects)
  add_dependencies(fuzzers ${name})
endforeach()
add_executable(fuzz_seeds fuzz_seeds.cc)
target_link_libraries(fuzz_seeds PRIVATE fuzz_support)
add_dependencies(fuzzers fuzz_seeds)
