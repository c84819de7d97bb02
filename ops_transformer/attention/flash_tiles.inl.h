// SPDX-License-Identifier: Apache-2.0
// Attention with queries in the lanes: S^T = K Q^T and O^T += V^T P^T over the tile engine, so that keys and values are
// read as rows, and maximum, sum and rescaling are lane by lane. A tile of keys is packed once for all query blocks of
// an item. Key tiles start at multiples of key_tile from key 0 and every sum is one chain in the order of keys, hence a
// row's bits depend on nothing but its own data. Included inside a level's region; `Format` says how tiles are packed.

struct Block {
  std::int32_t* q;             // [units][kBlockLanes]
  float* o;                    // [value_dim][kBlockLanes]
  float *m, *l;                // [kBlockLanes]
  std::int32_t *first, *last;  // keys that each lane sees
  std::int64_t first_row, num_rows;
  int first_vector;                  // a block with fewer rows than lanes has them in its last vectors
  std::int64_t first_key, last_key;  // keys that any lane sees
  // Keys that every lane of a vector sees are [all_first, all_last), that any sees are below any_last.
  std::int32_t all_first[kTileVectors], all_last[kTileVectors], any_last[kTileVectors];
};

struct KeyTile {
  std::int64_t first, num_keys;
  bool has_nonfinite_value;  // then those values are packed as 0 and added one by one, see add_nonfinite_values
  std::int64_t k_offset[kMaxKeyTile], v_offset[kMaxKeyTile];
  // Of s8: where each key's numbers stand.
  std::int64_t k_scale[kMaxKeyTile], k_shift[kMaxKeyTile], v_scale[kMaxKeyTile], v_shift[kMaxKeyTile];
};

struct Workspace {
  std::int32_t *k, *v;
  float* scores;  // [key_tile][kBlockLanes]; the packed weights overwrite them
  float* factor;  // [kBlockLanes]
};

// Limits of the lanes and the zero state.
void start_block(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                 const FlashTilesLayout& layout, Block& block) noexcept {
  block.first_key = item.last_key;
  block.last_key = item.first_key;
  block.first_vector = kTileVectors - int((block.num_rows + kLanes - 1) / kLanes);
  std::int64_t query = block.first_row / args.group, head = block.first_row % args.group;
  KeyRange keys = keys_seen(sequence, query, item.first_key, item.last_key);
  for (std::int64_t row = 0, lane = block.first_vector * kLanes; lane < kBlockLanes; ++lane) {
    block.first[lane] = std::int32_t(keys.first);
    block.last[lane] = std::int32_t(keys.last);
    if (keys.first < keys.last) {
      block.first_key = block.first_key < keys.first ? block.first_key : keys.first;
      block.last_key = block.last_key > keys.last ? block.last_key : keys.last;
    }
    if (++row >= block.num_rows) continue;  // lanes past the last row repeat it
    if (++head == args.group) {
      head = 0;
      keys = keys_seen(sequence, ++query, item.first_key, item.last_key);
    }
  }
  for (int v = 0; v < block.first_vector; ++v) block.any_last[v] = 0;  // sees nothing, see segment_from
  for (int v = block.first_vector; v < kTileVectors; ++v) {
    const std::int32_t *first = block.first + v * kLanes, *last = block.last + v * kLanes;
    block.all_first[v] = first[0];
    block.all_last[v] = block.any_last[v] = last[0];
    for (int i = 1; i < kLanes; ++i) {
      block.all_first[v] = block.all_first[v] > first[i] ? block.all_first[v] : first[i];
      block.all_last[v] = block.all_last[v] < last[i] ? block.all_last[v] : last[i];
      block.any_last[v] = block.any_last[v] > last[i] ? block.any_last[v] : last[i];
    }
  }
  for (int i = 0; i < kBlockLanes; i += kLanes) {
    store(block.m + i, splat(kMinusInfinity));
    store(block.l + i, F32{});
  }
  for (std::int64_t i = 0; i < layout.o_block_units(); i += kLanes) store(block.o + i, F32{});
}

// Position of key `key` of the sequence.
OPS_TRANSFORMER_INLINE std::int64_t position_of(const AttentionArgs& args, const AttentionSequence& sequence,
                                                std::int64_t key) noexcept {
  if (!args.positions) return key;
  return position_at(args.positions, args.position_dtype, sequence.positions_offset + key * args.position_stride);
}

// The angles of a row that will be rotated later. Every head reads the table, which is larger than L2 at 2048
// positions.
OPS_TRANSFORMER_INLINE void prefetch_angles(const AttentionArgs& args, const AttentionSequence& sequence,
                                            std::int64_t key) noexcept {
  const std::int64_t position = position_of(args, sequence, key);
  if (position < 0 || position >= args.rope->table_len) return;
  prefetch_row(args.rope->cosines + position * args.rope->row_stride, args.rope->half * 4);
  prefetch_row(args.rope->sines + position * args.rope->row_stride, args.rope->half * 4);
}

// Row `offset` of queries or keys, rotated to the place of key `key` of the sequence, in f32.
__attribute__((noinline)) void rotate_row(const AttentionArgs& args, const AttentionSequence& sequence,
                                          const void* rows, DType dtype, std::int64_t offset, std::int64_t key,
                                          float* rotated) noexcept {
  float scratch[kMaxHeadDim];
  const Rotation rotation = rotation_at(*args.rope, position_of(args, sequence, key), scratch);
  if (dtype == DType::f32) {
    rotate_head(static_cast<const float*>(rows) + offset, rotated, args.head_dim, *args.rope, rotation);
  } else if (dtype == DType::bf16) {
    rotate_head(static_cast<const BFloat16*>(rows) + offset, rotated, args.head_dim, *args.rope, rotation);
  } else {
    rotate_head(static_cast<const Float16*>(rows) + offset, rotated, args.head_dim, *args.rope, rotation);
  }
}

template <class Format>
void pack_queries(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                  const FlashTilesLayout& layout, Block& block) noexcept {
  const I32 sign = splat_int(args.negate_q ? Format::kSignBits : 0);
  std::int64_t offsets[kBlockLanes];
  const std::int64_t bytes = element_bytes_of(args.q_dtype);
  for (std::int64_t i = 0; i < block.num_rows; ++i) {
    offsets[i] = q_offset(args, sequence, row_place(args, item.kv_head, block.first_row + i));
    prefetch_row(static_cast<const char*>(args.q) + offsets[i] * bytes, args.head_dim * bytes);
    if (args.rope && i % args.group == 0) {
      prefetch_angles(args, sequence, sequence.first_position + (block.first_row + i) / args.group);
    }
  }
  for (int v = block.first_vector; v < kTileVectors; ++v) {
    const std::int64_t first = std::int64_t{v - block.first_vector} * kLanes, left = block.num_rows - first;
    const int num_rows = int(left < kLanes ? left : kLanes);
    const std::int64_t* offset = offsets + first;
    alignas(64) float rotated[kLanes * kMaxHeadDim];
    for (int i = 0; args.rope && i < num_rows; ++i) {
      const std::int64_t query = row_place(args, item.kv_head, block.first_row + first + i).query;
      rotate_row(args, sequence, args.q, args.q_dtype, offset[i], sequence.first_position + query,
                 rotated + i * kMaxHeadDim);
    }
    for (std::int64_t unit = 0; unit < layout.q_units; unit += kLanes) {
      F32 rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        F32 row{};
        if (i < num_rows) {
          row = args.rope ? Format::load_units(rotated, DType::f32, i * std::int64_t{kMaxHeadDim}, unit, args.head_dim)
                          : Format::load_query_units(args, offset[i], unit);
        }
        rows[i] = (F32)((I32)row ^ sign);
      }
      transpose(rows);
      const std::int64_t units = layout.q_units - unit < kLanes ? layout.q_units - unit : kLanes;
      for (std::int64_t i = 0; i < units; ++i) {
        store(reinterpret_cast<float*>(block.q) + (unit + i) * kBlockLanes + v * kLanes, rows[i]);
      }
    }
  }
}

// Where tile `first` of the item's keys up to `last_key` lies; no keys past the end.
void find_tile(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
               std::int64_t first, std::int64_t last_key, KeyTile& tile) noexcept {
  const std::int64_t left = last_key - first;
  tile.first = first;
  tile.num_keys = left < 0 ? 0 : left < args.key_tile ? left : args.key_tile;
  locate_keys(args, sequence, item.kv_head, first, tile.num_keys, tile.k_offset, tile.v_offset);
  if (args.kv_dtype != DType::s8) return;
  const CodeValues &k = args.k_codes, &v = args.v_codes;
  locate_codes(args, sequence, k.scale, item.kv_head, first, tile.num_keys, tile.k_scale);
  locate_codes(args, sequence, k.offset, item.kv_head, first, tile.num_keys, tile.k_shift);
  locate_codes(args, sequence, v.scale, item.kv_head, first, tile.num_keys, tile.v_scale);
  locate_codes(args, sequence, v.offset, item.kv_head, first, tile.num_keys, tile.v_shift);
}

// Values d... of a key of the tile.
OPS_TRANSFORMER_INLINE F32 load_value(const AttentionArgs& args, const KeyTile& tile, std::int64_t key, std::int64_t d,
                                      int lanes) noexcept {
  if (args.kv_dtype != DType::s8) return load_any(args.v, args.kv_dtype, tile.v_offset[key] + d, lanes);
  return load_coded(args.v, args.v_codes, tile.v_offset[key], tile.v_scale[key], tile.v_shift[key], d, lanes);
}

// A row of rotated keys goes where the caller keeps them.
__attribute__((noinline)) void keep_rotated(const AttentionArgs& args, const AttentionSequence& sequence,
                                            const AttentionItem& item, std::int64_t key, const float* row) noexcept {
  const RotatedKeys& rotated = args.rotated;
  std::int64_t page = item.sequence, at = key;
  if (rotated.slots) {
    const std::int64_t slot = rotated.slots[item.sequence * sequence.kv_len + key];
    if (slot < 0) return;
    page = slot / rotated.page_size;
    at = slot % rotated.page_size;
  }
  const std::int64_t offset = page * rotated.page_stride + item.kv_head * rotated.head_stride + at * rotated.row_stride;
  for (std::int64_t d = 0; d < args.head_dim; d += kLanes) {
    const int lanes = int(args.head_dim - d < kLanes ? args.head_dim - d : kLanes);
    store_any(rotated.data, rotated.dtype, offset + d, load_any(row, DType::f32, d, lanes), lanes);
  }
}

// A tile that will be packed after this one: some of its keys are fetched at each step of the work before, since a
// burst of prefetches is dropped where the miss buffers are full. Against a burst before each block: f32 prefill with
// 32 heads of 128, 512 long, 175 -> 183 GFLOP/s; with 8 key heads, 2048 long, 200 -> 207 (Zen 4, 2 threads, Dec 2026).
struct TileAhead {
  const KeyTile& tile;
  std::int64_t next, num_keys;  // keys of a step
};
inline constexpr int kFetchesPerBlock = kTileVectors + 2;

void fetch_some(const AttentionArgs& args, const AttentionSequence& sequence, TileAhead& ahead) noexcept {
  const std::int64_t bytes = element_bytes_of(args.kv_dtype), end = ahead.next + ahead.num_keys;
  for (; ahead.next < end && ahead.next < ahead.tile.num_keys; ++ahead.next) {
    const std::int64_t key = ahead.next;
    prefetch_row(static_cast<const char*>(args.k) + ahead.tile.k_offset[key] * bytes, args.head_dim * bytes);
    prefetch_row(static_cast<const char*>(args.v) + ahead.tile.v_offset[key] * bytes, args.value_dim * bytes);
    if (args.rope) prefetch_angles(args, sequence, ahead.tile.first + key);
  }
}

template <class Format>
void pack_keys(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
               const FlashTilesLayout& layout, const Workspace& work, KeyTile& tile) noexcept {
  // The items of the last query see every key of theirs, and no two of them the same one.
  const bool keeps = args.rotated.data && item.last_row == sequence.q_len * args.group;
  float* row = reinterpret_cast<float*>(work.k);
  for (std::int64_t key = 0; key < tile.num_keys; ++key, row += layout.k_stride) {
    const void* keys = args.k;
    DType dtype = args.kv_dtype;
    std::int64_t offset = tile.k_offset[key];
    alignas(64) float made[kMaxHeadDim];
    if (args.rope) rotate_row(args, sequence, args.k, dtype, offset, tile.first + key, made);
    if (keeps) keep_rotated(args, sequence, item, tile.first + key, made);
    if (dtype == DType::s8) {
      for (std::int64_t d = 0; d < args.head_dim; d += kLanes) {
        const int lanes = int(args.head_dim - d < kLanes ? args.head_dim - d : kLanes);
        store(made + d, load_coded(args.k, args.k_codes, offset, tile.k_scale[key], tile.k_shift[key], d, lanes));
      }
    }
    if (args.rope || dtype == DType::s8) {
      keys = made;
      dtype = DType::f32;
      offset = 0;
    }
    for (std::int64_t unit = 0; unit < layout.q_units; unit += kLanes) {
      store(row + unit, Format::load_units(keys, dtype, offset, unit, args.head_dim));
    }
  }
  if (tile.num_keys % Format::kKeysPerStep) {
    for (std::int64_t unit = 0; unit < layout.q_units; unit += kLanes) store(row + unit, F32{});
  }
  tile.has_nonfinite_value = Format::pack_values(args, layout, work, tile, false);
  if (tile.has_nonfinite_value) Format::pack_values(args, layout, work, tile, true);
}

// c [num_rows][vectors from `vector` on] (+)= A B, in groups of rows that the engine has tiles for.
template <class Tile, int Vectors, class A>
OPS_TRANSFORMER_INLINE void multiply_vectors(std::int64_t num_rows, A a, std::int64_t bytes_per_row, PanelOfB b,
                                             std::int64_t num_steps, float* c, TileStart start,
                                             const float* factor) noexcept {
  const auto advance = [](A& at, std::int64_t bytes) { at.data = static_cast<const std::byte*>(at.data) + bytes; };
  std::int64_t row = 0;
  for (; row + kTileRows <= num_rows; row += kTileRows, advance(a, kTileRows * bytes_per_row)) {
    multiply_tile<Tile, kTileRows, Vectors>(a, b, num_steps, c + row * kBlockLanes, kBlockLanes, start, factor);
  }
  if constexpr (kTileRows > 4) {
    for (; row + 4 <= num_rows; row += 4, advance(a, 4 * bytes_per_row)) {
      multiply_tile<Tile, 4, Vectors>(a, b, num_steps, c + row * kBlockLanes, kBlockLanes, start, factor);
    }
  }
  for (; row + 2 <= num_rows; row += 2, advance(a, 2 * bytes_per_row)) {
    multiply_tile<Tile, 2, Vectors>(a, b, num_steps, c + row * kBlockLanes, kBlockLanes, start, factor);
  }
  if (row < num_rows)
    multiply_tile<Tile, 1, Vectors>(a, b, num_steps, c + row * kBlockLanes, kBlockLanes, start, factor);
}
template <class Tile, class A>
void multiply_rows(int vector, std::int64_t num_rows, const A& a, std::int64_t bytes_per_row, const void* panel,
                   std::int64_t num_steps, float* c, TileStart start, const float* factor) noexcept {
  const PanelOfB b{static_cast<const std::byte*>(panel) + vector * kVectorBytes, kBlockLanes * 4};
  c += vector * kLanes;
  if (factor) factor += vector * kLanes;
  const int vectors = kTileVectors - vector;
  if (vectors == 1) return multiply_vectors<Tile, 1>(num_rows, a, bytes_per_row, b, num_steps, c, start, factor);
  if constexpr (kTileVectors == 4) {
    if (vectors == 4) return multiply_vectors<Tile, 4>(num_rows, a, bytes_per_row, b, num_steps, c, start, factor);
    if (vectors == 3) return multiply_vectors<Tile, 3>(num_rows, a, bytes_per_row, b, num_steps, c, start, factor);
  }
  multiply_vectors<Tile, 2>(num_rows, a, bytes_per_row, b, num_steps, c, start, factor);
}

// Keys [begin, end) of a tile, and the first vector in which some lane sees one of them: behind a causal diagonal the
// vectors before it are left out.
struct Segment {
  std::int64_t begin, end;
  int vector;
};
template <class Format>
OPS_TRANSFORMER_INLINE Segment segment_from(const Block& block, const KeyTile& tile, std::int64_t begin,
                                            std::int64_t end) noexcept {
  int vector = 0;
  while (vector + 1 < kTileVectors && block.any_last[vector] - tile.first <= begin) ++vector;
  const std::int64_t seen = Format::round_up(block.any_last[vector] - tile.first);
  return {begin, vector + 1 < kTileVectors && seen < end ? seen : end, vector};
}

// Which lanes see a key: all ones or zero.
OPS_TRANSFORMER_INLINE I32 lanes_seeing(I32 first, I32 last, std::int64_t key) noexcept {
  const I32 k = splat_int(std::int32_t(key));
  return (I32)(k >= first) & (I32)(k < last);
}

// The rows of one vector of a block; lanes past the last row repeat it.
LaneRows rows_of(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                 const Block& block, int vector) noexcept {
  LaneRows rows;
  std::int64_t row = std::int64_t{vector - block.first_vector} * kLanes;
  RowPlace place = row_place(args, item.kv_head, block.first_row + row);
  const std::int64_t end_head = (item.kv_head + std::int64_t{1}) * args.group;
  for (int lane = 0; lane < kLanes; ++lane) {
    rows.set(args, sequence, lane, place);
    if (++row >= block.num_rows) continue;
    if (++place.head == end_head) place = {place.query + 1, end_head - args.group};
  }
  return rows;
}

// Weights of one vector of queries whose bit is not set become 0.
template <class Format>
__attribute__((noinline)) void drop_weights(const AttentionArgs& args, const AttentionSequence& sequence,
                                            const AttentionItem& item, const Block& block, const KeyTile& tile,
                                            std::int64_t begin, std::int64_t end, int vector, float* scores) noexcept {
  const LaneRows rows = rows_of(args, sequence, item, block, vector);
  const auto* bytes = static_cast<const std::uint8_t*>(args.dropout.data);
  I32 bits{};
  U32 words[4];
  for (std::int64_t i = begin; i < end && i < tile.num_keys; ++i) {
    const std::int64_t key = tile.first + i;
    if (args.seed.any) {
      if (i == begin || key % 4 == 0) {
        words[0] = splat_bits(std::uint32_t(key / 4));
        __builtin_memcpy(&words[1], rows.query, sizeof words[1]);
        __builtin_memcpy(&words[2], rows.head, sizeof words[2]);
        words[3] = splat_bits(std::uint32_t(item.sequence));
        philox(args.seed.low, args.seed.high, words);
      }
      Format::keep(scores, i, (I32)(words[key % 4] < splat_bits(args.seed.keep_below)));
      continue;
    }
    if (i == begin || key % 8 == 0) {
      for (int lane = 0; lane < kLanes; ++lane)
        bits[lane] = bytes[rows.dropout[lane] + key / 8 * args.dropout.key_stride];
    }
    Format::keep(scores, i, (I32)((bits & splat_int(1 << (key % 8))) != 0));
  }
}

// Scores of one vector of queries become weights; gives true where a maximum has grown.
template <class Format>
bool soften(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item, const Block& block,
            const KeyTile& tile, const Workspace& work, std::int64_t begin, std::int64_t end, int vector) noexcept {
  float* scores = work.scores + vector * kLanes;
  F32 scale = splat(args.score_scale);
  if (args.rule.any) {
    const std::int64_t stored = end < tile.num_keys ? end : tile.num_keys;
    apply_rule(args, rows_of(args, sequence, item, block, vector), sequence.visible_first_key, tile.first + begin,
               stored - begin, scores + begin * kBlockLanes);
    scale = splat(1.0f);
  }
  I32 first, last;
  __builtin_memcpy(&first, block.first + vector * kLanes, sizeof first);
  __builtin_memcpy(&last, block.last + vector * kLanes, sizeof last);
  // Keys in [full_begin, full_end) are seen by every lane.
  const auto clamp = [begin, end](std::int64_t key) { return key < begin ? begin : key > end ? end : key; };
  std::int64_t full_begin = clamp(block.all_first[vector] - tile.first);
  const std::int64_t full_end = clamp(block.all_last[vector] - tile.first);
  if (full_begin > full_end) full_begin = full_end;
  const F32 hidden = splat(kMinusInfinity);
  F32 most[4] = {hidden, hidden, hidden, hidden};
  for (std::int64_t key = begin; key < end; ++key) {
    if (key == full_begin) key = full_end;
    if (key == end) break;
    const F32 score = lanes_seeing(first, last, tile.first + key) ? load(scores + key * kBlockLanes) : hidden;
    store(scores + key * kBlockLanes, score);
    most[0] = max(most[0], score);
  }
  std::int64_t key = full_begin;
  for (; key + 4 <= full_end; key += 4) {
    for (int i = 0; i < 4; ++i) most[i] = max(most[i], load(scores + (key + i) * kBlockLanes));
  }
  for (; key < full_end; ++key) most[0] = max(most[0], load(scores + key * kBlockLanes));
  const F32 before = load(block.m + vector * kLanes);
  const F32 now = max(before, max(max(most[0], most[1]), max(most[2], most[3])) * scale);
  const F32 factor = rescale_factor(before, now);
  store(block.m + vector * kLanes, now);
  store(work.factor + vector * kLanes, factor);
  const F32 sum = load(block.l + vector * kLanes) * factor;
  store(block.l + vector * kLanes, Format::weigh(scores, begin, end, scale, finite_maximum(now), sum));
  if (args.dropout.data || args.seed.any)
    drop_weights<Format>(args, sequence, item, block, tile, begin, end, vector, scores);
  return any_lane((I32)(now > before));
}

// Infinite and NaN values of a tile: 0 * inf would put NaN into the rows that don't see them.
template <class Format>
__attribute__((noinline)) void add_nonfinite_values(const AttentionArgs& args, const AttentionSequence& sequence,
                                                    const AttentionItem& item, const Block& block, const KeyTile& tile,
                                                    const Workspace& work, std::int64_t begin,
                                                    std::int64_t end) noexcept {
  for (std::int64_t key = begin; key < end && key < tile.num_keys; ++key) {
    for (std::int64_t d = 0; d < args.value_dim; ++d) {
      const float value = load_value(args, tile, key, d, 1)[0];
      if (value - value == 0.0f) continue;
      for (int v = block.first_vector; v < kTileVectors; ++v) {
        I32 first, last;
        __builtin_memcpy(&first, block.first + v * kLanes, sizeof first);
        __builtin_memcpy(&last, block.last + v * kLanes, sizeof last);
        I32 seen = lanes_seeing(first, last, tile.first + key);
        if (args.rule.any) {
          seen &= ~lanes_hidden(args, rows_of(args, sequence, item, block, v), sequence.visible_first_key,
                                tile.first + key);
        }
        float* o = block.o + d * kBlockLanes + v * kLanes;
        store(o, seen ? load(o) + Format::weight(work.scores + v * kLanes, key) * splat(value) : load(o));
      }
    }
  }
}

// Whether the boolean mask hides every key of the tile from every row of the block: what it hides is not computed.
bool tile_is_hidden(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                    const Block& block, const KeyTile& tile) noexcept {
  std::int64_t first = tile.first > block.first_key ? tile.first : block.first_key;
  const std::int64_t end = tile.first + tile.num_keys, last = end < block.last_key ? end : block.last_key;
  if (first >= last) return true;
  if (!args.rule.visible.data || first < sequence.visible_first_key) return false;
  std::int64_t before = -1;
  for (std::int64_t i = 0; i < block.num_rows; ++i) {
    const RowPlace place = row_place(args, item.kv_head, block.first_row + i);
    const std::int64_t offset = grid_offset(args.rule.visible, sequence.visible_offset, place);
    if (offset == before) continue;
    if (any_visible(args.rule.visible, offset, first - sequence.visible_first_key, last - first)) return false;
    before = offset;
  }
  return true;
}

template <class Format>
void attend_tile(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                 const FlashTilesLayout& layout, const Block& block, const KeyTile& tile, const Workspace& work,
                 TileAhead& ahead) noexcept {
  const std::int64_t tile_end = tile.first + tile.num_keys;
  std::int64_t begin = (block.first_key > tile.first ? block.first_key : tile.first) - tile.first;
  std::int64_t end = (block.last_key < tile_end ? block.last_key : tile_end) - tile.first;
  if (begin >= end) return;
  begin -= begin % Format::kKeysPerStep;
  end = Format::round_up(end);
  fetch_some(args, sequence, ahead);
  for (std::int64_t key = begin; key < end;) {
    const Segment segment = segment_from<Format>(block, tile, key, end);
    multiply_rows<typename Format::Tile>(
        segment.vector, segment.end - key, RowsOfA{work.k + key * layout.k_stride, layout.k_stride * 4},
        layout.k_stride * 4, block.q, layout.q_units, work.scores + key * kBlockLanes, TileStart::zero, nullptr);
    key = segment.end;
  }
  bool grown = false;
  const Segment widest = segment_from<Format>(block, tile, begin, end);
  for (int v = widest.vector; v < kTileVectors; ++v) {
    fetch_some(args, sequence, ahead);
    const std::int64_t seen = Format::round_up(block.any_last[v] - tile.first);
    grown |= soften<Format>(args, sequence, item, block, tile, work, begin,
                            v + 1 < kTileVectors && seen < end ? seen : end, v);
  }
  fetch_some(args, sequence, ahead);
  TileStart start = grown ? TileStart::rescale : TileStart::add;
  for (std::int64_t key = begin; key < end; start = TileStart::add) {
    const Segment segment = segment_from<Format>(block, tile, key, end);
    const std::int64_t step = key / Format::kKeysPerStep, num_steps = (segment.end - key) / Format::kKeysPerStep;
    multiply_rows<typename Format::Tile>(segment.vector, layout.value_dim,
                                         ColumnsOfA{work.v + step * layout.v_stride, layout.v_stride * 4}, 4,
                                         work.scores + step * kBlockLanes, num_steps, block.o, start, work.factor);
    key = segment.end;
  }
  if (tile.has_nonfinite_value) add_nonfinite_values<Format>(args, sequence, item, block, tile, work, begin, end);
}

void finish_block(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                  const Block& block) noexcept {
  const bool whole = item.partial < 0;
  for (int v = block.first_vector; v < kTileVectors; ++v) {
    const std::int64_t first_row = block.first_row + std::int64_t{v - block.first_vector} * kLanes;
    const std::int64_t left = block.first_row + block.num_rows - first_row;
    const int num_rows = int(left < kLanes ? left : kLanes);
    F32 m = load(block.m + v * kLanes), l = load(block.l + v * kLanes), factor = splat(1.0f);
    RowPlace place[kLanes];
    for (int i = 0; i < num_rows; ++i) place[i] = row_place(args, item.kv_head, first_row + i);
    if (whole) {
      if (args.sinks) {
        F32 sink = splat(kMinusInfinity);
        for (int i = 0; i < num_rows; ++i) sink[i] = sink_of(args, place[i].head);
        factor = add_sink(sink, m, l);
      }
      factor *= inverse_sum(l) * splat(args.keep_scale);
    }
    for (int i = 0; i < num_rows; ++i) {
      if (whole) {
        store_softmax(softmax_places(args, sequence, place[i]), m[i] * kLn2, l[i]);
      } else {
        store_partial_sums(args, partial_row(args, item, first_row + i), m[i], l[i]);
      }
    }
    for (std::int64_t d = 0; d < args.value_dim; d += kLanes) {
      const int dims = int(args.value_dim - d < kLanes ? args.value_dim - d : kLanes);
      F32 rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        rows[i] = i < dims ? load(block.o + (d + i) * kBlockLanes + v * kLanes) * factor : F32{};
      }
      transpose(rows);
      for (int i = 0; i < num_rows; ++i) {
        if (whole) {
          store_any(args.out, args.out_dtype, out_offset(args, sequence, place[i]) + d, rows[i], dims);
        } else {
          float* partial = partial_row(args, item, first_row + i);
          store_any(partial, DType::f32, d, rows[i], dims);
        }
      }
    }
  }
}

template <class Format>
OPS_TRANSFORMER_INLINE void attend(const AttentionArgs& args, const AttentionSequence& sequence,
                                   const AttentionItem& item, std::byte* scratch) noexcept {
  const FlashTilesLayout layout =
      FlashTilesLayout::make(args.head_dim, args.value_dim, args.key_tile, kBlockLanes, Format::kKeysPerStep == 2);
  auto* memory = reinterpret_cast<std::int32_t*>(scratch);
  const auto take = [&memory](std::int64_t units) {
    std::int32_t* part = memory;
    memory += units;
    return part;
  };
  Workspace work;
  work.k = take(layout.k_units());
  work.v = take(layout.v_units());
  work.scores = reinterpret_cast<float*>(take(layout.score_units()));
  work.factor = reinterpret_cast<float*>(take(kBlockLanes));
  Block blocks[kMaxBlocksPerItem];
  const std::int64_t num_rows = item.last_row - item.first_row;
  const int num_blocks = int((num_rows + kBlockLanes - 1) / kBlockLanes);
  std::int64_t first_key = item.last_key, last_key = item.first_key;
  for (int b = 0; b < num_blocks; ++b) {
    Block& block = blocks[b];
    block.q = take(layout.q_block_units());
    block.o = reinterpret_cast<float*>(take(layout.o_block_units()));
    block.m = reinterpret_cast<float*>(take(kBlockLanes));
    block.l = reinterpret_cast<float*>(take(kBlockLanes));
    block.first = take(kBlockLanes);
    block.last = take(kBlockLanes);
    block.first_row = item.first_row + b * kBlockLanes;
    block.num_rows = num_rows - b * kBlockLanes < kBlockLanes ? num_rows - b * kBlockLanes : kBlockLanes;
    start_block(args, sequence, item, layout, block);
    first_key = first_key < block.first_key ? first_key : block.first_key;
    last_key = last_key > block.last_key ? last_key : block.last_key;
  }
  KeyTile tiles[2];
  int current = 0;
  const std::int64_t begin = first_key - first_key % args.key_tile;
  find_tile(args, sequence, item, begin, last_key, tiles[0]);
  TileAhead first_tile{tiles[0], 0, args.key_tile / num_blocks + 1};
  for (int b = 0; b < num_blocks; ++b) {
    fetch_some(args, sequence, first_tile);
    pack_queries<Format>(args, sequence, item, layout, blocks[b]);
  }
  const std::int64_t keys_a_step = args.key_tile / (num_blocks * kFetchesPerBlock) + 1;
  for (std::int64_t key = begin; key < last_key; key += args.key_tile, current ^= 1) {
    KeyTile &tile = tiles[current], &next = tiles[current ^ 1];
    find_tile(args, sequence, item, key + args.key_tile, last_key, next);
    TileAhead ahead{next, 0, keys_a_step};
    bool packed = false;
    for (int b = 0; b < num_blocks; ++b) {
      if (tile_is_hidden(args, sequence, item, blocks[b], tile) && !args.rotated.data) continue;
      if (!packed) pack_keys<Format>(args, sequence, item, layout, work, tile);
      packed = true;
      attend_tile<Format>(args, sequence, item, layout, blocks[b], tile, work, ahead);
    }
  }
  for (int b = 0; b < num_blocks; ++b) finish_block(args, sequence, item, blocks[b]);
}
