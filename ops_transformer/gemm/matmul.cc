// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

// The rows of the largest tile of sums: no more than these need no blocks.
constexpr std::int64_t kMaxTileRows = 6;
constexpr std::int64_t kMaxRowsPerItem = 192;
// Fewer rows than this don't repay an item's reading of all the weights.
constexpr std::int64_t kFewestOwnRows = 32;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

// Blocks of nearly equal depth, whose weights fit a quarter of L2. Shallower ones, that fit L1, load and store the sums
// too often: 445 against 452 GFLOP/s at 512 x 4096 x 4096 bf16, 204 against 222 in f32 at avx2 (Zen 4, Nov 2026).
// 0: one block holds all inputs.
std::int64_t choose_block(std::int64_t num_inputs, std::int64_t bytes, const DeviceSpec& device) {
  const std::int64_t most =
      std::max<std::int64_t>(64, std::int64_t(device.l2_bytes / 4) / divide_up(bytes, num_inputs));
  return num_inputs <= most ? 0 : round_up(divide_up(num_inputs, divide_up(num_inputs, most)), 64);
}

struct Split {
  std::int64_t rows, tiles;
};

// Cycles until the last thread is done: each item costs its start and, for each panel, the larger of its arithmetic and
// of reading its weights. Threads finish half an item apart, but those that read much less: the late one has the whole
// bandwidth. One row by the matrices of a 135M llama, out of cache: 2 items each 82-92 % of a pure read, 4 79-92 %, 8
// 74-86 % (Zen 4, 2 threads, Nov 2026).
double cycles_of(const Split& split, const MatmulProblem& problem, std::int64_t tile_bytes, const DeviceSpec& device,
                 int num_threads) {
  constexpr double kBytesPerCycle = 8, kCyclesPerItem = 1000, kCyclesPerPanel = 300;
  const double rows = double(std::min(split.rows, problem.num_rows));
  const double flops_per_tile = 2 * rows * double(kTileOutputs * problem.num_inputs);
  const double compute = flops_per_tile / flops_per_cycle(problem, device);
  const double read = double(tile_bytes) / kBytesPerCycle, cycles_per_tile = std::max(compute, read);
  // A part of a panel has fewer sums to hide latencies behind: 6 x 2 vectors reach 0.89-0.95 of 6 x 4 (Zen 4, 2
  // threads, Nov 2026).
  const std::int64_t whole = split.tiles / kTilesPerPanel * kTilesPerPanel, rest = split.tiles - whole;
  const double cost = kCyclesPerItem + kCyclesPerPanel * double(divide_up(split.tiles, kTilesPerPanel)) +
                      cycles_per_tile * (double(whole) + double(rest) / 0.9);
  const std::int64_t items = divide_up(problem.num_rows, split.rows) * divide_up(problem.num_tiles, split.tiles);
  return cost * (double(divide_up(items, num_threads)) + (read > compute ? 0.1 : 0.5));
}

Split choose_split(const MatmulProblem& problem, std::int64_t granule, std::int64_t tile_bytes,
                   const DeviceSpec& device, int num_threads) {
  Split best{};
  double best_cycles = 0;
  const std::int64_t fewest = divide_up(problem.num_rows, kMaxRowsPerItem);
  std::int64_t last_rows = 0;
  for (std::int64_t row_items = fewest; row_items <= fewest + 3; ++row_items) {
    const std::int64_t rows = round_up(divide_up(problem.num_rows, row_items), granule);
    if (rows == last_rows) break;
    last_rows = rows;
    std::int64_t last_tiles = 0;
    for (std::int64_t shares : {1, 2, 3, 4, 6, 8, 12, 16, 32}) {
      // Pairs of tiles stay together; past one panel, whole panels unless the outputs are few.
      std::int64_t tiles = round_up(divide_up(problem.num_tiles, num_threads * shares), 2);
      if (tiles > 2 * kTilesPerPanel) tiles = round_up(tiles, kTilesPerPanel);
      if (tiles == last_tiles) continue;
      last_tiles = tiles;
      const Split split{rows, tiles};
      const double cycles = cycles_of(split, problem, tile_bytes, device, num_threads);
      if (best.rows == 0 || cycles < best_cycles) {
        best = split;
        best_cycles = cycles;
      }
    }
  }
  return best;
}

// Rows of each item where every item takes all tiles. In rows' worth of time: the busiest thread's rows, a start and a
// reading of all weights for each of its items, and a part of an item by which threads finish apart.
std::int64_t choose_rows(std::int64_t num_rows, std::int64_t granule, int num_threads) {
  std::int64_t best = 0;
  double best_cost = 0;
  const std::int64_t fewest = divide_up(num_rows, num_threads * kMaxRowsPerItem);
  for (std::int64_t items_per_thread = fewest; items_per_thread <= fewest + 8; ++items_per_thread) {
    const std::int64_t rows = round_up(divide_up(num_rows, num_threads * items_per_thread), granule);
    const std::int64_t rounds = divide_up(divide_up(num_rows, rows), num_threads);
    const double cost = double(rounds * rows) + 4.0 * double(rounds) + 0.1 * double(rows);
    if (best == 0 || cost < best_cost) {
      best = rows;
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace

double flops_per_cycle(const MatmulProblem& problem, const DeviceSpec& device) {
  return device.flops_per_cycle(problem.arithmetic == Arithmetic::exact ? DType::f32 : problem.weights);
}

MatmulPlan plan_matmul(const MatmulProblem& problem, const DeviceSpec& device, int num_threads) {
  const WeightFormat& format = *find_weight_format(problem.weights);
  MatmulPlan plan;
  plan.method = &format.method(problem.arithmetic);
  plan.prepares = !plan.method->reads_as_it_lies(problem.x, problem.num_inputs, device.isa);
  plan.prepared_row_bytes = std::int64_t(plan.method->prepared_row_bytes(problem.num_inputs));
  if (problem.num_rows == 0 || problem.num_tiles == 0) return plan;
  const auto tile_bytes = std::int64_t(format.tile_bytes(problem.num_inputs));
  // Rows that one core prepares and another reads cross between their caches: at 512 rows of 576 inputs quantising took
  // 185 us that way and 42 us in the items, of 780 us with the matmul (q4_1, Zen 4, 2 threads, Nov 2026).
  plan.prepares_in_items = plan.prepares && problem.num_rows >= num_threads * kFewestOwnRows;
  const std::int64_t granule = plan.method->row_granule;
  const Split split = plan.prepares_in_items
                          ? Split{choose_rows(problem.num_rows, granule, num_threads), round_up(problem.num_tiles, 2)}
                          : choose_split(problem, granule, tile_bytes, device, num_threads);
  plan.rows_per_item = split.rows;
  plan.tiles_per_item = split.tiles;
  plan.num_row_items = divide_up(problem.num_rows, split.rows);
  plan.num_tile_items = divide_up(problem.num_tiles, split.tiles);
  if (plan.method->blocks_inputs && problem.num_inputs > 0 && problem.num_rows > kMaxTileRows) {
    plan.tiles_per_block =
        std::min<std::int64_t>(problem.num_tiles, device.vector_bytes == 4 * kTileOutputs ? kTilesPerPanel : 1);
    plan.inputs_per_block = choose_block(problem.num_inputs, plan.tiles_per_block * tile_bytes, device);
  }
  return plan;
}

std::string describe(const MatmulPlan& plan) {
  return fmt::format("{}{}, {} x {} items of {} rows x {} outputs{}", plan.method->name,
                     plan.prepares_in_items ? ", each prepares its rows"
                     : plan.prepares        ? ", x prepared"
                                            : "",
                     plan.num_row_items, plan.num_tile_items, plan.rows_per_item, plan.tiles_per_item * kTileOutputs,
                     plan.inputs_per_block ? fmt::format(", inputs in blocks of {}", plan.inputs_per_block) : "");
}

void run_matmul(CallScope& call, const MatmulPlan& plan, const ConstTensorView& x, const PackedWeights& weights,
                EpilogueFn* epilogue, const EpilogueArgs& epilogue_args) {
  const std::int64_t num_rows = x.size(0), num_tiles = divide_up(weights.num_outputs(), kTileOutputs);
  if (num_rows == 0 || num_tiles == 0) return;
  const Isa isa = call.context().isa();
  MultiplyArgs args{};
  args.weights = weights.data();
  args.tile_bytes = std::int64_t(weights.bytes()) / num_tiles;
  args.num_inputs = weights.num_inputs();
  args.inputs_per_block = plan.inputs_per_block;
  args.epilogue = epilogue;
  args.epilogue_args = &epilogue_args;
  PrepareArgs prepare{x.data(), nullptr, args.num_inputs, x.stride(0), plan.prepared_row_bytes, x.dtype()};
  PrepareFn* const prepare_rows = plan.method->prepare->at(isa);
  const std::int64_t most_rows = std::min(num_rows, plan.rows_per_item);
  std::span<std::byte> prepared;
  if (plan.prepares_in_items) {
    prepared = call.arena().allocate<std::byte>(std::size_t(call.num_threads() * most_rows * plan.prepared_row_bytes));
    args.x_row_bytes = plan.prepared_row_bytes;
  } else if (plan.prepares) {
    prepared = call.arena().allocate<std::byte>(std::size_t(num_rows * plan.prepared_row_bytes));
    prepare.prepared = prepared.data();
    call.parallel_rows(num_rows, args.num_inputs,
                       [&](std::int64_t first, std::int64_t last, int) { prepare_rows(prepare, first, last); });
    args.x = prepared.data();
    args.x_row_bytes = plan.prepared_row_bytes;
  } else {
    args.x = x.as<std::byte>();
    args.x_row_bytes = x.stride(0) * std::int64_t(element_bytes(x.dtype()));
  }
  MultiplyFn* kernel = plan.method->multiply->at(isa);
  const auto sums_per_worker = std::size_t(most_rows * kTilesPerPanel * kTileOutputs);
  const auto sums = call.arena().allocate<float>(std::size_t(call.num_threads()) * sums_per_worker);
  // Items of one panel of weights stand together, so that it is read from memory once for all rows.
  call.parallel_for(std::size_t(plan.num_row_items * plan.num_tile_items), [&](std::size_t item, int worker) {
    const std::int64_t first_row = std::int64_t(item) % plan.num_row_items * plan.rows_per_item;
    const std::int64_t first_tile = std::int64_t(item) / plan.num_row_items * plan.tiles_per_item;
    const MultiplyRange range{first_row, std::min(num_rows, first_row + plan.rows_per_item), first_tile,
                              std::min(num_tiles, first_tile + plan.tiles_per_item)};
    float* const worker_sums = sums.data() + std::size_t(worker) * sums_per_worker;
    if (!plan.prepares_in_items) return kernel(args, range, worker_sums);
    PrepareArgs own_prepare = prepare;
    own_prepare.x = x.as<std::byte>() + first_row * x.stride(0) * std::int64_t(element_bytes(x.dtype()));
    own_prepare.prepared = prepared.data() + worker * most_rows * plan.prepared_row_bytes;
    prepare_rows(own_prepare, 0, range.last_row - first_row);
    MultiplyArgs own = args;
    own.x = own_prepare.prepared;
    own.x_first_row = first_row;
    kernel(own, range, worker_sums);
  });
}

void check_matmul(const char* operation, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
                  std::int64_t num_columns, Activation activation) {
  check_shape(operation, "x", x, {-1, weights.num_inputs()});
  check_dtype(operation, "x", x, {DType::f32, DType::bf16, DType::f16});
  check_rows(operation, "x", x);
  check_shape(operation, "out", out, {x.size(0), num_columns});
  check_dtype(operation, "out", out, {DType::f32, DType::bf16, DType::f16});
  check_rows(operation, "out", out);
  check_output(operation, "out", out);
  check_no_overlap(operation, "out", out, "x", x);
  const ConstTensorView packed(weights.data(), DType::u8, {std::int64_t(weights.bytes())});
  check_no_overlap(operation, "out", out, "weights", packed);
  if (activation > Activation::gelu_erf) {
    invalid(operation, fmt::format("activation is {}, must be 0...{}", int(activation), int(Activation::gelu_erf)));
  }
}

}  // namespace ops_transformer
