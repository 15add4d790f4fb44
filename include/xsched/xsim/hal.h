/*
 * XSched for the simulated device.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_XSIM_HAL_H
#define XSCHED_XSIM_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC system_header
#endif
/* As the vendor's own header declares it, which may be included before or after this one. */
typedef struct xsim_queue *xsim_queue_t;

/** Creates a handle for a queue of the simulated device. The queue has to outlive the handle. */
XResult XsimQueueCreate(HwQueueHandle *hwq, xsim_queue_t queue);

#ifdef __cplusplus
}
#endif

#endif
