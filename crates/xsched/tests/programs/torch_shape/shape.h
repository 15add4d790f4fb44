/*
 * The shape of PyTorch on ROCm, without PyTorch: the order in which `import torch` and its first steps load libraries and
 * call HIP. The libraries have the names and the dependencies of PyTorch's.
 *
 *   python ──dlopen(RTLD_GLOBAL)──► libtorch_global_deps.so
 *          ──dlopen(RTLD_LOCAL)───► libtorch_python.so ─► libtorch_hip.so ─► libc10_hip.so ─► libamdhip64.so
 *                                                             └─► AMD's libraries of matrix products, random numbers, ...
 *
 * With HIP_SUBSET, the program uses only what standins/hip has, and registers its kernels by hand.
 */
#ifndef SHAPE_H
#define SHAPE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HIP_SUBSET
#include "hip_subset.h"
#else
#include <hip/hip_runtime_api.h>
#endif

/* Prints an unexpected result of a call, and exits. */
#define MUST(call) must((call), #call, __FILE__, __LINE__)
static inline void must(hipError_t error, const char *call, const char *file, int line) {
    if (error == hipSuccess) return;
    printf("%s:%d: %s: error %d\n", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line, call, (int)error);
    fflush(stdout);
    exit(70);
}

/* libc10_hip.so: devices, streams, memory. */
enum { STREAMS_PER_POOL = 32, MAX_PRIORITIES = 4 };
int c10_device_count(void);
void c10_lazy_init(void);
hipStream_t c10_stream_from_pool(int priority);
int c10_priorities(void);
void *c10_allocate(size_t bytes, hipStream_t stream);
void c10_free(void *memory);
/* The memory is also used by another stream; it is reused when that stream's work has completed. */
void c10_record_stream(void *memory, hipStream_t stream);
void c10_empty_cache(void);
void c10_memory_statistics(unsigned *segments, unsigned *retries, size_t *reserved);
void *c10_allocate_pinned(size_t bytes);
void c10_free_pinned(void *memory, hipStream_t stream);

/* The libraries with device code: each launches a kernel that takes so many nanoseconds. */
void at_spin(uint64_t ns, hipStream_t stream);
void at_backward_spin(uint64_t ns, hipStream_t stream);
void aotriton_spin(uint64_t ns, hipStream_t stream);
void vision_spin(uint64_t ns, hipStream_t stream);
void vision_spin_per_thread(uint64_t ns);
int at_managed_value(void);

/* libtorch_hip.so: AMD's libraries, copies, events, graphs, kernels compiled at run time, collectives. */
void at_math_libraries(hipStream_t stream);
void at_collectives_start(void);
void at_collectives_all_reduce(hipStream_t stream);
void at_collectives_end(void);
void at_copies(hipStream_t stream);
void at_events(hipStream_t stream, hipStream_t other);
void at_graphs(hipStream_t stream);
void at_compiled_kernels(hipStream_t stream);

void raise_uncaught(void);

#endif
