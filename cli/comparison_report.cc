// SPDX-License-Identifier: Apache-2.0
#include "cli/comparison_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ops_transformer::cli {
namespace {

struct Measure {
  const char *key, *title, *unit;
  double scale;
};
constexpr Measure kMeasures[] = {{"seconds", "time", "ms", 1e3},
                                 {"peak_memory_bytes", "peak memory", "MB", 1e-6},
                                 {"bytes_moved", "bytes moved", "MB", 1e-6}};

bool has(const Json& point, const std::string& side) { return !point[side].contains("refused"); }

double value(const Json& point, const std::string& side, const Measure& measure) {
  return point[side][measure.key].get<double>() * measure.scale;
}

std::string shown(double value) { return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0); }

// A row of the table: the size, each measure of both sides with the first divided by the second.
std::vector<std::string> cells_of(const Json& comparison, const Json& point) {
  const std::string before = comparison["sides"][0], after = comparison["sides"][1];
  std::vector<std::string> cells = {fmt::format("{}", point["size"].get<std::int64_t>())};
  for (const Measure& measure : kMeasures) {
    const bool both = has(point, before) && has(point, after);
    for (const std::string& side : {before, after}) {
      cells.push_back(has(point, side) ? shown(value(point, side, measure)) : "–");
    }
    cells.push_back(both ? shown(value(point, before, measure) / value(point, after, measure)) + "x" : "");
  }
  return cells;
}

// Why a side has no figures, where it first hasn't.
std::vector<std::string> refusals(const Json& comparison) {
  std::vector<std::string> lines;
  for (const std::string side : comparison["sides"]) {
    const auto& points = comparison["points"];
    const auto first = std::ranges::find_if(points, [&](const Json& point) { return !has(point, side); });
    if (first != points.end()) {
      lines.push_back(fmt::format("{} from {} {}: {}", side, (*first)["size"].get<std::int64_t>(),
                                  comparison["size_name"].get<std::string>(),
                                  (*first)[side]["refused"].get<std::string>()));
    }
  }
  return lines;
}

constexpr int kWidth = 520, kHeight = 320, kLeft = 62, kRight = 28, kTop = 34, kBottom = 44;

// Both axes are logarithms; a tick for each power of ten upwards, and for each size.
std::string chart(const Json& comparison, const Measure& measure) {
  const auto& points = comparison["points"];
  double low = 1e300, high = 0;
  for (const Json& point : points) {
    for (const std::string side : comparison["sides"]) {
      if (!has(point, side)) continue;
      low = std::min(low, value(point, side, measure));
      high = std::max(high, value(point, side, measure));
    }
  }
  if (high <= 0) return "";
  const double first = std::floor(std::log10(low)), last = std::max(first + 1, std::ceil(std::log10(high)));
  const double smallest = std::log2(points.front()["size"].get<double>()),
               widest = std::max(1e-9, std::log2(points.back()["size"].get<double>()) - smallest);
  const auto x_of = [&](double size) {
    return kLeft + (std::log2(size) - smallest) / widest * (kWidth - kLeft - kRight);
  };
  const auto y_of = [&](double y) {
    return kHeight - kBottom - (std::log10(y) - first) / (last - first) * (kHeight - kTop - kBottom);
  };
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\"><title>{}, {}</title>\n", kWidth, kHeight,
                                measure.title, measure.unit);
  svg += fmt::format("<text class=\"name\" x=\"{}\" y=\"18\">{}, {}</text>\n", kLeft, measure.title, measure.unit);
  for (double power = first; power <= last; ++power) {
    const double y = y_of(std::pow(10, power));
    svg += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft, kWidth - kRight,
                       y, y);
    svg += fmt::format("<text class=\"y\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", kLeft - 8, y + 4,
                       fmt::format("{:g}", std::pow(10, power)));
  }
  for (const Json& point : points) {
    svg += fmt::format("<text class=\"x\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", x_of(point["size"].get<double>()),
                       kHeight - kBottom + 18, point["size"].get<std::int64_t>());
  }
  svg += fmt::format("<text class=\"x\" x=\"{}\" y=\"{}\">{}</text>\n", (kLeft + kWidth - kRight) / 2, kHeight - 8,
                     comparison["size_name"].get<std::string>());
  int index = 0;
  for (const std::string side : comparison["sides"]) {
    const std::string of_side = index++ == 0 ? "before" : "after";
    std::string line, marks;
    double x = 0, y = 0;
    for (const Json& point : points) {
      if (!has(point, side)) continue;
      x = x_of(point["size"].get<double>());
      y = y_of(value(point, side, measure));
      line += fmt::format("{:.1f},{:.1f} ", x, y);
      marks += fmt::format(
          "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{} {}: {} {}</title></circle>", of_side, x,
          y, side, point["size"].get<std::int64_t>(), shown(value(point, side, measure)), measure.unit);
    }
    if (line.empty()) continue;
    svg += fmt::format("<polyline class=\"{}\" points=\"{}\"/>{}\n", of_side, line, marks);
    svg += fmt::format("<text class=\"label {}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", of_side,
                       std::min(x, double(kWidth - kRight)), y - 10, side);
  }
  return svg + "</svg>\n";
}

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --quiet: #6a7280; --grid: #e3e6ea;
        --before: #b4540a; --after: #1460aa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --paper: #15181c; --quiet: #9aa3af; --grid: #2c323a; --before: #f0a050; --after: #6db3f2; } }
body { margin: 2rem auto; max-width: 1100px; padding: 0 1rem; background: var(--paper); color: var(--ink);
       font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } p { color: var(--quiet); margin: .3rem 0; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1rem 0; } .charts svg { flex: 1 1 420px; }
svg text { fill: var(--quiet); font-size: 12px; } svg .name { fill: var(--ink); font-size: 14px; font-weight: 600; }
svg .x { text-anchor: middle; } svg .y, svg .label { text-anchor: end; } svg .label { font-weight: 600; }
.grid { stroke: var(--grid); } polyline { fill: none; stroke-width: 2; }
polyline.before { stroke: var(--before); } polyline.after { stroke: var(--after); }
circle.before, .label.before { fill: var(--before); } circle.after, .label.after { fill: var(--after); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

}  // namespace

void print_table(const Json& comparison) {
  const std::string before = comparison["sides"][0], after = comparison["sides"][1];
  std::string text = fmt::format("{}\n{}\n\n{:>8}", comparison["title"].get<std::string>(),
                                 comparison["facts"].get<std::string>(), "");
  for (const Measure& measure : kMeasures) {
    text += fmt::format("{:>34}", fmt::format("{}, {}", measure.title, measure.unit));
  }
  text += fmt::format("\n{:>8}", comparison["size_name"].get<std::string>());
  for (std::size_t i = 0; i < std::size(kMeasures); ++i) text += fmt::format("{:>10}{:>16}{:>8}", before, after, "");
  text += '\n';
  for (const Json& point : comparison["points"]) {
    const std::vector<std::string> cells = cells_of(comparison, point);
    text += fmt::format("{:>8}", cells[0]);
    for (std::size_t i = 1; i < cells.size(); i += 3) {
      text += fmt::format("{:>10}{:>16}{:>8}", cells[i], cells[i + 1], cells[i + 2]);
    }
    text += '\n';
  }
  for (const std::string& line : refusals(comparison)) text += line + '\n';
  print(text);
}

std::string html_page(const Json& comparison) {
  const std::string title = escaped(comparison["title"].get<std::string>());
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>{}</title><style>{}</style></head>\n<body><h1>{}</h1>\n<p>{}</p>\n",
      title, kStyle, title, escaped(comparison["facts"].get<std::string>()));
  for (const std::string& line : refusals(comparison)) page += fmt::format("<p>{}</p>\n", escaped(line));
  page += "<div class=\"charts\">\n" + chart(comparison, kMeasures[0]) + chart(comparison, kMeasures[1]) + "</div>\n";
  page += fmt::format("<div class=\"scroll\"><table><tr><th></th>");
  for (const Measure& measure : kMeasures) {
    page += fmt::format("<th colspan=\"3\">{}, {}</th>", measure.title, measure.unit);
  }
  page += fmt::format("</tr>\n<tr><th>{}</th>", comparison["size_name"].get<std::string>());
  for (std::size_t i = 0; i < std::size(kMeasures); ++i) {
    page += fmt::format("<th>{}</th><th>{}</th><th></th>", comparison["sides"][0].get<std::string>(),
                        comparison["sides"][1].get<std::string>());
  }
  page += "</tr>\n";
  for (const Json& point : comparison["points"]) {
    page += "<tr>";
    for (const std::string& cell : cells_of(comparison, point)) page += "<td>" + cell + "</td>";
    page += "</tr>\n";
  }
  return page + "</table></div></body></html>\n";
}

}  // namespace ops_transformer::cli
