// SPDX-License-Identifier: Apache-2.0
// Copies the rows of one token, one for each head. Included inside a level's region, after simd/convert.inl.h.

[[maybe_unused]] void copy_token(const KvCopyArgs& args, std::int64_t from_offset, std::int64_t to_offset) noexcept {
  const std::int64_t bytes = args.from_dtype == DType::f32 ? 4 : 2;
  for (std::int64_t head = 0; head < args.num_heads; ++head) {
    const std::int64_t from = from_offset + head * args.from_head_stride, to = to_offset + head * args.to_head_stride;
    if (args.from_dtype == args.to_dtype) {
      __builtin_memcpy(static_cast<char*>(args.to) + to * bytes, static_cast<const char*>(args.from) + from * bytes,
                       std::size_t(args.dim * bytes));
      continue;
    }
    for (std::int64_t i = 0; i < args.dim; i += kLanes) {
      const int lanes = int(args.dim - i < kLanes ? args.dim - i : kLanes);
      store_any(args.to, args.to_dtype, to + i, load_any(args.from, args.from_dtype, from + i, lanes), lanes);
    }
  }
}
