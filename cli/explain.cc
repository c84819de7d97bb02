// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <limits>
#include <vector>

#include "cli/command.h"
#include "ops_transformer/attention/attention_plan.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/gemm/matmul.h"
#include "ops_transformer/tuning/device_spec.h"

namespace ops_transformer::cli {
namespace {

struct Options {
  std::string op;
  std::vector<std::int64_t> shape;
  std::string dtype = "f32", weights = "f32", isa;
  std::optional<int> threads;
  bool exact = false, deterministic = false, json = false;
};

struct Explanation {
  std::string problem, plan;
  std::vector<std::string> reasons;
};

DType dtype_of(const std::string& option, const std::string& name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (dtype_name(DType(i)) == name) return DType(i);
  }
  throw InvalidArgument(
      fmt::format("{} is '{}', must name a dtype (f32, bf16, f16, q4_0, q4_1, q8_0, …)", option, name));
}

Explanation explain_matmul(const Options& options, const DeviceSpec& device, int threads) {
  const std::int64_t rows = options.shape[0], outputs = options.shape[1], inputs = options.shape[2];
  // A gated matmul has two matrices of `outputs`, each in whole tiles.
  const std::int64_t tiles = (outputs + kTileOutputs - 1) / kTileOutputs * (options.op == "gated_linear" ? 2 : 1);
  const MatmulProblem problem{dtype_of("--weights", options.weights),
                              dtype_of("--dtype", options.dtype),
                              options.exact ? Arithmetic::exact : Arithmetic::fast,
                              rows,
                              inputs,
                              tiles};
  if (!find_weight_format(problem.weights)) {
    throw InvalidArgument(fmt::format("--weights is {}, which matmuls don't take", options.weights));
  }
  if (problem.x != DType::f32 && problem.x != DType::bf16) {
    throw InvalidArgument(fmt::format("--dtype is {}, must be f32 or bf16", options.dtype));
  }
  if (const auto block = std::int64_t(dtype_info(problem.weights).block_len); inputs % block != 0) {
    throw InvalidArgument(
        fmt::format("--shape has {} inputs, must be a multiple of {} for {}", inputs, block, options.weights));
  }
  const MatmulPlan plan = plan_matmul(problem, device, threads);
  return {fmt::format("{} rows of {} inputs by {} outputs, x {}, weights {}", rows, inputs, outputs, options.dtype,
                      options.weights),
          describe(plan), explain(problem, plan, device, threads)};
}

Explanation explain_attention(const Options& options, const DeviceSpec& device, int threads) {
  const auto& s = options.shape;
  const DType dtype = dtype_of("--dtype", options.dtype);
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
    throw InvalidArgument(fmt::format("--dtype is {}, must be f32, bf16 or f16", options.dtype));
  }
  if (s[2] > 768) throw InvalidArgument(fmt::format("--shape has head_dim {}, must be at most 768", s[2]));
  const AttentionProblem problem{int(s[0]), int(s[1]), int(s[2]), int(s[2]), dtype};
  if (s[0] % s[1] != 0)
    throw InvalidArgument(fmt::format("--shape: {} query heads must be a multiple of {} key heads", s[0], s[1]));
  const AttentionPolicy policy{threads, options.deterministic};
  const AttentionPlan made = plan(problem, device, policy);
  return {fmt::format("{} query heads, {} key heads, head_dim {}, {}", s[0], s[1], s[2], options.dtype), describe(made),
          explain(problem, made, device, policy)};
}

struct Operator {
  const char* name;
  const char* shape;
  std::size_t rank;
  Explanation (*explain)(const Options&, const DeviceSpec&, int);
};
constexpr Operator kOperators[] = {
    {"linear", "rows,outputs,inputs", 3, explain_matmul},
    {"gated_linear", "rows,outputs,inputs", 3, explain_matmul},
    {"flash_attention", "num_q_heads,num_kv_heads,head_dim", 3, explain_attention},
};

void run(const Options& options) {
  const Operator* chosen = nullptr;
  std::string known;
  for (const Operator& op : kOperators) {
    if (options.op == op.name) chosen = &op;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", op.name);
  }
  if (!chosen)
    throw InvalidArgument(fmt::format("OP is '{}', must be one of {} (row operators have no plan)", options.op, known));
  if (options.shape.size() != chosen->rank) {
    throw InvalidArgument(
        fmt::format("--shape of {} is {}, got {} numbers", options.op, chosen->shape, options.shape.size()));
  }
  for (std::int64_t size : options.shape) {
    if (size < 1 || size > std::numeric_limits<std::int32_t>::max())
      throw InvalidArgument(fmt::format("--shape has {}, must be from 1 to 2^31 - 1", size));
  }
  std::optional<Isa> isa;
  if (!options.isa.empty()) {
    isa = isa_from_name(options.isa);
    if (!isa) throw InvalidArgument(fmt::format("--isa is '{}', which names no level", options.isa));
  }
  const int threads = options.threads.value_or(default_num_threads());
  if (threads < 1 || threads > 1024)
    throw InvalidArgument(fmt::format("--threads is {}, must be from 1 to 1024", threads));
  const DeviceSpec& device = isa ? this_device(*isa) : this_device();
  const Explanation explanation = chosen->explain(options, device, threads);
  if (options.json) {
    print_json({{"op", options.op},
                {"problem", explanation.problem},
                {"device", describe(device)},
                {"threads", threads},
                {"plan", explanation.plan},
                {"reasons", explanation.reasons}});
    return;
  }
  fmt::print("{}: {}\ndevice: {}, {} threads\nplan:   {}\n", options.op, explanation.problem, describe(device), threads,
             explanation.plan);
  for (const std::string& reason : explanation.reasons) fmt::print("  - {}\n", reason);
}

}  // namespace

void add_explain(CLI::App& program) {
  auto* command = program.add_subcommand("explain", "The plan of an operator for a shape, and why.");
  auto options = std::make_shared<Options>();
  command->add_option("OP", options->op, "linear, gated_linear or flash_attention")->required();
  command
      ->add_option("--shape", options->shape,
                   "linear, gated_linear: rows,outputs,inputs; flash_attention: num_q_heads,num_kv_heads,head_dim")
      ->required()
      ->delimiter(',');
  command->add_option("--dtype", options->dtype, "of x, or of queries and keys")->capture_default_str();
  command->add_option("--weights", options->weights, "of the weights of a matmul")->capture_default_str();
  command->add_option("--isa", options->isa, "instruction-set level to plan for (default: the best here)");
  command->add_option("-t,--threads", options->threads, "threads to plan for");
  command->add_flag("--exact", options->exact, "f32 products");
  command->add_flag("--deterministic", options->deterministic, "one order for any thread count");
  command->add_flag("--json", options->json, "print one JSON object on standard output");
  command->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
