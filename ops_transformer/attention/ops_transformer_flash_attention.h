/* SPDX-License-Identifier: Apache-2.0 */
/* Attention for C programs; <ops_transformer/attention/flash_attention.h> is the whole of it, for C++. */
#ifndef OPS_TRANSFORMER_FLASH_ATTENTION_H
#define OPS_TRANSFORMER_FLASH_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ops_transformer_status {
  OPS_TRANSFORMER_OK = 0,
  OPS_TRANSFORMER_INVALID_ARGUMENT = 1, /* nothing has been written */
  OPS_TRANSFORMER_OUT_OF_MEMORY = 2,    /* nothing has been written */
  OPS_TRANSFORMER_FAILED = 3
} ops_transformer_status;

/* What the calling thread's last call that failed has said: argument, value and limit. Valid until its next failure; ""
 * before one. */
__attribute__((visibility("default"))) const char* ops_transformer_last_error(void);

/* O = softmax(Q K^T / sqrt(D)) V of one head, without a score matrix (Dao et al., 2022), on the process's threads.
 *
 * Q, K, V, O  [N, D] f32, row after row; O overlaps none of the others
 * N           tokens, 0 to 2^30; with 0 nothing is read or written
 * D           values of a token, 1 to 768
 * block_size  keys of a tile, rounded up to a multiple of 16, at most 256; 0: chosen for this machine. It changes the
 *             result by rounding alone. */
__attribute__((visibility("default"))) ops_transformer_status flash_attention_blocked(const float* Q, const float* K,
                                                                                      const float* V, float* O, int N,
                                                                                      int D, int block_size);

#ifdef __cplusplus
}
#endif

#endif
