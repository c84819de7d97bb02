// SPDX-License-Identifier: Apache-2.0
// Scales and offsets of int8 keys and values in decode, outside the products: with one scale for each channel they go
// into the query and the result, with one for each token into scores and weights. Included after kv_codes.inl.h.

// Of a block of keys; 0 past the last.
struct BlockCodes {
  float k_scale[kBlockKeys], k_offset[kBlockKeys], v_scale[kBlockKeys], v_offset[kBlockKeys];
};
// Of a row.
struct RowCodes {
  float constant;  // by channel: what the keys' offsets add to every score
  float q_sum;     // by token: sum of the query, which a key's offset is multiplied by
  float shift;     // by token: sum of weight * scale * offset over the values
};

void read_codes(const AttentionArgs& args, const AttentionSequence& sequence, const CodeGrid& grid, int kv_head,
                std::int64_t first, int num_keys, float* numbers) noexcept {
  std::int64_t at[kBlockKeys];
  if (grid.data) locate_codes(args, sequence, grid, kv_head, first, num_keys, at);
  for (int i = 0; i < kBlockKeys; ++i) numbers[i] = grid.data && i < num_keys ? grid.data[at[i]] : 0.0f;
}
void find_codes(const AttentionArgs& args, const AttentionSequence& sequence, int kv_head, std::int64_t first,
                int num_keys, BlockCodes& block) noexcept {
  if (args.k_codes.by_token) {
    read_codes(args, sequence, args.k_codes.scale, kv_head, first, num_keys, block.k_scale);
    read_codes(args, sequence, args.k_codes.offset, kv_head, first, num_keys, block.k_offset);
  }
  if (args.v_codes.by_token) {
    read_codes(args, sequence, args.v_codes.scale, kv_head, first, num_keys, block.v_scale);
    read_codes(args, sequence, args.v_codes.offset, kv_head, first, num_keys, block.v_offset);
  }
}

// A packed query takes the channels' scales.
void scale_query(const AttentionArgs& args, int kv_head, F32* q, RowCodes& row) noexcept {
  const CodeGrid &scale = args.k_codes.scale, &offset = args.k_codes.offset;
  row = {0.0f, 0.0f, 0.0f};
  F32 constant{}, q_sum{};
  for (std::int64_t d = 0; d < args.head_dim; d += kLanes) {
    const int lanes = int(args.head_dim - d < kLanes ? args.head_dim - d : kLanes);
    F32& value = q[d / kLanes];  // 0 in lanes past head_dim
    if (args.k_codes.by_token) {
      q_sum += value;
      continue;
    }
    value *= load_grid(scale, kv_head * scale.head_stride, d, lanes);
    if (offset.data) constant = fma(value, load_grid(offset, kv_head * offset.head_stride, d, lanes), constant);
  }
  row.constant = sum(constant);
  row.q_sum = sum(q_sum);
}

void scale_scores(const AttentionArgs& args, const BlockCodes& block, const RowCodes& row, int num_keys,
                  float* scores) noexcept {
  if (!args.k_codes.by_token && !args.k_codes.offset.data) return;
  for (int key = 0; key < num_keys; key += kLanes) {
    const F32 score = load(scores + key);
    store(scores + key, args.k_codes.by_token
                            ? fma(load(block.k_offset + key), splat(row.q_sum), score) * load(block.k_scale + key)
                            : score + splat(row.constant));
  }
}

// Weights of a row after its state has shrunk by `factor`. A hidden key's scale may be anything.
void scale_weights(const AttentionArgs& args, const BlockCodes& block, int num_keys, const float* scores, float factor,
                   float* weights, RowCodes& row) noexcept {
  if (!args.v_codes.by_token) return;
  F32 shift{};
  for (int key = 0; key < num_keys; key += kLanes) {
    const F32 scaled = load(weights + key) * load(block.v_scale + key);
    const F32 weight = load(scores + key) == splat(kMinusInfinity) ? F32{} : scaled;
    const F32 moved = weight * load(block.v_offset + key);
    shift += load(scores + key) == splat(kMinusInfinity) ? F32{} : moved;
    store(weights + key, weight);
  }
  row.shift = row.shift * factor + sum(shift);
}

// o [value_dim] of a row whose weights add up to l.
void finish_values(const AttentionArgs& args, int kv_head, const RowCodes& row, float l, float* o) noexcept {
  if (l == 0.0f) return;
  const CodeGrid &scale = args.v_codes.scale, &offset = args.v_codes.offset;
  for (std::int64_t d = 0; d < args.value_dim; d += kLanes) {
    const int lanes = int(args.value_dim - d < kLanes ? args.value_dim - d : kLanes);
    F32 value = load(o + d);
    if (args.v_codes.by_token) {
      value += splat(row.shift);
    } else {
      if (offset.data) value = fma(load_grid(offset, kv_head * offset.head_stride, d, lanes), splat(l), value);
      value *= load_grid(scale, kv_head * scale.head_stride, d, lanes);
    }
    store(o + d, value);
  }
}
