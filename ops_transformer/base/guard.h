// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>
#include <string>

#include "ops_transformer/base/error.h"

// What the body of every C function stands in.
namespace ops_transformer {

/// The values of ops_transformer_status.
inline constexpr int kStatusOk = 0, kStatusInvalidArgument = 1, kStatusOutOfMemory = 2, kStatusFailed = 3;

/// What the calling thread's last C call that failed has said; empty before one has.
OPS_TRANSFORMER_API std::string& last_c_error() noexcept;

/// Runs `body` and makes a status of what it throws.
template <class Body>
int guard(const Body& body) noexcept {
  const auto failed = [](int status, const char* message) {
    try {
      last_c_error() = message;
    } catch (...) {
      last_c_error().clear();  // not even room for the message
    }
    return status;
  };
  try {
    body();
    return kStatusOk;
  } catch (const InvalidArgument& error) {
    return failed(kStatusInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    return failed(kStatusOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return failed(kStatusFailed, error.what());
  } catch (...) {
    return failed(kStatusFailed, "unknown error");
  }
}

}  // namespace ops_transformer
