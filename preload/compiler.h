/* SPDX-License-Identifier: Apache-2.0 */
/* Hints for the compiler on functions, variables and branches. */
#ifndef OTEL_GPU_PRELOAD_COMPILER_H
#define OTEL_GPU_PRELOAD_COMPILER_H

#define EXPORTED    __attribute__((visibility("default"), used))
#define HIDDEN	    __attribute__((visibility("hidden")))
#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#endif
