/*
 * XSched for CoreX.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_COREX_HAL_H
#define XSCHED_COREX_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC system_header
#endif
/* As the vendor's own header declares it, which may be included before or after this one. */
typedef struct CUstream_st *cudaStream_t;

/** Creates a handle for a stream, as CudaQueueCreate does. */
XResult CorexQueueCreate(HwQueueHandle *hwq, cudaStream_t stream);

/** Returns the handle that was created for a stream. */
XResult CorexQueueGet(HwQueueHandle *hwq, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
