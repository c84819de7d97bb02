// SPDX-License-Identifier: Apache-2.0
// Keys and values as int8 codes: value = (code + offset) * scale. Included inside a level's region, after
// attention_rows.inl.h.

OPS_TRANSFORMER_INLINE F32 load(const std::int8_t* p) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  return (F32)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(OPS_TRANSFORMER_SIMD_256)
  return (F32)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  typedef std::int8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, I32), F32);
#endif
}
OPS_TRANSFORMER_INLINE F32 load_first(const std::int8_t* p, int n) noexcept {
  std::int8_t bytes[kLanes] = {};
  __builtin_memcpy(bytes, p, std::size_t(n));
  return load(bytes);
}

// Where the numbers of a grid stand for keys [first, first + num_keys).
[[maybe_unused]] void locate_codes(const AttentionArgs& args, const AttentionSequence& sequence, const CodeGrid& grid,
                                   int kv_head, std::int64_t first, std::int64_t num_keys, std::int64_t* at) noexcept {
  for (std::int64_t i = 0; i < num_keys;) {
    std::int64_t page = sequence.code_page, row = sequence.code_row + first + i, in_page = num_keys - i;
    if (sequence.pages) {
      page = sequence.pages[row / args.page_size];
      row %= args.page_size;
      in_page = in_page < args.page_size - row ? in_page : args.page_size - row;
    }
    std::int64_t offset = page * grid.page_stride + kv_head * grid.head_stride + row * grid.row_stride;
    for (const std::int64_t end = i + in_page; i < end; ++i, offset += grid.row_stride) at[i] = offset;
  }
}

OPS_TRANSFORMER_INLINE F32 load_grid(const CodeGrid& grid, std::int64_t at, std::int64_t d, int lanes) noexcept {
  return grid.dim_stride ? load_any(grid.data, DType::f32, at + d, lanes) : splat(grid.data[at]);
}

// Values d... of the row of codes at `offset`, whose scale and offset stand at those places.
OPS_TRANSFORMER_INLINE F32 load_coded(const void* p, const CodeValues& codes, std::int64_t offset,
                                      std::int64_t scale_at, std::int64_t offset_at, std::int64_t d,
                                      int lanes) noexcept {
  const auto* q = static_cast<const std::int8_t*>(p) + offset + d;
  F32 value = lanes == kLanes ? load(q) : load_first(q, lanes);
  if (codes.offset.data) value += load_grid(codes.offset, offset_at, d, lanes);
  return value * load_grid(codes.scale, scale_at, d, lanes);
}
