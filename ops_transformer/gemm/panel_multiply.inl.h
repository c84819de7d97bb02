// SPDX-License-Identifier: Apache-2.0
// Rows by panels of packed tiles over the tile engine. Included inside a level's region, after tile_engine.inl.h.

constexpr int kVectorsPerTile = kTileOutputs / kLanes;
constexpr int kSumsPerRow = kTilesPerPanel * kTileOutputs;

// Vectors of neighbouring tiles of packed weights. Only avx512 takes more than one tile at a time.
template <class Tile>
struct TilesOfB {
  const std::byte* data;
  std::int64_t tile_bytes;
  OPS_TRANSFORMER_INLINE const std::byte* at(std::int64_t step, int vector) const noexcept {
    constexpr int kStepBytes = kVectorsPerTile * Tile::kVectorBytesOfB;
    return data + step * kStepBytes + (vector / kVectorsPerTile) * tile_bytes +
           (vector % kVectorsPerTile) * Tile::kVectorBytesOfB;
  }
};

// Sums of one panel: a block of inputs at a time, so that the block of weights comes from memory once and is in the
// cache when the next rows need it.
template <class Tile>
OPS_TRANSFORMER_INLINE void multiply_panel(const MultiplyArgs& args, const MultiplyRange& range, std::int64_t tile,
                                           int num_tiles, float* sums) noexcept {
  constexpr int kBytesPerStepOfB = kVectorsPerTile * Tile::kVectorBytesOfB;
  const std::int64_t num_rows = range.last_row - range.first_row;
  const std::int64_t num_steps = (args.num_inputs + Tile::kInputsPerStep - 1) / Tile::kInputsPerStep;
  const std::int64_t block = args.inputs_per_block ? args.inputs_per_block / Tile::kInputsPerStep : num_steps;
  const std::byte* x = args.x + (range.first_row - args.x_first_row) * args.x_row_bytes;
  const int num_vectors = num_tiles * kVectorsPerTile;
  std::int64_t step = 0;
  do {
    const std::int64_t steps = num_steps - step < block ? num_steps - step : block;
    const TileStart start = step == 0 ? TileStart::zero : TileStart::add;
    for (int v = 0; v < num_vectors; v += kTileVectors) {
      const int vectors = num_vectors - v < kTileVectors ? num_vectors - v : kTileVectors;
      const TilesOfB<Tile> b{args.weights + (tile + v / kVectorsPerTile) * args.tile_bytes +
                                 (v % kVectorsPerTile) * Tile::kVectorBytesOfB +
                                 step / Tile::kStepsOfB * kBytesPerStepOfB,
                             args.tile_bytes};
      for (std::int64_t row = 0; row < num_rows; row += kTileRows) {
        const int rows = int(num_rows - row < kTileRows ? num_rows - row : kTileRows);
        const RowsOfA a{x + row * args.x_row_bytes + 4 * step, args.x_row_bytes};
        multiply_any_tile<Tile>(rows, vectors, a, b, steps, sums + row * kSumsPerRow + v * kLanes, kSumsPerRow, start);
      }
    }
    step += steps;
  } while (step < num_steps);
}
